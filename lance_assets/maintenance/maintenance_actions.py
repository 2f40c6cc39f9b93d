"""The steps of an upkeep that one table and a fleet have in common: looking, cleaning, retiring, recording."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import evaluate_in_run
from lance_assets.ledger.incarnations import incarnation_of
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.partition_keys import is_version_key, partition_key
from lance_assets.ledger.recording import record_in_run
from lance_assets.ledger.version_metadata import discovered_facts
from lance_assets.maintenance.policy import Maintenance
from lance_assets.provenance.properties import RUN_ID
from lance_core import CleanupReport, Survey, Table

INDEX_INTENT_SUFFIX = " of its indices"
"""What the intention of an upkeep of indices ends with, beside that of the compaction in the same run."""


def survey_table(table: Table, policy: Maintenance, now: datetime) -> Survey:
    return table.survey(
        target_rows=policy.target_rows,
        small_rows=policy.small_rows,
        older_than=policy.keep_for,
        keep=policy.keep_versions,
        now=now,
    )


def clean_up(table: Table, policy: Maintenance, pins: Mapping[int, str]) -> CleanupReport:
    """With leftovers of writes that were given up. Versions that came since `table` was opened stay in any case."""
    return table.cleanup(
        older_than=policy.keep_for, keep=policy.keep_versions, orphan_grace=policy.orphan_grace, protected=pins
    )


def retire_partitions(instance: dg.DagsterInstance, ledger: Ledger, table: Table) -> int:
    """Partitions of versions that are gone, as the sensor does it by and by."""
    keys = set(instance.get_dynamic_partitions(ledger.partition_set))
    epoch = incarnation_of(instance, ledger, ledger.identity_of(table))
    there = {partition_key(number, epoch) for number in table.version_numbers()}
    gone = sorted(key for key in keys - there if is_version_key(key))
    for key in gone:
        instance.delete_dynamic_partition(ledger.partition_set, key)
    return len(gone)


def record_versions_of_run(
    context: dg.AssetExecutionContext, ledger: Ledger, checks: Sequence[Check], table: Table, since: int
) -> None:
    """The versions after `since` that this run has made. No rows are read for a check of one: they are as they were."""
    epoch = incarnation_of(context.instance, ledger, ledger.identity_of(table))
    cheap = [check for check in checks if not check.reads_data]
    for info in table.versions(since=since):
        if info.properties.get(RUN_ID) == context.run.run_id:
            made = table.at(info.version)
            facts = discovered_facts(made, info, epoch)
            record_in_run(context, ledger, facts)
            evaluate_in_run(context, ledger, cheap, made, facts.partition)
