"""Change feed: determines the rows that a version adds to a stream, in their state in that version.

Versions that move rows or touch none (compaction, indices, settings, new columns) add nothing, and the stream skips
them. `OnChange` decides about versions that change or remove rows which were sent before. The transaction records the
operation of a version, and the manifest the fragments that hold the rows. Start with `rows_added_by`.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from lance_core.errors import Corrupt, InvalidInput, Unsupported
from lance_core.format import operations as op
from lance_core.format.fragment import Fragment
from lance_core.format.ids import FragmentId
from lance_core.format.manifest import Manifest
from lance_core.format.transaction import Transaction
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.transactions.footprint import overlays_by_fragment
from lance_core.versions.snapshot import Snapshot

_ADDS_NO_ROWS = (
    op.Rewrite,
    op.CreateIndex,
    op.ReserveFragments,
    op.UpdateConfig,
    op.UpdateBases,
    op.UpdateMemWalState,
    op.Merge,
    op.Project,
)
"""Adding, dropping, renaming or casting a column adds no row. If the stream sends the column, reading its next rows
detects the change."""


class OnChange(enum.Enum):
    """Behaviour of a stream at a version that changes or removes rows."""

    FAIL = "fail"
    """Stop with an error."""
    SKIP = "skip"
    """Send the rows that were added, and ignore rows that changed or were removed."""
    REWRITTEN = "rewritten"
    """Send changed rows again, with their new values, and ignore rows that were removed."""


@dataclass(frozen=True, slots=True)
class AddedRows:
    """Live rows of these fragments, in their state in the version."""

    fragments: tuple[bytes, ...] = ()
    rows: tuple[int, ...] = ()
    """Number of live rows of each fragment."""
    row_offsets: Mapping[FragmentId, bytes] = field(default_factory=dict)
    """Roaring bitmaps of physical offsets, for fragments of which only some rows are sent."""
    created_in: int | None = None
    """Send only rows that were created in this version; `None` sends all."""

    @classmethod
    def all_of(cls, fragments: Iterable[Fragment]) -> "AddedRows":
        """Return all live rows of the fragments."""
        listed = list(fragments)
        return cls(tuple(fragment.encode() for fragment in listed), tuple(fragment.live_rows for fragment in listed))

    @property
    def total(self) -> int:
        return sum(self.rows)


def rows_added_by(
    version: Snapshot,
    transaction: Transaction | None,
    on_change: OnChange,
    streamed_fields: Callable[[Snapshot], Collection[int]],
) -> AddedRows:
    """Return the rows that a version adds. `streamed_fields` returns the ids of the fields that the stream sends or
    filters by; an in-place change of other columns is ignored."""
    manifest = version.manifest
    operation = transaction.operation if transaction else None
    match operation:
        case op.Append():
            return AddedRows.all_of(_fragments_of_version(version, operation.fragments))
        case op.Overwrite() | op.Clone() if manifest.version == 1 or isinstance(operation, op.Clone):
            return AddedRows.all_of(manifest.fragments)
        case op.Update() if not (operation.removed_ids or operation.updated):
            return AddedRows.all_of(_fragments_of_version(version, operation.new))
        case op.Delete() | op.Overwrite() | op.Restore() | op.Update() | op.DataReplacement() | op.DataOverlay():
            if _changes_other_columns_only(operation, version, streamed_fields):
                return AddedRows()
            if on_change is OnChange.FAIL:
                raise _change_error(version, transaction)
            return (
                _inserted_rows(version, operation) if on_change is OnChange.SKIP else _changed_rows(version, operation)
            )
        case _ if isinstance(operation, _ADDS_NO_ROWS):
            return AddedRows()
    raise Unsupported(
        f"{version.location.uri}: the effect of version {manifest.version} on the rows is unknown: it is "
        f"{CommittedTransaction.of(manifest, transaction).description}. Start a query after it, with a new "
        f"checkpointLocation and starting_version={manifest.version + 1}, or without starting_version for all rows"
    )


def _changes_other_columns_only(
    operation: op.Operation, version: Snapshot, streamed_fields: Callable[[Snapshot], Collection[int]]
) -> bool:
    """Return whether the operation only rewrote columns in place, and the stream needs none of them."""
    if isinstance(operation, op.DataReplacement):
        changed = {number for _, file in operation.replacements for number in file.field_ids}
    elif isinstance(operation, op.DataOverlay):
        overlays = (overlay for each in overlays_by_fragment(operation).values() for overlay in each)
        changed = {field_id for overlay in overlays for field_id in overlay.live_fields}
    elif isinstance(operation, op.Update) and operation.fields_modified and not operation.new:
        if operation.removed_ids or operation.mode is not op.UpdateMode.REWRITE_COLUMNS:
            return False
        changed = set(operation.fields_modified)
    else:
        return False
    return changed.isdisjoint(streamed_fields(version))


def _inserted_rows(version: Snapshot, operation: op.Operation) -> AddedRows:
    """Return the inserted rows, if stable row ids distinguish them from rows that were moved."""
    if not isinstance(operation, op.Update) or not version.manifest.has_stable_row_ids:
        return AddedRows()
    new = AddedRows.all_of(_fragments_of_version(version, operation.new))
    return AddedRows(new.fragments, new.rows, created_in=int(version.manifest.version))


def _changed_rows(version: Snapshot, operation: op.Operation) -> AddedRows:
    manifest = version.manifest
    if isinstance(operation, op.Overwrite | op.Restore):
        return AddedRows.all_of(manifest.fragments)
    if isinstance(operation, op.DataReplacement):
        return AddedRows.all_of(_fragments_with_ids(manifest, {number for number, _ in operation.replacements}))
    if isinstance(operation, op.DataOverlay):
        covered = {
            FragmentId(number): BitMap.union(BitMap(), *(overlay.rows for overlay in overlays)).serialize()
            for number, overlays in overlays_by_fragment(operation).items()
        }
        rows = AddedRows.all_of(_fragments_with_ids(manifest, set(covered)))
        return AddedRows(rows.fragments, rows.rows, row_offsets=covered)
    if not isinstance(operation, op.Update):
        return AddedRows()
    moved = list(_fragments_of_version(version, operation.new))
    if operation.mode is op.UpdateMode.REWRITE_ROWS or not operation.fields_modified:
        return AddedRows.all_of(moved)
    offsets = {FragmentId(number): bitmap for number, bitmap in operation.updated_offsets.items()}
    changed = set(offsets) or {fragment.id for fragment in operation.updated}
    rows = AddedRows.all_of([*_fragments_with_ids(manifest, changed), *moved])
    return AddedRows(rows.fragments, rows.rows, row_offsets=offsets)


def _fragments_with_ids(manifest: Manifest, ids: set[FragmentId]) -> list[Fragment]:
    return [fragment for fragment in manifest.fragments if fragment.id in ids]


def _fragments_of_version(version: Snapshot, written: Sequence[Fragment]) -> Sequence[Fragment]:
    """Return the fragments of a transaction as numbered in its version. Writers append new fragments at the end."""
    if not written:
        return ()
    fragments = version.manifest.fragments
    file_lists = [_file_paths(fragment) for fragment in written]
    last = fragments[max(0, len(fragments) - len(written)) :]
    if [_file_paths(fragment) for fragment in last] == file_lists:
        return last
    by_files = {_file_paths(fragment): fragment for fragment in fragments}
    missing = next((files for files in file_lists if files not in by_files), None)
    if missing is not None:
        raise Corrupt(
            f"does not hold the file {missing[0] if missing else ''!r} that its transaction added",
            path=f"{version.location.uri}/{version.manifest.path}",
            field="fragments",
        )
    return [by_files[files] for files in file_lists]


def _file_paths(fragment: Fragment) -> tuple[str, ...]:
    return tuple(file.path for file in fragment.files)


def _change_error(version: Snapshot, transaction: Transaction | None) -> InvalidInput:
    number = version.manifest.version
    return InvalidInput(
        f"{version.location.uri}: a stream sends rows that are added, and version {number} changed or removed rows: it "
        f"is {CommittedTransaction.of(version.manifest, transaction).description}. "
        "Set the option on_change='skip' to send only "
        "added rows, or on_change='rewritten' to send changed rows again; or start a query after it, with a new "
        f"checkpointLocation and starting_version={number + 1}, or without starting_version for all rows"
    )
