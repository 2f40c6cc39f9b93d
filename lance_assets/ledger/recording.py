"""Recording: stores a version on the ledger as one materialization event, although Dagster delivers at least once.

A run and the sensor may both find a version. Every recorder therefore reads the ledger, claims the version
(`recording_claims.py`), and reads the ledger again. The order is commit, partition key, event: an event before its key
would be a partition that no page lists, and a key before its commit would name no version. This module does not choose
the versions: runs record their own (`record_in_run`), and `discovery/sensor.py` finds those of other writers.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

import dagster as dg

from lance_assets.common.text import format_action, is_foreign
from lance_assets.ledger.dynamic_partitions import register_partition_keys
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.partition_keys import is_version_key
from lance_assets.ledger.recording_claims import claim_partitions, release_claims, wait_for_others
from lance_assets.ledger.version_budget import growth_warning, retention_advice
from lance_assets.ledger.version_metadata import VersionFacts, metadata_of, tags_of

_DATA_VERSION = "dagster/data_version"
_PARTITIONS_PER_QUERY = 500


class RecordingState(Enum):
    """State of a version on the ledger."""

    MISSING = "missing"
    RECORDED = "recorded"
    TAKEN = "taken"
    """The partition holds another version of the same table with the same number."""


def recorded_data_versions(
    instance: dg.DagsterInstance, ledger: Ledger, partitions: Collection[str]
) -> Mapping[str, str]:
    """Return the data version of the newest event of each of these partitions, unless it has none."""
    keys, data_versions = list(partitions), dict[str, str]()
    for start in range(0, len(keys), _PARTITIONS_PER_QUERY):
        data_versions |= _query_data_versions(instance, ledger, keys[start : start + _PARTITIONS_PER_QUERY])
    return data_versions


def _query_data_versions(instance: dg.DagsterInstance, ledger: Ledger, partitions: Sequence[str]) -> dict[str, str]:
    records_filter = dg.AssetRecordsFilter(asset_key=ledger.key, asset_partitions=partitions)
    data_versions: dict[str, str] = {}
    cursor = None
    while True:
        page = instance.fetch_materializations(records_filter, limit=2 * len(partitions), cursor=cursor)
        for record in page.records:
            event = record.asset_materialization
            if event is not None and event.partition is not None:
                data_versions.setdefault(event.partition, (event.tags or {}).get(_DATA_VERSION, ""))
        if not page.has_more or len(data_versions) == len(partitions):
            return data_versions
        cursor = page.cursor


def recording_state(facts: VersionFacts, recorded: Mapping[str, str]) -> RecordingState:
    """Return the state of a version, given the data versions of the recorded partitions."""
    data_version = recorded.get(facts.partition)
    if data_version is None:
        return RecordingState.MISSING
    # An event without a data version was reported manually, by a user who saw the version.
    return RecordingState.RECORDED if data_version in ("", facts.data_version) else RecordingState.TAKEN


def build_materialization(
    instance: dg.DagsterInstance, ledger: Ledger, facts: VersionFacts, *, retained: int = 0
) -> dg.AssetMaterialization:
    """Return the event of a version. `retained` is the number of versions on the ledger, this one included."""
    run_is_known = facts.run_id is not None and instance.has_run(facts.run_id)
    metadata = metadata_of(facts, run_is_known=run_is_known)
    if advice := retention_advice(ledger, retained):
        metadata |= {"lance/retained": dg.MetadataValue.int(retained), "lance/advice": dg.MetadataValue.text(advice)}
    return dg.AssetMaterialization(
        asset_key=ledger.key,
        partition=facts.partition,
        description=_describe(facts),
        metadata=metadata,
        tags=tags_of(facts, run_is_known=run_is_known),
    )


def add_partitions(instance: dg.DagsterInstance, ledger: Ledger, partitions: Iterable[str]) -> None:
    register_partition_keys(instance, ledger.partition_set, list(partitions))


def record_in_run(context: dg.AssetExecutionContext, ledger: Ledger, facts: VersionFacts) -> RecordingState:
    """Record the version that this run committed, or found already committed; return its state before the call."""
    instance, key, run_id = context.instance, facts.partition, context.run.run_id
    state = recording_state(facts, recorded_data_versions(instance, ledger, [key]))
    if state is RecordingState.TAKEN:
        context.log.warning(already_recorded_message(ledger, key))
        return state
    add_partitions(instance, ledger, [key])
    if state is RecordingState.MISSING:
        retained = sum(map(is_version_key, instance.get_dynamic_partitions(ledger.partition_set)))
        if message := growth_warning(ledger, retained - 1, retained):
            context.log.warning(message)
        claims = claim_partitions(instance, ledger, [key], run_id)
        if claims.contested:
            wait_for_others(instance, ledger, key, run_id)
        if claims.held:
            # The previous holder of the claim has recorded the version meanwhile, or never will.
            if recording_state(facts, recorded_data_versions(instance, ledger, [key])) is RecordingState.MISSING:
                context.log_event(build_materialization(instance, ledger, facts, retained=retained))
        else:
            context.log.info(f"{ledger.label}: partition {key} is being recorded by another run, or by the sensor")
        release_claims(instance, ledger, run_id, [key])
    instance.add_run_tags(run_id, {ledger.run_tag: key})
    return state


def already_recorded_message(ledger: Ledger, partition: str) -> str:
    return (
        f"{ledger.label}: a version was not recorded: its partition {partition} holds another version of the same "
        f"number. The table at {ledger.shown_uri} was restored to an older state outside of Lance and then written, or "
        "replaced by a table that cannot be told from it. To record it again, wipe the materializations of the "
        f"asset {ledger.label}, delete this partition, and reset the cursor of its sensor"
    )


def _describe(facts: VersionFacts) -> str:
    added = f", {facts.rows_added} rows added" if facts.rows_added else ""
    removed = f", {facts.rows_removed} removed" if facts.rows_removed else ""
    engine = "" if facts.run_id or not is_foreign(facts.writer) else f", by {facts.writer}"
    return f"version {facts.version}: {format_action(facts.action, facts.operation)}{added}{removed}{engine}"
