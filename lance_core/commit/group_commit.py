"""Group commit: concurrent appends of one process to one table share a version and, for rows in memory, a data file.

    the first append commits  ──►  those that arrived meanwhile are folded into one commit  ──►  the next ones  ──►  ...

    rows of all  ──►  one file  ──►  one transaction  ──►  one version  ──►  a result for each append

An append never waits for others to arrive: it commits at once if the queue is empty. Under load, versions become fewer
and larger, and one history read, one put and one round of syncs serve all appends of a version. Rows that are still in
memory share a file too: the leader writes its own rows, then those of every append that arrives until that file is
closed. Each append gets its own result and can be found by its own uuid afterwards (`transactions/fold.py`). If the
group cannot be committed as a whole, or one append of it cannot be written, each append commits by itself with files of
its own: one that is refused does not fail the others.

An append has one state at a time: leading, waiting in the queue, following the leader, or answered. However it leaves,
by return, error or interruption, it hands the lead over and puts followers without an answer back into the queue
(`_hand_over`). An append that has waited too long leaves the queue and commits by itself, which is slower and equally
correct. Start with `commit_append`; the reasons are in `002-group-commit-and-single-flight.md`.
"""

import os
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event, Lock, get_ident
from uuid import UUID

from lance_core.commit.data_files import (
    FileCapacity,
    check_files,
    register_files,
    register_with_intent,
    write_shared_file,
)
from lance_core.commit.fencing import ClockReading
from lance_core.commit.loop import CommitResult, commit
from lance_core.coordination.idempotency import IntentRecord
from lance_core.datafiles.fragment_writer import BufferedRows
from lance_core.errors import CommitUndecided, LanceError
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.ids import Version
from lance_core.format.operations import Append
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.storage.store import SupportsDeferredSync
from lance_core.transactions.apply import NewTable
from lance_core.transactions.change_summary import files_written
from lance_core.transactions.fold import PARTS_MAX, SharedFragment, can_fold, fold, parts_of
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

QUEUE_PATIENCE_SECONDS = 60.0
_ERRORS_OF_ONE_APPEND = (
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
"""Errors of a group that a single append may have caused: each append then commits by itself."""


@dataclass(slots=True, eq=False)
class PendingAppend:
    """An append from its arrival to its answer."""

    location: Location
    transaction: Transaction
    base: Snapshot | NewTable
    since: Version
    attempts: int
    runtime: Runtime
    started_at: ClockReading | None
    rows: BufferedRows | None = None
    """Rows that are not written yet. The operation of `transaction` then has no fragments."""
    record: IntentRecord | None = None
    leased: frozenset[str] = frozenset()
    """Keys of the files on which the caller of this append holds a lease."""
    is_alone: bool = False
    """True after a group with it could not be committed: it commits by itself."""
    is_abandoned: bool = False
    """True once its thread has left: it must not be queued again."""
    unregistered: tuple[DataFile, ...] = ()
    """Files that are not registered with the intent, since the commit follows at once. They are if it fails."""
    turn: Event | None = None
    """Set when the append has its answer or, without one, leads. None if it never waited."""
    answer: CommitResult | LanceError | None = None

    def result(self) -> CommitResult:
        assert self.answer is not None
        if isinstance(self.answer, LanceError):
            raise self.answer
        return self.answer

    def new_uuid(self) -> UUID:
        """Return a uuid for the name of a data file, which shows the intent that wrote it."""
        new_uuid = self.runtime.new_uuid
        return new_uuid() if self.record is None else self.record.new_file_uuid(new_uuid)

    @property
    def needs_answer(self) -> bool:
        return self.answer is None and not self.is_abandoned

    def can_join(self, other: "PendingAppend") -> bool:
        """Tell whether the two appends may share a version. The repetition of an earlier attempt commits by itself,
        since it searches a longer history; so do appends whose locations may read different base paths."""
        return (
            self._may_be_folded
            and other._may_be_folded
            and self.location.access == other.location.access
            and can_fold(self.transaction, other.transaction)
        )

    @property
    def _may_be_folded(self) -> bool:
        operation = self.transaction.operation
        has_rows = self.rows is not None or (isinstance(operation, Append) and bool(operation.fragments))
        is_first_attempt = isinstance(self.base, Snapshot) and self.since == self.transaction.read_version
        return not self.is_alone and is_first_attempt and has_rows


@dataclass(slots=True, eq=False)
class _CommitQueue:
    """Queue of the appends to one table, which commit one group at a time. It exists while an append is in it."""

    leader: PendingAppend
    thread: int
    """Thread of the leader; 0 until a leader that waited has woken up."""
    waiting: deque[PendingAppend] = field(default_factory=deque)


_lock = Lock()
_queues: dict[Hashable, _CommitQueue] = {}


def _forget() -> None:
    """Start without queues in a forked process: the appends in them belong to threads of its parent."""
    global _lock
    _lock = Lock()
    _queues.clear()


os.register_at_fork(after_in_child=_forget)


def commit_append(
    location: Location,
    ours: Transaction,
    *,
    base: Snapshot | NewTable,
    since: Version,
    attempts: int,
    runtime: Runtime,
    started_at: ClockReading | None = None,
    rows: BufferedRows | None = None,
    record: IntentRecord | None = None,
    leased: Collection[str] = (),
) -> CommitResult:
    """Commit an append as `commit` does, together with concurrent ones. `rows` are its rows if they are not written
    yet; their files are then registered with `record`."""
    append = PendingAppend(
        location, ours, base, since, attempts, runtime, started_at, rows, record, leased=frozenset(leased)
    )
    key = location.key
    followers: list[PendingAppend] = []
    try:
        queue = _enter(key, append)
        if queue is None:
            return commit_alone(append)
        if queue.leader is not append:
            if not _wait_for_turn(queue, append):
                return commit_alone(append)
            if append.answer is not None:
                return append.result()
            queue.thread = get_ident()
        if rows is None and not queue.waiting:
            return commit_alone(append)
        return commit_group(append, followers, partial(_collect_followers, queue, append, followers))
    except LanceError:
        if append.unregistered:  # a put may still succeed, so a cleanup must keep the files
            with suppress(LanceError):
                register_with_intent(location, record, append.unregistered, runtime)
        raise
    finally:
        try:
            _hand_over(key, append, followers)
        except BaseException:  # interrupted on the way out
            _hand_over(key, append, followers)
            raise


def _enter(key: Hashable, append: PendingAppend) -> _CommitQueue | None:
    """Lead a new queue, or wait in the one of this table. None if this thread is committing to the table already: it
    cannot wait for itself."""
    with _lock:
        queue = _queues.get(key)
        if queue is None:
            queue = _queues[key] = _CommitQueue(append, get_ident())
        elif queue.thread == get_ident():
            return None
        else:
            append.turn = Event()
            queue.waiting.append(append)
        return queue


def _wait_for_turn(queue: _CommitQueue, append: PendingAppend) -> bool:
    """Wait until the append leads or has its answer; False if it has left the queue after waiting for too long. A
    follower is no longer in the queue and waits as long as its leader takes."""
    assert append.turn is not None
    while not append.turn.wait(QUEUE_PATIENCE_SECONDS):
        with _lock:
            if append in queue.waiting:
                queue.waiting.remove(append)
                return False
    return True


def _collect_followers(
    queue: _CommitQueue, leader: PendingAppend, followers: list[PendingAppend]
) -> Sequence[PendingAppend]:
    """Move the waiting appends that can join the leader from the queue to `followers`, and return them. An interruption
    leaves each in at least one of the two. Rows that are not written must fit into the leader's file."""
    if not queue.waiting:
        return ()
    before = len(followers)
    with _lock:
        capacity = FileCapacity(leader.rows, *(each.rows for each in followers if each.rows)) if leader.rows else None
        uuids = {append.transaction.uuid for append in (leader, *followers)}
        for append in list(queue.waiting):
            if len(followers) + 1 == PARTS_MAX:
                break
            can_join = leader.can_join(append) and append.transaction.uuid not in uuids
            if can_join and (append.rows is None or (capacity is not None and capacity.try_reserve(append.rows))):
                followers.append(append)
                uuids.add(append.transaction.uuid)
                queue.waiting.remove(append)
    return followers[before:]


def _hand_over(key: Hashable, append: PendingAppend, followers: Sequence[PendingAppend]) -> None:
    """Leave the queue: wake the followers that have their answer, queue the others first, each to commit by itself, and
    pass the lead on. The caller repeats an interrupted call, so no step may rely on the one before it."""
    with _lock:
        append.is_abandoned = True  # a follower that was interrupted may be committed all the same
        queue = _queues.get(key)
        if queue is not None:
            if append in queue.waiting:
                queue.waiting.remove(append)  # it was interrupted
            if queue.leader is append:
                if followers:
                    waiting = queue.waiting
                    left = [each for each in followers if each.needs_answer and each not in waiting]
                    for each in left:
                        each.is_alone = True
                    waiting.extendleft(reversed(left))
                if queue.waiting:
                    queue.thread = 0
                    queue.leader = queue.waiting[0]
                    queue.waiting.popleft()
                else:
                    del _queues[key]
            if queue.leader.turn is not None:
                queue.leader.turn.set()
    for follower in followers:
        if follower.answer is not None and follower.turn is not None:
            follower.turn.set()


def commit_group(
    leader: PendingAppend, followers: list[PendingAppend], more: Callable[[], Sequence[PendingAppend]]
) -> CommitResult:
    """Commit the leader with its followers and return the leader's result. `more` adds appends to `followers` and
    returns them. Each follower gets its answer, or none if it has to commit by itself."""
    unsynced = _unsynced_files(leader.location)
    try:
        fragments = _write_rows(leader, more, unsynced)
        if not followers:
            return _commit(leader, _with_files(leader, fragments), unsynced)
        group = _rows_first(leader, followers)
        folded = _folded(leader, group, fragments)
        parts = {part.uuid: part.append for part in parts_of(folded)}
        own = [parts[append.transaction.uuid] for append in (leader, *followers)]
    except _ERRORS_OF_ONE_APPEND:
        if followers:
            return commit_alone(leader)
        raise
    oldest = min(group, key=lambda append: append.transaction.read_version)
    attempts = max(append.attempts for append in group)
    started_at = min(
        (each.started_at for each in group if each.started_at), key=lambda reading: reading.elapsed_ns, default=None
    )
    try:
        result = _commit(replace(oldest, attempts=attempts, started_at=started_at), folded, unsynced)
    except CommitUndecided as error:
        for append in followers:
            append.answer = CommitUndecided(str(error), uuid=error.uuid, version=error.version)
        raise
    except _ERRORS_OF_ONE_APPEND:
        return commit_alone(leader)
    except BaseException:
        for append in followers:
            append.answer = _interrupted(append, folded.uuid)
        raise
    for append, part in zip(followers, own[1:], strict=True):
        append.answer = _result_for(append, result, part)
    return _result_for(leader, result, own[0])


def commit_alone(append: PendingAppend) -> CommitResult:
    """Commit one append with files of its own."""
    unsynced = _unsynced_files(append.location)
    fragments = append.rows.write(append.location.codec, append.new_uuid, unsynced) if append.rows else ()
    return _commit(append, _with_files(append, fragments), unsynced)


def _unsynced_files(location: Location) -> list[str] | None:
    """Return a list for the files that are synced together with the manifest; `None` if each is synced when it is
    written."""
    return [] if isinstance(location.own_store, SupportsDeferredSync) else None


def _write_rows(
    leader: PendingAppend, more: Callable[[], Sequence[PendingAppend]], unsynced: list[str] | None
) -> tuple[Fragment, ...]:
    """Write one file with the rows of the leader and of the appends that join it. No fragments if the leader's rows
    were written before: it then leads appends whose rows were written too."""
    if leader.rows is None:
        more()
        return ()

    def joining() -> Iterator[BufferedRows]:
        while newcomers := more():
            yield from (append.rows for append in newcomers if append.rows)

    return write_shared_file(leader.location, leader.rows, joining(), leader.new_uuid, unsynced)


def _rows_first(leader: PendingAppend, followers: Sequence[PendingAppend]) -> Sequence[PendingAppend]:
    """The group in the order of its fragments: appends that share the file come first."""
    return sorted((leader, *followers), key=lambda append: append.rows is None)


def _folded(leader: PendingAppend, group: Sequence[PendingAppend], fragments: Sequence[Fragment]) -> Transaction:
    """Fold the group into one transaction. A shared file is not registered with intents: it is committed at once, and
    an attempt that repeats an interrupted one writes another file."""
    uuid = str(leader.runtime.new_uuid())
    row_counts = [append.rows.rows for append in group if append.rows]
    if len(row_counts) > 1:
        (fragment,) = fragments
        check_files(leader.location, fragment.files)
        return fold([append.transaction for append in group], uuid, SharedFragment(fragment, tuple(row_counts)))
    written = {leader.transaction.uuid: _with_files(leader, fragments)}
    return fold([written.get(each.transaction.uuid, each.transaction) for each in group], uuid)


def _with_files(append: PendingAppend, fragments: Sequence[Fragment]) -> Transaction:
    """The append's transaction with the `fragments` of its rows; unchanged if its rows were written before. If the
    intent was claimed long ago, the files are registered with it, so that a cleanup keeps them."""
    if append.rows is None:
        return append.transaction
    operation = Append(tuple(fragments))
    files = files_written(operation, None)
    if append.record is not None and append.record.is_fresh(append.runtime.now_ns()):
        append.unregistered = tuple(files)
        check_files(append.location, files)
    else:
        register_files(append.location, append.record, files, append.runtime)
    return replace(append.transaction, operation=operation)


def _commit(append: PendingAppend, ours: Transaction, unsynced: Sequence[str] | None) -> CommitResult:
    return commit(
        append.location,
        ours,
        base=append.base,
        since=append.since,
        attempts=append.attempts,
        runtime=append.runtime,
        started_at=append.started_at,
        leased=append.leased,
        unsynced=unsynced or (),
    )


def _interrupted(append: PendingAppend, uuid: str) -> CommitUndecided:
    version = Version(append.transaction.read_version + 1)
    return CommitUndecided(
        f"{append.location.uri}: it is not known whether this Append was committed. It was part of the group commit "
        f"with transaction {uuid}, whose thread was interrupted. Look for that transaction in the table's history from "
        f"version {version} on before repeating the append (with the same intent= this happens by itself), and delete "
        "nothing",
        uuid=uuid,
        version=version,
    )


def _result_for(append: PendingAppend, result: CommitResult, part: Append) -> CommitResult:
    """The result of the group as if the append had been committed alone: with its own location, and with the versions
    that were committed since its own base."""
    over = tuple(version for version in result.rebased_over if version > append.transaction.read_version)
    snapshot = replace(result.snapshot, location=append.location.for_manifest(result.snapshot.manifest))
    return replace(result, snapshot=snapshot, operation=part, rebased_over=over)
