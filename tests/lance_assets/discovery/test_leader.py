"""Leader election: random interleavings of the ticks of two daemons that evaluate one sensor, as while one replaces the
other. With a run that records one of the versions, and with a daemon that crashes, each version is recorded once."""

import random
from collections import Counter
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
from lance_assets.ledger.recording_lock import TICK_CLAIM_LIFETIME, RecordingLock
from lance_assets.ledger.version_metadata import VersionFacts
from lance_core import Table
from tests.lance_assets.cooperative_scheduler import SLEEPS_MAX, CooperativeScheduler, FakeInstance

LEDGER = lance_table("orders", uri="orders.lance").ledger
NOW = datetime.now(UTC)
LATER = TICK_CLAIM_LIFETIME.total_seconds() + 1


class FixedDatetime(datetime):
    """Clock of a run, fixed at the time of the ticks, so that a slow machine does not change the interleaving."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "FixedDatetime":
        return cast(FixedDatetime, NOW)


RUN = "run"
RUN_VERSION = 3
VERSIONS = range(1, 5)
SEEDS = 500


def make_facts(version: int) -> VersionFacts:
    properties = {"dagster.run_id": RUN} if version == RUN_VERSION else {}
    return VersionFacts(
        version=version, incarnation=1, uri="/orders.lance", schema=pa.schema([]), timestamp=NOW, operation="Append",
        uuid=f"{version:08}", planned_on=None, properties=properties, rows=0, rows_added=0, rows_removed=0,
        fragments=0, files=None, bytes=None,
    )  # fmt: skip


FACTS = {version: make_facts(version) for version in VERSIONS}


class FakeTable(SimpleNamespace):
    """Part of a table that reconciliation reads."""

    version: int
    uri = "/lake/orders.lance"

    def at(self, version: int) -> "FakeTable":
        return FakeTable(version=version)

    def version_numbers(self) -> tuple[int, ...]:
        return tuple(VERSIONS)

    def transaction(self) -> object:
        return SimpleNamespace(properties=FACTS[self.version].properties, uuid=FACTS[self.version].uuid)

    def version_info(self) -> object:
        return SimpleNamespace(timestamp=NOW - timedelta(hours=1))


OPENED = OpenedTable(cast(Table, FakeTable(version=VERSIONS[-1])), "id", tuple(VERSIONS))


class Cursor:
    """Cursor of the sensor; the last daemon that stores it wins."""

    seen: Watermark | None = None
    clock: float = 0.0


def run_tick(instance: FakeInstance, cursor: Cursor, cache: DiscoveryCache) -> None:
    """Run the code of the sensor, then store its cursor as a daemon does."""
    result = reconcile(
        cast(dg.DagsterInstance, instance),
        LEDGER,
        OPENED,
        cursor.seen,
        sensor="sensor:orders",
        budget=TickBudget(100, 10**9, 1.0, clock=lambda: 0.0),
        cache=cache,
        now=NOW,
    )
    cursor.seen = result.watermark


def run_interleaving(
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    with_crash: bool = False,
    with_run: bool = False,
    ticks: int = 3,
) -> tuple[FakeInstance, Cursor]:
    generator = random.Random(seed)
    names = ["daemon-0", "daemon-1", *([RUN] if with_run else [])]
    crash_at = (generator.choice(names[:2]), generator.randint(1, 40)) if with_crash else None
    scheduler = CooperativeScheduler(generator, switch_probability=generator.choice((0.1, 0.3, 1.0)))
    instance, cursor = FakeInstance(scheduler, crash_at), Cursor()
    if not with_run:
        instance.crashed.add(RUN)
    monkeypatch.setattr(Ledger, "identity_of", lambda *_: "id")
    for module in (pending_versions, recording):
        monkeypatch.setattr(module, "discovered_facts", lambda at, *_: FACTS[at.version])
    monkeypatch.setattr("lance_assets.ledger.recording_lock.sleep", scheduler.sleep)
    monkeypatch.setattr("lance_assets.ledger.recording.sleep", scheduler.sleep)
    monkeypatch.setattr("lance_assets.ledger.recording_lock.datetime", FixedDatetime)

    def daemon() -> None:
        cache = DiscoveryCache(lambda: cursor.clock)
        for _ in range(ticks):
            run_tick(instance, cursor, cache)

    def run() -> None:
        log = SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
        context: Any = SimpleNamespace(
            instance=instance, run=SimpleNamespace(run_id=RUN), log=log, log_event=instance.store_event
        )
        recording.record_in_run(context, LEDGER, FACTS[RUN_VERSION], OPENED.table)

    scheduler.run({name: run if name == RUN else daemon for name in names})
    assert scheduler.sleep_count <= SLEEPS_MAX, seed
    return instance, cursor


def count_events(instance: FakeInstance) -> dict[str | None, int]:
    return dict(Counter(event.partition for event in instance.events))


def run_later_ticks(instance: FakeInstance, cursor: Cursor, seconds: float = 0.0) -> None:
    """Run ticks of a single remaining daemon, all but the first of them after these seconds."""
    instance.scheduler.is_disabled = True
    cache = DiscoveryCache(lambda: cursor.clock)
    run_tick(instance, cursor, cache)
    cursor.clock += seconds
    for _ in range(3):
        run_tick(instance, cursor, cache)


ONCE = {partition_key(version): 1 for version in VERSIONS}


@pytest.mark.parametrize("with_run", [False, True])
def test_two_daemons_record_each_version_once(with_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since no daemon crashed, the next ticks complete the ledger."""
    complete_count = 0
    for seed in range(SEEDS):
        instance, cursor = run_interleaving(seed, monkeypatch, with_run=with_run)
        complete_count += count_events(instance) == ONCE
        run_later_ticks(instance, cursor)
        assert count_events(instance) == ONCE, seed
        cursor.seen = None  # a tick that finds a changed table deletes the remaining claims
        run_later_ticks(instance, cursor)
        assert all(key.startswith("* ") for of, key in instance.is_visible if of == LEDGER.claim_set), seed
        assert {key for of, key in instance.is_visible if of == LEDGER.partition_set} == set(ONCE), seed
    assert complete_count > SEEDS * 0.75


def test_crashed_daemon_blocks_others_only_until_its_claim_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = 0
    for seed in range(SEEDS):
        instance, cursor = run_interleaving(seed, monkeypatch, with_crash=True)
        assert set(count_events(instance).values()) <= {1}, seed
        waited += count_events(instance) != ONCE
        run_later_ticks(instance, cursor, LATER)
        assert count_events(instance) == ONCE, seed
    assert waited


def test_concurrent_ticks_rarely_both_withdraw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tick with the earlier claim waits a moment for the later one to withdraw."""

    def count_runs_without_events(checks_max: int) -> int:
        monkeypatch.setattr("lance_assets.ledger.recording_lock.CHECKS_MAX", checks_max)
        return sum(not run_interleaving(seed, monkeypatch, ticks=1)[0].events for seed in range(SEEDS // 3))

    assert count_runs_without_events(checks_max=20) * 3 < count_runs_without_events(checks_max=1)


@pytest.mark.parametrize("broken", ["acquire", "recorded_data_versions"])
def test_interleavings_need_each_step_of_the_protocol(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps are the lock of the tick and the second read of the ledger."""
    monkeypatch.setattr(RecordingLock, "is_held", lambda _: True)
    if broken == "acquire":
        monkeypatch.setattr(RecordingLock, "acquire", lambda *_, **__: True)
    else:
        monkeypatch.setattr(reconcile_module, broken, lambda *_: {})
    histories = (run_interleaving(seed, monkeypatch)[0] for seed in range(SEEDS))
    assert any(count > 1 for instance in histories for count in count_events(instance).values())
