"""What only rows tell: how many values of a column are missing, and how long vectors are.

Rows go through, a batch at a time, and none is kept. What the schema rules out is not read. Where the columns are
larger than the bound, rows are read in stretches that are spread evenly over the version, and the figures are of those
rows alone: `rows_read` says of how many.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_assets.common.version_stats import VersionStats
from lance_core import Table

_SAMPLE_RANGES = 16
_VALUES_PER_CHUNK = 1 << 22
Floats = npt.NDArray[np.floating]


@dataclass(slots=True)
class VectorStats:
    """Of one column of vectors; lengths are of those that hold numbers only."""

    count: int = 0
    zero: int = 0
    not_finite: int = 0
    """With a NaN, an infinity or a null among their numbers."""
    shortest: float = math.inf
    longest: float = -math.inf
    total: float = 0.0

    @property
    def finite(self) -> int:
        return self.count - self.not_finite

    @property
    def mean(self) -> float | None:
        return self.total / self.finite if self.finite else None

    def add(self, norms: Floats) -> None:
        known = norms[np.isfinite(norms)]
        self.count += len(norms)
        self.not_finite += len(norms) - len(known)
        if len(known):
            self.zero += int(np.count_nonzero(known == 0))
            self.shortest = min(self.shortest, float(known.min()))
            self.longest = max(self.longest, float(known.max()))
            self.total += float(known.sum())


@dataclass(slots=True)
class ColumnProfile:
    path: tuple[str, ...]
    type: pa.DataType
    can_be_null: bool
    nulls: int = 0
    """Of the rows that were read. A field of a struct is null where the struct is."""
    vectors: VectorStats | None = None

    @property
    def name(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class ContentProfile:
    rows: int
    rows_read: int
    columns: tuple[ColumnProfile, ...]
    columns_skipped: int = field(default=0)
    """Columns that are more than are looked at."""

    @property
    def is_sampled(self) -> bool:
        return self.rows_read < self.rows


def profile_contents(
    table: Table, layout: VersionStats, *, columns: Sequence[str] | None, columns_max: int, bytes_max: int
) -> ContentProfile:
    """Of these columns, or of all. A name that is none of the table's is left out: an older version may not have it."""
    schema = table.schema
    names = [name for name in (schema.names if columns is None else columns) if name in schema.names]
    found = [column for name in names for column in _column_profiles(schema.field(name))]
    kept = found[:columns_max]
    needed = sorted({each.path[0] for each in kept if each.can_be_null or each.vectors}, key=names.index)
    if not needed or not layout.rows:
        return ContentProfile(layout.rows, layout.rows, tuple(kept), len(found) - len(kept))
    rows_read = 0
    for batch in _sample_batches(table, needed, _rows_within(schema, layout, needed, bytes_max), layout.rows):
        rows_read += batch.num_rows
        for column in kept:
            if column.path[0] in needed:
                _add_values(column, batch.column(column.path[0]))
    return ContentProfile(layout.rows, rows_read, tuple(kept), len(found) - len(kept))


def _column_profiles(top: pa.Field) -> Iterator[ColumnProfile]:
    """A column, and the fields of its structs."""
    waiting: list[tuple[tuple[str, ...], pa.Field, bool]] = [((top.name,), top, False)]
    while waiting:
        path, field, above = waiting.pop()
        nullable = above or field.nullable
        yield ColumnProfile(path, field.type, nullable, vectors=VectorStats() if _is_vector(field.type) else None)
        if pa.types.is_struct(field.type):
            waiting += [((*path, child.name), child, nullable) for child in reversed(list(field.type))]


def _is_vector(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type) and kind.list_size > 0)


def _add_values(column: ColumnProfile, array: pa.Array) -> None:
    if len(column.path) > 1:
        array = pc.struct_field(array, list(column.path[1:]))
    column.nulls += array.null_count
    if column.vectors is not None:
        for norms in _norms(array):
            column.vectors.add(norms)


def _norms(array: pa.FixedSizeListArray) -> Iterator[Floats]:
    size = array.type.list_size
    step = max(1, _VALUES_PER_CHUNK // size)
    present = array.drop_null() if array.null_count else array
    for start in range(0, len(present), step):
        values = present.slice(start, step).flatten()
        numbers = np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64).reshape(-1, size)
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt(np.einsum("ij,ij->i", numbers, numbers))
        if (far := np.isinf(norms) & np.isfinite(numbers).all(axis=1)).any():  # squares that no double holds
            scale = np.abs(numbers[far]).max(axis=1)
            norms[far] = scale * np.sqrt(((numbers[far] / scale[:, None]) ** 2).sum(axis=1))
        yield norms


def _sample_batches(table: Table, columns: Sequence[str], rows_max: int, rows: int) -> Iterator[pa.RecordBatch]:
    if rows <= rows_max:
        yield from table.to_batches(columns)
        return
    stretches = min(_SAMPLE_RANGES, rows_max)
    long = rows_max // stretches
    for number in range(stretches):
        # The first begins with the first row, the last ends with the last one.
        start = (rows - long) * number // max(1, stretches - 1)
        yield from table.to_batches(columns, limit=long, offset=start)


def _rows_within(schema: pa.Schema, layout: VersionStats, columns: Sequence[str], bytes_max: int) -> int:
    """How many rows fit into the bound, by the types whose values have one width, and the files' sizes for the rest."""
    own, own_open = _widths([schema.field(name).type for name in columns])
    whole, whole_open = _widths([field.type for field in schema])
    stored = layout.bytes / (layout.rows + layout.deleted)
    each = own + max(0.0, stored - whole) * own_open / max(1, whole_open)
    return max(1, int(bytes_max / max(1.0, each)))


def _widths(types: Sequence[pa.DataType]) -> tuple[float, int]:
    known, unknown = 0.0, 0
    for each in types:
        width = _width(each)
        if width is None:
            unknown += 1
        else:
            known += width
    return known, unknown


def _width(kind: pa.DataType) -> float | None:
    if pa.types.is_fixed_size_list(kind):
        inner = _width(kind.value_type)
        return None if inner is None else inner * kind.list_size
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return None
