"""Scan plan: determines the fragments, rows and columns that a scan reads, and their order. Pure: a manifest in, a plan
out.

The plan that runs is the one that `explain` prints. With a filter, the plan uses late materialization: the columns of
the filter are read first (`early`), the other columns (`late`) only for rows that match. Start with `plan_scan`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions import Predicate
from lance_core.expressions.arrow_filters import Condition
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.format.schema import TableSchema
from lance_core.scan.column_resolution import (
    ResolvedColumn,
    check_condition,
    filterable_schema,
    prune_schema,
    resolve_columns,
)
from lance_core.scan.selection import FragmentSelection, RowSelector, Selection

_MORSEL_ROWS_MAX = 1_048_576
_MORSEL_ROWS_MIN = 16
MORSEL_BYTES = 16 * 1024**2
"""Size of a morsel as its file stores it; Arrow needs two or three times as much memory."""
_COLUMN_BYTES_MIN = 32 * 1024
"""A morsel has at least this many bytes of a column on average, up to `_WIDE_MORSEL_BYTES_MAX` in all. Two morsels
that share the chunks of a column both decode them."""
_WIDE_MORSEL_BYTES_MAX = 4 * MORSEL_BYTES
SMALL_FRAGMENT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Live rows `skip` to `skip + take` of one fragment; all remaining ones if `take` is `None`."""

    fragment: Fragment
    skip: int = 0
    take: int | None = None
    selection: FragmentSelection | None = None
    """Rows selected by an index: no other row of the fragment matches. `skip` and `take` are then unused."""

    @property
    def candidate_rows(self) -> int:
        """Upper bound for the number of rows that are tested."""
        return self.fragment.live_rows if self.selection is None else len(self.selection.rows)

    @property
    def is_whole(self) -> bool:
        """`True` if the task reads all live rows of its fragment."""
        return not self.skip and (self.take is None or self.take == self.fragment.live_rows)


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """Everything that a scan of one version needs to know before it reads."""

    manifest: Manifest
    table: TableSchema
    """Schema that defines the columns: the one of the version, or of a later version."""
    output: tuple[ResolvedColumn, ...]
    """Columns of the result, in order."""
    early: TableSchema
    """Columns that are read for every row: those of the filter or, without a filter, all of the result."""
    late: TableSchema
    """Columns that are read only for rows that match."""
    tasks: tuple[ScanTask, ...]
    predicate: Predicate | None = None
    """Filter of the scan. With a filter, `skip` and `take` of the tasks are unused, since it is unknown in advance
    which rows match."""
    limit: int | None = None
    offset: int = 0
    """Number of matching rows to skip. Offset and limit count over the whole scan; without a filter, the tasks
    already apply both."""
    describe_blobs: bool = True
    """`True` if blob columns return the locations of blobs instead of their bytes."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.output)

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the result."""
        return pa.schema([column.arrow for column in self.output], self.table.arrow.metadata)

    @property
    def early_and_late(self) -> TableSchema:
        return TableSchema((*self.early.fields, *self.late.fields), self.table.metadata)

    def reads_all_at_once(self, fragment: Fragment) -> bool:
        """Return whether a fragment is so small that two reads of it take longer than one read of all columns."""
        return bool(self.late.fields) and 0 < fragment.file_bytes <= SMALL_FRAGMENT_BYTES

    def with_residual(self, residual: Predicate | None) -> "ScanPlan":
        """Return this plan for rows that an index selected: they match, except that `residual` must still be tested."""
        if residual == self.predicate:
            return self
        tested = prune_schema(self.table, () if residual is None else resolve_columns(self.table, residual.columns))
        rest = prune_schema(self.table, (column for column in self.output if column.path[0] not in tested.names))
        early, late = (rest, tested) if residual is None else (tested, rest)
        return replace(self, early=early, late=late, predicate=residual)

    def memory_bytes(self) -> int:
        """Estimate the memory of the rows that are tested, from the sizes in the manifest."""
        sizes = self.morsel_sizes()
        return sum(task.candidate_rows * sizes.row_bytes(task.fragment) for task in self.tasks)

    def morsel_sizes(self) -> "MorselSizes":
        (early_bytes, early_variable), (late_bytes, late_variable) = _widths(self.early.arrow), _widths(self.late.arrow)
        columns = len(self.early.fields) + len(self.late.fields)
        return MorselSizes(
            early_bytes + late_bytes, early_variable + late_variable, *_widths(self.table.arrow), columns
        )


@dataclass(frozen=True, slots=True)
class MorselSizes:
    """Estimator for row sizes, which decides how many rows one morsel has."""

    fixed_bytes: int
    """Bytes per row of the columns that are read and whose type has a fixed width."""
    variable_columns: int
    """Number of columns that are read and whose type has no fixed width."""
    table_fixed_bytes: int
    """Bytes per row of all fixed-width columns of the table."""
    table_variable_columns: int

    columns: int = 0
    """Number of columns that are read."""

    def rows_per_morsel(self, row_bytes: int, morsel_bytes: int = MORSEL_BYTES) -> int:
        """Return the number of rows of a morsel, several of which must fit in memory. The morsels of thousands of
        columns are larger, since the codec reads each column in chunks."""
        size = max(morsel_bytes, min(self.columns * _COLUMN_BYTES_MIN, _WIDE_MORSEL_BYTES_MAX))
        return max(_MORSEL_ROWS_MIN, min(_MORSEL_ROWS_MAX, size // max(1, row_bytes)))

    def row_bytes(self, fragment: Fragment) -> int:
        """Estimate the bytes per row of the columns that are read. The width of fixed-width columns is known; the
        other columns share the rest of the file size."""
        stored = fragment.file_bytes // max(1, fragment.physical_rows)
        return self.fixed_bytes + max(0, stored - self.table_fixed_bytes) * self.variable_columns // max(
            1, self.table_variable_columns
        )


def plan_scan(
    manifest: Manifest,
    *,
    columns: Sequence[str] | None,
    filter: Condition | Predicate | None = None,
    limit: int | None = None,
    offset: int | None = None,
    with_row_id: bool = False,
    with_row_address: bool = False,
    select: RowSelector | None = None,
) -> ScanPlan:
    """Plan a scan. Without `columns` it returns all columns. Fragments that cannot hold a requested row are left out.

    A filter that several processes evaluate is passed as a `Predicate`, so that it has the same meaning in all of them.
    `select` asks the indices which rows can match.
    """
    arguments: tuple[object, ...] = (limit, offset)
    for argument in arguments:
        if not isinstance(argument, Integral | None) or isinstance(argument, bool):
            raise InvalidInput(f"limit={limit!r} and offset={offset!r} must be integers: they count rows")
    if (limit is not None and limit < 0) or (offset is not None and offset < 0):
        raise InvalidInput(f"limit={limit} and offset={offset} must not be negative: they count rows from the start")
    manifest.check_ids()
    schema = manifest.schema
    system_columns = [
        name for name, requested in (("_rowid", with_row_id), ("_rowaddr", with_row_address)) if requested
    ]
    output = resolve_columns(schema, columns, also=system_columns)
    if filter is None:
        tasks = tuple(map(ScanTask, manifest.fragments))
        if limit is not None or offset:
            tasks = tuple(_windowed_tasks(manifest, offset or 0, limit))
        return replace(plan_columns(manifest, (column.name for column in output)), tasks=tasks)
    predicate = filter if isinstance(filter, Predicate) else Predicate.parse(filter, filterable_schema(manifest))
    check_condition(manifest, predicate.columns, what="the filter")
    early = prune_schema(schema, resolve_columns(schema, predicate.columns))
    late = prune_schema(schema, (column for column in output if column.path[0] not in early.names))
    tasks = _selected_tasks(manifest, Selection() if select is None else select(predicate))
    return ScanPlan(manifest, schema, output, early, late, tasks, predicate, limit, offset or 0)


def plan_columns(
    manifest: Manifest, columns: Iterable[str] | None, *, table: TableSchema | None = None, describe_blobs: bool = True
) -> ScanPlan:
    """Plan the columns to read for rows that are not located by a scan."""
    schema = manifest.schema if table is None else table
    output = resolve_columns(schema, None if columns is None else list(columns), describe_blobs=describe_blobs)
    no_columns = TableSchema((), schema.metadata)
    return ScanPlan(
        manifest, schema, output, prune_schema(schema, output), no_columns, (), describe_blobs=describe_blobs
    )


def _selected_tasks(manifest: Manifest, selection: Selection) -> tuple[ScanTask, ...]:
    covered, selected = selection.covered, selection.fragments
    if not covered:
        return tuple(map(ScanTask, manifest.fragments))
    messages = manifest.message.fragments
    if len(covered) == len(messages):  # ids are unique: bisection finds a few fragments without reading all of them
        positions = sorted((bisect_left(messages, id, key=lambda message: message.id), id) for id in selected)
        is_ordered = all(number < len(messages) and messages[number].id == id for number, id in positions)
        if is_ordered:
            return tuple(ScanTask(manifest.fragments[number], selection=selected[id]) for number, id in positions)
    return tuple(
        ScanTask(manifest.fragments[number], selection=selected.get(message.id))
        for number, message in enumerate(messages)
        if message.id in selected or message.id not in covered
    )


def _windowed_tasks(manifest: Manifest, offset: int, limit: int | None) -> Iterator[ScanTask]:
    to_skip, to_take = offset, limit
    for fragment in manifest.fragments:
        if to_take == 0:
            return
        rows = fragment.live_rows
        if to_skip >= rows:
            to_skip -= rows
            continue
        take = rows - to_skip if to_take is None else min(rows - to_skip, to_take)
        yield ScanTask(fragment, skip=to_skip, take=take)
        to_skip = 0
        to_take = None if to_take is None else to_take - take


def _widths(arrow: pa.Schema) -> tuple[int, int]:
    """Return the bytes per row of the fixed-width columns, and the number of the other columns."""
    fixed_bytes, variable_columns = 0, 0
    for field in arrow:
        try:
            fixed_bytes += -(-field.type.bit_width // 8)
        except ValueError:
            variable_columns += 1
    return fixed_bytes, variable_columns
