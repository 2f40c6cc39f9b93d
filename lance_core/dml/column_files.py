"""Column files: one more data file for an existing fragment, with new columns and a value for every physical row.

Shared by the verbs that add or recast columns. Values of deleted rows are never read: they are null or, where a column
cannot be null, those of a neighbouring live row.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.blob_files import is_blob_v2
from lance_core.datafiles.codec import BATCH_ROWS
from lance_core.datafiles.conform import Conversion, copy_array
from lance_core.datafiles.fragment_reader import FragmentReader, load_deletions, read_fragment
from lance_core.datafiles.fragment_writer import write_columns
from lance_core.errors import InvalidInput
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.schema import TableSchema
from lance_core.runtime import Runtime
from lance_core.scan.system_columns import SYSTEM_COLUMN_NAMES, SystemColumns
from lance_core.versions.snapshot import Snapshot

SPARSE_FACTOR = 50
"""If at most one row in this many is read, the rows are read by their offsets; otherwise all rows around them."""


@dataclass(frozen=True, slots=True)
class PositionedBatch:
    """Values of live rows, with their offsets in the fragment in ascending order."""

    batch: pa.RecordBatch
    offsets: npt.NDArray[np.int64]
    stored: pa.RecordBatch | None = None
    """Values of replaced columns in these rows, if they were read together with the inputs of `batch`."""


def read_live_rows(
    base: Snapshot,
    fragment: Fragment,
    columns: Sequence[str],
    schema: TableSchema,
    *,
    start: int = 0,
    count: int | None = None,
    describe_blobs: bool = False,
) -> Iterator[PositionedBatch]:
    """Read columns of `schema`, or system columns, for the live rows among the physical rows from `start` to
    `start + count` of a fragment. `None` as `count` means all rows from `start`."""
    location, path = base.location, f"{base.location.uri}/{base.manifest.path}"
    stored = [name for name in columns if name not in SYSTEM_COLUMN_NAMES]
    system_columns = SystemColumns(base.manifest, fragment, path=path)
    for rows in read_fragment(
        location.store,
        location.codec,
        fragment,
        schema,
        columns=stored,
        start=start,
        count=count,
        path=path,
        describe_blobs=describe_blobs,
    ):
        batch = rows.batch if stored == list(columns) else system_columns.add_to(rows, columns)
        yield PositionedBatch(batch, rows.offsets)


def read_rows_at(
    base: Snapshot, fragment: Fragment, offsets: npt.NDArray[np.int64], columns: Sequence[str]
) -> Iterator[PositionedBatch]:
    """Read columns, or system columns, of live rows at ascending offsets. A few rows are read by their offsets;
    otherwise all rows around them are read."""
    if not len(offsets):
        return
    manifest, location = base.manifest, base.location
    schema, path = manifest.schema, f"{location.uri}/{manifest.path}"
    stored = [name for name in columns if name not in SYSTEM_COLUMN_NAMES]
    selected = TableSchema(tuple(map(schema.field, stored)), schema.metadata)
    reader = FragmentReader(location.store, location.codec, schema, selected, path=path)
    system_columns = SystemColumns(manifest, fragment, path=path)
    first, span = int(offsets[0]), int(offsets[-1]) + 1 - int(offsets[0])
    if stored and len(offsets) * SPARSE_FACTOR <= span:
        for start in range(0, len(offsets), BATCH_ROWS):
            some = offsets[start : start + BATCH_ROWS]
            for rows, batch in reader.take_chunks(fragment, some):
                yield PositionedBatch(system_columns.add_columns(batch, some[rows], columns), some[rows])
        return
    for live in reader.read_live(fragment, load_deletions(location.store, fragment), first, span):
        batch, positions = live.batch, live.offsets
        if len(offsets) < span:
            is_selected = np.isin(positions, offsets, assume_unique=True)
            if not is_selected.any():
                continue
            if not is_selected.all():
                batch, positions = batch.filter(pa.array(is_selected)), positions[is_selected]
        yield PositionedBatch(system_columns.add_columns(batch, positions, columns), positions)


def add_column_file(
    base: Snapshot,
    fragment: Fragment,
    live: Iterable[PositionedBatch],
    columns: TableSchema,
    *,
    conversion: Conversion = Conversion.EXACT,
    runtime: Runtime,
) -> Fragment:
    """Write a file with `columns` and return the fragment with it."""
    file = write_column_file(base, fragment, live, columns, conversion=conversion, runtime=runtime)
    return fragment.with_files([*fragment.files, file])


def without_columns(fragment: Fragment, field_ids: Collection[int], schema: TableSchema) -> Fragment:
    """Return the fragment without the values of some fields, which its files keep as dead data. A file without any
    other field of the schema is removed, since pylance refuses it."""
    remaining = {node.id for top in schema.fields for node in top.walk()}
    files = [
        file if set(file.field_ids).isdisjoint(field_ids) else file.without_fields(field_ids) for file in fragment.files
    ]
    return fragment.with_files([file for file in files if not remaining.isdisjoint(file.field_ids)])


def write_column_file(
    base: Snapshot,
    fragment: Fragment,
    live: Iterable[PositionedBatch],
    columns: TableSchema,
    *,
    conversion: Conversion = Conversion.EXACT,
    runtime: Runtime,
) -> DataFile:
    """Write a file with `columns` for all physical rows of a fragment, from the values of its live rows."""
    return write_columns(
        base.location.codec,
        _fill_physical_rows(live, columns.arrow, fragment),
        schema=columns,
        version=base.manifest.storage_version,
        rows=fragment.physical_rows,
        conversion=conversion,
        new_uuid=runtime.new_uuid,
        what=base.location.uri,
    )


def _fill_physical_rows(
    live: Iterable[PositionedBatch], schema: pa.Schema, fragment: Fragment
) -> Iterator[pa.RecordBatch]:
    """Yield a value for every physical row of the fragment, from the values of its live rows."""
    position = 0
    last: pa.RecordBatch | None = None
    for rows in live:
        if rows.batch.num_rows:
            end = int(rows.offsets[-1]) + 1
            yield from _expand(rows, schema, position, end)
            position, last = end, rows.batch.slice(rows.batch.num_rows - 1)
    if position < fragment.physical_rows:
        if last is None:
            last = _null_row(schema, fragment)
        end_offset = np.array([fragment.physical_rows], dtype=np.int64)
        yield from _expand(PositionedBatch(last, end_offset), schema, position, fragment.physical_rows)


def _expand(live: PositionedBatch, schema: pa.Schema, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Expand live rows to the physical rows from `start` to `stop`."""
    if stop - start == live.batch.num_rows:
        yield live.batch
        return
    for first in range(start, stop, BATCH_ROWS):
        offsets = np.arange(first, min(first + BATCH_ROWS, stop))
        indices = np.searchsorted(live.offsets, offsets)  # for a deleted row, the next live one
        is_deleted = live.offsets[indices] != offsets
        columns = []
        for field, column in zip(schema, live.batch.columns, strict=True):
            rows = pa.array(indices, mask=is_deleted if _can_store_null(field) else None)
            columns.append((copy_array(column) if column.offset else column).take(rows))
        yield pa.RecordBatch.from_arrays(columns, names=live.batch.schema.names)


def _can_store_null(field: pa.Field) -> bool:
    """Tell whether a null can be written for this field. Null structs depend on the storage version and the kind of
    struct, and are never written; blobs can always be null."""
    return bool(field.nullable and (is_blob_v2(field) or not pa.types.is_struct(field.type)))


def _null_row(schema: pa.Schema, fragment: Fragment) -> pa.RecordBatch:
    for field in schema:
        if not field.nullable:
            raise InvalidInput(
                f"column {field.name!r} is not nullable, and fragment {fragment.id} has no live row left to take a "
                "value from; compact the table first"
            )
    return pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
