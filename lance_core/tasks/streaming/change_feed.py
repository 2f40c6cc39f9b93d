"""Which rows a version brings to whoever follows a table: those it added, as they were then.

Versions that move rows or touch none (compaction, indices, settings, new columns) bring nothing, and nobody is told.
Versions that change or remove rows which were sent before are what `OnChange` decides about. What a version did is read
from its transaction, and which fragments hold it from its manifest. Start with `rows_added_by`.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lance_core.errors import Corrupt, InvalidInput, Unsupported
from lance_core.format import operations as op
from lance_core.format.fragment import Fragment
from lance_core.format.ids import FragmentId
from lance_core.format.manifest import Manifest
from lance_core.format.transaction import Transaction
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.versions.snapshot import Snapshot

_BRINGS_NOTHING = (
    op.Rewrite,
    op.CreateIndex,
    op.ReserveFragments,
    op.UpdateConfig,
    op.UpdateBases,
    op.UpdateMemWalState,
    op.Merge,
    op.Project,
)
"""A column that is added, dropped, renamed or recast adds no row; whether it was one of the stream's is seen when the
next rows are read."""


class OnChange(enum.Enum):
    FAIL = "fail"
    """Stop there and say so."""
    SKIP = "skip"
    """Rows that were added are sent, and nothing of rows that changed or went."""
    REWRITTEN = "rewritten"
    """Rows that changed are sent again, as they are after it; of those that went, nothing is said."""


@dataclass(frozen=True, slots=True)
class AddedRows:
    """Live rows of these fragments, as they were in the version."""

    fragments: tuple[bytes, ...] = ()
    rows: tuple[int, ...] = ()
    """How many live ones each has."""
    row_offsets: Mapping[FragmentId, bytes] = field(default_factory=dict)
    """Where not all of a fragment's are meant: Roaring bitmaps of physical offsets."""
    created_in: int | None = None
    """Where only those are meant that were created in this version."""

    @classmethod
    def all_of(cls, fragments: Iterable[Fragment]) -> "AddedRows":
        named = list(fragments)
        return cls(tuple(each.encode() for each in named), tuple(each.live_rows for each in named))

    @property
    def total(self) -> int:
        return sum(self.rows)


def rows_added_by(
    version: Snapshot,
    transaction: Transaction | None,
    on_change: OnChange,
    streamed_fields: Callable[[Snapshot], Collection[int]],
) -> AddedRows:
    """`streamed_fields` tells the fields that are sent or decide what is: a column beside them may change without a word."""
    manifest = version.manifest
    operation = transaction.operation if transaction else None
    match operation:
        case op.Append():
            return AddedRows.all_of(_placed(version, operation.fragments))
        case op.Overwrite() | op.Clone() if manifest.version == 1 or isinstance(operation, op.Clone):
            return AddedRows.all_of(manifest.fragments)
        case op.Update() if not (operation.removed_ids or operation.updated):
            return AddedRows.all_of(_placed(version, operation.new))
        case op.Delete() | op.Overwrite() | op.Restore() | op.Update() | op.DataReplacement():
            if _is_beside(operation, version, streamed_fields):
                return AddedRows()
            if on_change is OnChange.FAIL:
                raise _changes(version, transaction)
            return _added(version, operation) if on_change is OnChange.SKIP else _rewritten(version, operation)
        case _ if isinstance(operation, _BRINGS_NOTHING):
            return AddedRows()
    raise Unsupported(
        f"{version.location.uri}: what version {manifest.version} did to the rows is not known: it is "
        f"{CommittedTransaction.of(manifest, transaction).description}. Begin anew after it: a query with a new "
        f"checkpointLocation and starting_version={manifest.version + 1}, or without it to have all rows again"
    )


def _is_beside(operation: op.Operation, version: Snapshot, watched: Callable[[Snapshot], Collection[int]]) -> bool:
    """Whether it changed columns in place, and none of those that are watched."""
    if isinstance(operation, op.DataReplacement):
        changed = {number for _, file in operation.replacements for number in file.field_ids}
    elif isinstance(operation, op.Update) and operation.fields_modified and not operation.new:
        if operation.removed_ids or operation.mode is not op.UpdateMode.REWRITE_COLUMNS:
            return False
        changed = set(operation.fields_modified)
    else:
        return False
    return changed.isdisjoint(watched(version))


def _added(version: Snapshot, operation: op.Operation) -> AddedRows:
    """Rows that are new, where the version can tell them from those that were moved."""
    if not isinstance(operation, op.Update) or not version.manifest.has_stable_row_ids:
        return AddedRows()
    new = AddedRows.all_of(_placed(version, operation.new))
    return AddedRows(new.fragments, new.rows, created_in=int(version.manifest.version))


def _rewritten(version: Snapshot, operation: op.Operation) -> AddedRows:
    manifest = version.manifest
    if isinstance(operation, op.Overwrite | op.Restore):
        return AddedRows.all_of(manifest.fragments)
    if isinstance(operation, op.DataReplacement):
        return AddedRows.all_of(_numbered(manifest, {number for number, _ in operation.replacements}))
    if not isinstance(operation, op.Update):
        return AddedRows()
    moved = list(_placed(version, operation.new))
    if operation.mode is op.UpdateMode.REWRITE_ROWS or not operation.fields_modified:
        return AddedRows.all_of(moved)
    offsets = {FragmentId(number): bitmap for number, bitmap in operation.updated_offsets.items()}
    changed = set(offsets) or {each.id for each in operation.updated}
    rows = AddedRows.all_of([*_numbered(manifest, changed), *moved])
    return AddedRows(rows.fragments, rows.rows, row_offsets=offsets)


def _numbered(manifest: Manifest, wanted: set[FragmentId]) -> list[Fragment]:
    return [fragment for fragment in manifest.fragments if fragment.id in wanted]


def _placed(version: Snapshot, written: Sequence[Fragment]) -> Sequence[Fragment]:
    """The fragments of a transaction as its version has them, numbered. Writers put new ones at the end."""
    if not written:
        return ()
    fragments = version.manifest.fragments
    wanted = [_files(each) for each in written]
    last = fragments[max(0, len(fragments) - len(written)) :]
    if [_files(each) for each in last] == wanted:
        return last
    by_files = {_files(each): each for each in fragments}
    missing = next((files for files in wanted if files not in by_files), None)
    if missing is not None:
        raise Corrupt(
            f"does not hold the file {missing[0] if missing else ''!r} that its transaction added",
            path=f"{version.location.uri}/{version.manifest.path}",
            field="fragments",
        )
    return [by_files[files] for files in wanted]


def _files(fragment: Fragment) -> tuple[str, ...]:
    return tuple(file.path for file in fragment.files)


def _changes(version: Snapshot, transaction: Transaction | None) -> InvalidInput:
    number = version.manifest.version
    return InvalidInput(
        f"{version.location.uri}: a stream sends rows that are added, and version {number} changed or removed rows: it "
        f"is {CommittedTransaction.of(version.manifest, transaction).description}. "
        "Set the option on_change='skip' to send only what "
        "is added, on_change='rewritten' to have changed rows sent again, or begin anew after it: a query with a new "
        f"checkpointLocation and starting_version={number + 1}, or without it to have all rows again"
    )
