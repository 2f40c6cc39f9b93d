"""Intent history: finds the version in which an intent was committed before, by another attempt or another holder.

The history since the version that the intent began on decides, by the uuid of its transaction. If a cleanup has removed
versions of that history, the files of the intent decide, because no other write has them: its record lists them, or
their names have its mark. If neither decides, the outcome is `CommitUndecided` (`001-idempotent-commits.md`). This
module writes nothing. Start with `find_commit`.
"""

from collections.abc import Sequence

from lance_core.commit.fencing import find_commit_problem
from lance_core.commit.loop import CommitResult
from lance_core.coordination import idempotency
from lance_core.coordination.idempotency import CommitSummary, IntentRecord
from lance_core.errors import CommitUndecided, NotFound, StorageError
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.transactions.fold import part_with_uuid
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, list_versions, load_at, load_latest, load_transaction, read_history

REMOVED_COMMIT = "Unknown"
"""Operation in the summary of a commit whose version was removed before its intent recorded it."""


def find_commit(location: Location, record: IntentRecord, base: Snapshot | None) -> CommitResult | CommitSummary | None:
    """Return the commit of an intent, or its summary if its version was removed since; `None` if the history after
    `record.base` contains no commit of it. Raise `CommitUndecided` if that history does not decide it. `base` is a
    version that is loaded already."""
    history = read_history(location, record.base, base=base)
    for other in history.others if history else ():
        if other.transaction and (part := part_with_uuid(other.transaction, record.transaction_uuid)):
            snapshot = load_at(location, other.version)
            if problem := find_commit_problem(location, snapshot.manifest, snapshot.scheme):
                why = f"was committed as version {other.version}, but {problem}"
                raise _undecided(location, record, other.version, why)
            try:
                location.store.ensure_durable([snapshot.manifest.path])
            except StorageError as error:
                why = f"was committed as version {other.version}, but perhaps not durably: {error}"
                raise _undecided(location, record, other.version, why) from error
            return CommitResult(snapshot, part.operation, None, 0, ())
    if history and history.missing:
        if summary := find_removed_commit(location, record):
            return summary
        why = f"began on version {record.base}, and a cleanup removed version {history.missing[0]} since"
        raise _undecided(location, record, history.missing[0], why)
    return None


def find_removed_commit(location: Location, record: IntentRecord) -> CommitSummary | None:
    """Return the summary of a commit whose version was removed, if a later version references a file of it: one that
    the record of its intent lists, or that has its mark in the name. `None` if no version does.

    The summary names the highest version that the commit can have had. The added rows of an append are known; the rows
    of other verbs, and removed rows, are unknown and count as 0."""
    current = idempotency.read_record(location.store, idempotency.path_of(record.intent))
    descendant = _find_descendant(location, record, current)
    if descendant is None:
        return None
    removed, fragments = descendant
    files = [file for fragment in fragments for file in fragment.files if current.wrote(file.qualified_path)]
    return CommitSummary(
        removed,
        operation=REMOVED_COMMIT,
        rows_added=sum(fragment.physical_rows for fragment in fragments) if record.verb.lower() == "append" else 0,
        rows_removed=0,
        files=max(len(current.file_keys), len(files)),
        bytes=sum(file.size or 0 for file in files),
    )


def _find_descendant(
    location: Location, record: IntentRecord, current: IntentRecord
) -> tuple[Version, Sequence[Fragment]] | None:
    """Find the first version after a gap that references one of the files. Return the last removed version below it,
    and its fragments with such files.

    Return `None` if there is none, or if the version of the intent itself exists, which then decides."""
    previous, removed = record.base, None
    for number in list_versions(location).numbers:
        if number <= record.base:
            continue
        try:
            manifest = load_at(location, number).manifest
        except NotFound:  # a cleanup removed it since the listing
            continue
        if number > previous + 1:
            removed = Version(number - 1)
        previous = number
        transaction = load_transaction(location, manifest)
        if transaction is not None and part_with_uuid(transaction, record.transaction_uuid):
            return None
        fragments = [
            fragment
            for fragment in manifest.fragments
            if any(current.wrote(file.qualified_path) for file in fragment.files)
        ]
        if removed and (fragments or any(current.wrote(index.qualified_path) for index in manifest.indices)):
            return removed, fragments
    return None


def load_recorded_commit(location: Location, record: IntentRecord, summary: CommitSummary) -> Snapshot:
    """Load the version that the record of an intent names, or the newest one if a cleanup has removed it.

    Raise `CommitUndecided` if the version contains another change, or if the table ends before it. In both cases the
    table was reset to an earlier state."""
    version = Version(summary.version)
    try:
        snapshot = load_at(location, version)  # by name, since a listing may be stale
    except NotFound:
        snapshot = load_latest(location)
        if version > snapshot.version:
            why = f"was committed as version {version}, but the table ends at version {snapshot.version} now"
            raise _undecided(location, record, version, why) from None
        return snapshot
    transaction = load_transaction(location, snapshot.manifest)
    if transaction is None or not part_with_uuid(transaction, record.transaction_uuid):
        why = f"was committed as version {version}, but that version contains another change now"
        raise _undecided(location, record, version, why)
    return snapshot


def _undecided(location: Location, record: IntentRecord, version: Version, why: str) -> CommitUndecided:
    return CommitUndecided(
        f"{location.uri}: it is not known whether the table contains the {record.verb} of the intent "
        f"{record.intent!r}: it {why}. Check whether its rows are in the table; if they are not, write them under "
        "another intent",
        uuid=record.transaction_uuid,
        version=version,
    )
