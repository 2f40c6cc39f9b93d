"""Recorders of one version in every kind of order, on a database that shows an added key only some time later: one of
them puts the event, whoever dies in between."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest

from lance_assets import lance_table
from lance_assets.ledger import recording
from lance_assets.ledger.version_metadata import VersionFacts
from tests.lance_assets.cooperative_scheduler import WAITS_MAX, Database, Turns

LEDGER = lance_table("orders", uri="orders.lance").ledger
KEY = "v0000000001"
FACTS = cast(VersionFacts, SimpleNamespace(partition=KEY, data_version="1-x", version=1))
EVENT = dg.AssetMaterialization(LEDGER.key, partition=KEY, tags={"dagster/data_version": "1-x"})
SEEDS = 600


def play(seed: int, monkeypatch: pytest.MonkeyPatch, *, recorders: int, somebody_dies: bool) -> Database:
    draw = random.Random(seed)
    names = [f"run-{number}" for number in range(recorders)]
    dies = (draw.choice(names), draw.randint(1, 14)) if somebody_dies else None
    turns = Turns(draw, changes=draw.choice((0.1, 0.3, 1.0)))
    database = Database(turns, dies)
    monkeypatch.setattr(recording, "build_materialization", lambda *_, **__: EVENT)
    monkeypatch.setattr("lance_assets.ledger.recording_claims.sleep", turns.wait)

    def work(name: str) -> Callable[[], None]:
        log = SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
        context: Any = SimpleNamespace(
            instance=database, run=SimpleNamespace(run_id=name), log=log, log_event=database.put
        )
        return lambda: cast(None, recording.record_in_run(context, LEDGER, FACTS))

    turns.run({name: work(name) for name in names})
    return database


@pytest.mark.parametrize("recorders", [2, 3])
def test_one_of_them_puts_the_event(recorders: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEEDS):
        database = play(seed, monkeypatch, recorders=recorders, somebody_dies=False)
        assert len(database.events) == 1, seed
        assert database.turns.waits <= WAITS_MAX, seed
        assert [key for of, key in database.keys if of == LEDGER.claim_set] == [], seed


def test_whoever_dies_there_are_never_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where there is none, the next who comes along puts it."""
    died_without = 0
    for seed in range(SEEDS):
        database = play(seed, monkeypatch, recorders=3, somebody_dies=True)
        assert len(database.events) <= 1, seed
        died_without += not database.events
    assert died_without < SEEDS / 3


def test_the_orders_that_are_tried_need_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "wait_for_others", lambda *_: None)
    twice = [seed for seed in range(SEEDS) if len(play(seed, monkeypatch, recorders=2, somebody_dies=False).events) > 1]
    assert twice
