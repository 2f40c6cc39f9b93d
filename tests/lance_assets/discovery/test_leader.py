"""Ticks of one sensor that overlap, as two daemons have them where one replaces the other, in every kind of order, with
a run that records one of the versions and with a daemon that dies: no version twice, and none lost."""

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets import lance_table
from lance_assets.discovery import pending_versions
from lance_assets.discovery import reconcile as reconcile_module
from lance_assets.discovery.pending_versions import TickBudget, Watermark
from lance_assets.discovery.reconcile import DiscoveryCache, OpenedTable, reconcile
from lance_assets.ledger import recording
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.partition_keys import partition_key
from lance_assets.ledger.recording_claims import TICK_CLAIM_LIFETIME
from lance_assets.ledger.version_metadata import VersionFacts
from lance_core import Table
from tests.lance_assets.cooperative_scheduler import WAITS_MAX, Database, Turns

LEDGER = lance_table("orders", uri="orders.lance").ledger
NOW = datetime.now(UTC)
LATER = NOW + TICK_CLAIM_LIFETIME + timedelta(seconds=1)


class Still(datetime):
    """The clock of a run, which stands where that of the ticks does, however late the test has its turn."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "Still":
        return cast(Still, NOW)


RUN = "run"
OF_A_RUN = 3
VERSIONS = range(1, 5)
SEEDS = 500


def facts_of(version: int) -> VersionFacts:
    properties = {"dagster.run_id": RUN} if version == OF_A_RUN else {}
    return VersionFacts(
        version=version, incarnation=1, uri="/orders.lance", schema=pa.schema([]), timestamp=NOW, operation="Append",
        uuid=f"{version:08}", planned_on=None, properties=properties, rows=0, rows_added=0, rows_removed=0,
        fragments=0, files=None, bytes=None,
    )  # fmt: skip


FACTS = {version: facts_of(version) for version in VERSIONS}


class OfVersion(SimpleNamespace):
    """As much of a table as a look asks for."""

    version: int

    def at(self, version: int) -> "OfVersion":
        return OfVersion(version=version)

    def version_numbers(self) -> tuple[int, ...]:
        return tuple(VERSIONS)

    def version_info(self) -> object:
        return SimpleNamespace(timestamp=NOW - timedelta(hours=1))


OPENED = OpenedTable(cast(Table, OfVersion(version=VERSIONS[-1])), "id", tuple(VERSIONS))


class Cursor:
    """Of the one sensor: whoever stores it last has it."""

    seen: Watermark | None = None


def tick(database: Database, cursor: Cursor, now: datetime, put: Callable[[dg.AssetMaterialization], None]) -> None:
    """The code of the sensor, and then what a daemon does with what it found."""
    looked = reconcile(
        cast(dg.DagsterInstance, database),
        LEDGER,
        OPENED,
        cursor.seen,
        sensor="sensor:orders",
        budget=TickBudget(100, 10**9, 1.0, clock=lambda: 0.0),
        cache=DiscoveryCache(),
        now=now,
    )
    for event in looked.events:
        put(event)
    cursor.seen = looked.watermark


def play(
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    somebody_dies: bool = False,
    with_a_run: bool = False,
    ticks: int = 3,
) -> tuple[Database, Cursor]:
    draw = random.Random(seed)
    names = ["daemon-0", "daemon-1", *([RUN] if with_a_run else [])]
    dies = (draw.choice(names[:2]), draw.randint(1, 40)) if somebody_dies else None
    turns = Turns(draw, changes=draw.choice((0.1, 0.3, 1.0)))
    database, cursor = Database(turns, dies), Cursor()
    if not with_a_run:
        database.dead.add(RUN)
    monkeypatch.setattr(Ledger, "identity_of", lambda *_: "id")
    monkeypatch.setattr(pending_versions, "discovered_facts", lambda at, *_: FACTS[at.version])
    monkeypatch.setattr("lance_assets.discovery.leader.sleep", turns.wait)
    monkeypatch.setattr("lance_assets.ledger.recording_claims.sleep", turns.wait)
    monkeypatch.setattr("lance_assets.ledger.recording_claims.datetime", Still)

    def daemon() -> None:
        for _ in range(ticks):
            tick(database, cursor, NOW, database.put)

    def run() -> None:
        log = SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
        context: Any = SimpleNamespace(
            instance=database, run=SimpleNamespace(run_id=RUN), log=log, log_event=database.put
        )
        recording.record_in_run(context, LEDGER, FACTS[OF_A_RUN])

    turns.run({name: run if name == RUN else daemon for name in names})
    assert turns.waits <= WAITS_MAX, seed
    return database, cursor


def counted(database: Database) -> dict[str | None, int]:
    return dict(Counter(event.partition for event in database.events))


def ticks_later(database: Database, cursor: Cursor, now: datetime) -> None:
    """Nobody else is there any more."""
    database.turns.is_over = True
    for _ in range(3):
        tick(database, cursor, now, database.put)


ONCE = {partition_key(version): 1 for version in VERSIONS}


@pytest.mark.parametrize("with_a_run", [False, True])
def test_two_daemons_record_each_version_once(with_a_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the very next ticks, for nobody died."""
    at_once = 0
    for seed in range(SEEDS):
        database, cursor = play(seed, monkeypatch, with_a_run=with_a_run)
        at_once += counted(database) == ONCE
        ticks_later(database, cursor, NOW)
        assert counted(database) == ONCE, seed
        cursor.seen = None  # what is left of claims goes with the next look that is none of an unchanged table
        ticks_later(database, cursor, NOW)
        assert all(key.startswith("* ") for of, key in database.keys if of == LEDGER.claim_set), seed
        assert {key for of, key in database.keys if of == LEDGER.partition_set} == set(ONCE), seed
    assert at_once > SEEDS * 0.8


def test_a_daemon_that_dies_stops_nothing_for_longer_than_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = 0
    for seed in range(SEEDS):
        database, cursor = play(seed, monkeypatch, somebody_dies=True)
        assert set(counted(database).values()) <= {1}, seed
        waited += counted(database) != ONCE
        ticks_later(database, cursor, LATER)
        assert counted(database) == ONCE, seed
    assert waited


def test_two_that_meet_hardly_ever_leave_it_to_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that came first waits a moment for the other to go."""

    def neither(looks: int) -> int:
        monkeypatch.setattr("lance_assets.discovery.leader.CHECKS_MAX", looks)
        return sum(not play(seed, monkeypatch, ticks=1)[0].events for seed in range(SEEDS // 3))

    assert neither(looks=20) * 3 < neither(looks=1)


@pytest.mark.parametrize("broken", ["claim_tick", "recorded_data_versions"])
def test_the_orders_that_are_tried_need_each_step(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That one tick is alone, and that it looks at the ledger again then."""
    monkeypatch.setattr(
        reconcile_module, broken, {"claim_tick": lambda *_: True, "recorded_data_versions": lambda *_: {}}[broken]
    )
    assert any(max(counted(play(seed, monkeypatch)[0]).values()) > 1 for seed in range(SEEDS))
