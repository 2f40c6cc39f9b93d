"""Seeded histories of the production commit loop, and proof that they notice when it is broken.

A failing seed is run again by `Simulation(seed).run().check()`.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lance_core import InvalidInput, StorageError, commit, intents, writes
from lance_core.format.ids import Version
from lance_core.intents import IntentRecord
from lance_core.location import Location
from lance_core.snapshot import Snapshot
from tests.histories.simulation import Answer, Odds, Simulation

SEEDS = 300
PARTS = 6
HARD = Odds(killed=0.02, fails=0.04, lost=0.25, never=0.15, late=0.2, stale=0.3)
SEEDS_TO_CATCH_A_DEFECT = 100


@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_is_kept(part: int) -> None:
    """Acknowledged exactly once, refused never, unknown at most once; versions dense, counters never back."""
    for seed in range(part, SEEDS, PARTS):
        try:
            Simulation(seed, odds=HARD if seed % 4 else None).run().check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_schedules_are_worth_running() -> None:
    """Of a few seeds together: work that landed, work that was refused, and work that nobody knows about."""
    finished = [Simulation(seed, odds=HARD).run() for seed in range(30)]
    answers = [answer for simulation in finished for work in simulation.work for answer in work.answers]
    assert set(answers) == set(Answer)
    assert answers.count(Answer.ACKNOWLEDGED) > len(answers) / 4


@pytest.mark.parametrize("seed", [1, 2, 3, 42])
def test_a_seed_is_a_history(seed: int) -> None:
    assert Simulation(seed, odds=HARD).run().digest == Simulation(seed, odds=HARD).run().digest


def test_seeds_differ() -> None:
    assert len({Simulation(seed).run().digest for seed in range(10)}) == 10


def test_without_faults_everybody_is_acknowledged() -> None:
    """But for those who were planned before an overwrite, and are told so."""
    calm = Odds(killed=0, fails=0, lost=0, never=0, late=0, stale=0)
    for seed in range(20):
        simulation = Simulation(seed, odds=calm).run()
        simulation.check()
        overwritten = any(work.overwrite for work in simulation.work)
        for work in simulation.work:
            assert work.versions or (overwritten and Answer.REFUSED in work.answers)


def _no_look_for_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_with_uuid", lambda others, uuid: None)


def _no_memory_of_intents(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(store: object, intent: str, *, verb: str, base: Version, uuid: str, now_ns: int) -> IntentRecord:
        return IntentRecord(intent, verb, base, uuid, begun_ns=now_ns, heartbeat_ns=now_ns)

    monkeypatch.setattr(intents, "claim", claim)
    monkeypatch.setattr(intents, "beat", lambda *args, **named: None)


def _searched_since_the_base_of_the_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The intent is remembered, but its landing is looked for only after the version that the repetition opened."""
    real = writes.begin

    def begin(location: Location, base: Snapshot, **named: object) -> object:
        begun = real(location, base, **named)  # type: ignore[arg-type]
        if isinstance(begun, writes.Begun) and begun.record:
            return replace(begun, record=replace(begun.record, base_version=base.version))
        return begun

    monkeypatch.setattr("tests.lance_core.world.begin", begin)
    monkeypatch.setattr(writes, "history_since", lambda location, since: None)


def _undecided_called_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_undecided", lambda location, ours, slot, why: StorageError(why))


@pytest.mark.parametrize(
    "breaks",
    [
        _no_look_for_our_own,
        _no_memory_of_intents,
        _searched_since_the_base_of_the_repetition,
        _undecided_called_failed,
    ],
    ids=lambda breaks: breaks.__name__.strip("_"),
)
def test_a_broken_loop_is_noticed(
    breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A harness that misses a defect is no evidence."""
    breaks(monkeypatch)
    for seed in range(SEEDS_TO_CATCH_A_DEFECT):
        try:
            Simulation(seed, odds=HARD).run().check()
        except (AssertionError, InvalidInput):  # a second landing of the same files is refused before it is put
            return
    pytest.fail(f"{SEEDS_TO_CATCH_A_DEFECT} seeds did not notice")
