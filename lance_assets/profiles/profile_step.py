"""The asset `<table>_profile`: to materialize a partition of it is to compute figures of the version it names.

A backfill runs over ranges of keys, which are in the order in which versions were recorded, with gaps where cleanup
was; so each key is looked at by itself, and one that names no version keeps no other from being profiled.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Literal

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import EvaluatedCheck, context_at, evaluate_all, evaluation_event
from lance_assets.failures.error_translation import translate_errors
from lance_assets.ledger.incarnations import incarnation_of
from lance_assets.ledger.ledger import Ledger
from lance_assets.profiles.partition_lookup import VersionLookup
from lance_assets.profiles.profile import Profile, profile_version
from lance_assets.profiles.profile_metadata import Metadata, metadata_of, metadata_of_checks
from lance_assets.provenance.properties import RUN_ID
from lance_core import InvalidInput, LanceError, StorageError, Table

Automation = Literal["on_missing"]
_SHOWN_MAX = 20
_LEDGER, _PROFILE = "ledger", "profile"
_CODE_VERSION = "1"
"""Another one says that profiles which were computed before are not what this code would compute."""


def profile_key(ledger: Ledger) -> dg.AssetKey:
    return dg.AssetKey([*ledger.key.path[:-1], f"{ledger.key.path[-1]}_profile"])


def profile_asset(
    ledger: Ledger,
    how: Profile,
    *,
    group: str,
    checks: Sequence[Check] = (),
    automation: Automation | None = None,
) -> dg.AssetsDefinition:
    @dg.op(
        name=f"lance_profile__{ledger.slug}",
        ins={_LEDGER: dg.In(dg.Nothing)},
        out={_PROFILE: dg.Out(dg.Nothing)},
        code_version=_CODE_VERSION,
    )
    def profile(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None] | dg.AssetMaterialization]:
        with translate_errors(ledger, retry_number=context.retry_number):
            yield from _profile_partitions(context, ledger, how, checks)

    about = f"Figures of each version of the Lance table {ledger.label}; it writes nothing to the table."
    condition = dg.AutomationCondition.on_missing() if automation else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        # Made of an op, whose input is named here: @asset would name it after the ledger's key, and a branch's has a
        # sign that names may not have.
        return dg.AssetsDefinition.from_op(
            profile,
            keys_by_input_name={_LEDGER: ledger.key},
            keys_by_output_name={_PROFILE: profile_key(ledger)},
            partitions_def=ledger.partitions,
            group_name=group,
            descriptions_by_output_name={_PROFILE: about},
            tags_by_output_name={_PROFILE: {"dagster/kind/lance": ""}},
            automation_conditions_by_output_name={_PROFILE: condition} if condition else None,
            backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=how.versions_per_run),
        )


def _profile_partitions(
    context: dg.AssetExecutionContext, ledger: Ledger, how: Profile, checks: Sequence[Check]
) -> Iterator[dg.MaterializeResult[None] | dg.AssetMaterialization]:
    key = profile_key(ledger)
    if not (context.has_partition_key or context.has_partition_key_range):
        raise InvalidInput(f"{key.to_user_string()} profiles versions, and this run names none; choose its partitions")
    head = ledger.open()
    versions = VersionLookup.of(ledger, head, incarnation_of(context.instance, ledger, ledger.identity_of(head)))
    done: dict[str, Metadata] = {}
    wrong: dict[str, str] = {}
    for partition in context.partition_keys:
        try:
            table = versions.open_partition(partition)
            found = metadata_of(profile_version(table, how), pictures=how.pictures)
        except StorageError:
            raise
        except LanceError as error:
            wrong[partition] = str(error)
            context.log.warning(f"{ledger.label}: {partition} is not profiled: {error}")
            continue
        judged = _evaluate_if_foreign(context, ledger, checks, table, partition, is_head=table.version == head.version)
        done[partition] = {**found, **metadata_of_checks(judged)}
    if wrong:
        # A result would mark every partition of the run. So these are told one by one, and the others are missing.
        for partition, metadata in done.items():
            yield dg.AssetMaterialization(asset_key=key, partition=partition, metadata=metadata)
        raise _failure(ledger, wrong, len(done))
    for partition, metadata in done.items():
        context.add_asset_metadata(metadata, asset_key=key, partition_key=partition)
    yield dg.MaterializeResult(asset_key=key)


def _evaluate_if_foreign(
    context: dg.AssetExecutionContext,
    ledger: Ledger,
    checks: Sequence[Check],
    table: Table,
    partition: str,
    *,
    is_head: bool,
) -> list[EvaluatedCheck]:
    """Of versions that were made here the checks were asked when they were made. Of the others all are asked now; and
    where it is the newest version, Dagster is told too: the result of an old one would stand as the table's own."""
    made_by = table.transaction() if checks else None
    run_id = made_by.properties.get(RUN_ID) if made_by else None
    if not checks or (run_id and context.instance.has_run(run_id)):
        return []
    judged = evaluate_all(checks, context_at(table, instance=context.instance, is_head=is_head))
    if is_head:
        for each in judged:
            context.log_event(evaluation_event(ledger, each, partition))
    return judged


def _failure(ledger: Ledger, wrong: dict[str, str], profiled_count: int) -> dg.Failure:
    first = next(iter(wrong.values()))
    others = list(wrong)[1:]
    rest = f" The same goes for {len(others)} more: {', '.join(others[:_SHOWN_MAX])}." if others else ""
    went_well = f" {profiled_count} other versions of this run were profiled." if profiled_count else ""
    return dg.Failure(
        description=f"{ledger.label}: {first}.{rest}{went_well}",
        metadata={
            "lance/table": ledger.label,
            "dagster/uri": ledger.shown_uri,
            "lance/not_profiled": dg.MetadataValue.json(wrong),
        },
        allow_retries=False,
    )
