"""The commit loop, and nothing else.

    look at what was committed since -> judge -> rebase -> apply -> create the next version -> look again

Every turn begins with a look for our own transaction, and the loop ends with a look, not with a put: "exists"
and "no answer" may both mean that our own earlier put landed.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from lance_core.commit.fencing import ClockReading, CommitFence, find_commit_problem, find_overtaking_version
from lance_core.commit.key_conflicts import KeyConflicts
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
)
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.naming import NamingScheme
from lance_core.format.operations import Operation, Restore, Rewrite
from lance_core.format.transaction import Transaction
from lance_core.package_version import LIBRARY_VERSION
from lance_core.runtime import Runtime
from lance_core.storage.store import Put, SupportsCommitLock
from lance_core.transactions.apply import CommitContext, Fork, NewTable, apply, encode_transaction_file
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.transactions.conflicts import ConflictResult, judge
from lance_core.transactions.fold import part_with_uuid, parts_of
from lance_core.transactions.rebase import FetchedInputs, Rebased, RequiredInputs, rebase, required_inputs
from lance_core.transactions.verdicts import Verdict
from lance_core.versions import version_hint
from lance_core.versions.location import Location
from lance_core.versions.snapshot import History, Snapshot, load_at, read_history

ATTEMPTS = 100
"""Puts until it is given up; before that, usually, the time is over (`coordination/backoff.py`). To lose a race costs
two calls."""


class PartAlreadyCommitted(LanceError):
    """Of several appends that were to land together, one has landed before: nothing was put."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """A version that holds our transaction."""

    snapshot: Snapshot
    operation: Operation
    """As it landed: of two holders of one intent, the files may be the other's."""
    before: Manifest | None
    """The version it replaced as the head; None for the first, and where the landing was found, not seen."""
    attempts: int
    """Turns that ended in a put. 0: it had landed before we began."""
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
) -> CommitResult:
    """Put `ours` into exactly one version.
    `since` is where history is searched for an earlier landing of it; `started_at` is before its first file was written."""
    store = location.own_store
    turn = store.commit_lock(naming.VERSIONS) if isinstance(store, SupportsCommitLock) else nullcontext()
    # What a restore names once more was written long ago, and perhaps by one whose version came too late to keep it.
    written = ClockReading.distant_past() if isinstance(ours.operation, Restore) else started_at
    with CommitFence(location, ours.uuid, written, runtime) as fence, turn:
        return _CommitLoop(location, ours, base, since, attempts, runtime, fence).run()


class _CommitLoop:
    """The attempts of one commit. Each attempt starts from the original transaction and base."""

    def __init__(
        self,
        location: Location,
        ours: Transaction,
        base: Snapshot | NewTable | Fork,
        since: Version,
        attempts_max: int,
        runtime: Runtime,
        fence: CommitFence,
    ) -> None:
        self._location, self._ours, self._base, self._since = location, ours, base, since
        self._attempts_max, self._runtime, self._fence = attempts_max, runtime, fence
        self._opened = base if isinstance(base, Snapshot) else None
        self._attempts = 0
        self._known: Sequence[CommittedTransaction] = ()
        self._open_put: Version | None = None
        """Version that an unanswered put of ours may still create."""
        self._taken: Version | None = None
        """Version that another writer created just now: the next attempt reads on from there at once."""
        self._key_conflicts = KeyConflicts(ours)
        self._transaction_file = _TransactionFile()
        self._backoff = Backoff(runtime)

    def run(self) -> CommitResult:
        while True:
            has_stalled = self._fence.begin_attempt()
            history = self._read_history()
            if committed := self._find_own():
                return self._already_committed(committed, may_be_late=has_stalled or not self._attempts)
            self._check_may_put(history, has_stalled=has_stalled)
            others = self._check_conflicts(history)
            try:
                version = self._write_files(history, others)
                if not self._fence.before_put(version.manifest, version.before, version.files):
                    self._taken, self._backoff = None, Backoff(self._runtime)
                    continue  # the checks took a while: read the history again, so that the put is not late
                put = self._location.store.create(version.manifest.path, version.manifest.encode())
            except RetryableConflict as error:
                raise _conflict_in_rebase(self._location, self._ours, error) from error
            except LanceError as error:
                if self._open_put is None:
                    raise
                raise self._undecided(f"repeating the put failed: {error}") from error
            if put is Put.CREATED:
                return self._committed(version, others)
            self._wait_after(put, version.manifest.version)

    def _read_history(self) -> History | None:
        """Read the transactions since `since`; None if there is no table."""
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
        """Find the version with our transaction, which an earlier put created whose answer was lost."""
        if committed := _with_uuid(self._known, self._ours.uuid):
            return committed
        for part in parts_of(self._ours):
            if committed := _with_uuid(self._known, part.uuid):
                raise PartAlreadyCommitted(
                    f"{self._location.uri}: version {committed.version} contains the append {part.uuid} already"
                )
        return None

    def _check_may_put(self, history: History | None, *, has_stalled: bool) -> None:
        """Raise if there is no attempt left, or if the outcome of an earlier put can no longer be known."""
        open_put = self._open_put
        if history and open_put and history.head.version >= open_put:
            if open_put in history.missing or (
                has_stalled and find_overtaking_version(self._location, history.head.scheme, open_put)
            ):
                raise self._undecided("a cleanup removed that version, whichever transaction it held")
            self._open_put = None  # another writer's version is there now, so ours can never be
        if self._attempts == self._attempts_max or (self._attempts and self._backoff.is_expired):
            if self._open_put is not None:
                raise self._undecided(f"{self._attempts} puts were not answered")
            raise _exhausted(self._location, self._ours, self._known, self._attempts)
        if history and self._opened is None:
            raise AlreadyExists(f"there is a table at {self._location.uri} already, at version {history.head.version}")

    def _check_conflicts(self, history: History | None) -> Sequence[CommittedTransaction]:
        """Judge our transaction against those committed since its base and return them; raise if one blocks it."""
        others = [committed for committed in self._known if committed.version > self._ours.read_version]
        others = self._key_conflicts.annotate(others, history.head if history else None)
        result = judge(self._ours, others)
        if result.blocks:
            raise _conflict(self._location, self._ours, result)
        return others

    def _write_files(self, history: History | None, others: Sequence[CommittedTransaction]) -> "_NextVersion":
        """Rebase our transaction onto the newest version, apply it, and write all files but the manifest."""
        base, location, runtime = self._base, self._location, self._runtime
        head: Manifest | NewTable | Fork
        if isinstance(base, Snapshot):
            assert history is not None, "a table that was opened has versions"
            head, scheme, planned_on = history.head.manifest, history.head.scheme, base.manifest
        else:
            head, scheme, planned_on = base, NamingScheme.V2, None
        before = head if isinstance(head, Manifest) else None
        inputs = fetch_inputs(location, required_inputs(self._ours, planned_on, before), runtime)
        rebased = rebase(self._ours, planned_on, before, others, inputs)
        files = self._transaction_file.files_to_write(rebased, head, runtime)
        context = CommitContext(
            now_ns=runtime.now_ns(),
            library_version=LIBRARY_VERSION,
            transaction_file=self._transaction_file.name,
            scheme=scheme,
        )
        manifest = apply(head, rebased.transaction, context, fetched=inputs.manifest)
        for path, data in files.items():
            location.store.put(path, data)
        return _NextVersion(manifest, scheme, before, rebased.transaction.operation, files)

    def _committed(self, version: "_NextVersion", others: Sequence[CommittedTransaction]) -> CommitResult:
        manifest = version.manifest
        self._fence.after_put(manifest, version.scheme)
        version_hint.write_hint(self._location.own_store, manifest.version)
        return CommitResult(
            snapshot=Snapshot(self._location.for_manifest(manifest), manifest, version.scheme),
            operation=version.operation,
            before=version.before,
            attempts=self._attempts + 1,
            rebased_over=tuple(committed.version for committed in others),
        )

    def _already_committed(self, committed: CommittedTransaction, *, may_be_late: bool) -> CommitResult:
        """Return the version that holds our transaction. `may_be_late`: its put may have succeeded long after the
        history was read for it, so that a cleanup in between did not know of it."""
        location, ours = self._location, self._ours
        made = part_with_uuid(committed.transaction, ours.uuid) if committed.transaction else None
        assert made is not None
        try:
            snapshot = load_at(location, committed.version)
            problem = find_commit_problem(location, snapshot.manifest, snapshot.scheme) if may_be_late else ""
            location.store.ensure_durable([snapshot.manifest.path])
        except LanceError as error:
            why = f"it exists, but reading it back failed: {error}"
            raise _undecided(location, ours, committed.version, why) from error
        if problem:
            raise _undecided(location, ours, committed.version, problem)
        return CommitResult(
            snapshot=snapshot,
            operation=made.operation,
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
class _NextVersion:
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
    """The transaction's own file, written once for as long as the transaction stays as it is: a put that lands late
    must not find that it says something else."""

    name = ""
    _record = b""

    def files_to_write(
        self, rebased: Rebased, head: Manifest | NewTable | Fork, runtime: Runtime
    ) -> Mapping[str, bytes]:
        """What has to be written in this turn, before the version."""
        record = encode_transaction_file(head, rebased.transaction)
        if record == self._record:
            return rebased.files
        self._record = record
        self.name = naming.transaction_name(rebased.transaction.read_version, str(runtime.new_uuid()))
        return {**rebased.files, f"{naming.TRANSACTIONS}/{self.name}": record}


def fetch_inputs(location: Location, wanted: RequiredInputs, runtime: Runtime) -> FetchedInputs:
    """What a change has to be told before it can follow the head."""
    deletions = {}
    for fragment in wanted.deletions:
        if (vector := load_deletions(location.store, fragment)) is not None:
            deletions[fragment.id] = vector
    return FetchedInputs(
        deletions=deletions,
        file_numbers={fragment_id: runtime.new_uuid().int >> 64 for fragment_id in deletions},
        manifest=None if wanted.version is None else load_at(location, wanted.version).manifest,
    )


def _with_uuid(others: Sequence[CommittedTransaction], uuid: str) -> CommittedTransaction | None:
    return next((landed for landed in others if landed.transaction and part_with_uuid(landed.transaction, uuid)), None)


def _conflict(location: Location, ours: Transaction, finding: ConflictResult) -> ConflictError:
    theirs = finding.theirs
    assert theirs is not None
    final = finding.verdict is Verdict.INCOMPATIBLE
    advice = (
        "the table is no longer what this was planned for; look at it, then decide"
        if final
        else "open the table again and repeat the operation on the new version"
    )
    kind = IncompatibleConflict if final else RetryableConflict
    return kind(
        f"{location.uri}: this {ours.operation.name}, planned on version {ours.read_version}, cannot stand "
        f"beside {theirs.description}, by rule {finding.rule}; {advice}",
        ours=ours.operation.name,
        theirs=theirs.operation,
        version=theirs.version,
        rule=finding.rule,
    )


def _conflict_in_rebase(location: Location, ours: Transaction, error: RetryableConflict) -> RetryableConflict:
    """What was found out only when the change was made to fit."""
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
        f"{location.uri}: this {ours.operation.name} lost the race for the next version {attempts} times; "
        "nothing of it landed. Repeat it, with more retries or fewer writers at once",
        ours=ours.operation.name,
        theirs=known[-1].operation if known else "another writer",
        version=known[-1].version if known else 0,
        rule="exhausted",
    )


def _undecided(location: Location, ours: Transaction, slot: Version, why: str) -> CommitUndecided:
    return CommitUndecided(
        f"{location.uri}: whether this {ours.operation.name} landed as version {slot} is not known: {why}. "
        f"Look for its transaction {ours.uuid} in the table's history before repeating it (with the same "
        "intent= that happens by itself), and delete nothing",
        uuid=ours.uuid,
        version=slot,
    )
