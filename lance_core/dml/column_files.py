"""One more data file for a fragment that is there: new columns beside the old ones, a value for every physical row.

Shared by the verbs that add or recast columns. Nobody reads the values of deleted rows: they are null, or where a
column cannot be, those of a live row beside them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.blob_files import is_blob_v2
from lance_core.datafiles.codec import BATCH_ROWS
from lance_core.datafiles.conform import Conversion, copy_array
from lance_core.datafiles.fragment_reader import read_fragment
from lance_core.datafiles.fragment_writer import write_columns
from lance_core.errors import InvalidInput
from lance_core.format.fragment import Fragment
from lance_core.format.schema import TableSchema
from lance_core.runtime import Runtime
from lance_core.scan.system_columns import SYSTEM_COLUMN_NAMES, SystemColumns
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class PositionedBatch:
    """Values of live rows, and where in the fragment those are, ascending."""

    batch: pa.RecordBatch
    offsets: npt.NDArray[np.int64]


def read_live_rows(
    base: Snapshot, fragment: Fragment, columns: Sequence[str], schema: TableSchema, *, describe_blobs: bool = False
) -> Iterator[PositionedBatch]:
    """Columns of `schema`, and of those that every table has besides."""
    location, path = base.location, f"{base.location.uri}/{base.manifest.path}"
    stored = [name for name in columns if name not in SYSTEM_COLUMN_NAMES]
    facts = SystemColumns(base.manifest, fragment, path=path)
    for rows in read_fragment(
        location.store, location.codec, fragment, schema, columns=stored, path=path, describe_blobs=describe_blobs
    ):
        batch = rows.batch if stored == list(columns) else facts.add_to(rows, columns)
        yield PositionedBatch(batch, rows.offsets)


def add_column_file(
    base: Snapshot,
    fragment: Fragment,
    placed: Iterable[PositionedBatch],
    columns: TableSchema,
    *,
    conversion: Conversion = Conversion.EXACT,
    runtime: Runtime,
) -> Fragment:
    """The fragment with one file more, which stores `columns`."""
    file = write_columns(
        base.location.codec,
        _fill_physical_rows(placed, columns.arrow, fragment),
        schema=columns,
        version=base.manifest.storage_version,
        rows=fragment.physical_rows,
        conversion=conversion,
        new_uuid=runtime.new_uuid,
        what=base.location.uri,
    )
    return fragment.with_files([*fragment.files, file])


def _fill_physical_rows(
    placed: Iterable[PositionedBatch], schema: pa.Schema, fragment: Fragment
) -> Iterator[pa.RecordBatch]:
    """Batches that leave no row of the fragment out."""
    position = 0
    last: pa.RecordBatch | None = None
    for each in placed:
        if each.batch.num_rows:
            end = int(each.offsets[-1]) + 1
            yield from _expand(each, schema, position, end)
            position, last = end, each.batch.slice(each.batch.num_rows - 1)
    if position < fragment.physical_rows:
        if last is None:
            last = _null_row(schema, fragment)
        beyond = np.array([fragment.physical_rows], dtype=np.int64)
        yield from _expand(PositionedBatch(last, beyond), schema, position, fragment.physical_rows)


def _expand(placed: PositionedBatch, schema: pa.Schema, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    if stop - start == placed.batch.num_rows:
        yield placed.batch
        return
    for first in range(start, stop, BATCH_ROWS):
        wanted = np.arange(first, min(first + BATCH_ROWS, stop))
        at = np.searchsorted(placed.offsets, wanted)  # deleted rows: where the next live one is
        dead = placed.offsets[at] != wanted
        columns = []
        for field, column in zip(schema, placed.batch.columns, strict=True):
            places = pa.array(at, mask=dead if _can_store_null(field) else None)
            columns.append((copy_array(column) if column.offset else column).take(places))
        yield pa.RecordBatch.from_arrays(columns, names=placed.batch.schema.names)


def _can_store_null(field: pa.Field) -> bool:
    """Structs that are null are not for every storage version, nor every kind of struct; blobs always can be."""
    return bool(field.nullable and (is_blob_v2(field) or not pa.types.is_struct(field.type)))


def _null_row(schema: pa.Schema, fragment: Fragment) -> pa.RecordBatch:
    for field in schema:
        if not field.nullable:
            raise InvalidInput(
                f"column {field.name!r} is not nullable, and fragment {fragment.id} has no live row left to compute a "
                "value from; compact the table first"
            )
    return pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
