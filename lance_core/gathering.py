"""Appends of one process that meet at a table go on together.

    the first one commits  ──►  those that came meanwhile are folded into one  ──►  the next ones  ──► ...

Nobody waits for company: who comes alone commits alone. Under load the versions become fewer and larger, and one look,
one put and one round of syncs serves all who share a version. Each of them gets its own answer, and is found by its own
uuid afterwards (`transactions/fold.py`). Where what was folded cannot land as a whole, each goes on by itself: one that
is refused takes nobody along.
"""

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
    leads: bool = False
    gone: bool = False
    """Nobody waits for its answer any more."""
    called: threading.Event = field(default_factory=threading.Event)
    """To fetch the answer, or, where there is none, to be the next to commit."""
    answer: Outcome | LanceError | None = None

    def given(self) -> Outcome:
        assert self.answer is not None
        if isinstance(self.answer, LanceError):
            raise self.answer
        return self.answer

    def goes_with(self, other: "_Waiting") -> bool:
        """A repetition of what was begun earlier has its own history to search, and goes alone."""
        return (
            not (self.alone or other.alone)
            and isinstance(other.base, Snapshot)
            and other.since == other.ours.read_version
            and can_fold(self.ours, other.ours)
        )


@dataclass(slots=True)
class _Gate:
    """Where the appends to one table pass, one commit at a time. There is one as long as somebody is in it."""

    leader: int
    """The thread that is committing."""
    waiting: deque[_Waiting] = field(default_factory=deque)


_lock = threading.Lock()
_gates: dict[Hashable, _Gate] = {}


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
    with _lock:
        gate = _gates.get(key)
        if gate is None:
            gate = _gates[key] = _Gate(threading.get_ident())
            first = True
        elif gate.leader == threading.get_ident():
            return _commit(me)  # from within a commit of this thread's: whoever does that cannot wait for it
        else:
            gate.waiting.append(me)
            first = False
    if not first:
        try:
            me.called.wait()
        except BaseException:
            _give_up(key, gate, me)
            raise
        if not me.leads:
            return me.given()
    company: Sequence[_Waiting] = ()
    try:
        company = _company(gate, me)
        return _lead([me, *company])
    finally:
        _pass_on(key, gate, company)


def _key(location: Location) -> Hashable:
    """Writers with other credentials go their own way; so do those whose stores cannot be compared."""
    store = location.own_store
    try:
        hash(store)
    except TypeError:
        return location.uri, id(store)
    return location.uri, store


def _company(gate: _Gate, leader: _Waiting) -> Sequence[_Waiting]:
    """Those who can go with the leader, taken out of the line."""
    with _lock:
        gate.leader = threading.get_ident()
        found: list[_Waiting] = []
        for each in list(gate.waiting):
            if len(found) + 1 < _TOGETHER_MAX and all(one.goes_with(each) for one in (leader, *found)):
                found.append(each)
                gate.waiting.remove(each)
    return found


def _pass_on(key: Hashable, gate: _Gate, company: Sequence[_Waiting]) -> None:
    """Those who have their answer go and fetch it; those who have none are the next ones, each by itself."""
    with _lock:
        left = [each for each in company if each.answer is None and not each.gone]
        for each in left:
            each.alone = True
        gate.waiting.extendleft(reversed(left))
        if gate.waiting:
            following = gate.waiting.popleft()
            following.leads = True
            following.called.set()
        else:
            del _gates[key]
    for each in company:
        if each.answer is not None:
            each.called.set()


def _give_up(key: Hashable, gate: _Gate, me: _Waiting) -> None:
    """Somebody who was interrupted while it waited. If it was taken along already, it may land all the same."""
    with _lock:
        me.gone = True
        if me in gate.waiting:
            gate.waiting.remove(me)
    if me.leads:
        _pass_on(key, gate, ())


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
    except LanceError:
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
    """As if it had come alone."""
    over = tuple(version for version in outcome.rebased_over if version > one.ours.read_version)
    return replace(outcome, operation=one.ours.operation, rebased_over=over)


def _commit(one: _Waiting) -> Outcome:
    return commit(
        one.location, one.ours, base=one.base, since=one.since, attempts=one.attempts, ports=one.ports, begun=one.begun
    )
