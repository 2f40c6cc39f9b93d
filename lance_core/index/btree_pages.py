"""The pages of a BTREE: what `page_lookup.lance` says of `page_data.lance`, believed only as far as it can be.

What the files are called and what is in them lives here, with the checks of both; who searches and writes them is
`btree.py`.
"""

import operator
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lance_core.datafiles.codec import FileReader
from lance_core.errors import Corrupt
from lance_core.format.row_sets import RowSet
from lance_core.index.index_type import Segment, SegmentExamination
from lance_core.index.ordering import Key, Ordering, Positions, Span, concat_arrays, ordering
from lance_core.index.segment_files import read_all_rows, read_row_range
from lance_core.index.supported_types import is_ordered

DATA, LOOKUP = "page_data.lance", "page_lookup.lance"
VALUES, IDS = "values", "ids"
COLUMNS = (VALUES, IDS)
MIN, MAX, NULL_COUNT, PAGE = "min", "max", "null_count", "page_idx"
PAGE_ROWS = "batch_size"
DEFAULT_PAGE_ROWS = 4096
_ROWS_AT_ONCE = 1 << 16
_OF_EACH_SORT = 3


@dataclass(frozen=True, slots=True)
class Pages:
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

    def pages_within(self, span: Span) -> tuple[int, int]:
        """From a page to before another."""
        find_start = bisect_right if span.excludes_low else bisect_left
        find_end = bisect_left if span.excludes_high else bisect_right
        start = 0 if span.low is None else find_start(self.ends, span.low)
        if start == len(self.ends):
            return 0, 0
        end = len(self.ends) if span.high is None else 1 + find_end(self.starts, span.high)
        return self.first + start, self.first + max(start, end)


def value_type_of(data: FileReader, place: str) -> pa.DataType:
    """Of the values; what the file says is not to be trusted."""
    schema = data.schema
    if schema.names != [VALUES, IDS] or schema.field(IDS).type != pa.uint64():
        raise corrupt_error(place, DATA, f"has columns {_shown(schema)} instead of {VALUES} and {IDS}: uint64")
    arrow = schema.field(VALUES).type
    if not is_ordered(arrow):
        raise corrupt_error(place, DATA, f"has values of the type {arrow}, which have no order")
    return arrow


def read_page_rows(lookup: FileReader, place: str) -> int:
    said = lookup.metadata.get(PAGE_ROWS, str(DEFAULT_PAGE_ROWS))
    if not (said.isascii() and said.isdecimal() and 0 < int(said) < 1 << 31):
        raise corrupt_error(place, LOOKUP, f"has {PAGE_ROWS}={said[:40]!r}, which is no number of rows")
    return int(said)


def load_pages(lookup: FileReader, order: Ordering, rows: int, place: str) -> Pages:
    expected = [(MIN, order.type), (MAX, order.type), (NULL_COUNT, pa.uint32()), (PAGE, pa.uint32())]
    schema = lookup.schema
    if [(each.name, each.type) for each in schema] != expected:
        raise corrupt_error(place, LOOKUP, f"has columns {_shown(schema)} beside values of the type {order.type}")
    size, pages = read_page_rows(lookup, place), lookup.row_count
    if pages != -(-rows // size):
        raise corrupt_error(place, LOOKUP, f"has {pages} pages of {size} rows, and {DATA} has {rows} rows")
    table = read_all_rows(lookup).combine_chunks()
    low, high, null_counts, numbers = (concat_arrays(column.chunks, column.type) for column in table.columns)
    if not np.array_equal(numbers.to_numpy(zero_copy_only=False), np.arange(pages)):
        raise corrupt_error(place, LOOKUP, "has pages that are not numbered one after the other")
    nulls = null_counts.to_numpy(zero_copy_only=False).astype(np.int64)
    sizes = np.minimum(size, rows - size * np.arange(pages))
    valued = np.flatnonzero(nulls < sizes)
    if len(valued) and valued[-1] - valued[0] + 1 != len(valued):
        raise corrupt_error(place, LOOKUP, "has pages of NULL between others")
    starts, ends = low.take(pa.array(valued)), high.take(pa.array(valued))
    if starts.slice(1).null_count or ends.null_count:
        raise corrupt_error(place, LOOKUP, "has a page of values that does not say with which it begins or ends")
    first = order.keys(starts.slice(0, 1).drop_null())
    found = Pages(
        rows=size,
        with_nulls=np.flatnonzero(nulls),
        first=int(valued[0]) if len(valued) else 0,
        starts=list(order.keys(starts.slice(1))),
        ends=list(order.keys(ends)),
    )
    edges = [*first, *(key for edge in zip(found.ends, found.starts, strict=False) for key in edge), *found.ends[-1:]]
    if any(map(operator.gt, edges, edges[1:])):
        raise corrupt_error(place, LOOKUP, "has pages that are out of order")
    return found


def examine_pages(segment: Segment, column: pa.Field) -> SegmentExamination:
    place = segment.metadata.qualified_path
    data, lookup = segment.files.open(DATA), segment.files.open(LOOKUP)
    order = ordering(value_type_of(data, place))
    problems = _Problems()
    if order.type != column.type:
        problems.add("type", f"{DATA} has values of the type {order.type}; the column is {column.type}")
    try:
        load_pages(lookup, order, data.row_count, place)
    except Corrupt as error:
        problems.add("lookup", f"{LOOKUP} {error.what}")
    size = read_page_rows(lookup, place)
    told = read_all_rows(lookup) if lookup.schema.names == [MIN, MAX, NULL_COUNT, PAGE] else None
    found, count = RowSet(), 0
    at_once = max(_ROWS_AT_ONCE // size, 1) * size
    before: Key = None
    for start in range(0, data.row_count, at_once):
        rows = read_row_range(data, COLUMNS, start, min(at_once, data.row_count - start)).combine_chunks()
        ids = concat_arrays(rows.column(IDS).chunks, pa.uint64()).to_numpy()
        found, count = found | RowSet.of(ids), count + len(ids)
        values = concat_arrays(rows.column(VALUES).chunks, order.type)
        for offset in range(0, len(values), size):
            page = (start + offset) // size
            before = _examine_page(order, values.slice(offset, size), page, told, before, problems)
    if len(found) < count:
        problems.add("twice", f"{count - len(found)} rows of {DATA} are there more than once")
    return SegmentExamination(found, lists_every_row=True, problems=problems.all)


class _Problems:
    """A few of each sort."""

    def __init__(self) -> None:
        self._by_sort: dict[str, list[str]] = {}

    def add(self, sort: str, problem: str) -> None:
        of_sort = self._by_sort.setdefault(sort, [])
        if len(of_sort) < _OF_EACH_SORT:
            of_sort.append(problem)

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(problem for of_sort in self._by_sort.values() for problem in of_sort)


def _examine_page(
    order: Ordering, values: pa.Array, page: int, told: pa.Table | None, before: Key, problems: _Problems
) -> Key:
    """The highest key so far."""
    keys = order.keys(values.drop_null())
    low, high = (min(keys), max(keys)) if len(keys) else (None, None)
    if told is not None and page < told.num_rows:
        if told.column(NULL_COUNT)[page].as_py() != values.null_count:
            problems.add("nulls", f"page {page} has {values.null_count} NULL, and {LOOKUP} says otherwise")
        for name, key, beyond in ((MIN, low, operator.lt), (MAX, high, operator.gt)):
            limit = concat_arrays(told.column(name).slice(page, 1).chunks, order.type)
            if key is not None and not limit.null_count and beyond(key, order.keys(limit)[0]):
                problems.add(name, f"page {page} has a value beyond the {name} that {LOOKUP} says it has")
    if before is not None and low is not None and low < before:
        problems.add("order", f"page {page} begins below the end of the page before it")
    return before if high is None or (before is not None and before > high) else high


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name}: {each.type}" for each in schema)[:200]


def corrupt_error(place: str, name: str, what: str) -> Corrupt:
    return Corrupt(what, path=f"{place}/{name}", field="pages")
