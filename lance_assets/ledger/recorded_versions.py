"""Recorded versions: reads from Dagster's event storage which versions are on the ledger.

Versions are recorded in order (`002-version-order.md`), so the latest event shows up to which version the ledger is
complete. This module stores nothing; `recording.py` does.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum

import dagster as dg

from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.version_metadata import VersionFacts

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
    """Return the data version of the newest event of each of these partitions, by partition.

    It is empty for an event without a data version. Partitions without an event are left out."""
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


def latest_partition(instance: dg.DagsterInstance, ledger: Ledger) -> str | None:
    """Return the partition of the latest event, which Dagster shows as the state of the asset."""
    records = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=ledger.key), limit=1).records
    event = records[0].asset_materialization if records else None
    return event.partition if event else None
