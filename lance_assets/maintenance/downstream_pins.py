"""Downstream pins: versions that must be retained because versions of other tables were made from them.

Each version on a ledger of this Dagster instance lists its inputs (`lance/inputs`), which stay pinned until its
partition is retired. An asset of the I/O manager lists its inputs in its materializations, and the newest
materialization of each partition counts. Tables that other Dagster instances write are read directly if a policy names
them. The core itself retains the versions that tags, branches and clones reference.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import dagster as dg

from lance_assets.ledger.partition_keys import is_version_key, version_of
from lance_assets.maintenance.policy import Maintenance
from lance_assets.provenance.properties import INPUTS
from lance_assets.resources.lance import LanceResource
from lance_assets.writes.context import TableReference
from lance_core import InvalidInput, LanceError, Table

Pins = Mapping[str, Mapping[int, str]]
"""By the URI of the table that was read: the versions to retain, and the reason for each."""

PAGE_SIZE = 500
_PARTITION_SET_PREFIX = "lance/"
_CACHED_FOR = timedelta(minutes=1)


@dataclass(slots=True)
class PinCache:
    """Cache of the pins of all ledgers, valid for a minute. Each sensor belongs to one table and would otherwise read
    all ledgers at every tick. A run that removes versions does not use this cache."""

    _instance: object = None
    """Dagster instance that the pins come from."""
    _read_at: datetime | None = None
    _pins: Pins = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, context: dg.SensorEvaluationContext, now: datetime) -> Pins:
        with self._lock:  # concurrent callers wait for the first one to read
            instance = context.instance_ref or context.instance
            is_fresh = self._read_at is not None and timedelta(0) <= now - self._read_at < _CACHED_FOR
            if not is_fresh or self._instance != instance:
                self._pins, self._instance, self._read_at = pins_from_ledgers(context.instance), instance, now
            return self._pins


def pins_from_ledgers(instance: dg.DagsterInstance) -> Pins:
    """Return the pins of all ledgers and of all assets of the I/O manager."""
    pins: dict[str, dict[int, str]] = {}
    for key in instance.get_asset_keys():
        label = key.to_user_string()
        retained = [
            each for each in instance.get_dynamic_partitions(f"{_PARTITION_SET_PREFIX}{label}") if is_version_key(each)
        ]
        for partition, inputs in _recorded_inputs(instance, key, retained):
            _add_pins(pins, inputs, f"{label} {version_of(partition)} was made from it")
        for inputs in () if retained else _inputs_without_ledger(instance, key):
            _add_pins(pins, inputs, f"{label} was made from it")
    return pins


def pins_of_table(table: Table, policy: Maintenance, ledgers: Pins) -> Mapping[int, str]:
    """Return the pinned versions of one table: by ledgers, by the policy's `pins`, and by its `downstream` tables."""
    pins: dict[str, dict[int, str]] = {table.uri: {**ledgers.get(table.uri, {}), **policy.pinned}}
    for reference in policy.downstream:
        downstream = _open_downstream(reference)
        for info in downstream.versions():
            if text := info.properties.get(INPUTS):
                _add_pins(pins, text, f"{downstream.uri} {info.version} was made from it")
    return pins[table.uri]


def _open_downstream(reference: TableReference | str) -> Table:
    """Open a downstream table. Failure ends the cleanup, because the versions that the table needs are unknown."""
    uri = reference if isinstance(reference, str) else reference.uri
    try:
        access = LanceResource().access() if isinstance(reference, str) else reference.access()
        return Table.open(uri, **access)
    except LanceError as error:
        raise InvalidInput(
            f"Maintenance: the downstream table {uri} cannot be read, so the versions that it needs are unknown and no "
            f"version is removed: {error}"
        ) from error


def _recorded_inputs(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Sequence[str]
) -> Iterator[tuple[str, object]]:
    """Yield the recorded inputs of these partitions, fetched in pages."""
    for start in range(0, len(partitions), PAGE_SIZE):
        records = dg.AssetRecordsFilter(asset_key=key, asset_partitions=partitions[start : start + PAGE_SIZE])
        cursor, has_more = None, True
        while has_more:
            page = instance.fetch_materializations(records, limit=2 * PAGE_SIZE, cursor=cursor)
            for record in page.records:
                event = record.asset_materialization
                if event and event.partition and "lance/inputs" in event.metadata:
                    yield event.partition, event.metadata["lance/inputs"].value
            cursor, has_more = page.cursor, page.has_more


def _inputs_without_ledger(instance: dg.DagsterInstance, key: dg.AssetKey) -> Iterator[object]:
    """Yield the inputs of an asset of the I/O manager, from the newest materialization of each partition.

    The materializations of write assets are skipped: their inputs are pinned by the ledger, until the versions are
    removed from it.
    """
    for event in _newest_materializations(instance, key):
        if "lance/inputs" in event.metadata and "lance/partition" not in event.metadata:
            yield event.metadata["lance/inputs"].value


def _newest_materializations(instance: dg.DagsterInstance, key: dg.AssetKey) -> Iterator[dg.AssetMaterialization]:
    """Yield the newest materialization of each partition, or of the asset if it has no partitions.

    The newest page of the asset covers most assets. For the others, the pages that follow are those of the partitions
    that have not occurred yet, so partitions that are materialized often are not read again.
    """
    seen: set[str | None] = set()
    page = instance.fetch_materializations(key, limit=PAGE_SIZE)
    yield from _first_of_each_partition(page, seen)
    if not page.has_more:
        return
    missing = sorted(set(instance.get_materialized_partitions(key)) - seen)
    while missing:
        chosen = missing[:PAGE_SIZE]
        records = dg.AssetRecordsFilter(asset_key=key, asset_partitions=chosen)
        page = instance.fetch_materializations(records, limit=PAGE_SIZE)
        yield from _first_of_each_partition(page, seen)
        if not page.has_more:
            seen.update(chosen)  # a partition without events was wiped meanwhile
        missing = [partition for partition in missing if partition not in seen]


def _first_of_each_partition(page: dg.EventRecordsResult, seen: set[str | None]) -> Iterator[dg.AssetMaterialization]:
    """Yield the materializations of a page, newest first, whose partitions are not in `seen`, and add those to it."""
    for record in page.records:
        event = record.asset_materialization
        if event is not None and event.partition not in seen:
            seen.add(event.partition)
            yield event


def _add_pins(pins: dict[str, dict[int, str]], inputs: object, reason: str) -> None:
    """Add versions to `pins`. Any program may have written `inputs`, so other shapes are ignored."""
    if isinstance(inputs, str):
        try:
            inputs = json.loads(inputs)
        except ValueError:
            return
    if isinstance(inputs, dict):
        for uri, versions in inputs.items():
            for version in versions if isinstance(versions, list) else [versions]:
                if type(version) is int and version > 0:
                    pins.setdefault(str(uri), {}).setdefault(version, reason)
