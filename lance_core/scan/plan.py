"""What a scan will read: which fragments, which of their rows, which columns and when. Pure: a manifest in, a plan out.

A plan is what runs, and what `explain` prints. With a condition the columns that it needs are read first (`first`),
the others (`then`) only where rows match. Start with `plan_scan`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions import Predicate
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.format.schema import TableSchema
from lance_core.scan.column_resolution import ResolvedColumn, check_condition, conditional, pruned, resolved
from lance_core.scan.selection import FragmentSelection, Select, Selection

_PIECE_ROWS_MAX = 1_048_576
_PIECE_ROWS_MIN = 16
PIECE_BYTES = 16 * 1024**2
"""Of a piece as its file stores it; Arrow needs two or three times as much."""
SMALL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Live rows `skip` to `skip + take` of one fragment; all that are left where `take` is None."""

    fragment: Fragment
    skip: int = 0
    take: int | None = None
    chosen: FragmentSelection | None = None
    """Where a condition is met by no other rows of it than these; `skip` and `take` are then unused."""

    @property
    def rows(self) -> int:
        """How many are looked at, at most."""
        return self.fragment.live_rows if self.chosen is None else len(self.chosen.rows)

    @property
    def is_whole(self) -> bool:
        return not self.skip and (self.take is None or self.take == self.fragment.live_rows)


@dataclass(frozen=True, slots=True)
class ScanPlan:
    manifest: Manifest
    table: TableSchema
    """What the columns are: the version's schema, or a later one's."""
    output: tuple[ResolvedColumn, ...]
    """What comes back, in this order."""
    first: TableSchema
    """What is read of every row: with a condition its columns, else all that comes back."""
    then: TableSchema
    """What is read of rows that match."""
    tasks: tuple[ScanTask, ...]
    predicate: Predicate | None = None
    """Rows that do not match are left out; `skip` and `take` of tasks are then unused, for nobody knows which match."""
    limit: int | None = None
    offset: int = 0
    """Both count matching rows over the whole scan. Without a predicate the tasks say it all already."""
    describe_blobs: bool = True
    """Of blob columns comes where the blobs are, not what they hold."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.output)

    @property
    def schema(self) -> pa.Schema:
        """Of the result."""
        return pa.schema([column.arrow for column in self.output], self.table.arrow.metadata)

    @property
    def both(self) -> TableSchema:
        return TableSchema((*self.first.fields, *self.then.fields), self.table.metadata)

    def reads_at_once(self, fragment: Fragment) -> bool:
        """Whether a fragment is so small that reading twice in it takes longer than reading all that may be wanted."""
        return bool(self.then.fields) and 0 < fragment.file_bytes <= SMALL_BYTES

    def looking_for(self, residual: Predicate | None) -> "ScanPlan":
        """The same for rows that are known to match, or but for this condition."""
        if residual == self.predicate:
            return self
        needed = pruned(self.table, () if residual is None else resolved(self.table, residual.columns))
        rest = pruned(self.table, (column for column in self.output if column.path[0] not in needed.names))
        first, then = (rest, needed) if residual is None else (needed, rest)
        return replace(self, first=first, then=then, predicate=residual)

    def memory_bytes(self) -> int:
        """About how many bytes the rows take that are looked at, in memory, and as far as the manifest tells."""
        sizes = self.piece_sizes()
        return sum(task.rows * sizes.row_bytes(task.fragment) for task in self.tasks)

    def piece_sizes(self) -> "PieceSizes":
        (first, first_open), (then, then_open) = _widths(self.first.arrow), _widths(self.then.arrow)
        return PieceSizes(first + then, first_open + then_open, *_widths(self.table.arrow))


@dataclass(frozen=True, slots=True)
class PieceSizes:
    """How many rows of a fragment are read in one go: so many that they fit in memory a few times over."""

    own: int
    """Bytes in a row of the columns that are read, as far as their types have one width."""
    own_open: int
    """How many of them have not."""
    whole: int
    """The same of all columns."""
    whole_open: int

    def rows(self, row_bytes: int) -> int:
        return max(_PIECE_ROWS_MIN, min(_PIECE_ROWS_MAX, PIECE_BYTES // max(1, row_bytes)))

    def row_bytes(self, fragment: Fragment) -> int:
        """Of these columns in the fragment's files: types of one width say it themselves, the others share what is
        left."""
        stored = fragment.file_bytes // max(1, fragment.physical_rows)
        return self.own + max(0, stored - self.whole) * self.own_open // max(1, self.whole_open)


def plan_scan(
    manifest: Manifest,
    *,
    columns: Sequence[str] | None,
    filter: str | Predicate | None = None,
    limit: int | None = None,
    offset: int | None = None,
    with_row_id: bool = False,
    with_row_address: bool = False,
    select: Select | None = None,
) -> ScanPlan:
    """All columns where none are named; fragments that hold no wanted row are left out. A filter that was parsed before
    is one that others evaluate too: it must mean the same to all of them. `select` may know which rows can match."""
    given: tuple[object, ...] = (limit, offset)
    for number in given:
        if not isinstance(number, Integral | None) or isinstance(number, bool):
            raise InvalidInput(f"limit={limit!r} and offset={offset!r} count rows; both are whole numbers")
    if (limit is not None and limit < 0) or (offset is not None and offset < 0):
        raise InvalidInput(f"limit={limit} and offset={offset} count rows from the start; neither may be negative")
    manifest.check_ids()
    schema = manifest.schema
    also = [name for name, wanted in (("_rowid", with_row_id), ("_rowaddr", with_row_address)) if wanted]
    output = resolved(schema, columns, also=also)
    if filter is None:
        tasks = tuple(map(ScanTask, manifest.fragments))
        if limit is not None or offset:
            tasks = tuple(_window(manifest, offset or 0, limit))
        return replace(plan_columns(manifest, (column.name for column in output)), tasks=tasks)
    predicate = filter if isinstance(filter, Predicate) else Predicate.parse(filter, conditional(manifest))
    check_condition(manifest, predicate.columns, what="the filter")
    needed = pruned(schema, resolved(schema, predicate.columns))
    rest = pruned(schema, (column for column in output if column.path[0] not in needed.names))
    tasks = _selected(manifest, Selection() if select is None else select(predicate))
    return ScanPlan(manifest, schema, output, needed, rest, tasks, predicate, limit, offset or 0)


def plan_columns(
    manifest: Manifest, columns: Iterable[str] | None, *, table: TableSchema | None = None, describe_blobs: bool = True
) -> ScanPlan:
    """What to read of rows that are found in another way than by scanning."""
    schema = manifest.schema if table is None else table
    output = resolved(schema, None if columns is None else list(columns), describe_blobs=describe_blobs)
    none = TableSchema((), schema.metadata)
    return ScanPlan(manifest, schema, output, pruned(schema, output), none, (), describe_blobs=describe_blobs)


def _selected(manifest: Manifest, selection: Selection) -> tuple[ScanTask, ...]:
    known, chosen = selection.known, selection.fragments
    if not known:
        return tuple(map(ScanTask, manifest.fragments))
    messages = manifest.message.fragments
    if len(known) == len(messages):  # ids are unique: few rows are found without a look at every fragment
        found = sorted((bisect_left(messages, id, key=lambda message: message.id), id) for id in chosen)
        if all(number < len(messages) and messages[number].id == id for number, id in found):  # else out of order
            return tuple(ScanTask(manifest.fragments[number], chosen=chosen[id]) for number, id in found)
    return tuple(
        ScanTask(manifest.fragments[number], chosen=chosen.get(message.id))
        for number, message in enumerate(messages)
        if message.id in chosen or message.id not in known
    )


def _window(manifest: Manifest, offset: int, limit: int | None) -> Iterator[ScanTask]:
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
    """Bytes of the columns whose values all have one width, and how many columns have not."""
    known, unknown = 0, 0
    for field in arrow:
        try:
            known += -(-field.type.bit_width // 8)
        except ValueError:
            unknown += 1
    return known, unknown
