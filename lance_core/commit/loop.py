"""Commit loop: optimistic concurrency control for one transaction.

    read history ──► judge ──► rebase ──► apply ──► create the next version ──► committed
         ▲                                                 │
         └──────────────── back off ◄──────────────────────┘  the name exists, or the store did not answer

Every attempt begins by searching the history for our own transaction, and the loop gives up only after a read, never
after a put: "exists" and "no answer" may both mean that an earlier put of ours succeeded (`001-idempotent-commits.md`).
The loop never deletes a file and knows nothing about intents or audits. Start with `_CommitLoop.run`.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property

from lance_core.commit import openlineage
from lance_core.commit.fencing import ClockReading, CommitFence, find_commit_problem
from lance_core.commit.key_conflicts import KeyConflicts
from lance_core.commit.succession import find_unrelated_successor
from lance_core.coordination.backoff import Backoff
from lance_core.datafiles.fragment_reader import load_deletions
from lance_core.errors import (
    AlreadyExists,
    CommitUndecided,
    ConflictError,
    IncompatibleConflict,
    LanceError,
    NotFound,
    RetryableConflict,
    Unsupported,
)
from lance_core.format import naming
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.manifest_builder import LIBRARY
from lance_core.format.naming import NamingScheme
from lance_core.format.operations import Operation, Restore, Rewrite
from lance_core.format.transaction import Transaction
from lance_core.limits import CapExceeded
from lance_core.package_version import LIBRARY_VERSION
from lance_core.runtime import Runtime
from lance_core.storage.concurrency import ConcurrentCalls, requests_max
from lance_core.storage.store import Put, SupportsCommitLock, SupportsDeferredSync
from lance_core.transactions.apply import CommitContext, Fork, NewTable, apply, encode_transaction_file
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.transactions.conflicts import ConflictResult, judge
from lance_core.transactions.fold import part_with_uuid, parts_of
from lance_core.transactions.rebase import FetchedDeletions, rebase, required_deletions
from lance_core.transactions.verdicts import Verdict
from lance_core.versions import version_hint
from lance_core.versions.location import Location
from lance_core.versions.recorded_files import files_of
from lance_core.versions.snapshot import History, Snapshot, load_at, read_history

ATTEMPTS = 100
"""Default for the maximum number of puts of one commit. The deadline of the back-off usually ends it earlier. A lost
race costs two calls of the store."""


class PartAlreadyCommitted(LanceError):
    """One of the appends of a group commit was committed before. Nothing was put."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Version that contains our transaction."""

    snapshot: Snapshot
    operation: Operation
    """The operation as committed. If two processes hold one intent, its files may be those of the other."""
    before: Manifest | None
    """The version before it; None for a first version, and if the transaction was found in the history."""
    attempts: int
    """Number of attempts that ended in a put; 0 if the transaction was committed before this commit began."""
    rebased_over: tuple[Version, ...]


def commit(
    location: Location,
    ours: Transaction,
    *,
    base: Snapshot | NewTable | Fork,
    since: Version,
    attempts: int,
    runtime: Runtime,
    started_at: ClockReading | None = None,
    leased: Collection[str] = (),
    unsynced: Sequence[str] = (),
) -> CommitResult:
    """Commit the transaction in exactly one version.

    The history after `since` is searched for an earlier commit of it. `started_at` is a time before its first file was
    written; None means now. The caller holds a lease on the files with the keys `leased`, and has checked that they
    exist. The files `unsynced` are made durable before the version exists; the store supports deferred syncs if there
    are any (`storage/006-syncs-of-a-commit.md`)."""
    store = location.own_store
    lock = store.commit_lock(naming.VERSIONS) if isinstance(store, SupportsCommitLock) else nullcontext()
    # A restore references old files, and its own version may come too late to protect them from a cleanup.
    written_at = ClockReading.distant_past() if isinstance(ours.operation, Restore) else started_at
    with CommitFence(location, ours.uuid, written_at, runtime, leased) as fence, lock:
        return _CommitLoop(location, ours, base, since, attempts, runtime, fence, unsynced).run()


class _CommitLoop:
    """Attempts of one commit. Each attempt starts from the original transaction and base."""

    def __init__(
        self,
        location: Location,
        ours: Transaction,
        base: Snapshot | NewTable | Fork,
        since: Version,
        attempts_max: int,
        runtime: Runtime,
        fence: CommitFence,
        unsynced: Sequence[str],
    ) -> None:
        self._location, self._ours, self._base, self._since = location, ours, base, since
        self._attempts_max, self._runtime, self._fence = attempts_max, runtime, fence
        self._opened = base if isinstance(base, Snapshot) else None
        self._attempts = 0
        self._known: Sequence[CommittedTransaction] = ()
        """Transactions committed after `since`, as far as they were read."""
        self._open_put: Version | None = None
        """Version that an unanswered put of ours may still create."""
        self._taken: Version | None = None
        """Version that another writer created just now: the next attempt reads it by name, without a listing."""
        self._transaction_file = _TransactionFile()
        self._written_ahead = ""
        """Path of the file of our transaction if it was written while the history was read."""
        self._backoff = Backoff(runtime)
        self._deferring = store if isinstance(store := location.own_store, SupportsDeferredSync) else None
        self._unsynced = list(unsynced)
        """Files that have to be made durable before the next put."""
        assert self._deferring or not unsynced

    def run(self) -> CommitResult:
        while True:
            has_stalled = self._fence.begin_attempt()
            history = self._read_history_and_write_ahead()
            if committed := self._find_own():
                return self._already_committed(committed, may_be_late=has_stalled or not self._attempts)
            self._check_may_put(history, has_stalled=has_stalled)
            others = self._check_conflicts(history)
            try:
                candidate = self._write_files(history, others)
                if not self._fence.before_put(candidate.manifest, candidate.before, candidate.files):
                    self._taken, self._backoff = None, Backoff(self._runtime)
                    continue  # the checks took long: read the history again, so that the put is not late
                put = self._put(candidate.manifest)
            except RetryableConflict as error:
                raise _conflict_in_rebase(self._location, self._ours, error) from error
            except LanceError as error:
                if self._open_put is None:
                    raise
                raise self._undecided(f"repeating the put failed: {error}") from error
            if put is Put.CREATED:
                return self._committed(candidate, others)
            self._wait_after(put, candidate.manifest.version)

    def _read_history_and_write_ahead(self) -> History | None:
        """Read the history. In the first attempt on a store that serves concurrent requests, write the file of our
        transaction at the same time, which saves the time of one request."""
        store = self._location.store
        if self._attempts or self._transaction_file.name or self._deferring is not None or requests_max(store) == 1:
            return self._read_history()
        head = self._base.manifest if isinstance(self._base, Snapshot) else self._base
        files = self._transaction_file.files_to_write(self._ours, head, self._runtime)
        ((path, data),) = files.items()
        with ConcurrentCalls(store) as calls:
            written = calls.start(lambda: store.put(path, data))
            history = self._read_history()
            try:
                written()
            except LanceError:  # the commit may not need it
                self._transaction_file = _TransactionFile()
            else:
                self._written_ahead = path
        return history

    def _read_history(self) -> History | None:
        """Read the transactions after `since`; None if there is no table."""
        operation = self._ours.operation
        reserved_in = operation.reserved_in if isinstance(operation, Rewrite) else None
        try:
            history = _history(self._location, self._since, self._opened, self._known, self._taken, reserved_in)
        except LanceError as error:
            if self._open_put is None:
                raise
            raise self._undecided(f"reading the history failed: {error}") from error
        self._known = history.others if history else ()
        return history

    def _find_own(self) -> CommittedTransaction | None:
        """Find the version that contains our transaction: an earlier put created it, but its answer was lost."""
        if not self._known:
            return None
        if committed := _with_uuid(self._known, self._ours.uuid):
            return committed
        for part in parts_of(self._ours):
            if committed := _with_uuid(self._known, part.uuid):
                raise PartAlreadyCommitted(
                    f"{self._location.uri}: version {committed.version} contains the append {part.uuid} already"
                )
        return None

    def _check_may_put(self, history: History | None, *, has_stalled: bool) -> None:
        """Raise if no attempt is left, if the outcome of an earlier put can no longer be known, or if the table that is
        to be created exists."""
        open_put = self._open_put
        if history and open_put and history.head.version >= open_put:
            if open_put in history.missing or (has_stalled and self._has_replaced_another(open_put)):
                raise self._undecided("a cleanup removed that version, whichever transaction it held")
            self._open_put = None  # another writer's version has the name, so an earlier put of ours cannot succeed
        if self._attempts == self._attempts_max or (self._attempts and self._backoff.is_expired):
            if self._open_put is not None:
                raise self._undecided(f"{self._attempts} puts were not answered")
            raise _exhausted(self._location, self._ours, self._known, self._attempts)
        if history and self._opened is None:
            raise AlreadyExists(f"there is a table at {self._location.uri} already, at version {history.head.version}")

    def _has_replaced_another(self, version: Version) -> bool:
        """Return whether a version is gone, or fills the gap of a removed version with the same number, so that no
        later version is based on it."""
        try:
            return find_unrelated_successor(load_at(self._location, version)) is not None
        except NotFound:
            return True
        except LanceError as error:
            raise self._undecided(f"reading the versions from there on failed: {error}") from error

    @cached_property
    def _key_conflicts(self) -> KeyConflicts:
        return KeyConflicts(self._ours)

    def _check_conflicts(self, history: History | None) -> Sequence[CommittedTransaction]:
        """Judge our transaction against those committed since its base and return them; raise if one blocks it."""
        others = [committed for committed in self._known if committed.version > self._ours.read_version]
        if not others:
            return others
        others = self._key_conflicts.annotate(others, history.head if history else None)
        result = judge(self._ours, others)
        if result.blocks:
            raise _conflict(self._location, self._ours, result)
        return others

    def _write_files(self, history: History | None, others: Sequence[CommittedTransaction]) -> "_Candidate":
        """Rebase our transaction onto the newest version, apply it, and write all files but the manifest."""
        base, location, runtime = self._base, self._location, self._runtime
        head: Manifest | NewTable | Fork
        if isinstance(base, Snapshot):
            assert history is not None, "a table that was opened has versions"
            head, scheme, planned_on = history.head.manifest, history.head.scheme, base.manifest
        else:
            head, scheme, planned_on = base, NamingScheme.V2, None
        before = head if isinstance(head, Manifest) else None
        transaction, files = self._ours, dict[str, bytes]()
        if planned_on is not None and before is not None and planned_on.version != before.version:
            deletions = fetch_deletions(location, required_deletions(transaction, planned_on, before), runtime)
            rebased = rebase(transaction, planned_on, before, others, deletions)
            transaction, files = rebased.transaction, dict(rebased.files)
        restored = restored_manifest(location, transaction.operation)
        transaction_file = self._transaction_file.files_to_write(transaction, head, runtime)
        files |= transaction_file
        context = CommitContext(
            now_ns=runtime.now_ns(),
            library_version=LIBRARY_VERSION,
            transaction_file=self._transaction_file.name,
            scheme=scheme,
            checksums={} if before is None else self._dropped_checksums(before, planned_on),
        )
        with refusing_unreadable(location, transaction.operation):
            manifest = apply(head, transaction, context, restored=restored)
            check_caps(manifest, files)
        for path, data in files.items():
            self._write_file(path, data)
        written = {*files, *(() if transaction_file or not self._written_ahead else (self._written_ahead,))}
        self._written_ahead = ""
        return _Candidate(manifest, scheme, before, transaction.operation, written)

    def _write_file(self, path: str, data: bytes) -> None:
        """Write a file that the manifest references. Its sync may be deferred to the put of the manifest."""
        if self._deferring is None:
            self._location.store.put(path, data)
        else:
            self._deferring.put_unsynced(path, data)
            self._unsynced.append(path)

    def _put(self, manifest: Manifest) -> Put:
        """Create the manifest, once all files of the commit are durable."""
        if self._deferring is None:
            return self._location.store.create(manifest.path, manifest.encode())
        put = self._deferring.create_after(manifest.path, manifest.encode(), self._unsynced)
        self._unsynced = []
        return put

    def _dropped_checksums(self, head: Manifest, planned_on: Manifest | None) -> Mapping[str, FileChecksum]:
        """Return the checksums that another engine dropped when it committed the head. They are taken from the version
        that the change was planned on or else from the one before the head: at most one more manifest is read."""
        if head.library == LIBRARY:
            return {}
        source = planned_on if planned_on is not None and planned_on.library == LIBRARY else None
        if source is None:
            with suppress(LanceError):  # a cleanup removed it, or it cannot be read
                source = load_at(self._location, Version(head.version - 1)).manifest
        files = () if source is None else files_of(source)
        return {path: checksum for path, _owner, checksum in files if checksum is not None}

    def _committed(self, candidate: "_Candidate", others: Sequence[CommittedTransaction]) -> CommitResult:
        manifest = candidate.manifest
        self._fence.after_put(manifest, candidate.scheme)
        version_hint.write_hint(self._location.own_store, manifest.version)
        if openlineage.SWITCH in os.environ:
            self._announce(manifest, is_first=candidate.before is None)
        snapshot = Snapshot(self._location.for_manifest(manifest), manifest, candidate.scheme)
        return CommitResult(
            snapshot=snapshot,
            operation=candidate.operation,
            before=candidate.before,
            attempts=self._attempts + 1,
            rebased_over=tuple(committed.version for committed in others),
        )

    def _announce(self, manifest: Manifest, *, is_first: bool) -> None:
        """Report the version to the lineage service, if the environment turns this on."""
        if openlineage.is_enabled():
            openlineage.announce(self._location.uri, manifest, self._ours, is_first=is_first)

    def _already_committed(self, committed: CommittedTransaction, *, may_be_late: bool) -> CommitResult:
        """Return the version that holds our transaction. `may_be_late` means that its put may have succeeded long after
        its attempt read the history, so that a cleanup in between did not know the version."""
        location, ours = self._location, self._ours
        part = part_with_uuid(committed.transaction, ours.uuid) if committed.transaction else None
        assert part is not None
        try:
            snapshot = load_at(location, committed.version)
            problem = find_commit_problem(location, snapshot.manifest, snapshot.scheme) if may_be_late else ""
            location.store.ensure_durable([snapshot.manifest.path])
        except LanceError as error:
            why = f"it exists, but reading it back failed: {error}"
            raise _undecided(location, ours, committed.version, why) from error
        if problem:
            raise _undecided(location, ours, committed.version, problem)
        if self._attempts and openlineage.SWITCH in os.environ:  # an earlier put of ours, whose answer was lost
            self._announce(snapshot.manifest, is_first=committed.version == 1)
        return CommitResult(
            snapshot=snapshot,
            operation=part.operation,
            before=None,
            attempts=self._attempts,
            rebased_over=tuple(
                other.version for other in self._known if ours.read_version < other.version < committed.version
            ),
        )

    def _wait_after(self, put: Put, version: Version) -> None:
        """Back off before the next attempt. After the first lost race there is no wait: its winner has not returned
        yet, and does not compete for the next version."""
        at_once = put is Put.EXISTS and self._taken is None
        self._taken = version if at_once else None
        self._open_put = version
        if not at_once:
            self._backoff.wait()
        self._attempts += 1

    def _undecided(self, why: str) -> CommitUndecided:
        assert self._open_put is not None
        return _undecided(self._location, self._ours, self._open_put, why)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The version that one attempt tries to create."""

    manifest: Manifest
    scheme: NamingScheme
    before: Manifest | None
    operation: Operation
    files: Collection[str]
    """Paths of the files that were written for it in this attempt."""


def _history(
    location: Location,
    since: Version,
    base: Snapshot | None,
    known: Sequence[CommittedTransaction],
    taken: Version | None,
    reserved_in: Version | None,
) -> History | None:
    if taken is not None:
        with suppress(NotFound):  # some stores report that a name is taken before they serve the object
            return read_history(location, since, base=base, known=known, existing=taken, list_newest=False)
    return read_history(location, since, base=base, known=known, existing=reserved_in)


class _TransactionFile:
    """File of the transaction. It is written once as long as rebasing leaves the transaction unchanged, and under a new
    name otherwise: a late put must not reference a file whose content has changed."""

    name = ""
    _content = b""

    def files_to_write(
        self, transaction: Transaction, head: Manifest | NewTable | Fork, runtime: Runtime
    ) -> Mapping[str, bytes]:
        """Return the file of the transaction, unless an earlier attempt has written it."""
        content = encode_transaction_file(head, transaction)
        if content == self._content:
            return {}
        self._content = content
        self.name = naming.transaction_name(transaction.read_version, str(runtime.new_uuid()))
        return {f"{naming.TRANSACTIONS}/{self.name}": content}


def fetch_deletions(location: Location, fragments: Sequence[Fragment], runtime: Runtime) -> FetchedDeletions:
    """Read the deletion vectors of these fragments of the newest version, which a rebase merges with ours."""
    vectors = {}
    for fragment in fragments:
        if (vector := load_deletions(location.store, fragment)) is not None:
            vectors[fragment.id] = vector
    return FetchedDeletions(vectors, {fragment_id: runtime.new_uuid().int >> 64 for fragment_id in vectors})


def restored_manifest(location: Location, operation: Operation) -> Manifest | None:
    """Return the manifest of the version that a `Restore` restores; `None` for other operations."""
    return load_at(location, operation.version).manifest if isinstance(operation, Restore) else None


def check_caps(manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Raise `CapExceeded` if a manifest that is about to be put, or the transaction among the `files` that are put
    before it, exceeds a size cap of readers. The builder of the manifest has checked the fragments that it changed.

    A reader with default caps must be able to open what a writer with default caps has committed (`limits.py`).
    """
    manifest.check_caps()
    for path, data in files.items():
        if path.startswith(f"{naming.TRANSACTIONS}/"):
            Transaction.check_caps(data, path=path)


@contextmanager
def refusing_unreadable(location: Location, operation: Operation) -> Iterator[None]:
    """Turn an exceeded cap into an error which says that the version is not committed, and why."""
    try:
        yield
    except CapExceeded as error:
        advice = ". Otherwise compact the table first, or write fewer and larger fragments"
        raise Unsupported(
            f"{location.uri}: this {operation.name} is not committed, because readers would refuse the version: "
            f"{error}, in every process that reads or writes it{'' if isinstance(operation, Rewrite) else advice}"
        ) from error


def _with_uuid(others: Sequence[CommittedTransaction], uuid: str) -> CommittedTransaction | None:
    return next((each for each in others if each.transaction and part_with_uuid(each.transaction, uuid)), None)


def _conflict(location: Location, ours: Transaction, result: ConflictResult) -> ConflictError:
    theirs = result.theirs
    assert theirs is not None
    is_final = result.verdict is Verdict.INCOMPATIBLE
    advice = (
        "the table is no longer the one this change was planned for; read it, then decide"
        if is_final
        else "open the table again and repeat the operation on the new version"
    )
    kind = IncompatibleConflict if is_final else RetryableConflict
    return kind(
        f"{location.uri}: this {ours.operation.name}, planned on version {ours.read_version}, conflicts with "
        f"{theirs.description}, by rule {result.rule}; {advice}",
        ours=ours.operation.name,
        theirs=theirs.operation,
        version=theirs.version,
        rule=result.rule,
    )


def _conflict_in_rebase(location: Location, ours: Transaction, error: RetryableConflict) -> RetryableConflict:
    """Add the table and our operation to a conflict that the rebase detected."""
    return RetryableConflict(
        f"{location.uri}: {error}",
        ours=ours.operation.name,
        theirs=error.theirs,
        version=error.version,
        rule=error.rule,
    )


def _exhausted(
    location: Location, ours: Transaction, known: Sequence[CommittedTransaction], attempts: int
) -> RetryableConflict:
    return RetryableConflict(
        f"{location.uri}: this {ours.operation.name} lost the race for the next version {attempts} times and was not "
        "committed. Repeat it with more retries, or with fewer concurrent writers",
        ours=ours.operation.name,
        theirs=known[-1].operation if known else "another writer",
        version=known[-1].version if known else 0,
        rule="exhausted",
    )


def _undecided(location: Location, ours: Transaction, version: Version, why: str) -> CommitUndecided:
    return CommitUndecided(
        f"{location.uri}: it is not known whether this {ours.operation.name} was committed as version {version}: "
        f"{why}. Look for its transaction {ours.uuid} in the table's history before repeating it (with the same "
        "intent= this happens by itself), and delete nothing",
        uuid=ours.uuid,
        version=version,
    )
