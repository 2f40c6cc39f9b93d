"""Version as of a time: equals a search through all manifests, however the clocks of committers and of the store run,
and reads few of them."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from lance_core import NotFound
from lance_core.commit.write_protocol import StartedWrite, begin, finish
from lance_core.format.operations import MapUpdate, Overwrite, UpdateConfig
from lance_core.storage.memory import MemoryStore
from lance_core.transactions.apply import NewTable
from lance_core.versions.as_of import load_as_of
from lance_core.versions.snapshot import Snapshot, list_versions, load_named
from tests.lance_core.in_memory_table import NEW_TABLE, SCHEMA, InMemoryTable, deterministic_runtime

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class CountingStore(MemoryStore):
    """Store with a clock that a test sets, which counts its reads."""

    def __init__(self) -> None:
        self.time, self.reads = START, 0
        super().__init__(now=lambda: self.time)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.reads += 1
        return super().read(path, start, length)


def table_with(count: int, times: Callable[[int], tuple[datetime, datetime]]) -> tuple[InMemoryTable, CountingStore]:
    """Return a table with one fragment more in each version. `times` returns the time of a version by the clock of its
    committer and by the clock of the store."""
    store = CountingStore()
    table = InMemoryTable(store)
    base: Snapshot | NewTable = NEW_TABLE
    for number in range(1, count + 1):
        committed, store.time = times(number)
        nanoseconds = int(committed.timestamp() * 10**6) * 1000
        runtime = replace(deterministic_runtime(number), now_ns=partial(int, nanoseconds))
        operation = Overwrite((), SCHEMA) if number == 1 else UpdateConfig(config=MapUpdate({"number": str(number)}))
        started = begin(table.location(), base, verb="test", intent=None, runtime=runtime)
        assert isinstance(started, StartedWrite)
        base = finish(started, operation, properties={}, attempts=1).snapshot
    store.reads = 0
    return table, store


def check_all(table: InMemoryTable, timestamps: Iterable[datetime]) -> None:
    """Compare with a search through all manifests."""
    location = table.location()
    versions = list_versions(location)
    committed = {
        number: load_named(location, number, versions.scheme).manifest.timestamp for number in versions.numbers
    }
    for timestamp in timestamps:
        expected = max((number for number, time in committed.items() if time <= timestamp), default=None)
        if expected is None:
            with pytest.raises(NotFound, match="its oldest version, 1, was committed at"):
                load_as_of(location, timestamp)
        else:
            assert load_as_of(location, timestamp).version == expected


@pytest.mark.parametrize("count", [40, 200])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_newest_version_by_the_timestamps_of_manifests(seed: int, count: int) -> None:
    """Clocks of committers are wrong by up to 20 hours, and run backwards."""
    chance = random.Random(seed)
    step = chance.choice([MINUTE, HOUR, 12 * HOUR])

    def times(number: int) -> tuple[datetime, datetime]:
        stored = START + number * step
        return stored + chance.choice([0, 0, -1, 1]) * chance.random() * 20 * HOUR, stored

    table, _store = table_with(count, times)
    check_all(table, [START + chance.uniform(-0.2, 1.2) * count * step for _ in range(40)])


def test_a_copied_table_has_later_times_in_its_listing() -> None:
    table, _store = table_with(200, lambda number: (START - number % 7 * HOUR + number * DAY, START + 900 * DAY))
    check_all(table, [START + days * DAY for days in range(-2, 210, 10)])


def test_the_listing_narrows_the_search() -> None:
    """There is a version each hour, 400 in all; a sample and those of a day are read."""
    table, store = table_with(400, lambda number: (START + number * HOUR, START + number * HOUR))
    assert load_as_of(table.location(), START + 100 * HOUR).version == 100
    assert store.reads < 150
    store.reads = 0
    with pytest.raises(NotFound):
        load_as_of(table.location(), START - 30 * DAY)
    assert store.reads < 150
