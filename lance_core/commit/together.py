"""Appends of several threads as one commit, and as one file where their rows are still in memory.

    rows of all ──►  one file  ──►  one transaction  ──►  one version  ──►  an answer for each

Whoever leads does it for all. Where what was put together cannot land as a whole, or one of them cannot be written,
each goes on by itself, with files of its own: one that is refused takes nobody along. Who meets whom, and who waits for
whom, is up to `group_commit.py`. Start with `commit_group`.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from lance_core.commit.data_files import check_files, register_files, write_shared_file
from lance_core.commit.fencing import ClockReading
from lance_core.commit.loop import CommitResult, commit
from lance_core.coordination.idempotency import IntentRecord
from lance_core.datafiles.fragment_writer import BufferedRows
from lance_core.errors import CommitUndecided, LanceError
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.operations import Append
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.transactions.apply import NewTable
from lance_core.transactions.change_stats import files_written
from lance_core.transactions.fold import Shared, can_fold, fold, parts_of
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

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
class PendingAppend:
    """One append, from when it comes to its answer."""

    location: Location
    ours: Transaction
    base: Snapshot | NewTable
    since: Version
    attempts: int
    runtime: Runtime
    begun: ClockReading | None
    rows: BufferedRows | None = None
    """Not written yet; what it is to commit has no fragments then."""
    record: IntentRecord | None = None
    alone: bool = False
    """It was in company, which could not land, and goes by itself now."""
    gone: bool = False
    """Nobody waits for its answer any more: it has no place in the line again."""
    called: threading.Event = field(default_factory=threading.Event)
    """To fetch the answer, or, where there is none, to lead."""
    answer: CommitResult | LanceError | None = None

    def result(self) -> CommitResult:
        assert self.answer is not None
        if isinstance(self.answer, LanceError):
            raise self.answer
        return self.answer

    def can_join(self, other: "PendingAppend") -> bool:
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
        operation = self.ours.operation
        has_rows = self.rows is not None or (isinstance(operation, Append) and bool(operation.fragments))
        is_new = isinstance(self.base, Snapshot) and self.since == self.ours.read_version
        return not self.alone and is_new and has_rows


def commit_group(
    leader: PendingAppend, company: list[PendingAppend], more: Callable[[], Sequence[PendingAppend]]
) -> CommitResult:
    """The answer of the leader; its company, who are those that `more` gave, are given theirs, or left without where
    they have to try by themselves."""
    try:
        fragments = _write(leader, more)
        if not company:
            return _commit_written(leader, fragments)
        group = _in_order(leader, company)
        folded = _folded(leader, group, fragments)
        appends = {part.uuid: part.append for part in parts_of(folded)}
        own = [appends[each.ours.uuid] for each in (leader, *company)]
    except _OF_ONE:
        if company:
            return commit_alone(leader)
        raise
    oldest = min(group, key=lambda each: each.ours.read_version)
    begun = min((each.begun for each in group if each.begun), key=lambda moment: moment.elapsed_ns, default=None)
    try:
        outcome = _commit(replace(oldest, ours=folded, attempts=max(each.attempts for each in group), begun=begun))
    except CommitUndecided as error:
        for each in company:
            each.answer = CommitUndecided(str(error), uuid=error.uuid, version=error.version)
        raise
    except _OF_ONE:
        return commit_alone(leader)
    except BaseException:
        for each in company:
            each.answer = _interrupted(each, folded.uuid)
        raise
    for each, append in zip(company, own[1:], strict=True):
        each.answer = _share(outcome, each, append)
    return _share(outcome, leader, own[0])


def _in_order(leader: PendingAppend, company: Sequence[PendingAppend]) -> Sequence[PendingAppend]:
    """Those who share a file first."""
    return sorted((leader, *company), key=lambda each: each.rows is None)


def _write(leader: PendingAppend, more: Callable[[], Sequence[PendingAppend]]) -> tuple[Fragment, ...]:
    """Of all who bring rows; none where all that comes is written already."""
    if leader.rows is None:
        more()
        return ()

    def held() -> Sequence[BufferedRows]:
        while came := more():
            if brought := [each.rows for each in came if each.rows]:
                return brought
        return ()

    return write_shared_file(leader.location, leader.rows, held, leader.runtime)


def _folded(leader: PendingAppend, group: Sequence[PendingAppend], fragments: Sequence[Fragment]) -> Transaction:
    """No intention learns of a shared file: it is committed in the next moment, and those who repeat what was cut off
    there write another one."""
    uuid = str(leader.runtime.new_uuid())
    sharing = [each.rows.rows for each in group if each.rows]
    if len(sharing) > 1:
        (fragment,) = fragments
        check_files(leader.location, fragment.files)
        return fold([each.ours for each in group], uuid, Shared(fragment, tuple(sharing)))
    ready = {leader.ours.uuid: _ready(leader, fragments)}
    return fold([ready.get(each.ours.uuid, each.ours) for each in group], uuid)


def _interrupted(one: PendingAppend, uuid: str) -> CommitUndecided:
    version = Version(one.ours.read_version + 1)
    return CommitUndecided(
        f"{one.location.uri}: whether this Append landed is not known: it was committed together with others, as "
        f"transaction {uuid}, and the thread that did it was stopped. Look for it in the table's history, from version "
        f"{version} on, before repeating it (with the same intent= that happens by itself), and delete nothing",
        uuid=uuid,
        version=version,
    )


def _share(outcome: CommitResult, one: PendingAppend, append: Append) -> CommitResult:
    """As if it had come alone: by its own way to the table, and with what came between for it."""
    over = tuple(version for version in outcome.rebased_over if version > one.ours.read_version)
    snapshot = replace(outcome.snapshot, location=one.location.for_manifest(outcome.snapshot.manifest))
    return replace(outcome, snapshot=snapshot, operation=append, rebased_over=over)


def commit_alone(one: PendingAppend) -> CommitResult:
    fragments = one.rows.written(one.location.codec, one.runtime.new_uuid) if one.rows else ()
    return _commit_written(one, fragments)


def _commit_written(one: PendingAppend, fragments: Sequence[Fragment]) -> CommitResult:
    return _commit(replace(one, ours=_ready(one, fragments)))


def _ready(one: PendingAppend, fragments: Sequence[Fragment]) -> Transaction:
    """`fragments` are those of its rows, if it brought such."""
    if one.rows is None:
        return one.ours
    append = Append(tuple(fragments))
    register_files(one.location, one.record, files_written(append, None), one.runtime)
    return replace(one.ours, operation=append)


def _commit(one: PendingAppend) -> CommitResult:
    return commit(
        one.location,
        one.ours,
        base=one.base,
        since=one.since,
        attempts=one.attempts,
        runtime=one.runtime,
        begun=one.begun,
    )
