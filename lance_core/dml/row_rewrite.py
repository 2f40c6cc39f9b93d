"""Row rewrite: writes changed rows in one of the format's two ways: moved to new fragments, or in place as new columns.

Shared by update and upsert, which decide which rows change and compute their new values. Moved rows keep their stable
row ids. `is_column_rewrite_cheaper` chooses between the two ways; `001-move-rows-or-rewrite-columns.md` says why there
are two.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.blob_writing import to_stored
from lance_core.datafiles.column_layout import is_blob
from lance_core.datafiles.conform import Conversion, conform
from lance_core.datafiles.fragment_reader import FragmentReader, load_deletions
from lance_core.datafiles.fragment_writer import FileLimits, write_fragments
from lance_core.dml.column_files import SPARSE_FACTOR, PositionedBatch, add_column_file, without_columns
from lance_core.dml.deletion_files import add_all_deletions, encode_offsets
from lance_core.errors import InvalidInput
from lance_core.format.fragment import Fragment
from lance_core.format.ids import FragmentId
from lance_core.format.operations import Update, UpdateMode
from lance_core.format.row_lineage import RowIdSequence
from lance_core.format.schema import Field, TableSchema
from lance_core.runtime import Runtime
from lance_core.scan.selection import Offsets
from lance_core.scan.system_columns import SystemColumns
from lance_core.versions.snapshot import Snapshot

Values = Callable[[pa.RecordBatch, npt.NDArray[np.int64]], pa.RecordBatch]
"""Function from rows with the columns that are read, and their positions in the change's offsets, to the columns that
change."""
_UNKNOWN_VALUE_BYTES = 32
_BLOB_BYTES = 1 << 20
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class FragmentChange:
    """Rows of one fragment that get new values."""

    fragment: Fragment
    offsets: Offsets
    values: Values


@dataclass(frozen=True, slots=True)
class RowRewrite:
    """Rows of a version that get new values in some columns."""

    base: Snapshot
    columns: tuple[str, ...]
    """Columns that get new values."""
    reads: tuple[str, ...]
    """Columns from which the new values are computed."""
    changes: tuple[FragmentChange, ...]

    @property
    def schema(self) -> TableSchema:
        return self.base.manifest.schema

    @property
    def fields(self) -> TableSchema:
        return TableSchema(tuple(map(self.schema.field, self.columns)), self.schema.metadata)


def is_cheaper_in_place(rewrite: RowRewrite) -> bool:
    """Tell whether rewriting the columns in place writes fewer bytes than moving the rows."""
    rows = sum(change.fragment.physical_rows for change in rewrite.changes)
    changed = sum(len(change.offsets) for change in rewrite.changes)
    return is_column_rewrite_cheaper(rewrite.base, rewrite.columns, rows=rows, changed=changed)


def is_column_rewrite_cheaper(base: Snapshot, columns: Sequence[str], *, rows: int, changed: int) -> bool:
    """Compare roughly the bytes that have to be written: the columns of all `rows` of the touched fragments, or
    `changed` whole rows. An index on one of the columns would lose these fragments from its coverage, so then at least
    half of their rows have to change."""
    schema = base.manifest.schema
    fields = TableSchema(tuple(map(schema.field, columns)), schema.metadata)
    if _is_indexed(base, fields) and 2 * changed < rows:
        return False
    return 0 < rows * row_bytes(fields) <= changed * row_bytes(schema)


def move_rows(
    rewrite: RowRewrite,
    removed: Mapping[FragmentId, Offsets],
    inserted: Sequence[pa.RecordBatch],
    *,
    assigned: Iterable[int],
    limits: FileLimits,
    runtime: Runtime,
) -> Update:
    """Write the changed rows, in the order of the table, and then the inserted rows to new fragments. Inserted rows get
    their row ids at commit. `removed` are rows that are deleted only."""
    base = rewrite.base
    new = _write_moved_rows(rewrite, inserted, limits=limits, runtime=runtime)
    deleted = {change.fragment.id: change.offsets for change in rewrite.changes}
    for fragment_id, offsets in removed.items():
        deleted[fragment_id] = np.concatenate([deleted.get(fragment_id, np.empty(0, dtype=np.int64)), offsets])
    updated, removed_ids = [], []
    touched = (each for each in base.manifest.fragments if each.id in deleted) if deleted else ()
    changes = ((fragment, deleted[fragment.id]) for fragment in touched)
    for fragment, _offsets, after in add_all_deletions(
        base.location, changes, read_version=base.version, runtime=runtime
    ):
        if after is None:
            removed_ids.append(fragment.id)
        else:
            updated.append(after)
    affected = {fragment_id: encode_offsets(offsets) for fragment_id, offsets in deleted.items()}
    return Update(tuple(removed_ids), tuple(updated), new, fields_assigned=tuple(assigned), affected=affected)


def rewrite_columns(
    rewrite: RowRewrite, inserted: Sequence[pa.RecordBatch], *, limits: FileLimits, runtime: Runtime
) -> Update:
    """Write the columns in place: every row stays where it is, and the old files keep the old columns as dead data."""
    base = rewrite.base
    affected = {change.fragment.id: encode_offsets(change.offsets) for change in rewrite.changes}
    has_stable_row_ids = base.manifest.has_stable_row_ids
    return Update(
        updated=tuple(_rewrite_fragment_columns(rewrite, change, runtime) for change in rewrite.changes),
        new=write_rows(base, inserted, limits=limits, runtime=runtime),
        fields_modified=field_ids_of(rewrite.fields.fields),
        mode=UpdateMode.REWRITE_COLUMNS,
        updated_offsets={int(number): rows for number, rows in affected.items()} if has_stable_row_ids else {},
        affected=affected,
    )


def write_rows(
    base: Snapshot, batches: Iterable[pa.RecordBatch], *, limits: FileLimits, runtime: Runtime
) -> tuple[Fragment, ...]:
    return write_fragments(
        base.location.codec,
        batches,
        schema=base.manifest.schema,
        version=base.manifest.storage_version,
        limits=limits,
        conversion=Conversion.EXACT,
        new_uuid=runtime.new_uuid,
        what=base.location.uri,
    )


def field_ids_of(fields: Iterable[Field]) -> tuple[int, ...]:
    """Return the ids of the fields and of all fields nested in them."""
    return tuple(node.id for field in fields for node in field.walk())


def _write_moved_rows(
    rewrite: RowRewrite, inserted: Sequence[pa.RecordBatch], *, limits: FileLimits, runtime: Runtime
) -> tuple[Fragment, ...]:
    base = rewrite.base
    if not rewrite.changes:
        return write_rows(base, inserted, limits=limits, runtime=runtime)
    ids: list[npt.NDArray[np.uint64]] = []

    def rows() -> Iterator[pa.RecordBatch]:
        path = f"{base.location.uri}/{base.manifest.path}"
        for change in rewrite.changes:
            system_columns = SystemColumns(base.manifest, change.fragment, path=path)
            for positions, batch in _read_changed_rows(rewrite, change):
                if base.manifest.has_stable_row_ids:
                    ids.append(system_columns.row_ids[change.offsets[positions]])
                yield batch
        for batch in inserted:
            yield _fill_missing_columns(batch, rewrite.schema.arrow)

    fragments = write_rows(base, rows(), limits=limits, runtime=runtime)
    return _with_row_ids(fragments, np.concatenate(ids)) if ids else fragments


def _read_changed_rows(
    rewrite: RowRewrite, change: FragmentChange
) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
    """Yield the changed rows as whole rows with their new values, and their positions in the offsets of the change."""
    arrow = rewrite.schema.arrow
    changed = frozenset(rewrite.columns)
    kept = [name for name in arrow.names if name not in changed]
    for positions, rows in _read_rows_at(rewrite, change, list(dict.fromkeys((*kept, *rewrite.reads)))):
        new = _conform_values(rewrite, change.values(rows, positions))
        columns = [(new if name in changed else rows).column(name) for name in arrow.names]
        yield positions, pa.RecordBatch.from_arrays(columns, schema=arrow)


def _read_rows_at(
    rewrite: RowRewrite, change: FragmentChange, columns: Sequence[str]
) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
    """Yield the rows at the offsets of a change with these columns, and their positions in the offsets."""
    count = len(change.offsets)
    if not columns:
        for start in range(0, count, _BATCH_ROWS):
            yield np.arange(start, min(start + _BATCH_ROWS, count)), pa.RecordBatch.from_arrays([], names=[])
        return
    reader, first = _reader(rewrite, columns), int(change.offsets[0])
    span = int(change.offsets[-1]) + 1 - first
    if count * SPARSE_FACTOR <= span:
        for start in range(0, count, _BATCH_ROWS):
            offsets = change.offsets[start : start + _BATCH_ROWS]
            for rows, batch in reader.take_chunks(change.fragment, offsets):
                yield np.arange(start + rows.start, start + rows.stop), batch
        return
    for live in reader.read_live(change.fragment, None, first, span):
        is_changed = np.isin(live.offsets, change.offsets, assume_unique=True)
        if is_changed.any():
            yield np.searchsorted(change.offsets, live.offsets[is_changed]), live.batch.filter(pa.array(is_changed))


def _rewrite_fragment_columns(rewrite: RowRewrite, change: FragmentChange, runtime: Runtime) -> Fragment:
    replaced = frozenset(field_ids_of(rewrite.fields.fields))
    kept = without_columns(change.fragment, replaced, rewrite.schema)
    return add_column_file(rewrite.base, kept, _read_new_columns(rewrite, change), rewrite.fields, runtime=runtime)


def _read_new_columns(rewrite: RowRewrite, change: FragmentChange) -> Iterator[PositionedBatch]:
    """Yield the rewritten columns of all live rows, with old values for unchanged rows."""
    deletions = load_deletions(rewrite.base.location.store, change.fragment)
    columns = list(dict.fromkeys((*rewrite.columns, *rewrite.reads)))
    for live in _reader(rewrite, columns).read_live(change.fragment, deletions):
        if not live.batch.num_rows:
            continue
        old = live.batch.select(list(rewrite.columns))
        is_changed = np.isin(live.offsets, change.offsets, assume_unique=True)
        if not is_changed.any():
            yield PositionedBatch(old, live.offsets)
            continue
        changed = np.flatnonzero(is_changed)
        positions = np.searchsorted(change.offsets, live.offsets[changed])
        new = _conform_values(rewrite, change.values(live.batch.filter(pa.array(is_changed)), positions))
        indices = np.arange(old.num_rows)
        indices[changed] = old.num_rows + np.arange(len(changed))
        arrays = [
            concat_arrays([old_column, new_column]).take(pa.array(indices))
            for old_column, new_column in zip(old.columns, new.columns, strict=True)
        ]
        yield PositionedBatch(pa.RecordBatch.from_arrays(arrays, schema=old.schema), live.offsets)


def concat_arrays(arrays: Sequence[pa.Array]) -> pa.Array:
    """Concatenate arrays of one type, at least one. Arrow does not concatenate dictionaries that contain a null."""
    arrow = arrays[0].type
    if len(arrays) == 1:
        return arrays[0]
    if not pa.types.is_dictionary(arrow):
        return pa.concat_arrays(arrays)
    encoded = pa.concat_arrays([array.dictionary_decode() for array in arrays]).dictionary_encode()
    try:
        indices = encoded.indices.cast(arrow.index_type)
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            f"{len(encoded.dictionary):,} different values are too many for a column of type {arrow}; change its type "
            "with alter_column() first"
        ) from error
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary)


def _reader(rewrite: RowRewrite, columns: Sequence[str]) -> FragmentReader:
    base, schema = rewrite.base, rewrite.schema
    selected = TableSchema(tuple(map(schema.field, columns)), schema.metadata)
    path = f"{base.location.uri}/{base.manifest.path}"
    return FragmentReader(base.location.store, base.location.codec, schema, selected, path=path)


def _conform_values(rewrite: RowRewrite, new: pa.RecordBatch) -> pa.RecordBatch:
    """Convert new values to the types that the table stores. Raise if a column that is not nullable gets a null."""
    (new,) = to_stored([new], rewrite.schema)
    arrow = pa.schema([rewrite.schema.arrow.field(name) for name in rewrite.columns])
    return conform(new, arrow, conversion=Conversion.EXACT, what=rewrite.base.location.uri)


def _fill_missing_columns(batch: pa.RecordBatch, arrow: pa.Schema) -> pa.RecordBatch:
    present = frozenset(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in present else pa.nulls(batch.num_rows, field.type) for field in arrow
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow)


def _with_row_ids(fragments: Sequence[Fragment], ids: npt.NDArray[np.uint64]) -> tuple[Fragment, ...]:
    """Add the row ids of the moved rows, which come first, to the fragments."""
    start, after = 0, []
    for fragment in fragments:
        row_ids = ids[start : start + fragment.physical_rows]
        after.append(fragment.with_lineage(row_ids=RowIdSequence.of(row_ids).encode()) if len(row_ids) else fragment)
        start += fragment.physical_rows
    if start < len(ids):
        raise InvalidInput(f"{len(ids)} rows had to be moved, but only {start} were written")
    return tuple(after)


def _is_indexed(base: Snapshot, fields: TableSchema) -> bool:
    ids = set(field_ids_of(fields.fields))
    return any(ids & set(index.field_ids) for index in base.manifest.indices)


def row_bytes(schema: TableSchema) -> int:
    """Estimate the bytes of a row from the types of its columns."""
    return sum(_BLOB_BYTES if is_blob(field) else _value_bytes(field.arrow().type) for field in schema.fields)


def _value_bytes(arrow: pa.DataType) -> int:
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    if pa.types.is_fixed_size_list(arrow):
        return int(arrow.list_size) * _value_bytes(arrow.value_type)
    if pa.types.is_struct(arrow):
        return sum(_value_bytes(child.type) for child in arrow)
    try:
        return max(1, int(arrow.bit_width) // 8)
    except ValueError:
        return _UNKNOWN_VALUE_BYTES
