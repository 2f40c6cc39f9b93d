"""The commit loop, and nothing else.

    look at what was committed since -> judge -> rebase -> apply -> create the next version -> look again

Every turn begins with a look for our own transaction, and the loop ends with a look, not with a put: "exists"
and "no answer" may both mean that our own earlier put landed.
"""

from collections.abc import Mapping, Sequence
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
from lance_core.versions.snapshot import History, Snapshot, read_history, load_at

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
    begun: ClockReading | None = None,
) -> CommitResult:
    """Put `ours` into exactly one version.
    `since` is where history is searched for an earlier landing of it; `begun` is before its first file was written."""
    store = location.own_store
    turn = store.commit_lock(naming.VERSIONS) if isinstance(store, SupportsCommitLock) else nullcontext()
    # What a restore names once more was written long ago, and perhaps by one whose version came too late to keep it.
    written = ClockReading.distant_past() if isinstance(ours.operation, Restore) else begun
    with CommitFence(location, ours.uuid, written, runtime) as watch, turn:
        return _commit(location, ours, base, since, attempts, runtime, watch)


def _commit(
    location: Location,
    ours: Transaction,
    base: Snapshot | NewTable | Fork,
    since: Version,
    attempts: int,
    runtime: Runtime,
    watch: CommitFence,
) -> CommitResult:
    loaded = base if isinstance(base, Snapshot) else None
    planned_on = loaded.manifest if loaded else None
    there = ours.operation.reserved_in if isinstance(ours.operation, Rewrite) else None
    known: Sequence[CommittedTransaction] = ()
    slot: Version | None = None  # where a put of ours may still land
    taken: Version | None = None  # where somebody was first just now
    new_keys = KeyConflicts(ours)
    noted = _TransactionFile()
    pace = Backoff(runtime)
    attempt = 0
    while True:
        stood_still = watch.begin_attempt()
        try:
            history = _look(location, since, loaded, known, taken, there)
        except LanceError as error:
            if slot is None:
                raise
            raise _undecided(location, ours, slot, f"looking for it failed: {error}") from error
        known = history.others if history else ()
        if landed := _with_uuid(known, ours.uuid):
            return _found(location, landed, known, ours, attempt, late=stood_still or not attempt)
        for part in parts_of(ours):
            if landed := _with_uuid(known, part.uuid):
                raise PartAlreadyCommitted(
                    f"{location.uri}: the append {part.uuid} is in version {landed.version} already"
                )
        if history and slot and history.head.version >= slot:
            if slot in history.missing or (stood_still and find_overtaking_version(location, history.head.scheme, slot)):
                raise _undecided(location, ours, slot, "a cleanup removed that version, whoever's it was")
            slot = None  # somebody else's version is there now, so ours can never be
        if attempt == attempts or (attempt and pace.is_expired):
            if slot is not None:
                raise _undecided(location, ours, slot, f"{attempt} puts were not answered")
            raise _exhausted(location, ours, known, attempt)
        if history and loaded is None:
            raise AlreadyExists(f"there is a table at {location.uri} already, at version {history.head.version}")
        others = [landed for landed in known if landed.version > ours.read_version]
        others = new_keys.annotate(others, history.head if history else None)
        finding = judge(ours, others)
        if finding.blocks:
            raise _conflict(location, ours, finding)
        head, scheme = _head(base, history)
        try:
            before = head if isinstance(head, Manifest) else None
            fetched = fetch_inputs(location, required_inputs(ours, planned_on, before), runtime)
            rebased = rebase(ours, planned_on, before, others, fetched)
            files = noted.files(rebased, head, runtime)
            occasion = CommitContext(
                now_ns=runtime.now_ns(),
                library_version=LIBRARY_VERSION,
                transaction_file=noted.name,
                scheme=scheme,
            )
            manifest = apply(head, rebased.transaction, occasion, fetched=fetched.manifest)
            for path, data in files.items():
                location.store.put(path, data)
            if not watch.before_put(manifest, before, files):
                taken, pace = None, Backoff(runtime)
                continue  # it took a while: who looks again now is not late with its put
            put = location.store.create(manifest.path, manifest.encode())
        except RetryableConflict as error:
            raise _met(location, ours, error) from error
        except LanceError as error:
            if slot is None:
                raise
            raise _undecided(location, ours, slot, f"putting it again failed: {error}") from error
        if put is Put.CREATED:
            watch.after_put(manifest, scheme)
            version_hint.write_hint(location.own_store, manifest.version)
            return CommitResult(
                snapshot=Snapshot(location.for_manifest(manifest), manifest, scheme),
                operation=rebased.transaction.operation,
                before=before,
                attempts=attempt + 1,
                rebased_over=tuple(landed.version for landed in others),
            )
        # The first to come after a lost race goes on from there at once: whoever made the version is not yet back.
        at_once = put is Put.EXISTS and taken is None
        taken = manifest.version if at_once else None
        slot = manifest.version
        if not at_once:
            pace.wait()
        attempt += 1


def _look(
    location: Location,
    since: Version,
    base: Snapshot | None,
    known: Sequence[CommittedTransaction],
    taken: Version | None,
    there: Version | None,
) -> History | None:
    if taken is not None:
        with suppress(NotFound):  # some stores say that a name is taken before they show what is there
            return read_history(location, since, base=base, known=known, existing=taken, list_newest=False)
    return read_history(location, since, base=base, known=known, existing=there)


class _TransactionFile:
    """The transaction's own file, written once for as long as the transaction stays as it is: a put that lands late
    must not find that it says something else."""

    name = ""
    _record = b""

    def files(self, rebased: Rebased, head: Manifest | NewTable | Fork, runtime: Runtime) -> Mapping[str, bytes]:
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
        numbers={fragment_id: runtime.new_uuid().int >> 64 for fragment_id in deletions},
        manifest=None if wanted.version is None else load_at(location, wanted.version).manifest,
    )


def _head(base: Snapshot | NewTable | Fork, history: History | None) -> tuple[Manifest | NewTable | Fork, NamingScheme]:
    if not isinstance(base, Snapshot):
        return base, NamingScheme.V2
    assert history is not None, "a table that was opened has versions"
    return history.head.manifest, history.head.scheme


def _with_uuid(others: Sequence[CommittedTransaction], uuid: str) -> CommittedTransaction | None:
    return next((landed for landed in others if landed.transaction and part_with_uuid(landed.transaction, uuid)), None)


def _found(
    location: Location,
    landed: CommittedTransaction,
    known: Sequence[CommittedTransaction],
    ours: Transaction,
    attempts: int,
    *,
    late: bool,
) -> CommitResult:
    """`late`: the put may have come long after the look before it."""
    made = part_with_uuid(landed.transaction, ours.uuid) if landed.transaction else None
    assert made is not None
    try:
        snapshot = load_at(location, landed.version)
        wrong = find_commit_problem(location, snapshot.manifest, snapshot.scheme) if late else ""
        location.store.ensure_durable([snapshot.manifest.path])
    except LanceError as error:
        why = f"it is there, but reading it back failed: {error}"
        raise _undecided(location, ours, landed.version, why) from error
    if wrong:
        raise _undecided(location, ours, landed.version, wrong)
    return CommitResult(
        snapshot=snapshot,
        operation=made.operation,
        before=None,
        attempts=attempts,
        rebased_over=tuple(other.version for other in known if ours.read_version < other.version < landed.version),
    )


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
        f"beside {theirs.described}, by rule {finding.rule}; {advice}",
        ours=ours.operation.name,
        theirs=theirs.operation,
        version=theirs.version,
        rule=finding.rule,
    )


def _met(location: Location, ours: Transaction, error: RetryableConflict) -> RetryableConflict:
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
