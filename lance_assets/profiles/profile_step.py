"""Profile asset `<table>_profile`: materializing a partition computes the statistics of its version.

A backfill covers ranges of keys in the order in which versions were recorded, and a cleanup may have removed some of
these versions. Each key is therefore looked up separately, and a key without a version does not prevent the others
from being profiled.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Literal

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import EvaluatedCheck, context_at, evaluate_all, evaluation_event
from lance_assets.common.code_location import CodeLocation, code_reference, locate_at
from lance_assets.failures.error_translation import translate_errors
from lance_assets.ledger.dynamic_partitions import incarnation_of
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
"""Changed when the statistics change, so that Dagster shows older profiles as outdated."""


def profile_key(ledger: Ledger) -> dg.AssetKey:
    return dg.AssetKey([*ledger.key.path[:-1], f"{ledger.key.path[-1]}_profile"])


def profile_asset(
    ledger: Ledger,
    settings: Profile,
    *,
    group: str,
    checks: Sequence[Check] = (),
    automation: Automation | None = None,
    declared_at: CodeLocation | None = None,
) -> dg.AssetsDefinition:
    """Return the profile asset of a ledger. `checks` are evaluated on versions that no run of this Dagster instance
    made. `declared_at` is the location of the declaration of the table."""

    @dg.op(
        name=f"lance_profile__{ledger.slug}",
        ins={_LEDGER: dg.In(dg.Nothing)},
        out={_PROFILE: dg.Out(dg.Nothing)},
        code_version=_CODE_VERSION,
    )
    @locate_at(declared_at)
    def profile(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None] | dg.AssetMaterialization]:
        with translate_errors(ledger, retry_number=context.retry_number):
            yield from _profile_partitions(context, ledger, settings, checks)

    description = f"Statistics of each version of the Lance table {ledger.label}. It writes nothing to the table."
    condition = dg.AutomationCondition.on_missing() if automation else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        # `from_op` allows a fixed name for the input. @asset would name it after the ledger's key, and the key of a
        # branch's ledger contains `@`, which is not allowed in names.
        return dg.AssetsDefinition.from_op(
            profile,
            keys_by_input_name={_LEDGER: ledger.key},
            keys_by_output_name={_PROFILE: profile_key(ledger)},
            partitions_def=ledger.partitions,
            group_name=group,
            metadata_by_output_name={_PROFILE: dict(code_reference(declared_at))},
            descriptions_by_output_name={_PROFILE: description},
            tags_by_output_name={_PROFILE: {"dagster/kind/lance": ""}},
            automation_conditions_by_output_name={_PROFILE: condition} if condition else None,
            backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=settings.versions_per_run),
        )


def _profile_partitions(
    context: dg.AssetExecutionContext, ledger: Ledger, settings: Profile, checks: Sequence[Check]
) -> Iterator[dg.MaterializeResult[None] | dg.AssetMaterialization]:
    key = profile_key(ledger)
    if not (context.has_partition_key or context.has_partition_key_range):
        raise InvalidInput(f"{key.to_user_string()} needs partitions: select the versions to profile")
    head = ledger.open()
    versions = VersionLookup.of(ledger, head, incarnation_of(context.instance, ledger, ledger.identity_of(head)))
    profiled: dict[str, Metadata] = {}
    failed: dict[str, str] = {}
    for partition in context.partition_keys:
        try:
            table = versions.open_partition(partition)
            metadata = metadata_of(profile_version(table, settings), pictures=settings.pictures)
        except StorageError:
            raise
        except LanceError as error:
            failed[partition] = str(error)
            context.log.warning(f"{ledger.label}: {partition} is not profiled: {error}")
            continue
        evaluated = _evaluate_if_foreign(
            context, ledger, checks, table, partition, is_head=table.version == head.version
        )
        profiled[partition] = {**metadata, **metadata_of_checks(evaluated)}
    if failed:
        # A result would materialize every partition of the run. Separate events leave the failed partitions missing.
        for partition, metadata in profiled.items():
            yield dg.AssetMaterialization(asset_key=key, partition=partition, metadata=metadata)
        raise _failure(ledger, failed, len(profiled))
    for partition, metadata in profiled.items():
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
    """Evaluate the checks on a version that no run of this Dagster instance made; the others were checked when they
    were made.

    The results are also reported to Dagster if the version is the newest one: those of an old version would appear as
    the state of the table.
    """
    transaction = table.transaction() if checks else None
    run_id = transaction.properties.get(RUN_ID) if transaction else None
    if not checks or (run_id and context.instance.has_run(run_id)):
        return []
    evaluated = evaluate_all(checks, context_at(table, instance=context.instance, is_head=is_head))
    if is_head:
        for each in evaluated:
            context.log_event(evaluation_event(ledger, each, partition))
    return evaluated


def _failure(ledger: Ledger, failed: dict[str, str], profiled_count: int) -> dg.Failure:
    first = next(iter(failed.values()))
    others = list(failed)[1:]
    rest = f" {len(others)} more partitions failed: {', '.join(others[:_SHOWN_MAX])}." if others else ""
    succeeded = f" {profiled_count} other versions of this run were profiled." if profiled_count else ""
    return dg.Failure(
        description=f"{ledger.label}: {first}.{rest}{succeeded}",
        metadata={
            "lance/table": ledger.label,
            "dagster/uri": ledger.shown_uri,
            "lance/not_profiled": dg.MetadataValue.json(failed),
        },
        allow_retries=False,
    )
