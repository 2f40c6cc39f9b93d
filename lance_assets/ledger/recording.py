"""Putting a version on the ledger, once as a user sees it.

Dagster delivers at least once, and a run and the sensor may both come along, so every recording looks first, claims the
version (`recording_claims.py`), and looks again. The order is commit, partition key, event: an event before its key
would be a partition that no page lists, a key before its commit one that names no version. Which versions there are to
record is decided by `lance_core/commit/write_protocol.py` and `discovery/sensor.py`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

import dagster as dg

from lance_assets.ledger.dynamic_partitions import register_partition_keys
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.partition_keys import is_version_key
from lance_assets.ledger.recording_claims import claim_partitions, release_claims, wait_for_others
from lance_assets.ledger.version_budget import growth_warning, retention_advice
from lance_assets.ledger.version_metadata import VersionFacts, metadata_of, tags_of

_DATA_VERSION = "dagster/data_version"
_PARTITIONS_PER_QUERY = 500


class RecordingState(Enum):
    """How a version stands on the ledger."""

    MISSING = "missing"
    RECORDED = "recorded"
    TAKEN = "taken"
    """Its partition holds another version of the same number and the same table."""


def recorded_data_versions(
    instance: dg.DagsterInstance, ledger: Ledger, partitions: Collection[str]
) -> Mapping[str, str]:
    """Of these partitions, those on the ledger, with the data version that is noted there."""
    wanted, found = list(partitions), dict[str, str]()
    for start in range(0, len(wanted), _PARTITIONS_PER_QUERY):
        found |= _query_data_versions(instance, ledger, wanted[start : start + _PARTITIONS_PER_QUERY])
    return found


def _query_data_versions(instance: dg.DagsterInstance, ledger: Ledger, partitions: Sequence[str]) -> dict[str, str]:
    wanted = dg.AssetRecordsFilter(asset_key=ledger.key, asset_partitions=partitions)
    found: dict[str, str] = {}
    cursor = None
    while True:
        page = instance.fetch_materializations(wanted, limit=2 * len(partitions), cursor=cursor)
        for record in page.records:
            event = record.asset_materialization
            if event is not None and event.partition is not None:
                found.setdefault(event.partition, (event.tags or {}).get(_DATA_VERSION, ""))
        if not page.has_more or len(found) == len(partitions):
            return found
        cursor = page.cursor


def recording_state(facts: VersionFacts, recorded: Mapping[str, str]) -> RecordingState:
    noted = recorded.get(facts.partition)
    if noted is None:
        return RecordingState.MISSING
    # Without a data version it was reported by hand, by somebody who saw the version.
    return RecordingState.RECORDED if noted in ("", facts.data_version) else RecordingState.TAKEN


def build_materialization(
    instance: dg.DagsterInstance, ledger: Ledger, facts: VersionFacts, *, retained: int = 0
) -> dg.AssetMaterialization:
    """`retained` is how many versions the ledger has with this one."""
    known = facts.run_id is not None and instance.has_run(facts.run_id)
    metadata = metadata_of(facts, run_is_known=known)
    if said := retention_advice(ledger, retained):
        metadata |= {"lance/retained": dg.MetadataValue.int(retained), "lance/advice": dg.MetadataValue.text(said)}
    return dg.AssetMaterialization(
        asset_key=ledger.key,
        partition=facts.partition,
        description=_describe(facts),
        metadata=metadata,
        tags=tags_of(facts, run_is_known=known),
    )


def add_partitions(instance: dg.DagsterInstance, ledger: Ledger, partitions: Iterable[str]) -> None:
    register_partition_keys(instance, ledger.partition_set, list(partitions))


def record_in_run(context: dg.AssetExecutionContext, ledger: Ledger, facts: VersionFacts) -> RecordingState:
    """Record the version that this run made, or found landed; answers how it stood before."""
    instance, key, run_id = context.instance, facts.partition, context.run.run_id
    found = recording_state(facts, recorded_data_versions(instance, ledger, [key]))
    if found is RecordingState.TAKEN:
        context.log.warning(already_recorded_message(ledger, key))
        return found
    add_partitions(instance, ledger, [key])
    if found is RecordingState.MISSING:
        retained = sum(map(is_version_key, instance.get_dynamic_partitions(ledger.partition_set)))
        if said := growth_warning(ledger, retained - 1, retained):
            context.log.warning(said)
        claimed = claim_partitions(instance, ledger, [key], run_id)
        if claimed.contested:
            wait_for_others(instance, ledger, key, run_id)
        if claimed.held:
            # Whoever held the claim before has recorded it in the meantime, or never will.
            if recording_state(facts, recorded_data_versions(instance, ledger, [key])) is RecordingState.MISSING:
                context.log_event(build_materialization(instance, ledger, facts, retained=retained))
        else:
            context.log.info(f"{ledger.label}: partition {key} is being recorded by another run, or by the sensor")
        release_claims(instance, ledger, run_id, [key])
    instance.add_run_tags(run_id, {ledger.run_tag: key})
    return found


def already_recorded_message(ledger: Ledger, partition: str) -> str:
    return (
        f"{ledger.label}: a version was not recorded, since its partition {partition} holds another version of this "
        f"number. The table at {ledger.shown_uri} was put back to an older state and written since, or replaced by one "
        f"that nobody can tell from it. To record it afresh wipe the materializations of the asset {ledger.label}, "
        "delete this partition, and reset the cursor of its sensor"
    )


def _describe(facts: VersionFacts) -> str:
    added = f", {facts.rows_added} rows added" if facts.rows_added else ""
    removed = f", {facts.rows_removed} removed" if facts.rows_removed else ""
    return f"version {facts.version}: {facts.operation}{added}{removed}"
