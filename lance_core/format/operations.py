"""What a transaction does: one value per operation of the format. Their bytes are in `operation_codec.py`; what they do
to a table is in `transactions/apply.py`.

Operations that this package does not apply are kept whole: history can name them, and whatever is planned beside them
is planned anew (`transactions/conflicts.py`).
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import pyarrow as pa

from lance_core.format._pb import transaction_pb2
from lance_core.format.base_path import BasePath
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.fragment_reuse import FragmentReuse
from lance_core.format.ids import FragmentId, Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Append:
    """Add rows: fragments with fresh ids, beside all that is there."""

    fragments: tuple[Fragment, ...]
    overlaps: bool | None = field(default=None, compare=False)
    """Whether it brings a key that the upsert beside it brings too, or a row of the slice that is overwritten beside
    it, where somebody looked. Not part of the transaction that is written."""
    name: ClassVar[str] = "Append"


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Replace all rows and the schema. Config and table metadata stay; every table begins with one of these."""

    fragments: tuple[Fragment, ...]
    schema: TableSchema
    config_upserts: Mapping[str, str] = field(default_factory=dict)
    name: ClassVar[str] = "Overwrite"


RowOffsets = Mapping[FragmentId, bytes]
"""Fragment id -> Roaring bitmap of physical offsets."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove rows: fragments in their new state, with a deletion file, and fragments of which nothing is left."""

    updated: tuple[Fragment, ...]
    removed_ids: tuple[FragmentId, ...]
    predicate: str
    affected: RowOffsets | None = field(default=None, compare=False)
    """The rows that it removes, by fragment: with them it can follow somebody else who removed others. Not part of the
    transaction that is written, so one that comes from there is planned anew instead."""
    name: ClassVar[str] = "Delete"


class UpdateMode(enum.Enum):
    REWRITE_ROWS = 0
    """Changed rows are deleted where they were and written anew."""
    REWRITE_COLUMNS = 1
    """Rows stay where they are; a new file replaces the changed columns of a fragment."""


@dataclass(frozen=True, slots=True, order=True)
class Progress:
    """How far the log of one shard, which some tables have in front of them, is part of the table."""

    shard: bytes
    """A uuid."""
    generation: int


class AffectedRows(Protocol):
    """Those that a change is about, whoever brought them: with a key of the rows that an upsert was given, or of a
    slice of the table."""

    @property
    def fields(self) -> tuple[int, ...]:
        """The columns by which they are told."""

    def has_any(self, columns: Sequence[pa.ChunkedArray]) -> bool:
        """Whether one of these rows, told by those columns, is meant."""


@dataclass(frozen=True, slots=True)
class Update:
    """Change rows, add rows, remove rows, at once."""

    removed_ids: tuple[FragmentId, ...] = ()
    updated: tuple[Fragment, ...] = ()
    new: tuple[Fragment, ...] = ()
    fields_modified: tuple[int, ...] = ()
    """Fields whose values changed in place: indices on them no longer cover the updated fragments."""
    fields_assigned: tuple[int, ...] = ()
    """Fields whose values differ in rows that moved; an index on none of them may cover the new fragments."""
    mode: UpdateMode = UpdateMode.REWRITE_ROWS
    inserted_keys: bytes | None = None
    """A filter of the keys that were inserted, so that two writers of one new key see each other."""
    updated_offsets: Mapping[int, bytes] = field(default_factory=dict)
    """Fragment id -> Roaring bitmap of the physical offsets whose columns were rewritten."""
    progress: tuple[Progress, ...] = ()
    """What it took from the logs in front of the table."""
    affected: RowOffsets | None = field(default=None, compare=False)
    """The rows that it moves, changes or removes, as in `Delete`."""
    source_keys: AffectedRows | None = field(default=None, compare=False, repr=False)
    """With them, rows that others append meanwhile can be told from those that it should have seen."""
    replaced_slice: AffectedRows | None = field(default=None, compare=False, repr=False)
    """A slice that it overwrites: it has to have seen every row of it."""
    deletes_unmatched: bool = field(default=False, compare=False)
    """Whether rows that nothing matched go: then it has to have seen what other upserts insert. Not part of the
    transaction that is written."""
    overlaps: bool | None = field(default=None, compare=False)
    """As in `Append`."""
    name: ClassVar[str] = "Update"


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """Add and remove index segments. A name is not replaced by being used again: the old ones have to be listed."""

    new: tuple[IndexMetadata, ...] = ()
    removed: tuple[IndexMetadata, ...] = ()
    name: ClassVar[str] = "CreateIndex"


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    old: tuple[Fragment, ...]
    new: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The same rows in other fragments, whose ids were reserved before."""

    groups: tuple[RewriteGroup, ...]
    rewritten_indices: tuple[tuple[bytes, IndexMetadata], ...] = ()
    """The uuid of a segment, and what takes its place now that its rows have other addresses."""
    fragment_reuse: IndexMetadata | None = None
    """Where the rows went, for readers of indices that stay as they are. It replaces the table's entry of this kind;
    the transaction does not carry it, only the version that it makes."""
    earlier_reuse: FragmentReuse | None = field(default=None, compare=False, repr=False)
    """The notes of compactions before it, which segments that are written anew have followed. Not part of the
    transaction."""
    uncovers_fragile: bool = field(default=False, compare=False)
    """Indices that a later rewrite over `fragment_reuse` would break cover what moved no more. Not part of the
    transaction, as that is not."""
    uncovered: tuple[str, ...] = field(default=(), compare=False)
    """Names of indices that cover less after it, by its plan. Not part of the transaction."""
    reserved_in: Version | None = field(default=None, compare=False)
    """The version that gave out the ids, where whoever plans this has just seen it. Not part of the transaction."""
    name: ClassVar[str] = "Rewrite"


@dataclass(frozen=True, slots=True)
class Merge:
    """Another schema, and the complete list of fragments under it: columns added, or cast."""

    fragments: tuple[Fragment, ...]
    schema: TableSchema
    preserves_nullability: bool
    """Whether rows written for the old schema still fit: no column became mandatory."""
    name: ClassVar[str] = "Merge"


@dataclass(frozen=True, slots=True)
class Project:
    """Another schema over the same files: columns dropped, renamed, reordered, or of other nullability."""

    schema: TableSchema
    preserves_nullability: bool
    name: ClassVar[str] = "Project"


@dataclass(frozen=True, slots=True)
class Restore:
    """Make an older version the newest."""

    version: Version
    name: ClassVar[str] = "Restore"


@dataclass(frozen=True, slots=True)
class ReserveFragments:
    """Give out fragment ids for a rewrite that will use them."""

    count: int
    name: ClassVar[str] = "ReserveFragments"


@dataclass(frozen=True, slots=True)
class MapUpdate:
    """Entries to set, or to delete where the value is None; with `replace` the map is emptied first."""

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
    """Change config, table metadata, schema metadata or the metadata of fields; what is None stays."""

    config: MapUpdate | None = None
    table_metadata: MapUpdate | None = None
    schema_metadata: MapUpdate | None = None
    field_metadata: Mapping[int, MapUpdate] = field(default_factory=dict)
    name: ClassVar[str] = "UpdateConfig"


@dataclass(frozen=True, slots=True)
class DataReplacement:
    """For some fragments another file with the same fields, or a first one where a column was all null."""

    replacements: tuple[tuple[FragmentId, DataFile], ...]
    name: ClassVar[str] = "DataReplacement"


@dataclass(frozen=True, slots=True)
class UpdateMemWalState:
    """Note how far the logs in front of the table are part of it."""

    progress: tuple[Progress, ...]
    name: ClassVar[str] = "UpdateMemWalState"


@dataclass(frozen=True, slots=True)
class UpdateBases:
    """Add places where files of the table may lie. None is ever taken away."""

    new: tuple[BasePath, ...]
    name: ClassVar[str] = "UpdateBases"


@dataclass(frozen=True, slots=True)
class Clone:
    """The first commit of a table, or branch, that begins as another one's version."""

    is_shallow: bool
    ref_name: str | None
    ref_version: Version
    ref_path: str
    branch_name: str | None
    name: ClassVar[str] = "Clone"


@dataclass(frozen=True, slots=True)
class DataOverlay:
    """New values for single cells, kept beside the files. Read, not applied; `message` is the whole transaction."""

    message: transaction_pb2.Transaction
    name: ClassVar[str] = "DataOverlay"


@dataclass(frozen=True, slots=True)
class AppendFragmentReuseTransitions:
    """More of where rows went, in a newer form. Read, not applied; `message` is the whole transaction. A draft of the
    format gave this number to another operation: nobody but its writer knows what it did."""

    message: transaction_pb2.Transaction
    name: ClassVar[str] = "AppendFragmentReuseTransitions"


@dataclass(frozen=True, slots=True)
class Other:
    """An operation that this package does not know; `message` is the whole transaction."""

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
    """The fragments an operation brings or restates, whose files a commit has to look at before it names them."""
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
