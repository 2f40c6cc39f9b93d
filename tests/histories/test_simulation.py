"""Seeded histories of the production commit loop, and proof that they notice when it is broken.

A failing seed is run again by `Simulation(seed).run().check()`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from pyroaring import BitMap

from lance_core import LanceError, StorageError, commit, intents, writes
from lance_core.edit import attempts
from lance_core.edit.attempts import Change
from lance_core.format import key_filter
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.ids import FragmentId, Version
from lance_core.format.manifest import Manifest
from lance_core.format.operations import Delete, Operation, Update
from lance_core.format.transaction import Transaction
from lance_core.intents import IntentRecord
from lance_core.location import Location
from lance_core.ports import Ports
from lance_core.snapshot import History, Snapshot, history_since
from lance_core.transactions import rebase
from lance_core.transactions.conflicts import RULES
from lance_core.transactions.landed import Landed
from lance_core.transactions.rebase import Fetched, Rebased, Wanted
from lance_core.transactions.rules import compatible
from lance_core.writes import Begun
from tests.histories.simulation import Answer, Odds, Simulation

SEEDS = 300
PARTS = 6
HARD = Odds(killed=0.02, fails=0.04, lost=0.25, never=0.15, late=0.2, stale=0.3)
CALM = Odds(killed=0, fails=0, lost=0, never=0, late=0, stale=0)
SEEDS_TO_CATCH_A_DEFECT = 300


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
    assert answers.count(Answer.ACKNOWLEDGED) > len(answers) / 5


@pytest.mark.parametrize("seed", [1, 2, 3, 42])
def test_a_seed_is_a_history(seed: int) -> None:
    assert Simulation(seed, odds=HARD).run().digest == Simulation(seed, odds=HARD).run().digest


def test_seeds_differ() -> None:
    assert len({Simulation(seed).run().digest for seed in range(10)}) == 10


def test_without_faults_everybody_is_acknowledged() -> None:
    """But for those who were planned before an overwrite, and are told so."""
    for seed in range(20):
        simulation = Simulation(seed, odds=CALM).run()
        simulation.check()
        for work in simulation.work:
            assert work.answers[-1] is not Answer.UNKNOWN


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

    monkeypatch.setattr(writes, "begin", begin)
    monkeypatch.setattr(writes, "history_since", lambda location, since, base=None: None)


def _undecided_called_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_undecided", lambda location, ours, slot, why: StorageError(why))


def _blind_to(rule: str) -> Callable[[pytest.MonkeyPatch], None]:
    """The rule never objects."""

    def breaks(monkeypatch: pytest.MonkeyPatch) -> None:
        for kind, row in RULES.items():
            blind = {theirs: compatible if each.__name__ == rule else each for theirs, each in row.items()}
            monkeypatch.setitem(RULES, kind, blind)

    breaks.__name__ = f"_blind_to_{rule}"
    return breaks


def _incompatible_once_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was planned before an overwrite or a restore stands."""
    _blind_to("incompatible")(monkeypatch)


def _deletions_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "rebase", lambda ours, base, head, others, fetched: Rebased(ours))


def _the_same_row_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rebase.rebase

    def broken(
        ours: Transaction, base: Manifest | None, head: Manifest | None, others: Sequence[Landed], fetched: Fetched
    ) -> Rebased:
        forgotten = {
            number: DeletionVector.of(np.setdiff1d(vector.offsets, affected(ours.operation, number)))
            for number, vector in fetched.deletions.items()
        }
        return real(ours, base, head, others, replace(fetched, deletions=forgotten))

    def affected(operation: Operation, number: int) -> list[int]:
        assert isinstance(operation, Delete | Update)
        return list(BitMap.deserialize((operation.affected or {})[FragmentId(number)]))

    monkeypatch.setattr(commit, "rebase", broken)


def _one_file_for_all_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The joined rows go where somebody's already are."""
    real = commit.fetch

    def fetch(location: Location, wanted: Wanted, ports: Ports) -> Fetched:
        fetched = real(location, wanted, ports)
        return replace(fetched, numbers=dict.fromkeys(fetched.numbers, 7))

    monkeypatch.setattr(commit, "fetch", fetch)


def _keys_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_filter, "may_share_keys", lambda one, other: False)


def _planned_again_on_what_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The re-run plans on the first version, and says that it was the newest."""
    plans: dict[int, Operation | None] = {}

    def once(change: Change, begun: Begun, properties: Mapping[str, str], retries: int) -> writes.Written:
        if id(change) not in plans:
            assert isinstance(begun.base, Snapshot)
            plans[id(change)] = change.plan(begun.base)
        planned = plans[id(change)]
        if planned is None:
            return writes.nothing_to_write(begun, change.operation)
        return writes.finish(begun, planned, properties=properties, attempts=retries)

    monkeypatch.setattr(attempts, "_once", once)


def _planned_again_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The re-run is a new intention, so an earlier landing of the old one is not looked for."""
    real = attempts._once

    def once(change: Change, begun: Begun, properties: Mapping[str, str], retries: int) -> writes.Written:
        return real(change, replace(begun, uuid=str(begun.ports.new_uuid())), properties, retries)

    monkeypatch.setattr(attempts, "_once", once)


def _a_slot_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody was first, the next version is taken for granted: it is not looked whose it is."""

    def look(
        location: Location,
        since: Version,
        base: Snapshot | None,
        known: Sequence[Landed],
        taken: Version | None,
        there: Version | None,
    ) -> History | None:
        history = history_since(location, since, base=base, known=known, there=there)
        if history is None or taken is None:
            return history
        return replace(history, others=[landed for landed in history.others if landed.version != taken])

    monkeypatch.setattr(commit, "_look", look)


@pytest.mark.parametrize(
    "breaks",
    [
        _no_look_for_our_own,
        _no_memory_of_intents,
        _searched_since_the_base_of_the_repetition,
        _undecided_called_failed,
        _incompatible_once_only,
        _deletions_not_joined,
        _the_same_row_twice,
        _one_file_for_all_deletions,
        _keys_not_told,
        _planned_again_on_what_is_old,
        _planned_again_under_another_name,
        _a_slot_forgotten,
        *map(_blind_to, ("same_rows", "same_rows_or_new_keys", "new_keys", "same_fragments", "plan_again")),
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
            Simulation(seed, odds=HARD if seed % 2 else CALM).run().check()
        except (AssertionError, KeyError, LanceError):  # what is broken can also trip over itself
            return
    pytest.fail(f"{SEEDS_TO_CATCH_A_DEFECT} seeds did not notice")
