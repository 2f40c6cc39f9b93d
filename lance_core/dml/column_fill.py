"""Column fill: the columns that a change writes, one file per fragment, and the version that adds or replaces them.

    resolve_target     which of the declared columns exist, and which are new
    FilledFragment     a fragment as it was read, with the file that was written for it
    keep_valid         the files that fit the fragments of a later version
    plan_fill          the operation that puts all files into effect

A file covers every physical row of its fragment, so deletions and other columns do not invalidate it. Moved rows do,
and so do changes of the values that were read. So a change that is replanned after a conflict, or resumed after its
driver died, writes only the files of fragments that have changed. The module does not decide which values belong in a
file. `003-replaced-columns.md` says why existing columns are replaced by an Update.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_core.datafiles.blob_writing import schema_to_stored
from lance_core.datafiles.column_layout import columns_of
from lance_core.datafiles.conform import Conversion, columns_to_write
from lance_core.datafiles.fragment_reader import load_deletions
from lance_core.dml.column_files import without_columns
from lance_core.dml.new_columns import define_new_fields, merge_operation
from lance_core.errors import Corrupt, InvalidInput, NotFound
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.ids import FragmentId
from lance_core.format.operations import Merge, Update, UpdateMode
from lance_core.format.overlay import overlays_of, without_overlaid_fields
from lance_core.format.row_sets import bitmap_of
from lance_core.format.schema import TableSchema
from lance_core.scan.system_columns import CREATED_AT, LAST_UPDATED_AT, ROW_ID
from lance_core.versions.snapshot import Snapshot

_FRAGMENT_METADATA_COLUMNS = frozenset((ROW_ID, CREATED_AT, LAST_UPDATED_AT))
_ENCODED = pa.schema(
    [
        pa.field("fragment", pa.binary()),
        pa.field("file", pa.binary()),
        pa.field("changed", pa.binary()),
        pa.field("signature", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class ColumnTarget:
    """Columns that are written: those that exist keep their fields, the others get new ones."""

    columns: TableSchema
    """All columns, in declared order, with the field ids and types that are stored."""
    added: TableSchema
    replaced: TableSchema

    @property
    def replaced_ids(self) -> frozenset[int]:
        """Ids of the replaced fields and of all fields nested in them."""
        return frozenset(node.id for field in self.replaced.fields for node in field.walk())

    @property
    def signature(self) -> str:
        """Types of a file with these columns, and the ids of those whose old values are among its values."""
        replaced = {field.name: f" of field {field.id}" for field in self.replaced.fields}
        return ", ".join(f"{field.name}: {field.type}{replaced.get(field.name, '')}" for field in self.columns.arrow)


def resolve_target(base: Snapshot, declared: pa.Schema, *, replace: bool) -> ColumnTarget:
    """Find the declared columns in a version. Raise if one exists and may not be replaced, or if its values have
    another type than it stores."""
    stored = base.manifest.schema
    known = frozenset(stored.arrow.names)
    existing = {name: None for name in declared.names if replace and name in known}
    for name in declared.names if replace else ():
        parent = name.partition(".")[0]
        if name not in existing and parent in known:
            raise InvalidInput(
                f"{base.location.uri}: {name!r} is a field inside column {parent!r}; replace the whole column"
            )
    new = pa.schema([field for field in declared if field.name not in existing])
    added = define_new_fields(base, new) if new.names or not existing else TableSchema((), {})
    replaced = TableSchema(tuple(stored.field(name) for name in existing), {})
    if existing:
        given = schema_to_stored(pa.schema([declared.field(name) for name in existing]), replaced)
        what = f"{base.location.uri}: a replaced column keeps its type, which alter_column() changes"
        columns_to_write(given, replaced, conversion=Conversion.CAST, what=what)
    by_name = {field.name: field for field in (*added.fields, *replaced.fields)}
    return ColumnTarget(TableSchema(tuple(by_name[name] for name in declared.names), {}), added, replaced)


@dataclass(frozen=True, slots=True)
class FilledFragment:
    """A fragment as it was read, and what was written for it."""

    fragment: Fragment
    file: DataFile | None
    """The new file; `None` if no row of the fragment changes."""
    changed: bytes | None = None
    """Roaring bitmap of the offsets whose values differ from those before; `None` means all rows."""
    signature: str = ""
    """Signature of the target for which the file was written; empty for columns that are added whole."""

    @classmethod
    def unchanged(cls, fragment: Fragment, target: ColumnTarget) -> "FilledFragment":
        """Return a fragment in which no row changes."""
        return cls(fragment, None, signature=target.signature)

    def encode(self) -> bytes:
        row = {
            "fragment": self.fragment.encode(),
            "file": None if self.file is None else self.fragment.with_files([self.file]).encode(),
            "changed": self.changed,
            "signature": self.signature,
        }
        return bytes(pa.RecordBatch.from_pylist([row], _ENCODED).serialize())

    @classmethod
    def decode(cls, data: bytes) -> "FilledFragment":
        (row,) = pa.ipc.read_record_batch(pa.py_buffer(data), _ENCODED).to_pylist()
        file = None if row["file"] is None else Fragment.decode(row["file"]).files[0]
        return cls(Fragment.decode(row["fragment"]), file, row["changed"], row["signature"])


def is_still_valid(
    base: Snapshot, filled: FilledFragment, now: Fragment, target: ColumnTarget, read: Collection[str]
) -> bool:
    """Return whether what was written for a fragment fits the fragment of a later version. `read` are the columns from
    which the values were computed; replaced columns count, since rows without a new value keep theirs."""
    if filled.signature not in ("", target.signature):  # a column was dropped, recast or added by others
        return False
    return still_matches(base, filled.fragment, now, {*read, *target.replaced.arrow.names})


def keep_valid(
    base: Snapshot, filled: Mapping[int, FilledFragment], target: ColumnTarget, read: Collection[str]
) -> dict[int, FilledFragment]:
    """Return what is still valid for the fragments of a later version."""
    current: dict[int, Fragment] = {fragment.id: fragment for fragment in base.manifest.fragments}
    return {
        number: each
        for number, each in filled.items()
        if number in current and is_still_valid(base, each, current[number], target, read)
    }


def read_field_ids(base: Snapshot, read: Collection[str]) -> tuple[int, ...]:
    """Return the ids of the fields that these names have in a version. Another commit may drop a column and give its
    name to another one, so what was computed under other ids is not valid."""
    fields = (field for field in base.manifest.schema.fields if field.name in read)
    return tuple(sorted(node.id for field in fields for node in field.walk()))


def still_matches(base: Snapshot, then: Fragment, now: Fragment, read: Collection[str]) -> bool:
    """Return whether the columns `read` of a fragment have the same values for the same rows `now` as they had
    `then`."""
    if then.physical_rows != now.physical_rows:
        return False
    before, after = _paths_by_field(then.files), _paths_by_field(now.files)
    if not set(before.values()) & set(after.values()):  # the same id in a recreated table
        return False
    field_ids = {node.id for field in base.manifest.schema.fields if field.name in read for node in field.walk()}
    if any(before.get(field_id) != after.get(field_id) for field_id in field_ids):
        return False
    if _overlays_on(then, field_ids) != _overlays_on(now, field_ids):
        return False
    if _FRAGMENT_METADATA_COLUMNS & set(read) and _row_metadata(then) != _row_metadata(now):
        return False
    return _no_row_restored(base, then, now)


def plan_fill(base: Snapshot, target: ColumnTarget, filled: Mapping[int, FilledFragment]) -> Merge | Update | None:
    """Return the operation that puts the files into effect; `None` if no row changes. New columns are null in
    fragments without a file; replaced ones keep their values."""
    version, updated, affected = base.manifest.storage_version, {}, {}
    for fragment in base.manifest.fragments:
        fill = filled.get(fragment.id)
        if fill is None or fill.file is None:
            continue
        changed = None if fill.changed is None else _live_changes(base, fill, fragment)
        if changed is not None and not changed and not target.added.fields:
            continue
        updated[fragment.id] = _with_filled_file(base, fragment, fill.file, target, version)
        affected[fragment.id] = BitMap(range(fragment.physical_rows)) if changed is None else changed
    if target.added.fields:
        fragments = [updated.get(fragment.id, fragment) for fragment in base.manifest.fragments]
        return merge_operation(base, fragments, target.added.fields)
    if not updated:
        return None
    rows: dict[FragmentId, bytes] = {number: bytes(bitmap.serialize()) for number, bitmap in affected.items()}
    has_stable_row_ids = base.manifest.has_stable_row_ids
    return Update(
        updated=tuple(updated.values()),
        fields_modified=tuple(sorted(target.replaced_ids)),
        mode=UpdateMode.REWRITE_COLUMNS,
        updated_offsets={int(number): bitmap for number, bitmap in rows.items()} if has_stable_row_ids else {},
        affected=rows,
    )


def _live_changes(base: Snapshot, fill: FilledFragment, now: Fragment) -> BitMap:
    """Return the changed rows that are live. A row that was deleted since is not affected: an operation that names it
    would conflict with its deletion."""
    changed = BitMap.deserialize(fill.changed or BitMap().serialize())
    if fill.fragment.has_same_deletions(now):
        return changed
    deleted = load_deletions(base.location.store, now)
    return changed if deleted is None else changed - bitmap_of(deleted.offsets)


def _with_filled_file(
    base: Snapshot, now: Fragment, file: DataFile, target: ColumnTarget, version: StorageVersion
) -> Fragment:
    """Return the fragment `now` with the filled file. A file names its columns by field ids, which other commits may
    have taken meanwhile, so it gets the ids of this version."""
    stored = columns_of(target.columns, version)
    assert file.size is not None
    renumbered = DataFile.of(
        path=file.path,
        field_ids=stored.field_ids,
        column_indices=stored.column_indices,
        version=version,
        size=file.size,
        xxh3=file.checksum.xxh3 if file.checksum else None,
    )
    replaced = target.replaced_ids
    kept = without_columns(now, replaced, base.manifest.schema) if replaced else now
    if replaced and target.added.fields:  # an Update removes overlaid values when it is applied; a Merge does not
        kept = without_overlaid_fields(kept, replaced, up_to=base.version)
    return kept.with_files([*kept.files, renumbered])


def _paths_by_field(files: Iterable[DataFile]) -> dict[int, str]:
    return {field_id: file.qualified_path for file in files for field_id in file.field_ids if field_id >= 0}


def _overlays_on(fragment: Fragment, field_ids: Collection[int]) -> set[tuple[str, int]]:
    """Return the overlays that replace values of these fields."""
    if not fragment.has_overlays:
        return set()
    overlays = (each for each in overlays_of(fragment) if not each.live_fields.isdisjoint(field_ids))
    return {(each.file.qualified_path, each.committed_version) for each in overlays}


def _row_metadata(fragment: Fragment) -> tuple[bytes | None, ...]:
    return fragment.row_ids, fragment.created_at, fragment.last_updated_at


def _no_row_restored(base: Snapshot, then: Fragment, now: Fragment) -> bool:
    """Return whether every row that was deleted `then` still is. Such a row has no value, and a restore can bring it
    back."""
    if then.deletion_file is None or then.has_same_deletions(now):
        return True
    if now.deletion_file is None:
        return False
    with suppress(NotFound, Corrupt):
        before, after = load_deletions(base.location.store, then), load_deletions(base.location.store, now)
        if before is None or after is None:
            return before is None
        return bool(np.isin(before.offsets, after.offsets, assume_unique=True).all())
    return False
