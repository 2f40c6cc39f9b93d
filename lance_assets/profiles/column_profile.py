"""Column profile: computes null counts and vector lengths, which no manifest records, from the rows.

Rows are streamed in batches and not retained. Columns that cannot be null by the schema are not read. If the columns
are larger than the bound, ranges of rows spread evenly over the version are sampled, and the statistics describe the
sample; `rows_read` is its size.
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
    """Statistics of one vector column. Lengths cover only vectors of finite numbers."""

    count: int = 0
    zero: int = 0
    not_finite: int = 0
    """Vectors that contain a NaN, an infinity or a null."""
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
        finite = norms[np.isfinite(norms)]
        self.count += len(norms)
        self.not_finite += len(norms) - len(finite)
        if len(finite):
            self.zero += int(np.count_nonzero(finite == 0))
            self.shortest = min(self.shortest, float(finite.min()))
            self.longest = max(self.longest, float(finite.max()))
            self.total += float(finite.sum())


@dataclass(slots=True)
class ColumnProfile:
    """Statistics of one column, or of one field of a struct."""

    path: tuple[str, ...]
    type: pa.DataType
    can_be_null: bool
    nulls: int = 0
    """Null values among the rows read. A field of a struct is null if the struct is."""
    vectors: VectorStats | None = None

    @property
    def name(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class ContentProfile:
    """Statistics of all profiled columns."""

    rows: int
    rows_read: int
    columns: tuple[ColumnProfile, ...]
    columns_skipped: int = field(default=0)
    """Columns beyond the limit, which are not profiled."""

    @property
    def is_sampled(self) -> bool:
        return self.rows_read < self.rows


def profile_contents(
    table: Table, stats: VersionStats, *, columns: Sequence[str] | None, columns_max: int, bytes_max: int
) -> ContentProfile:
    """Profile the named columns, or all. Names that the table lacks are skipped, since older versions may lack a
    column."""
    schema = table.schema
    names = [name for name in (schema.names if columns is None else columns) if name in schema.names]
    columns_all = [column for name in names for column in _column_profiles(schema.field(name))]
    profiled = columns_all[:columns_max]
    skipped = len(columns_all) - len(profiled)
    needed = sorted({column.path[0] for column in profiled if column.can_be_null or column.vectors}, key=names.index)
    if not needed or not stats.rows:
        return ContentProfile(stats.rows, stats.rows, tuple(profiled), skipped)
    rows_read = 0
    for batch in _sample_batches(table, needed, _rows_within(schema, stats, needed, bytes_max), stats.rows):
        rows_read += batch.num_rows
        for column in profiled:
            if column.path[0] in needed:
                _add_values(column, batch.column(column.path[0]))
    return ContentProfile(stats.rows, rows_read, tuple(profiled), skipped)


def _column_profiles(top: pa.Field) -> Iterator[ColumnProfile]:
    """Yield the profile of a column and of the fields of its structs."""
    pending: list[tuple[tuple[str, ...], pa.Field, bool]] = [((top.name,), top, False)]
    while pending:
        path, field, parent_nullable = pending.pop()
        nullable = parent_nullable or field.nullable
        yield ColumnProfile(path, field.type, nullable, vectors=VectorStats() if _is_vector(field.type) else None)
        if pa.types.is_struct(field.type):
            pending += [((*path, child.name), child, nullable) for child in reversed(list(field.type))]


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
        if (overflown := np.isinf(norms) & np.isfinite(numbers).all(axis=1)).any():  # the squares exceed a double
            scale = np.abs(numbers[overflown]).max(axis=1)
            norms[overflown] = scale * np.sqrt(((numbers[overflown] / scale[:, None]) ** 2).sum(axis=1))
        yield norms


def _sample_batches(table: Table, columns: Sequence[str], rows_max: int, rows: int) -> Iterator[pa.RecordBatch]:
    if rows <= rows_max:
        yield from table.to_batches(columns)
        return
    ranges = min(_SAMPLE_RANGES, rows_max)
    range_rows = rows_max // ranges
    for number in range(ranges):
        # The first range starts at the first row, the last range ends at the last row.
        start = (rows - range_rows) * number // max(1, ranges - 1)
        yield from table.to_batches(columns, limit=range_rows, offset=start)


def _rows_within(schema: pa.Schema, stats: VersionStats, columns: Sequence[str], bytes_max: int) -> int:
    """Return how many rows fit into the bound, by the widths of fixed-width types and by the sizes of the files for
    the rest."""
    fixed_bytes, variable_columns = _widths([schema.field(name).type for name in columns])
    fixed_bytes_all, variable_columns_all = _widths([field.type for field in schema])
    stored = stats.bytes / (stats.rows + stats.deleted)
    row_bytes = fixed_bytes + max(0.0, stored - fixed_bytes_all) * variable_columns / max(1, variable_columns_all)
    return max(1, int(bytes_max / max(1.0, row_bytes)))


def _widths(types: Sequence[pa.DataType]) -> tuple[float, int]:
    """Return the total width of the fixed-width types in bytes, and the number of other types."""
    fixed_bytes, variable = 0.0, 0
    for column_type in types:
        width = _width(column_type)
        if width is None:
            variable += 1
        else:
            fixed_bytes += width
    return fixed_bytes, variable


def _width(kind: pa.DataType) -> float | None:
    if pa.types.is_fixed_size_list(kind):
        inner = _width(kind.value_type)
        return None if inner is None else inner * kind.list_size
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return None
