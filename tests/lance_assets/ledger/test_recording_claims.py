"""Recording claims: random interleavings of the recorders of one version, on a database that shows an added key late.

One recorder stores the event, even if another one crashes.
"""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest

from lance_assets import lance_table
from lance_assets.ledger import recording
from lance_assets.ledger.recording_lock import RecordingLock
from lance_assets.ledger.version_metadata import VersionFacts
from lance_core import Table
from tests.lance_assets.cooperative_scheduler import SLEEPS_MAX, CooperativeScheduler, FakeInstance

LEDGER = lance_table("orders", uri="orders.lance").ledger
KEY = "v0000000001"
FACTS = cast(
    VersionFacts, SimpleNamespace(partition=KEY, data_version="1-x", version=1, incarnation=1, run_id=None, uuid="x")
)
TABLE = cast(
    Table,
    SimpleNamespace(
        uri="/orders.lance",
        version_numbers=lambda: (1,),
        at=lambda _: SimpleNamespace(transaction=lambda: SimpleNamespace(uuid="x")),
    ),
)
EVENT = dg.AssetMaterialization(LEDGER.key, partition=KEY, tags={"dagster/data_version": "1-x"})
SEEDS = 600


def run_interleaving(seed: int, monkeypatch: pytest.MonkeyPatch, *, recorders: int, with_crash: bool) -> FakeInstance:
    generator = random.Random(seed)
    names = [f"run-{number}" for number in range(recorders)]
    crash_at = (generator.choice(names), generator.randint(1, 14)) if with_crash else None
    scheduler = CooperativeScheduler(generator, switch_probability=generator.choice((0.1, 0.3, 1.0)))
    instance = FakeInstance(scheduler, crash_at)
    monkeypatch.setattr(recording, "build_materialization", lambda *_, **__: EVENT)
    monkeypatch.setattr("lance_assets.ledger.recording_lock.sleep", scheduler.sleep)

    def work(name: str) -> Callable[[], None]:
        log = SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
        context: Any = SimpleNamespace(
            instance=instance, run=SimpleNamespace(run_id=name), log=log, log_event=instance.store_event
        )
        return lambda: cast(None, recording.record_in_run(context, LEDGER, FACTS, TABLE))

    scheduler.run({name: work(name) for name in names})
    return instance


@pytest.mark.parametrize("recorders", [2, 3])
def test_one_recorder_stores_the_event(recorders: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEEDS):
        instance = run_interleaving(seed, monkeypatch, recorders=recorders, with_crash=False)
        assert len(instance.events) == 1, seed
        assert instance.scheduler.sleep_count <= SLEEPS_MAX, seed
        assert [key for of, key in instance.is_visible if of == LEDGER.claim_set] == [], seed


def test_crash_never_leads_to_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is no event, the next recorder stores it."""
    died_without = 0
    for seed in range(SEEDS):
        instance = run_interleaving(seed, monkeypatch, recorders=3, with_crash=True)
        assert len(instance.events) <= 1, seed
        died_without += not instance.events
    assert died_without < SEEDS / 3


@pytest.mark.parametrize("broken", ["acquire", "contenders"])
def test_interleavings_need_each_step_of_the_protocol(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps are the lock, and the wait of its holder for later claims."""
    monkeypatch.setattr(RecordingLock, "is_held", lambda _: True)
    contenders = RecordingLock.contenders
    replacement = {
        "acquire": lambda *_, **__: True,
        "contenders": lambda lock, own: contenders(lock, own)[:1],
    }
    monkeypatch.setattr(RecordingLock, broken, replacement[broken])
    twice = [
        seed
        for seed in range(SEEDS)
        if len(run_interleaving(seed, monkeypatch, recorders=2, with_crash=False).events) > 1
    ]
    assert twice
