"""Versions that somebody else needs: those that another table's versions were made of.

Every version on a ledger of this Dagster says what it was made of (`lance/inputs`), for as long as it is there; when
its partition is retired its inputs may go too. An asset that an io manager keeps says it with its materializations, and
the newest of each partition counts. Tables that are written elsewhere are asked themselves, if a policy
names them. What tags, branches and clones hold is the core's to know.
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
"""By the URI of the table that was read, its versions, and for whom they stay."""

_PAGE = 500
_SET = "lance/"
_CACHED_FOR = timedelta(minutes=1)


@dataclass(slots=True)
class PinCache:
    """What the ledgers need, read once for all the sensors that a process evaluates in the same minute: each has one
    table, and would read the ledgers of all. Whatever removes versions reads it anew."""

    _instance: object = None
    """The Dagster: a process has one."""
    _read_at: datetime | None = None
    _pins: Pins = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, context: dg.SensorEvaluationContext, now: datetime) -> Pins:
        with self._lock:  # those who come at the same moment wait for the first
            of = context.instance_ref or context.instance
            is_fresh = self._read_at is not None and timedelta(0) <= now - self._read_at < _CACHED_FOR
            if not is_fresh or self._instance != of:
                self._pins, self._instance, self._read_at = pins_from_ledgers(context.instance), of, now
            return self._pins


def pins_from_ledgers(instance: dg.DagsterInstance) -> Pins:
    """Of all tables at once."""
    needed: dict[str, dict[int, str]] = {}
    for key in instance.get_asset_keys():
        label = key.to_user_string()
        retained = [each for each in instance.get_dynamic_partitions(f"{_SET}{label}") if is_version_key(each)]
        for partition, inputs in _recorded_inputs(instance, key, retained):
            _add_pins(needed, inputs, f"{label} {version_of(partition)} was made of it")
        for inputs in () if retained else _inputs_without_ledger(instance, key):
            _add_pins(needed, inputs, f"{label} was made of it")
    return needed


def pins_of_table(table: Table, policy: Maintenance, ledgers: Pins) -> Mapping[int, str]:
    """What of this table is to stay besides what its own names keep."""
    needed: dict[str, dict[int, str]] = {table.uri: {**ledgers.get(table.uri, {}), **policy.pinned}}
    for reference in policy.downstream:
        downstream = _open_downstream(reference)
        for info in downstream.versions():
            if text := info.properties.get(INPUTS):
                _add_pins(needed, text, f"{downstream.uri} {info.version} was made of it")
    return needed[table.uri]


def _open_downstream(reference: TableReference | str) -> Table:
    """One that cannot be opened ends the cleanup: what it needs, nobody knows."""
    uri = reference if isinstance(reference, str) else reference.uri
    try:
        access = LanceResource().access() if isinstance(reference, str) else reference.access()
        return Table.open(uri, **access)
    except LanceError as error:
        raise InvalidInput(
            f"Maintenance: which versions the downstream table needs cannot be told, so that no version goes: {error}"
        ) from error


def _recorded_inputs(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Sequence[str]
) -> Iterator[tuple[str, object]]:
    """What was noted for these partitions, some hundred at a time."""
    for start in range(0, len(partitions), _PAGE):
        wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=partitions[start : start + _PAGE])
        cursor, has_more = None, True
        while has_more:
            page = instance.fetch_materializations(wanted, limit=2 * _PAGE, cursor=cursor)
            for record in page.records:
                event = record.asset_materialization
                if event and event.partition and "lance/inputs" in event.metadata:
                    yield event.partition, event.metadata["lance/inputs"].value
            cursor, has_more = page.cursor, page.has_more


def _inputs_without_ledger(instance: dg.DagsterInstance, key: dg.AssetKey) -> Iterator[object]:
    """Of an asset that an io manager keeps: what it is made of now, each of its partitions. What write assets note is
    on the ledger too, and goes with the versions there."""
    seen: set[str | None] = set()
    for record in instance.fetch_materializations(key, limit=_PAGE).records:
        event = record.asset_materialization
        if event is None or event.partition in seen:
            continue
        seen.add(event.partition)
        if "lance/inputs" in event.metadata and "lance/partition" not in event.metadata:
            yield event.metadata["lance/inputs"].value


def _add_pins(needed: dict[str, dict[int, str]], inputs: object, why: str) -> None:
    """Written by anyone, so it may be anything."""
    if isinstance(inputs, str):
        try:
            inputs = json.loads(inputs)
        except ValueError:
            return
    if isinstance(inputs, dict):
        for uri, given in inputs.items():
            for version in given if isinstance(given, list) else [given]:
                if type(version) is int and version > 0:
                    needed.setdefault(str(uri), {}).setdefault(version, why)
