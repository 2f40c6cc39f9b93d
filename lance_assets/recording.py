"""Putting a version on the ledger, once as a user sees it.

Dagster delivers at least once, and a run and the sensor may both come along, so every recording looks first. The order
is commit, partition key, event: an event before its key would be a partition that no page lists, a key before its
commit one that names no version. Which versions there are to record is decided by `writes.py` and `discovery.py`.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

import dagster as dg

from lance_assets.ledger import Ledger
from lance_assets.metadata import VersionFacts, metadata_of, tags_of
from lance_assets.partitions import partition_key, version_of

_DATA_VERSION = "dagster/data_version"


class Standing(Enum):
    """How a version stands on the ledger."""

    MISSING = "missing"
    RECORDED = "recorded"
    TAKEN = "taken"
    """Its partition holds the version of the same number of another table, which was at this place before."""


def recorded(instance: dg.DagsterInstance, ledger: Ledger, versions: Iterable[int]) -> Mapping[int, str]:
    """Of these versions, those on the ledger, with the data version that is noted there."""
    keys = [partition_key(version) for version in versions]
    if not keys:
        return {}
    wanted = dg.AssetRecordsFilter(asset_key=ledger.key, asset_partitions=keys)
    found: dict[int, str] = {}
    cursor = None
    while True:
        page = instance.fetch_materializations(wanted, limit=2 * len(keys), cursor=cursor)
        for record in page.records:
            event = record.asset_materialization
            if event is not None and event.partition is not None:
                found.setdefault(version_of(event.partition), (event.tags or {}).get(_DATA_VERSION, ""))
        if not page.has_more or len(found) == len(keys):
            return found
        cursor = page.cursor


def standing(facts: VersionFacts, known: Mapping[int, str]) -> Standing:
    noted = known.get(facts.version)
    if noted is None:
        return Standing.MISSING
    # Without a data version it was reported by hand, by somebody who saw the version.
    return Standing.RECORDED if noted in ("", facts.data_version) else Standing.TAKEN


def materialization(ledger: Ledger, facts: VersionFacts, *, run_is_known: bool) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        asset_key=ledger.key,
        partition=partition_key(facts.version),
        description=_sentence(facts),
        metadata=metadata_of(facts, run_is_known=run_is_known),
        tags=tags_of(facts, run_is_known=run_is_known),
    )


def add_partitions(instance: dg.DagsterInstance, ledger: Ledger, versions: Iterable[int]) -> None:
    instance.add_dynamic_partitions(ledger.partition_set, [partition_key(version) for version in versions])


def record_in_run(context: dg.AssetExecutionContext, ledger: Ledger, facts: VersionFacts) -> Standing:
    """Record the version that this run made, or found landed; answers how it stood before."""
    instance = context.instance
    found = standing(facts, recorded(instance, ledger, [facts.version]))
    if found is Standing.TAKEN:
        context.log.warning(taken_message(ledger, facts.version))
        return found
    add_partitions(instance, ledger, [facts.version])
    if found is Standing.MISSING:
        known = facts.run_id is not None and instance.has_run(facts.run_id)
        context.log_event(materialization(ledger, facts, run_is_known=known))
    instance.add_run_tags(context.run.run_id, {ledger.run_tag: partition_key(facts.version)})
    return found


def taken_message(ledger: Ledger, version: int) -> str:
    return (
        f"version {version} of {ledger.label} was not recorded: its partition {partition_key(version)} holds a version "
        f"of another table, which was at {ledger.shown_uri} before. To start afresh wipe the materializations of the "
        f"asset {ledger.label}, delete its partitions, and reset the cursor of its sensor"
    )


def _sentence(facts: VersionFacts) -> str:
    added = f", {facts.rows_added} rows added" if facts.rows_added else ""
    removed = f", {facts.rows_removed} removed" if facts.rows_removed else ""
    return f"version {facts.version}: {facts.operation}{added}{removed}"
