"""Maintenance actions that one table and a fleet share: survey, cleanup, retiring partitions, recording versions."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import evaluate_in_run
from lance_assets.ledger.dynamic_partitions import incarnation_of
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.partition_keys import is_version_key, partition_key
from lance_assets.ledger.recording import record_in_run
from lance_assets.ledger.version_metadata import discovered_facts
from lance_assets.maintenance.policy import Maintenance
from lance_assets.provenance.properties import RUN_ID
from lance_core import CleanupReport, Survey, Table
from lance_core.progress import ProgressArgument

INDEX_INTENT_SUFFIX = " of its indices"
"""Suffix of the intent for index maintenance, which distinguishes it from the compaction of the same run."""


def survey_table(table: Table, policy: Maintenance, now: datetime) -> Survey:
    return table.survey(
        target_rows=policy.target_rows,
        small_rows=policy.small_rows,
        older_than=policy.keep_for,
        keep=policy.keep_versions,
        now=now,
    )


def clean_up(
    table: Table, policy: Maintenance, pins: Mapping[int, str], progress: ProgressArgument = False
) -> CleanupReport:
    """Remove expired versions and orphan files. Versions newer than `table` are always retained."""
    return table.cleanup(
        older_than=policy.keep_for,
        keep=policy.keep_versions,
        orphan_grace=policy.orphan_grace,
        protected=pins,
        progress=progress,
    )


def retire_partitions(instance: dg.DagsterInstance, ledger: Ledger, table: Table) -> int:
    """Delete the partitions of versions that no longer exist, and return their number. The sensor does the same at
    its ticks."""
    keys = set(instance.get_dynamic_partitions(ledger.partition_set))
    incarnation = incarnation_of(instance, ledger, ledger.identity_of(table))
    existing = {partition_key(number, incarnation) for number in table.version_numbers()}
    retired = sorted(key for key in keys - existing if is_version_key(key))
    for key in retired:
        instance.delete_dynamic_partition(ledger.partition_set, key)
    return len(retired)


def record_versions_of_run(
    context: dg.AssetExecutionContext, ledger: Ledger, checks: Sequence[Check], table: Table, since: int
) -> None:
    """Record the versions after `since` that this run committed. Maintenance leaves the rows unchanged, so only
    checks that read no rows are evaluated."""
    incarnation = incarnation_of(context.instance, ledger, ledger.identity_of(table))
    manifest_checks = [check for check in checks if not check.reads_data]
    for info in table.versions(since=since):
        if info.properties.get(RUN_ID) == context.run.run_id:
            table_at = table.at(info.version)
            facts = discovered_facts(table_at, info, incarnation)
            for earlier, table_then in record_in_run(context, ledger, facts, table_at).earlier:
                evaluate_in_run(context, ledger, manifest_checks, table_then, earlier.partition)
            evaluate_in_run(context, ledger, manifest_checks, table_at, facts.partition)
