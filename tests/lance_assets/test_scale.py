"""Scale: many versions, tables and partitions are recorded exactly once, in pages, and within bounded time.

The time limits are several times what a busy machine of two cores needs, and far below what reading all versions of
all tables would take. `make dagster-proofs` runs the full size.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import dagster as dg
import lance
import pyarrow as pa
import pytest

from lance_assets import LanceTable, lance_discovery, lance_table
from lance_assets.discovery.reconcile import OpenedTable
from lance_assets.discovery.sensor import discovery_sensor
from lance_core import Table
from tests.lance_assets.instances import events, partitions, tick

ALL = os.environ.get("PROOFS") == "all"
ROW = pa.table({"id": [1]})
FOREIGN = 2_000 if ALL else 500
PER_TICK = 350 * FOREIGN // 1_000
TABLES = 1_000 if ALL else 200
IDLE_TICK_S = 5.0 * TABLES / 1_000
PARTITIONS = 10_000 if ALL else 2_000


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


def append_foreign_versions(table: LanceTable, versions: int) -> None:
    """Append versions without a run, like another writer."""
    at = Table.create(table.uri, ROW, durable=False)
    while at.version < versions:
        at = at.set_config({"turn": str(at.version)}, retries=1).table


def test_foreign_versions_are_recorded_in_pages(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"))
    calm = lance_table("calm", uri=str(tmp_path / "calm.lance"))
    append_foreign_versions(table, FOREIGN)
    lance.write_dataset(ROW, calm.uri)
    clock = [datetime.now(UTC)]
    sensor = discovery_sensor(
        "s",
        [table.ledger, calm.ledger],
        versions_per_tick=PER_TICK,
        now=lambda: clock[0],
        clock=lambda: clock[0].timestamp(),
    )
    cursor = None
    page_sizes: list[int] = []
    took: list[float] = []
    for _ in range(FOREIGN // PER_TICK + 2):
        start = time.process_time()
        cursor, _ = tick(sensor, instance, cursor)
        took.append(time.process_time() - start)
        page_sizes.append(count(instance, table))
    # A tick records as many as fit, and the other table does not wait for the rest.
    assert page_sizes[:2] == [PER_TICK, 2 * PER_TICK - 1]
    assert page_sizes[-1] == FOREIGN
    recorded = Counter(all_events(instance, table))
    assert recorded == {f"v{number:010}": 1 for number in range(1, FOREIGN + 1)}
    assert partitions(instance, table) == sorted(recorded)
    assert all_events(instance, calm) == ["v0000000001"]
    assert max(took) < 20, took
    assert tick(sensor, instance, cursor)[1] == "no new versions"
    tick(sensor, instance, None)
    assert count(instance, table) == FOREIGN


def test_tick_ends_in_time_and_the_next_continues(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The clock of the test advances with each read."""
    tables = [lance_table(f"t{number}", uri=str(tmp_path / f"t{number}")) for number in range(3)]
    for table in tables:
        append_foreign_versions(table, 5)
    now = iter(range(10_000))
    ledgers = [table.ledger for table in tables]
    sensor = discovery_sensor("s", ledgers, seconds_per_tick=8, clock=lambda: float(next(now)))
    cursor, ticks = None, 0
    while sum(count(instance, table) for table in tables) < 15:
        before = sum(count(instance, table) for table in tables)
        cursor, _ = tick(sensor, instance, cursor)
        after = sum(count(instance, table) for table in tables)
        assert 0 < after - before < 9
        ticks += 1
    assert ticks > 2
    for table in tables:
        assert sorted(all_events(instance, table)) == [f"v{number:010}" for number in range(1, 6)]


def test_events_beyond_the_size_limit_follow_in_the_next_tick(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick holds its events in memory until it stores them."""
    monkeypatch.setattr("lance_assets.discovery.sensor.BYTES_PER_TICK", 1_000_000)
    wide = lance_table("wide", uri=str(tmp_path / "wide"))
    columns = pa.table({f"a_column_with_a_name_of_some_length_{number}": [number] for number in range(500)})
    at = Table.create(wide.uri, columns, durable=False)
    for turn in range(19):
        at = at.set_config({"turn": str(turn)}).table
    clock = [datetime.now(UTC)]
    sensor = discovery_sensor("s", [wide.ledger], now=lambda: clock[0], clock=lambda: clock[0].timestamp())
    cursor, _ = tick(sensor, instance)
    stored = [event for _, event in events(instance, wide.key)]
    assert 1 < len(stored) < 20
    assert sum(len(dg.serialize_value(event)) for event in stored) < 1_300_000
    for _ in range(5):
        cursor, _ = tick(sensor, instance, cursor)
    assert count(instance, wide) == 20


def test_hung_store_does_not_delay_other_tables(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lance_assets.discovery.sensor.OPENING_S_MIN", 0.1)
    answered, real = Event(), OpenedTable.open
    tables = [lance_table(name, uri=str(tmp_path / name), discover=False) for name in ("hung", "good")]
    for table in tables:
        append_foreign_versions(table, 1)

    def open_unless_hung(ledger: object) -> OpenedTable:
        if getattr(ledger, "name", "") == "hung":
            answered.wait(60)
        return real(ledger)  # type: ignore[arg-type]

    monkeypatch.setattr(OpenedTable, "open", open_unless_hung)
    sensor = discovery_sensor("s", [table.ledger for table in tables], seconds_per_tick=1)
    cursor, skip_message = tick(sensor, instance)
    assert skip_message is not None
    assert "did not answer in time" in skip_message
    cursor, _ = tick(sensor, instance, cursor)
    assert count(instance, tables[1]) == 1
    answered.set()
    for _ in range(2):
        cursor, _ = tick(sensor, instance, cursor)
    assert count(instance, tables[0]) == 1


def test_idle_tick_sends_no_queries(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [lance_table(f"t{each}", uri=str(tmp_path / f"t{each}"), discover=False) for each in range(TABLES)]
    for table in tables:
        Table.create(table.uri, ROW, durable=False)
    sensor, cursor, skip_message = lance_discovery("lake", tables), None, None
    while skip_message != "no new versions":
        cursor, skip_message = tick(sensor, instance, cursor)

    def count_queries(*_: object, **__: object) -> object:
        raise AssertionError("a table that has not changed needs no query of Dagster")

    for method in ("get_dynamic_partitions", "add_dynamic_partitions", "fetch_materializations"):
        monkeypatch.setattr(instance, method, count_queries)
    start = time.perf_counter()
    cursor, skip_message = tick(sensor, instance, cursor)
    took = time.perf_counter() - start
    assert skip_message == "no new versions"
    assert took < IDLE_TICK_S, took


def test_automation_over_many_partitions_is_fast(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The condition is that of an asset that reads the newest version."""
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"))

    @dg.asset(deps=[table.dep], automation_condition=dg.AutomationCondition.eager())
    def report() -> None: ...

    defs = dg.Definitions.merge(table.defs, dg.Definitions([report]))
    keys = [f"v{number:010}" for number in range(1, PARTITIONS + 1)]
    instance.add_dynamic_partitions(table.ledger.partition_set, keys)
    instance.report_runless_asset_event(dg.AssetMaterialization(table.key, partition=keys[-1]))
    evaluated = dg.evaluate_automation_conditions(defs, instance)
    new = f"v{PARTITIONS + 1:010}"
    instance.add_dynamic_partitions(table.ledger.partition_set, [new])
    instance.report_runless_asset_event(dg.AssetMaterialization(table.key, partition=new))
    start = time.perf_counter()
    evaluated = dg.evaluate_automation_conditions(defs, instance, cursor=evaluated.cursor)
    took = time.perf_counter() - start
    assert evaluated.get_num_requested(report.key) == 1
    assert took < 10, took


def count(instance: dg.DagsterInstance, table: LanceTable) -> int:
    return len(all_events(instance, table))


def all_events(instance: dg.DagsterInstance, table: LanceTable) -> list[str]:
    partitions: list[str] = []
    cursor = None
    while True:
        page = instance.fetch_materializations(table.key, limit=1000, ascending=True, cursor=cursor)
        for record in page.records:
            assert record.partition_key is not None
            partitions.append(record.partition_key)
        if not page.has_more:
            return partitions
        cursor = page.cursor
