"""BTREE: all rows in the order of their values, in pages, and the first and last value of each page.

`page_data.lance` has the rows, `page_lookup.lance` a row for each page. Searching is a look into the second, which is
kept, and one read of neighbouring pages of the first. Any order within a page is right, that of pages is not: an index
whose pages are out of order is refused when it is opened.
"""

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from lance_core.data.codec import FileReader
from lance_core.errors import Corrupt, InvalidInput
from lance_core.expressions.tree import Comparison, In, IsNull, Like
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import Ids, RowSet, RowsUnder
from lance_core.index import order as orders
from lance_core.index.files import Files, all_rows
from lance_core.index.kind import ROW, VALUE, Certainty, Found, Leaf, Options, Part, Segment
from lance_core.index.order import Key, Mask, Ordering, Positions, Span, joined, ordering
from lance_core.index.sorting import Sorter

DATA, LOOKUP = "page_data.lance", "page_lookup.lance"
_VALUES, _IDS = "values", "ids"
_MIN, _MAX, _NULL_COUNT, _PAGE = "min", "max", "null_count", "page_idx"
_PAGE_ROWS = "batch_size"
_COLUMNS = (_VALUES, _IDS)
_DEFAULT_PAGE_ROWS = 4096
_WRITTEN_ROWS = 1 << 18
_GAP = 4
"""Pages that are read in vain rather than that a read ends before them."""


@dataclass(frozen=True, slots=True)
class BTreeOptions:
    zone_size: int = _DEFAULT_PAGE_ROWS
    """Rows in a page."""


@dataclass(frozen=True, slots=True)
class BTree:
    name: str = "BTREE"
    type_url: str = "/lance.table.BTreeIndexDetails"
    newest: int = 1
    fitting: str = orders.FITTING

    def version(self, *, stable_row_ids: bool) -> int:
        return 1 if stable_row_ids else 0

    def fits(self, column: pa.Field) -> bool:
        return orders.fits(column.type)

    def options(self, given: Mapping[str, object]) -> BTreeOptions:
        if unknown := sorted(given.keys() - {"zone_size"}):
            raise InvalidInput(f"a BTREE index has no option {unknown[0]!r}; it has zone_size, the rows in a page")
        size = given.get("zone_size", _DEFAULT_PAGE_ROWS)
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < 1 << 31:
            raise InvalidInput(f"zone_size={size!r}: the rows in a page of a BTREE index are a whole number above 0")
        return BTreeOptions(size)

    def options_of(self, segment: Segment) -> BTreeOptions:
        return BTreeOptions(_page_rows(segment.files.open(LOOKUP), segment.metadata.place))

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        return _certainty(leaf)

    def write(
        self, files: Files, column: pa.Field, rows: Iterable[pa.RecordBatch], parts: Sequence[Part], options: Options
    ) -> bytes:
        assert isinstance(options, BTreeOptions)
        sorter = Sorter(ordering(column.type))
        for batch in rows:
            sorter.add(batch)
        for part in parts:
            for batch in _rows_of(part, column.type):
                sorter.add(batch)
        write_pages(files, column.type, sorter.batches(), options)
        return b""

    def open(self, segment: Segment, column: pa.Field) -> "BTreeSearcher":
        return BTreeSearcher.of(segment)


BTREE = BTree()


def write_pages(
    files: Files, arrow: pa.DataType, rows: Iterable[pa.RecordBatch], options: BTreeOptions = BTreeOptions()
) -> None:
    """The two files, from all rows of a segment in order, NULL first: of one sorter, or of sorted ranges one after the
    other."""
    size = options.zone_size
    data = files.create(DATA, pa.schema([pa.field(_VALUES, arrow), pa.field(_IDS, pa.uint64(), nullable=False)]))
    firsts: list[pa.Array] = []
    lasts: list[pa.Array] = []
    written = nulls = 0
    for batch in _gathered(rows):
        values, count = batch.column(VALUE), batch.num_rows
        if nulls == written and values.null_count:
            nulls += values.null_count
        firsts.append(values.take(pa.array(np.arange(-written % size, count, size))))
        lasts.append(values.take(pa.array(np.arange((-written - 1) % size, count, size))))
        data.write(pa.RecordBatch.from_arrays([values, batch.column(ROW)], names=[_VALUES, _IDS]))
        written += count
        last = values.slice(count - 1)
    if written % size:
        lasts.append(last)
    data.finish()
    _write_lookup(files, arrow, firsts, lasts, nulls, options)


def _write_lookup(
    files: Files,
    arrow: pa.DataType,
    firsts: Sequence[pa.Array],
    lasts: Sequence[pa.Array],
    nulls: int,
    options: BTreeOptions,
) -> None:
    schema = pa.schema(
        [
            pa.field(_MIN, arrow),
            pa.field(_MAX, arrow),
            pa.field(_NULL_COUNT, pa.uint32(), nullable=False),
            pa.field(_PAGE, pa.uint32(), nullable=False),
        ]
    )
    writer = files.create(LOOKUP, schema)
    low, high = joined(firsts, arrow), joined(lasts, arrow)
    pages = np.arange(len(low), dtype=np.int64)
    null_counts = np.clip(nulls - pages * options.zone_size, 0, options.zone_size)
    columns = [low, high, pa.array(null_counts, pa.uint32()), pa.array(pages, pa.uint32())]
    if len(low):
        writer.write(pa.RecordBatch.from_arrays(columns, schema=schema))
    writer.note(_PAGE_ROWS, str(options.zone_size))
    writer.note("range_partitioned", "false")
    writer.finish()


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small ones joined."""
    some: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        some.append(batch)
        count += batch.num_rows
        if count >= _WRITTEN_ROWS:
            yield from pa.Table.from_batches(some).combine_chunks().to_batches()
            some, count = [], 0
    if some:
        yield from pa.Table.from_batches(some).combine_chunks().to_batches()


def _rows_of(part: Part, arrow: pa.DataType) -> Iterator[pa.RecordBatch]:
    """Those that are still there, by the numbers that they have now."""
    place = part.segment.metadata.place
    file = part.segment.files.open(DATA)
    if (found := _type_of(file, place)) != arrow:
        raise _corrupt(place, DATA, f"has values of the type {found}; the column is {arrow}")
    for batch in file.read(_COLUMNS, 0, file.row_count) if file.row_count else ():
        rows, there = part.moves.of(batch.column(_IDS).to_numpy())
        values = batch.column(_VALUES)
        if not there.all():
            rows, values = rows[there], values.filter(pa.array(there))
        yield pa.RecordBatch.from_arrays([values, pa.array(rows, pa.uint64())], names=[VALUE, ROW])


@dataclass(frozen=True, slots=True)
class _Pages:
    """What `page_lookup.lance` says. A page that has nothing but NULL has no values to be looked for."""

    rows: int
    """In each page, but for the last."""
    with_nulls: Positions
    first: int
    """The first page that has a value."""
    starts: list[Key]
    """With what each page begins that has a value; without the first of them, which may begin with NULL."""
    ends: list[Key]
    """With what each of them ends."""

    def of(self, span: Span) -> tuple[int, int]:
        """From a page to before another."""
        find_start = bisect_right if span.above else bisect_left
        find_end = bisect_left if span.below else bisect_right
        start = 0 if span.low is None else find_start(self.ends, span.low)
        if start == len(self.ends):
            return 0, 0
        end = len(self.ends) if span.high is None else 1 + find_end(self.starts, span.high)
        return self.first + start, self.first + max(start, end)


@dataclass(frozen=True, slots=True)
class BTreeSearcher:
    order: Ordering
    _pages: _Pages
    _data: FileReader
    _rows_under: RowsUnder

    @classmethod
    def of(cls, segment: Segment) -> "BTreeSearcher":
        place = segment.metadata.place
        data = segment.files.open(DATA)
        order = ordering(_type_of(data, place))
        return cls(order, _pages_of(segment.files.open(LOOKUP), order, data.row_count, place), data, segment.rows_under)

    def search(self, leaf: Leaf) -> Found | None:
        certainty = _certainty(leaf)
        rows: RowSet | None = None
        if certainty is None:
            return None
        match leaf:
            case IsNull():
                rows = self._read(_runs(self._pages.with_nulls), _is_null)
            case In() if (keys := orders.keys_of(self.order, leaf)) is not None:
                pages = [np.arange(*self._pages.of(Span(key, key))) for key in keys]
                runs = _runs(np.unique(np.concatenate(pages)) if pages else np.arange(0))
                rows = self._read(runs, partial(self.order.among, keys=keys))
            case Comparison() | Like() if (span := orders.span_of(self.order, leaf)) is not None:
                rows = self._read([self._pages.of(span)], partial(self.order.within, span=span))
        return None if rows is None else Found(rows, certainty)

    def _read(self, runs: Iterable[tuple[int, int]], chosen: Callable[[pa.Array], Mask]) -> RowSet:
        """The rows of some pages whose values are chosen."""
        found: list[Ids] = []
        for start, end in runs:
            first = start * self._pages.rows
            count = min(end * self._pages.rows, self._data.row_count) - first
            if count <= 0:
                continue
            for batch in self._data.read(_COLUMNS, first, count):
                ids = batch.column(1).to_numpy()
                found.append(ids[chosen(batch.column(0))])
        return RowSet.of(np.concatenate(found) if found else np.empty(0, np.uint64)).within(self._rows_under)


def _certainty(leaf: Leaf) -> Certainty | None:
    return Certainty.EXACT if isinstance(leaf, IsNull) else orders.certainty(leaf)


def _is_null(values: pa.Array) -> Mask:
    return values.is_null().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _runs(pages: Positions) -> list[tuple[int, int]]:
    """Of ascending pages: those that are read at once, a few others between them included."""
    if not len(pages):
        return []
    cuts = np.flatnonzero(np.diff(pages) > _GAP) + 1
    return [(int(some[0]), int(some[-1]) + 1) for some in np.split(pages, cuts)]


def _type_of(data: FileReader, place: str) -> pa.DataType:
    """Of the values; what the file says is not to be trusted."""
    schema = data.schema
    if schema.names != [_VALUES, _IDS] or schema.field(_IDS).type != pa.uint64():
        raise _corrupt(place, DATA, f"has columns {_shown(schema)} instead of {_VALUES} and {_IDS}: uint64")
    arrow = schema.field(_VALUES).type
    if not orders.fits(arrow):
        raise _corrupt(place, DATA, f"has values of the type {arrow}, which have no order")
    return arrow


def _page_rows(lookup: FileReader, place: str) -> int:
    said = lookup.notes.get(_PAGE_ROWS, str(_DEFAULT_PAGE_ROWS))
    if not (said.isascii() and said.isdecimal() and 0 < int(said) < 1 << 31):
        raise _corrupt(place, LOOKUP, f"has {_PAGE_ROWS}={said[:40]!r}, which is no number of rows")
    return int(said)


def _pages_of(lookup: FileReader, order: Ordering, rows: int, place: str) -> _Pages:
    expected = [(_MIN, order.type), (_MAX, order.type), (_NULL_COUNT, pa.uint32()), (_PAGE, pa.uint32())]
    schema = lookup.schema
    if [(each.name, each.type) for each in schema] != expected:
        raise _corrupt(place, LOOKUP, f"has columns {_shown(schema)} beside values of the type {order.type}")
    size, pages = _page_rows(lookup, place), lookup.row_count
    if pages != -(-rows // size):
        raise _corrupt(place, LOOKUP, f"has {pages} pages of {size} rows, and {DATA} has {rows} rows")
    table = all_rows(lookup).combine_chunks()
    low, high, null_counts, numbers = (joined(column.chunks, column.type) for column in table.columns)
    if not np.array_equal(numbers.to_numpy(zero_copy_only=False), np.arange(pages)):
        raise _corrupt(place, LOOKUP, "has pages that are not numbered one after the other")
    nulls = null_counts.to_numpy(zero_copy_only=False).astype(np.int64)
    sizes = np.minimum(size, rows - size * np.arange(pages))
    valued = np.flatnonzero(nulls < sizes)
    return _Pages(
        rows=size,
        with_nulls=np.flatnonzero(nulls),
        first=int(valued[0]) if len(valued) else 0,
        starts=_ascending(order, low, valued[1:], place),
        ends=_ascending(order, high, valued, place),
    )


def _ascending(order: Ordering, values: pa.Array, pages: Positions, place: str) -> list[Key]:
    if len(pages) and (pages[-1] - pages[0] + 1 != len(pages)):
        raise _corrupt(place, LOOKUP, "has pages of NULL between others")
    some = values.take(pa.array(pages))
    if some.null_count:
        raise _corrupt(place, LOOKUP, "has a page of values that does not say with which it begins or ends")
    keys = list(order.keys(some))
    if any(map(operator.gt, keys, keys[1:])):
        raise _corrupt(place, LOOKUP, "has pages that are out of order")
    return keys


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name}: {each.type}" for each in schema)[:200]


def _corrupt(place: str, name: str, what: str) -> Corrupt:
    return Corrupt(what, path=f"{place}/{name}", field="pages")
