"""Maintenance asset of a table: compacts, maintains indices if due, and cleans up if the policy has a retention.

Compaction and index maintenance commit versions, through the step that all writes share. A compaction may leave moved
rows uncovered, so index maintenance is replanned after it. A cleanup commits no version: it removes expired versions
and retires their partitions in the same run. The metadata has numbers of each action, which Dagster plots.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.common.code_location import CodeLocation, code_reference, locate_at
from lance_assets.failures.error_translation import translate_errors
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.version_metadata import Metadata
from lance_assets.maintenance.downstream_pins import pins_from_ledgers, pins_of_table
from lance_assets.maintenance.maintenance_actions import INDEX_INTENT_SUFFIX, clean_up, retire_partitions, survey_table
from lance_assets.maintenance.plan import describe_shape, plan_maintenance
from lance_assets.maintenance.policy import Maintenance
from lance_assets.provenance.run_provenance import logical_run_id
from lance_assets.resources.spark import SPARK_RESOURCE_KEY
from lance_assets.writes import SparkCompact, SparkOptimizeIndices
from lance_assets.writes.write_step import write_in_step
from lance_core import CleanupReport, NotFound, Survey
from lance_core.progress import log_reports

_KEPT_MAX = 100


def maintenance_key(ledger: Ledger) -> dg.AssetKey:
    return dg.AssetKey([*ledger.prefix, f"{ledger.name}_maintenance"])


def maintenance_asset(
    ledger: Ledger,
    policy: Maintenance,
    *,
    group: str,
    checks: Sequence[Check] = (),
    declared_at: CodeLocation | None = None,
) -> dg.AssetsDefinition:
    """Return the maintenance asset of a table. `checks` are those of the table, evaluated on its compactions too.
    `declared_at` is the location of its declaration."""

    @dg.asset(
        key=maintenance_key(ledger),
        group_name=group,
        kinds={"spark", "lance"},
        description=(
            f"Compacts the Lance table {ledger.label} and maintains its indices if due, and cleans it up if its policy "
            "has a retention."
        ),
        required_resource_keys={SPARK_RESOURCE_KEY},
        pool=ledger.pool,
        metadata=code_reference(declared_at),
    )
    @locate_at(declared_at)
    def asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        with translate_errors(ledger, retry_number=context.retry_number):
            return _maintain(context, ledger, policy, checks)

    return asset


def _maintain(
    context: dg.AssetExecutionContext, ledger: Ledger, policy: Maintenance, checks: Sequence[Check]
) -> dg.MaterializeResult[None]:
    now = datetime.now(UTC)
    try:
        table = ledger.open()
    except NotFound as error:
        context.log.info(f"{ledger.label}: nothing to maintain: {error}")
        return dg.MaterializeResult(metadata={"lance/found": dg.MetadataValue.text(str(error))})
    before = survey_table(table, policy, now)
    due = plan_maintenance(before, policy)
    if due.clean:
        due = plan_maintenance(
            before, policy, pinned=pins_of_table(table, policy, pins_from_ledgers(context.instance)).keys()
        )
    context.log.info(f"{ledger.label}: {'; '.join(due.reasons) or describe_shape(before)}")
    result = dg.MaterializeResult[None](metadata={})
    # A retry also finds and records the version that the failed attempt committed.
    if due.compact or (policy.compacts and _is_retry(context)):
        compaction = SparkCompact(maintenance_key(ledger).path[-1], policy.target_rows)
        result = write_in_step(context, ledger, compaction, checks)
        # A table without indices needs no second survey.
        compacted = survey_table(ledger.open(), policy, now) if before.indices else before
        due = replace(due, index=plan_maintenance(compacted, policy).index)
    if due.index or (policy.indexes and before.indices and _is_retry(context)):
        context.log.info(f"{ledger.label}: {'; '.join(due.index) or 'indices'}")
        optimization = SparkOptimizeIndices(maintenance_key(ledger).path[-1])
        optimized = write_in_step(context, ledger, optimization, checks, intent_suffix=INDEX_INTENT_SUFFIX)
        if optimized.data_version is not None:
            result = dg.MaterializeResult(
                metadata={**(result.metadata or {}), **(optimized.metadata or {})}, data_version=optimized.data_version
            )
    metadata: Metadata = {}
    table = ledger.open()
    # Each run cleans up, even if nothing is due: no plan covers orphan files and partitions to retire.
    if policy.cleans:
        pins = pins_of_table(table, policy, pins_from_ledgers(context.instance))
        report = clean_up(table, policy, pins, log_reports(context.log.info))
        metadata |= _cleanup_metadata(report) | {
            "lance/partitions_retired": dg.MetadataValue.int(retire_partitions(context.instance, ledger, table))
        }
    metadata |= _survey_metadata(before, survey_table(table, policy, now)) | {
        "lance/due": dg.MetadataValue.md("\n".join(f"- {reason}" for reason in due.reasons) or describe_shape(before))
    }
    return dg.MaterializeResult(metadata={**(result.metadata or {}), **metadata}, data_version=result.data_version)


def _is_retry(context: dg.AssetExecutionContext) -> bool:
    """Return whether this step continues a failed attempt: a retried step, or a re-executed run."""
    return context.retry_number > 0 or logical_run_id(context.instance, context.run) != context.run.run_id


def _survey_metadata(before: Survey, after: Survey) -> Metadata:
    value = dg.MetadataValue.int
    return {
        "lance/fragments_before": value(before.fragments),
        "lance/fragments_after": value(after.fragments),
        "lance/files_before": value(before.files),
        "lance/files_after": value(after.files),
        "lance/bytes_before": value(before.bytes),
        "lance/bytes_after": value(after.bytes),
        "lance/deleted_rows_before": value(before.deleted_rows),
        "lance/deleted_rows_after": value(after.deleted_rows),
        **(
            _index_metadata(before, "before") | _index_metadata(after, "after")
            if before.indices or after.indices
            else {}
        ),
    }


def _index_metadata(survey: Survey, when: str) -> Metadata:
    """Return sums over all indices."""
    value = dg.MetadataValue.int
    return {
        f"lance/index_rows_uncovered_{when}": value(sum(index.uncovered_rows for index in survey.indices)),
        f"lance/index_segments_{when}": value(sum(index.segments for index in survey.indices)),
    }


def _cleanup_metadata(report: CleanupReport) -> Metadata:
    value = dg.MetadataValue
    retained = {str(version): list(reasons) for version, reasons in list(report.kept.items())[:_KEPT_MAX]}
    return {
        "lance/versions_removed": value.int(len(report.versions)),
        "lance/files_removed": value.int(len(report.files)),
        "lance/orphans_removed": value.int(len(report.orphans)),
        "lance/bytes_removed": value.int(report.bytes),
        "lance/versions_kept": value.json(retained),
    }
