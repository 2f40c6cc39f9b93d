"""Operations: one value for each operation of a transaction. `transaction.py` encodes them;
`transactions/apply.py` applies them to a table.

Operations that this library cannot apply are kept whole: the history names them, and every concurrent change is
replanned (`transactions/conflicts.py`).
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import pyarrow as pa

from lance_core.format._pb import transaction_pb2
from lance_core.format.base_path import BasePath
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.fragment_reuse import FragmentReuse
from lance_core.format.ids import FragmentId, Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Append:
    """Add rows, as fragments with new ids."""

    fragments: tuple[Fragment, ...]
    overlaps: bool | None = field(default=None, compare=False)
    """True if the committed append has a key of our upsert, or a row of the slice that our change overwrites; `None`
    if this was not checked. The encoded transaction omits it."""
    name: ClassVar[str] = "Append"


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Replace all rows and the schema. Config and table metadata stay. Every table begins with an Overwrite."""

    fragments: tuple[Fragment, ...]
    schema: TableSchema
    config_upserts: Mapping[str, str] = field(default_factory=dict)
    name: ClassVar[str] = "Overwrite"


RowOffsets = Mapping[FragmentId, bytes]
"""Roaring bitmap of physical offsets by fragment id."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove rows: fragments in their new state, with a deletion file, and the ids of fragments that lose all rows."""

    updated: tuple[Fragment, ...]
    removed_ids: tuple[FragmentId, ...]
    predicate: str
    affected: RowOffsets | None = field(default=None, compare=False)
    """The rows that it removes, by fragment. They allow it to be rebased over a commit that removed other rows. The
    encoded transaction omits them, so a decoded one is replanned instead."""
    name: ClassVar[str] = "Delete"


class UpdateMode(enum.Enum):
    REWRITE_ROWS = 0
    """Changed rows are deleted at their old location and written to new fragments."""
    REWRITE_COLUMNS = 1
    """Rows keep their location; a new file replaces the changed columns of a fragment."""


@dataclass(frozen=True, slots=True, order=True)
class Progress:
    """MemWAL progress of one shard: the last generation of its write-ahead log that the table contains."""

    shard: bytes
    """The uuid of the shard."""
    generation: int


class AffectedRows(Protocol):
    """The rows that a change concerns, including rows that other transactions add: those with a key of an upsert's
    source, or those of a slice of the table."""

    @property
    def fields(self) -> tuple[int, ...]:
        """The columns that identify the rows."""

    def has_any(self, columns: Sequence[pa.ChunkedArray]) -> bool:
        """Return whether at least one of these rows, given by those columns, is concerned."""


@dataclass(frozen=True, slots=True)
class Update:
    """Change, add and remove rows in one transaction."""

    removed_ids: tuple[FragmentId, ...] = ()
    updated: tuple[Fragment, ...] = ()
    new: tuple[Fragment, ...] = ()
    fields_modified: tuple[int, ...] = ()
    """Fields whose values changed in place: indices on them lose coverage of the updated fragments."""
    fields_assigned: tuple[int, ...] = ()
    """Fields whose values differ in rows that moved: an index on any of them cannot cover the new fragments."""
    mode: UpdateMode = UpdateMode.REWRITE_ROWS
    inserted_keys: bytes | None = None
    """A filter of the inserted keys (`key_filter.py`), so that two writers of the same new key detect each other."""
    updated_offsets: Mapping[int, bytes] = field(default_factory=dict)
    """Roaring bitmap, by fragment id, of the physical offsets whose columns were rewritten."""
    progress: tuple[Progress, ...] = ()
    """The MemWAL progress after the generations that it merged."""
    affected: RowOffsets | None = field(default=None, compare=False)
    """The rows that it moves, changes or removes, as in `Delete`."""
    source_keys: AffectedRows | None = field(default=None, compare=False, repr=False)
    """The keys of an upsert's source. They tell which rows appended by concurrent transactions the upsert should have
    seen."""
    replaced_slice: AffectedRows | None = field(default=None, compare=False, repr=False)
    """The slice that it overwrites. The change is valid only if it has seen every row of the slice."""
    deletes_unmatched: bool = field(default=False, compare=False)
    """True if it removes the rows without a match. It must then have seen the rows that other upserts insert. The
    encoded transaction omits it."""
    overlaps: bool | None = field(default=None, compare=False)
    """As in `Append`."""
    name: ClassVar[str] = "Update"


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """Add and remove index segments. Reusing a name does not replace the old segments; `removed` has to list them."""

    new: tuple[IndexMetadata, ...] = ()
    removed: tuple[IndexMetadata, ...] = ()
    name: ClassVar[str] = "CreateIndex"


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    old: tuple[Fragment, ...]
    new: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Move rows to other fragments, whose ids were reserved before."""

    groups: tuple[RewriteGroup, ...]
    rewritten_indices: tuple[tuple[bytes, IndexMetadata], ...] = ()
    """The uuid of a segment and its replacement, which has the new addresses of the rows."""
    fragment_reuse: IndexMetadata | None = None
    """The fragment reuse index, for readers of indices that stay unchanged. It replaces the table's entry. The
    transaction does not carry it, only the version that it creates."""
    earlier_reuse: FragmentReuse | None = field(default=None, compare=False, repr=False)
    """The compactions before this one, which the rewritten segments have already followed. The encoded transaction
    omits them."""
    uncovers_fragile: bool = field(default=False, compare=False)
    """True if indices that a later rewrite over `fragment_reuse` would break lose coverage of the moved rows. The
    encoded transaction omits it, like `fragment_reuse`."""
    uncovered: tuple[str, ...] = field(default=(), compare=False)
    """Names of the indices that lose coverage, according to the plan. The encoded transaction omits them."""
    reserved_in: Version | None = field(default=None, compare=False)
    """The version that assigned the fragment ids, if the planner has just committed it. The encoded transaction omits
    it."""
    name: ClassVar[str] = "Rewrite"


@dataclass(frozen=True, slots=True)
class Merge:
    """Set another schema and the complete list of fragments under it: columns are added or cast."""

    fragments: tuple[Fragment, ...]
    schema: TableSchema
    preserves_nullability: bool
    """True if rows written for the old schema still fit, since no column became mandatory."""
    name: ClassVar[str] = "Merge"


@dataclass(frozen=True, slots=True)
class Project:
    """Set another schema over the same files: columns are dropped, renamed, reordered, or change nullability."""

    schema: TableSchema
    preserves_nullability: bool
    name: ClassVar[str] = "Project"


@dataclass(frozen=True, slots=True)
class Restore:
    """Make an older version the newest one."""

    version: Version
    undoes_unseen: bool = field(default=True, compare=False)
    """False if a version that was committed after the planned one conflicts, instead of being undone as well. The
    encoded transaction omits it."""
    name: ClassVar[str] = "Restore"


@dataclass(frozen=True, slots=True)
class ReserveFragments:
    """Assign fragment ids to a rewrite that will use them."""

    count: int
    name: ClassVar[str] = "ReserveFragments"


@dataclass(frozen=True, slots=True)
class MapUpdate:
    """Entries to set, or to delete if the value is `None`. With `replace`, the map is emptied first."""

    entries: Mapping[str, str | None]
    replace: bool = False

    def applied_to(self, current: Mapping[str, str]) -> dict[str, str]:
        after = {} if self.replace else dict(current)
        for key, value in self.entries.items():
            if value is None:
                after.pop(key, None)
            else:
                after[key] = value
        return after


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """Change config, table metadata, schema metadata or field metadata. `None` leaves a map unchanged."""

    config: MapUpdate | None = None
    table_metadata: MapUpdate | None = None
    schema_metadata: MapUpdate | None = None
    field_metadata: Mapping[int, MapUpdate] = field(default_factory=dict)
    checksums: Mapping[str, FileChecksum] = field(default_factory=dict)
    """Checksums to record for files that have none, by qualified path. They are written into the manifest alone."""
    name: ClassVar[str] = "UpdateConfig"


@dataclass(frozen=True, slots=True)
class DataReplacement:
    """Replace a file of some fragments by one with the same fields, or add a file for a column that was all null."""

    replacements: tuple[tuple[FragmentId, DataFile], ...]
    name: ClassVar[str] = "DataReplacement"


@dataclass(frozen=True, slots=True)
class UpdateMemWalState:
    """Record how far the write-ahead logs are merged into the table."""

    progress: tuple[Progress, ...]
    name: ClassVar[str] = "UpdateMemWalState"


@dataclass(frozen=True, slots=True)
class UpdateBases:
    """Add base paths, directories that may hold files of the table. Bases are never removed."""

    new: tuple[BasePath, ...]
    name: ClassVar[str] = "UpdateBases"


@dataclass(frozen=True, slots=True)
class Clone:
    """The first commit of a table or branch that starts from a version of another one."""

    is_shallow: bool
    ref_name: str | None
    ref_version: Version
    ref_path: str
    branch_name: str | None
    name: ClassVar[str] = "Clone"


@dataclass(frozen=True, slots=True)
class DataOverlay:
    """New values for single cells, in overlay files next to the data files. This library never commits it;
    `message` is the whole transaction, and `transactions/footprint.py` reads its overlays."""

    message: transaction_pb2.Transaction
    name: ClassVar[str] = "DataOverlay"


@dataclass(frozen=True, slots=True)
class AppendFragmentReuseTransitions:
    """More moves of rows, in a newer form. Read but not applied; `message` is the whole transaction. A draft of the
    format used the same number for another operation, so only the writer knows what it did."""

    message: transaction_pb2.Transaction
    name: ClassVar[str] = "AppendFragmentReuseTransitions"


@dataclass(frozen=True, slots=True)
class Other:
    """An unknown operation; `message` is the whole transaction."""

    message: transaction_pb2.Transaction
    name: ClassVar[str] = "unknown"


Operation = (
    Append
    | Overwrite
    | Delete
    | Update
    | CreateIndex
    | Rewrite
    | Merge
    | Project
    | Restore
    | ReserveFragments
    | UpdateConfig
    | DataReplacement
    | UpdateMemWalState
    | UpdateBases
    | Clone
    | DataOverlay
    | AppendFragmentReuseTransitions
    | Other
)


def new_fragments(operation: Operation) -> tuple[Fragment, ...]:
    """Return the fragments that an operation adds or restates. A commit checks their files before it names them."""
    match operation:
        case Append() | Overwrite() | Merge():
            return operation.fragments
        case Delete():
            return operation.updated
        case Update():
            return operation.updated + operation.new
        case Rewrite():
            return tuple(fragment for group in operation.groups for fragment in group.new)
        case _:
            return ()
