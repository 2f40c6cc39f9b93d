"""Appends of one process that meet at a table go on together.

    the first one commits  ──►  those that came meanwhile are folded into one  ──►  the next ones  ──► ...

Nobody waits for company: who comes alone commits alone. Under load the versions become fewer and larger, and one look,
one put and one round of syncs serves all who share a version. Each of them gets its own answer, and is found by its own
uuid afterwards (`transactions/fold.py`). Where what was folded cannot land as a whole, each goes on by itself: one that
is refused takes nobody along.

Whoever has come is in one place at a time: leading, in the line, in the company of the one who leads, or answered. Who
leaves, by whatever way, passes the lead on and puts those of its company who have no answer back into the line
(`_leave`). Who stood in the line for too long steps out, and commits beside the others, which is slower and as right.
"""

import os
import threading
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from lance_core.commit import Outcome, commit
from lance_core.errors import CommitUndecided, LanceError
from lance_core.format.ids import Version
from lance_core.format.transaction import Transaction
from lance_core.location import Location
from lance_core.ports import Ports
from lance_core.snapshot import Snapshot
from lance_core.standing import Moment
from lance_core.transactions.apply import Birth
from lance_core.transactions.fold import can_fold, fold

_TOGETHER_MAX = 256
_PATIENCE_SECONDS = 60.0
_OF_ONE = (
    LanceError,
    ArithmeticError,
    AssertionError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What may be wrong with one of them alone, until each has tried by itself."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """One append, from when it comes to its answer."""

    location: Location
    ours: Transaction
    base: Snapshot | Birth
    since: Version
    attempts: int
    ports: Ports
    begun: Moment | None
    alone: bool = False
    gone: bool = False
    """Nobody waits for its answer any more: it has no place in the line again."""
    called: threading.Event = field(default_factory=threading.Event)
    """To fetch the answer, or, where there is none, to lead."""
    answer: Outcome | LanceError | None = None

    def given(self) -> Outcome:
        assert self.answer is not None
        if isinstance(self.answer, LanceError):
            raise self.answer
        return self.answer

    def goes_with(self, other: "_Waiting") -> bool:
        """A repetition of what was begun earlier has its own history to search, and goes alone; so does who may reach
        other places."""
        return (
            self._may_be_folded
            and other._may_be_folded
            and self.location.access == other.location.access
            and can_fold(self.ours, other.ours)
        )

    @property
    def _may_be_folded(self) -> bool:
        return not self.alone and isinstance(self.base, Snapshot) and self.since == self.ours.read_version


@dataclass(slots=True, eq=False)
class _Gate:
    """Where the appends to one table pass, one commit at a time. There is one as long as somebody is in it."""

    leader: _Waiting
    thread: int
    waiting: deque[_Waiting] = field(default_factory=deque)


_lock = threading.Lock()
_gates: dict[Hashable, _Gate] = {}


def _forget() -> None:
    """In a forked process: those who wait are threads of the other one."""
    global _lock
    _lock = threading.Lock()
    _gates.clear()


os.register_at_fork(after_in_child=_forget)


def commit_append(
    location: Location,
    ours: Transaction,
    *,
    base: Snapshot | Birth,
    since: Version,
    attempts: int,
    ports: Ports,
    begun: Moment | None = None,
) -> Outcome:
    """As `commit`, which see."""
    me = _Waiting(location, ours, base, since, attempts, ports, begun)
    key = _key(location)
    gate = _enter(key, me)
    if gate is None:
        return _commit(me)
    company: list[_Waiting] = []
    try:
        if gate.leader is not me and not _called(gate, me):
            return _commit(me)
        if me.answer is not None:
            return me.given()
        _gather(gate, me, company)
        return _lead([me, *company])
    finally:
        _leave(key, gate, me, company)


def _key(location: Location) -> Hashable:
    """Writers with other credentials go their own way; so do those whose stores cannot be compared."""
    store = location.own_store
    try:
        hash(store)
    except TypeError:
        return location.uri, id(store)
    return location.uri, store


def _enter(key: Hashable, me: _Waiting) -> _Gate | None:
    """None from within a commit of this thread's: whoever does that cannot wait for it."""
    with _lock:
        gate = _gates.get(key)
        if gate is None:
            gate = _gates[key] = _Gate(me, threading.get_ident())
        elif gate.thread == threading.get_ident():
            return None
        else:
            gate.waiting.append(me)
        return gate


def _called(gate: _Gate, me: _Waiting) -> bool:
    """Whether it was called, and did not step out of the line. Who was taken along waits for as long as it takes."""
    while not me.called.wait(_PATIENCE_SECONDS):
        with _lock:
            if me in gate.waiting:
                gate.waiting.remove(me)
                return False
    return True


def _gather(gate: _Gate, leader: _Waiting, company: list[_Waiting]) -> None:
    """Those who can go with the leader, out of the line. Each is in the company before it is out."""
    with _lock:
        gate.thread = threading.get_ident()
        for each in list(gate.waiting):
            if len(company) + 1 < _TOGETHER_MAX and all(one.goes_with(each) for one in (leader, *company)):
                company.append(each)
                gate.waiting.remove(each)


def _leave(key: Hashable, gate: _Gate, me: _Waiting, company: Sequence[_Waiting]) -> None:
    """Those of the company who have their answer go and fetch it; those who have none are the next ones, each by
    itself."""
    with _lock:
        if me in gate.waiting:
            gate.waiting.remove(me)  # it was interrupted
        me.gone = True
        if gate.leader is not me:
            return  # if it was taken along, it may land all the same
        left = [each for each in company if each.answer is None and not each.gone and each not in gate.waiting]
        for each in left:
            each.alone = True
        gate.waiting.extendleft(reversed(left))
        if gate.waiting:
            gate.leader = gate.waiting.popleft()
            gate.thread = 0
            gate.leader.called.set()
        elif _gates.get(key) is gate:
            del _gates[key]
    for each in company:
        if each.answer is not None:
            each.called.set()


def _lead(group: Sequence[_Waiting]) -> Outcome:
    """The answer of the first; the others are given theirs, or left without where they have to try by themselves."""
    leader, *others = group
    if not others:
        return _commit(leader)
    oldest = min(group, key=lambda each: each.ours.read_version)
    begun = min((each.begun for each in group if each.begun), key=lambda moment: moment.elapsed_ns, default=None)
    folded = fold([each.ours for each in group], str(leader.ports.new_uuid()))
    try:
        outcome = _commit(replace(oldest, ours=folded, attempts=max(each.attempts for each in group), begun=begun))
    except CommitUndecided as error:
        for each in others:
            each.answer = CommitUndecided(str(error), uuid=error.uuid, version=error.version)
        raise
    except _OF_ONE:
        return _commit(leader)
    except BaseException:
        for each in others:
            each.answer = _interrupted(each, folded.uuid)
        raise
    for each in others:
        each.answer = _share(outcome, each)
    return _share(outcome, leader)


def _interrupted(one: _Waiting, uuid: str) -> CommitUndecided:
    version = Version(one.ours.read_version + 1)
    return CommitUndecided(
        f"{one.location.uri}: whether this Append landed is not known: it was committed together with others, as "
        f"transaction {uuid}, and the thread that did it was stopped. Look for it in the table's history, from version "
        f"{version} on, before repeating it (with the same intent= that happens by itself), and delete nothing",
        uuid=uuid,
        version=version,
    )


def _share(outcome: Outcome, one: _Waiting) -> Outcome:
    """As if it had come alone: by its own way to the table, and with what came between for it."""
    over = tuple(version for version in outcome.rebased_over if version > one.ours.read_version)
    snapshot = replace(outcome.snapshot, location=one.location.of(outcome.snapshot.manifest))
    return replace(outcome, snapshot=snapshot, operation=one.ours.operation, rebased_over=over)


def _commit(one: _Waiting) -> Outcome:
    return commit(
        one.location, one.ours, base=one.base, since=one.since, attempts=one.attempts, ports=one.ports, begun=one.begun
    )
