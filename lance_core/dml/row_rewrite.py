"""Changed rows on disk, in both ways of the format: moved to new fragments, or given new columns where they are.

Shared by update and upsert, which say which rows change and how new values come about. Rows that move keep their
stable ids. Which way is cheaper is decided in `is_column_rewrite_cheaper`; why there are two, in
`001-move-rows-or-rewrite-columns.md`.
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
from lance_core.dml.column_files import PositionedBatch, add_column_file
from lance_core.dml.deletion_files import add_deletions, encode_offsets
from lance_core.errors import InvalidInput
from lance_core.format.fragment import Fragment
from lance_core.format.ids import FragmentId
from lance_core.format.operations import Update, UpdateMode
from lance_core.format.rowids import RowIdSequence
from lance_core.format.schema import Field, TableSchema
from lance_core.runtime import Runtime
from lance_core.scan.selection import Offsets
from lance_core.scan.system_columns import SystemColumns
from lance_core.versions.snapshot import Snapshot

Values = Callable[[pa.RecordBatch, npt.NDArray[np.int64]], pa.RecordBatch]
"""From rows with the columns that are read, and their places among the change's offsets, to the columns that change."""
_BYTES_UNKNOWN = 32
_BYTES_BLOB = 1 << 20
_ROWS_AT_ONCE = 1 << 16
_SPARSE_FACTOR = 50
"""Where at most one row in so many changes, rows are picked by their number; else all around them is read."""


@dataclass(frozen=True, slots=True)
class FragmentChange:
    """Rows of one fragment that get new values."""

    fragment: Fragment
    offsets: Offsets
    values: Values


@dataclass(frozen=True, slots=True)
class RowRewrite:
    base: Snapshot
    columns: tuple[str, ...]
    """Those that get new values."""
    reads: tuple[str, ...]
    """Those that the new values are computed from."""
    changes: tuple[FragmentChange, ...]

    @property
    def schema(self) -> TableSchema:
        return self.base.manifest.schema

    @property
    def fields(self) -> TableSchema:
        return TableSchema(tuple(map(self.schema.field, self.columns)), self.schema.metadata)


def is_cheaper_in_place(changes: RowRewrite) -> bool:
    rows = sum(part.fragment.physical_rows for part in changes.changes)
    changed = sum(len(part.offsets) for part in changes.changes)
    return is_column_rewrite_cheaper(changes.base, changes.columns, rows=rows, changed=changed)


def is_column_rewrite_cheaper(base: Snapshot, columns: Sequence[str], *, rows: int, changed: int) -> bool:
    """By the bytes that have to be written, roughly: whole columns of the fragments where any row changes, which have
    so many rows, or whole rows. An index on a column that changes would forget these fragments, so with one it takes
    half of their rows."""
    schema = base.manifest.schema
    fields = TableSchema(tuple(map(schema.field, columns)), schema.metadata)
    if _is_indexed(base, fields) and 2 * changed < rows:
        return False
    return 0 < rows * _row_bytes(fields) <= changed * _row_bytes(schema)


def move_rows(
    changes: RowRewrite,
    removed: Mapping[FragmentId, Offsets],
    inserted: Sequence[pa.RecordBatch],
    *,
    assigned: Iterable[int],
    limits: FileLimits,
    runtime: Runtime,
) -> Update:
    """Changed rows first, in the order of the table, then inserted ones, which get their row ids at commit. `removed`
    are rows that go without coming back."""
    base = changes.base
    new = _write_moved_rows(changes, inserted, limits=limits, runtime=runtime)
    gone = {part.fragment.id: part.offsets for part in changes.changes}
    for fragment_id, offsets in removed.items():
        gone[fragment_id] = np.concatenate([gone.get(fragment_id, np.empty(0, dtype=np.int64)), offsets])
    updated, removed_ids = [], []
    for fragment in base.manifest.fragments if gone else ():
        if fragment.id not in gone:
            continue
        after = add_deletions(base.location, fragment, gone[fragment.id], read_version=base.version, runtime=runtime)
        if after is None:
            removed_ids.append(fragment.id)
        else:
            updated.append(after)
    affected = {fragment_id: encode_offsets(offsets) for fragment_id, offsets in gone.items()}
    return Update(tuple(removed_ids), tuple(updated), new, fields_assigned=tuple(assigned), affected=affected)


def rewrite_columns(
    changes: RowRewrite, inserted: Sequence[pa.RecordBatch], *, limits: FileLimits, runtime: Runtime
) -> Update:
    """Every row stays where it is; the fragment's old files keep the columns, dead."""
    base = changes.base
    affected = {part.fragment.id: encode_offsets(part.offsets) for part in changes.changes}
    return Update(
        updated=tuple(_rewrite_fragment_columns(changes, part, runtime) for part in changes.changes),
        new=write_rows(base, inserted, limits=limits, runtime=runtime),
        fields_modified=field_ids_of(changes.fields.fields),
        mode=UpdateMode.REWRITE_COLUMNS,
        updated_offsets={int(number): rows for number, rows in affected.items()}
        if base.manifest.has_stable_row_ids
        else {},
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
    """With those of all that is nested inside."""
    return tuple(node.id for field in fields for node in field.walk())


def _write_moved_rows(
    changes: RowRewrite, inserted: Sequence[pa.RecordBatch], *, limits: FileLimits, runtime: Runtime
) -> tuple[Fragment, ...]:
    base = changes.base
    if not changes.changes:
        return write_rows(base, inserted, limits=limits, runtime=runtime)
    ids: list[npt.NDArray[np.uint64]] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for part in changes.changes:
            facts = SystemColumns(base.manifest, part.fragment, path=f"{base.location.uri}/{base.manifest.path}")
            for places, batch in _read_changed_rows(changes, part):
                if base.manifest.has_stable_row_ids:
                    ids.append(facts.row_ids[part.offsets[places]])
                yield batch
        for batch in inserted:
            yield _fill_missing_columns(batch, changes.schema.arrow)

    fragments = write_rows(base, rows(), limits=limits, runtime=runtime)
    return _with_row_ids(fragments, np.concatenate(ids)) if ids else fragments


def _read_changed_rows(
    changes: RowRewrite, part: FragmentChange
) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
    """The rows that change, whole and with their new values, and their places among the offsets of the change."""
    arrow = changes.schema.arrow
    kept = [name for name in arrow.names if name not in changes.columns]
    for places, rows in _read_rows_at(changes, part, list(dict.fromkeys((*kept, *changes.reads)))):
        new = _conform_values(changes, part.values(rows, places))
        columns = [(new if name in changes.columns else rows).column(name) for name in arrow.names]
        yield places, pa.RecordBatch.from_arrays(columns, schema=arrow)


def _read_rows_at(
    changes: RowRewrite, part: FragmentChange, columns: Sequence[str]
) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
    """The rows at the offsets of a change, with these columns."""
    count = len(part.offsets)
    if not columns:
        for start in range(0, count, _ROWS_AT_ONCE):
            yield np.arange(start, min(start + _ROWS_AT_ONCE, count)), pa.RecordBatch.from_arrays([], names=[])
        return
    reader, first = _reader(changes, columns), int(part.offsets[0])
    span = int(part.offsets[-1]) + 1 - first
    if count * _SPARSE_FACTOR <= span:
        for start in range(0, count, _ROWS_AT_ONCE):
            some = part.offsets[start : start + _ROWS_AT_ONCE]
            for rows, batch in reader.take_chunks(part.fragment, some):
                yield np.arange(start + rows.start, start + rows.stop), batch
        return
    for found in reader.read_live(part.fragment, None, first, span):
        wanted = np.isin(found.offsets, part.offsets, assume_unique=True)
        if wanted.any():
            yield np.searchsorted(part.offsets, found.offsets[wanted]), found.batch.filter(pa.array(wanted))


def _rewrite_fragment_columns(changes: RowRewrite, part: FragmentChange, runtime: Runtime) -> Fragment:
    dead = frozenset(field_ids_of(changes.fields.fields))
    old = [file.without_fields(dead) if dead & set(file.field_ids) else file for file in part.fragment.files]
    # A file of dead and dropped columns alone has nothing in common with the schema, and pylance refuses that.
    alive = set(field_ids_of(changes.schema.fields))
    living = [file for file in old if alive & set(file.field_ids)]
    stripped = part.fragment.with_files(living)
    return add_column_file(changes.base, stripped, _read_new_columns(changes, part), changes.fields, runtime=runtime)


def _read_new_columns(changes: RowRewrite, part: FragmentChange) -> Iterator[PositionedBatch]:
    """The columns that change, of all live rows."""
    deletions = load_deletions(changes.base.location.store, part.fragment)
    columns = list(dict.fromkeys((*changes.columns, *changes.reads)))
    for found in _reader(changes, columns).read_live(part.fragment, deletions):
        if not found.batch.num_rows:
            continue
        old = found.batch.select(list(changes.columns))
        is_new = np.isin(found.offsets, part.offsets, assume_unique=True)
        if not is_new.any():
            yield PositionedBatch(old, found.offsets)
            continue
        at = np.flatnonzero(is_new)
        places = np.searchsorted(part.offsets, found.offsets[at])
        new = _conform_values(changes, part.values(found.batch.filter(pa.array(is_new)), places))
        chosen = np.arange(old.num_rows)
        chosen[at] = old.num_rows + np.arange(len(at))
        columns_after = [
            concat_arrays([before, after]).take(pa.array(chosen))
            for before, after in zip(old.columns, new.columns, strict=True)
        ]
        yield PositionedBatch(pa.RecordBatch.from_arrays(columns_after, schema=old.schema), found.offsets)


def concat_arrays(arrays: Sequence[pa.Array]) -> pa.Array:
    """One after another, of which there is at least one. Arrow does not join dictionaries that hold a null."""
    arrow = arrays[0].type
    if len(arrays) == 1 or not pa.types.is_dictionary(arrow):
        return pa.concat_arrays(arrays)
    encoded = pa.concat_arrays([array.dictionary_decode() for array in arrays]).dictionary_encode()
    try:
        indices = encoded.indices.cast(arrow.index_type)
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            f"{len(encoded.dictionary):,} different values are too many for a column of type {arrow}; recast it first"
        ) from error
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary)


def _reader(changes: RowRewrite, columns: Sequence[str]) -> FragmentReader:
    base, schema = changes.base, changes.schema
    wanted = TableSchema(tuple(map(schema.field, columns)), schema.metadata)
    path = f"{base.location.uri}/{base.manifest.path}"
    return FragmentReader(base.location.store, base.location.codec, schema, wanted, path=path)


def _conform_values(changes: RowRewrite, new: pa.RecordBatch) -> pa.RecordBatch:
    """In the types that the table stores; also where a null must not be is found out here."""
    (new,) = to_stored([new], changes.schema)
    arrow = pa.schema([changes.schema.arrow.field(name) for name in changes.columns])
    return conform(new, arrow, conversion=Conversion.EXACT, what=changes.base.location.uri)


def _fill_missing_columns(batch: pa.RecordBatch, arrow: pa.Schema) -> pa.RecordBatch:
    columns = [
        batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in arrow
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow)


def _with_row_ids(fragments: Sequence[Fragment], ids: npt.NDArray[np.uint64]) -> tuple[Fragment, ...]:
    """Each with the ids of the rows in it that moved; the rows after those are new."""
    start, after = 0, []
    for fragment in fragments:
        its = ids[start : start + fragment.physical_rows]
        after.append(fragment.with_lineage(row_ids=RowIdSequence.of(its).encode()) if len(its) else fragment)
        start += fragment.physical_rows
    if start < len(ids):
        raise InvalidInput(f"{len(ids)} rows were to be moved, and {start} were written")
    return tuple(after)


def _is_indexed(base: Snapshot, fields: TableSchema) -> bool:
    ids = set(field_ids_of(fields.fields))
    return any(ids & set(index.field_ids) for index in base.manifest.indices)


def _row_bytes(schema: TableSchema) -> int:
    """Bytes of a row, where the types say it."""
    return sum(_BYTES_BLOB if is_blob(field) else _value_bytes(field.arrow().type) for field in schema.fields)


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
        return _BYTES_UNKNOWN
