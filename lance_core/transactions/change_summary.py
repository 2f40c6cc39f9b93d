"""Change summary: describes a version for users: its action, how many rows it added and removed, which files it wrote.

An action is a word such as "upsert" where the format's operation is Update: the writer's verb is recorded with the
transaction, and the action of a version of another engine follows from the operation. The summary is for users and for
the ledger; no commit decision uses it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lance_core.format import operations as op
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.ids import FragmentId
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.manifest import Manifest
from lance_core.format.operations import Operation
from lance_core.format.transaction import Transaction
from lance_core.transactions.footprint import overlays_by_fragment

_NO_ROWS = (
    op.CreateIndex,
    op.DataOverlay,
    op.DataReplacement,
    op.Merge,
    op.Project,
    op.ReserveFragments,
    op.Rewrite,
    op.UpdateConfig,
)
"""Operations that move rows or touch none, so that they add and remove none."""

UNKNOWN = "unknown"
_BY_VERB = {
    "overwrite of a slice": "replace where",
    "set_config": "set config",
}
_BY_OPERATION: dict[str, str] = {
    op.Append.name: "append",
    op.DataOverlay.name: "update cells",
    op.DataReplacement.name: "replace columns",
    op.Delete.name: "delete",
    op.Merge.name: "change schema",
    op.Overwrite.name: "overwrite",
    op.Project.name: "change schema",
    op.ReserveFragments.name: "reserve ids",
    op.Restore.name: "restore",
    op.Rewrite.name: "compact",
    op.Update.name: "update",
    op.UpdateBases.name: "add base paths",
    op.UpdateConfig.name: "change settings",
    op.UpdateMemWalState.name: "update MemWAL",
}


@dataclass(frozen=True, slots=True)
class RowsChanged:
    added: int
    removed: int


def rows_changed(operation: Operation | None, before: Manifest | None, after: Manifest) -> RowsChanged | None:
    """Return the number of added and removed rows. Rows that an update moved count as neither. `None` if the previous
    version is needed but was removed."""
    if isinstance(operation, op.Append):
        return RowsChanged(sum(fragment.live_rows for fragment in operation.fragments), 0)
    if isinstance(operation, _NO_ROWS):
        return RowsChanged(0, 0)
    if before is None and after.version > 1:
        return None
    if before is None:
        return RowsChanged(after.row_count(), 0)
    difference = after.difference_from(before)  # fragments that are equal in both versions add and remove nothing
    old, new = _live_rows(difference.removed), _live_rows(difference.added)
    added = sum(max(0, rows - old.get(fragment_id, 0)) for fragment_id, rows in new.items())
    removed = sum(max(0, rows - new.get(fragment_id, 0)) for fragment_id, rows in old.items())
    if isinstance(operation, op.Update) and operation.replaced_slice is None:
        moved = min(added, removed)
        return RowsChanged(added - moved, removed - moved)
    return RowsChanged(added, removed)


def files_written(operation: Operation, base: Manifest | None) -> tuple[DataFile, ...]:
    """Return the data files that an operation adds, each once: those that the version it was planned on does not
    have."""
    if isinstance(operation, op.DataReplacement):
        return tuple(file for _fragment_id, file in operation.replacements)
    if isinstance(operation, op.DataOverlay):
        return tuple(overlay.file for overlays in overlays_by_fragment(operation).values() for overlay in overlays)
    fragments = op.new_fragments(operation)
    known = set() if isinstance(operation, op.Append | op.Overwrite) else _paths_of(fragments, base)
    files = {file.path: file for fragment in fragments for file in fragment.files if file.path not in known}
    return tuple(files.values())


def segments_written(operation: Operation, base: Manifest | None) -> tuple[IndexMetadata, ...]:
    """Return the index segments that an operation adds: those in the table's own directory that the version it was
    planned on does not have."""
    match operation:
        case op.CreateIndex():
            added = operation.new
        case op.Rewrite():
            reuse = () if operation.fragment_reuse is None else (operation.fragment_reuse,)
            added = (*(index for _uuid, index in operation.rewritten_indices), *reuse)
        case _:
            return ()
    known = {index.uuid for index in base.indices} if base is not None and added else set()
    return tuple(index for index in added if index.base_id is None and index.uuid not in known)


def deletion_files_written(operation: Operation, before: Manifest | None) -> int | None:
    """Return the number of deletion files that an operation wrote. `None` if the previous version is needed but was
    removed."""
    if not isinstance(operation, op.Delete | op.Update):
        return 0
    paths = {
        fragment.id: fragment.deletion_file.qualified_path for fragment in operation.updated if fragment.deletion_file
    }
    if not paths:
        return 0
    if before is None:
        return None
    records = before.fragment_records()
    known = (records.find(fragment_id) for fragment_id in paths)
    existing = {each.deletion_file.qualified_path for each in known if each is not None and each.deletion_file}
    return len(set(paths.values()) - existing)


def _paths_of(fragments: Sequence[Fragment], base: Manifest | None) -> set[str]:
    if base is None or not fragments:
        return set()
    records = base.fragment_records()
    known = (records.find(fragment.id) for fragment in fragments)
    return {file.path for fragment in known if fragment is not None for file in fragment.files}


def _live_rows(fragments: Iterable[Fragment]) -> dict[FragmentId, int]:
    return {fragment.id: fragment.live_rows for fragment in fragments}


def action_of(transaction: Transaction | None, *, is_first: bool) -> str:
    """Return the action of a transaction. `is_first` says that it committed the first version of a table.

    >>> from lance_core.format.ids import Version
    >>> action_of(Transaction(Version(0), "uuid", op.Append(())), is_first=True)
    'create'
    >>> action_of(Transaction(Version(3), "uuid", op.Update(), verb="upsert"), is_first=False)
    'upsert'
    """
    if transaction is None:
        return UNKNOWN
    operation = transaction.operation
    if isinstance(operation, op.Clone):
        return "create branch" if operation.branch_name else "clone"
    if is_first and isinstance(operation, op.Append | op.Overwrite):
        return "create"
    if isinstance(operation, op.ReserveFragments):  # a compaction commits it first, under its own verb
        return _BY_OPERATION[operation.name]
    if transaction.verb is not None and transaction.verb.isprintable() and not transaction.verb.startswith("commit "):
        return _BY_VERB.get(transaction.verb, transaction.verb.replace("_", " "))
    if isinstance(operation, op.CreateIndex):
        return "create index" if operation.new else "drop index"
    return _BY_OPERATION.get(operation.name, operation.name)
