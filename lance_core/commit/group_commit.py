"""Appends of one process that meet at a table go on together.

    the first one commits  ──►  those that came meanwhile are folded into one  ──►  the next ones  ──► ...

Nobody waits for company: who comes alone commits alone. Under load the versions become fewer and larger, and one look,
one put and one round of syncs serves all who share a version. Rows that are still in memory share a file too: whoever
leads writes its own, and then those of all who come until that file is closed. Each of them gets its own answer, and is
found by its own uuid afterwards (`transactions/fold.py`). How they become one commit is in `together.py`.

Whoever has come is in one place at a time: leading, in the line, in the company of the one who leads, or answered. Who
leaves, by whatever way, passes the lead on and puts those of its company who have no answer back into the line
(`_hand_over`). Who stood in the line for too long steps out, and commits by itself, which is slower and as right.
"""

import os
import threading
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from lance_core.commit.data_files import FileCapacity
from lance_core.commit.fencing import ClockReading
from lance_core.commit.loop import CommitResult
from lance_core.commit.together import PendingAppend, commit_alone, commit_group
from lance_core.coordination.idempotency import IntentRecord
from lance_core.datafiles.fragment_writer import BufferedRows
from lance_core.format.ids import Version
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.transactions.apply import NewTable
from lance_core.transactions.fold import PARTS_MAX
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

_PATIENCE_SECONDS = 60.0


@dataclass(slots=True, eq=False)
class _CommitQueue:
    """Where the appends to one table pass, one commit at a time. There is one as long as somebody is in it."""

    leader: PendingAppend
    thread: int
    waiting: deque[PendingAppend] = field(default_factory=deque)


_lock = threading.Lock()
_gates: dict[Hashable, _CommitQueue] = {}


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
    base: Snapshot | NewTable,
    since: Version,
    attempts: int,
    runtime: Runtime,
    begun: ClockReading | None = None,
    rows: BufferedRows | None = None,
    record: IntentRecord | None = None,
) -> CommitResult:
    """As `commit`, which see; of `ours`, or of `rows` that are still to be written for it, and for `record`."""
    me = PendingAppend(location, ours, base, since, attempts, runtime, begun, rows, record)
    key = location.key
    company: list[PendingAppend] = []
    try:
        gate = _enter(key, me)
        if gate is None or (gate.leader is not me and not _called(gate, me)):
            return commit_alone(me)
        if me.answer is not None:
            return me.result()
        gate.thread = threading.get_ident()
        room = FileCapacity(me.rows) if me.rows else None
        return commit_group(me, company, lambda: _collect_followers(gate, me, company, room))
    finally:
        try:
            _hand_over(key, me, company)
        except BaseException:  # interrupted on the way out
            _hand_over(key, me, company)
            raise


def _enter(key: Hashable, me: PendingAppend) -> _CommitQueue | None:
    """None from within a commit of this thread's: whoever does that cannot wait for it."""
    with _lock:
        gate = _gates.get(key)
        if gate is None:
            gate = _gates[key] = _CommitQueue(me, threading.get_ident())
        elif gate.thread == threading.get_ident():
            return None
        else:
            gate.waiting.append(me)
        return gate


def _called(gate: _CommitQueue, me: PendingAppend) -> bool:
    """Whether it was called, and did not step out of the line. Who was taken along waits for as long as it takes."""
    while not me.called.wait(_PATIENCE_SECONDS):
        with _lock:
            if me in gate.waiting:
                gate.waiting.remove(me)
                return False
    return True


def _collect_followers(
    gate: _CommitQueue, leader: PendingAppend, company: list[PendingAppend], room: FileCapacity | None
) -> Sequence[PendingAppend]:
    """Those who have come and can go with the leader, out of the line. Each is in the company before it is out. Rows
    that are to be written need room in the file of the leader's."""
    before = len(company)
    with _lock:
        known = {each.ours.uuid for each in (leader, *company)}
        for each in list(gate.waiting):
            if len(company) + 1 == PARTS_MAX:
                break
            fits = leader.can_join(each) and each.ours.uuid not in known
            if fits and (each.rows is None or (room is not None and room.try_reserve(each.rows))):
                company.append(each)
                known.add(each.ours.uuid)
                gate.waiting.remove(each)
    return company[before:]


def _hand_over(key: Hashable, me: PendingAppend, company: Sequence[PendingAppend]) -> None:
    """Those of the company who have their answer go and fetch it; those who have none are the next ones, each by
    itself. Whoever is interrupted in here does it again from the beginning: no step may rely on the one before it."""
    with _lock:
        me.gone = True  # if it was taken along, it may land all the same
        gate = _gates.get(key)
        if gate is not None and me in gate.waiting:
            gate.waiting.remove(me)  # it was interrupted
        if gate is not None and gate.leader is me:
            left = [each for each in company if each.answer is None and not each.gone and each not in gate.waiting]
            for each in left:
                each.alone = True
            gate.waiting.extendleft(reversed(left))
            if gate.waiting:
                gate.thread = 0
                gate.leader = gate.waiting[0]
                gate.waiting.popleft()
            else:
                del _gates[key]
        if gate is not None:
            gate.leader.called.set()
    for each in company:
        if each.answer is not None:
            each.called.set()
