"""BTREE pages: reads and validates `page_lookup.lance` and the layout of `page_data.lance`, trusting neither.

This module defines the names and contents of both files and checks them; `btree.py` searches and writes them.
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
_ROWS_PER_READ = 1 << 16
_PROBLEMS_PER_CATEGORY_MAX = 3


@dataclass(frozen=True, slots=True)
class Pages:
    """Contents of `page_lookup.lance`. A page that contains nothing but NULL has no values to search."""

    rows: int
    """Rows of each page except the last."""
    with_nulls: Positions
    """Pages that contain NULL."""
    first: int
    """First page that contains a value."""
    starts: list[Key]
    """First key of each page that contains a value, except the first such page, which may begin with NULL."""
    ends: list[Key]
    """Last key of each page that contains a value."""

    def pages_within(self, span: Span) -> tuple[int, int]:
        """Return the first page that may contain keys of the span, and the page after the last one. Both are equal if
        there is no such page."""
        find_start = bisect_right if span.excludes_low else bisect_left
        find_end = bisect_left if span.excludes_high else bisect_right
        start = 0 if span.low is None else find_start(self.ends, span.low)
        if start == len(self.ends):
            return 0, 0
        end = len(self.ends) if span.high is None else 1 + find_end(self.starts, span.high)
        return self.first + start, self.first + max(start, end)


def value_type_of(data: FileReader, place: str) -> pa.DataType:
    """Return the type of the values. Raise `Corrupt` if the columns are not those of a BTREE file."""
    schema = data.schema
    if schema.names != [VALUES, IDS] or schema.field(IDS).type != pa.uint64():
        raise corrupt_error(place, DATA, f"has columns {_schema_text(schema)} instead of {VALUES} and {IDS}: uint64")
    arrow = schema.field(VALUES).type
    if not is_ordered(arrow):
        raise corrupt_error(place, DATA, f"has values of type {arrow}, which is not ordered")
    return arrow


def read_page_rows(lookup: FileReader, place: str) -> int:
    """Return the number of rows per page."""
    recorded = lookup.metadata.get(PAGE_ROWS, str(DEFAULT_PAGE_ROWS))
    if not (recorded.isascii() and recorded.isdecimal() and 0 < int(recorded) < 1 << 31):
        raise corrupt_error(place, LOOKUP, f"has {PAGE_ROWS}={recorded[:40]!r}, which is not a number of rows")
    return int(recorded)


def load_pages(lookup: FileReader, order: Ordering, rows: int, place: str) -> Pages:
    """Read the page lookup. Raise `Corrupt` if it contradicts itself or the number of rows of the data file."""
    expected = [(MIN, order.type), (MAX, order.type), (NULL_COUNT, pa.uint32()), (PAGE, pa.uint32())]
    schema = lookup.schema
    if [(column.name, column.type) for column in schema] != expected:
        raise corrupt_error(place, LOOKUP, f"has columns {_schema_text(schema)} for values of type {order.type}")
    size, pages = read_page_rows(lookup, place), lookup.row_count
    if pages != -(-rows // size):
        raise corrupt_error(place, LOOKUP, f"has {pages} pages of {size} rows, and {DATA} has {rows} rows")
    table = read_all_rows(lookup).combine_chunks()
    low, high, null_counts, numbers = (concat_arrays(column.chunks, column.type) for column in table.columns)
    if not np.array_equal(numbers.to_numpy(zero_copy_only=False), np.arange(pages)):
        raise corrupt_error(place, LOOKUP, "has pages that are not numbered consecutively")
    nulls = null_counts.to_numpy(zero_copy_only=False).astype(np.int64)
    sizes = np.minimum(size, rows - size * np.arange(pages))
    valued = np.flatnonzero(nulls < sizes)
    if len(valued) and valued[-1] - valued[0] + 1 != len(valued):
        raise corrupt_error(place, LOOKUP, "has pages of NULL between others")
    starts, ends = low.take(pa.array(valued)), high.take(pa.array(valued))
    if starts.slice(1).null_count or ends.null_count:
        raise corrupt_error(place, LOOKUP, "has a page of values without its first or last value")
    first = order.keys(starts.slice(0, 1).drop_null())
    pages_info = Pages(
        rows=size,
        with_nulls=np.flatnonzero(nulls),
        first=int(valued[0]) if len(valued) else 0,
        starts=list(order.keys(starts.slice(1))),
        ends=list(order.keys(ends)),
    )
    edges = [
        *first,
        *(key for edge in zip(pages_info.ends, pages_info.starts, strict=False) for key in edge),
        *pages_info.ends[-1:],
    ]
    if any(map(operator.gt, edges, edges[1:])):
        raise corrupt_error(place, LOOKUP, "has pages that are not in order")
    return pages_info


def examine_pages(segment: Segment, column: pa.Field) -> SegmentExamination:
    """Read both files completely and report contradictions."""
    place = segment.metadata.qualified_path
    data, lookup = segment.files.open(DATA), segment.files.open(LOOKUP)
    order = ordering(value_type_of(data, place))
    problems = _Problems()
    if order.type != column.type:
        problems.add("type", f"{DATA} has values of type {order.type}; the column is {column.type}")
    try:
        load_pages(lookup, order, data.row_count, place)
    except Corrupt as error:
        problems.add("lookup", f"{LOOKUP} {error.what}")
    size = read_page_rows(lookup, place)
    lookup_table = read_all_rows(lookup) if lookup.schema.names == [MIN, MAX, NULL_COUNT, PAGE] else None
    listed, count = RowSet(), 0
    rows_per_read = max(_ROWS_PER_READ // size, 1) * size
    highest: Key = None
    for start in range(0, data.row_count, rows_per_read):
        rows = read_row_range(data, COLUMNS, start, min(rows_per_read, data.row_count - start)).combine_chunks()
        ids = concat_arrays(rows.column(IDS).chunks, pa.uint64()).to_numpy()
        listed, count = listed | RowSet.of(ids), count + len(ids)
        values = concat_arrays(rows.column(VALUES).chunks, order.type)
        for offset in range(0, len(values), size):
            page = (start + offset) // size
            highest = _examine_page(order, values.slice(offset, size), page, lookup_table, highest, problems)
    if len(listed) < count:
        problems.add("twice", f"{count - len(listed)} rows of {DATA} occur more than once")
    return SegmentExamination(listed, lists_every_row=True, problems=problems.all)


class _Problems:
    """Problems that the examination reports, at most `_PROBLEMS_PER_CATEGORY_MAX` of each category."""

    def __init__(self) -> None:
        self._by_category: dict[str, list[str]] = {}

    def add(self, category: str, problem: str) -> None:
        of_category = self._by_category.setdefault(category, [])
        if len(of_category) < _PROBLEMS_PER_CATEGORY_MAX:
            of_category.append(problem)

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(problem for of_category in self._by_category.values() for problem in of_category)


def _examine_page(
    order: Ordering, values: pa.Array, page: int, lookup_table: pa.Table | None, highest: Key, problems: _Problems
) -> Key:
    """Check a page against the lookup and the pages before it. Return the highest key so far."""
    keys = order.keys(values.drop_null())
    low, high = (min(keys), max(keys)) if len(keys) else (None, None)
    if lookup_table is not None and page < lookup_table.num_rows:
        if lookup_table.column(NULL_COUNT)[page].as_py() != values.null_count:
            problems.add("nulls", f"page {page} has {values.null_count} NULLs, and {LOOKUP} records another number")
        for name, key, beyond in ((MIN, low, operator.lt), (MAX, high, operator.gt)):
            limit = concat_arrays(lookup_table.column(name).slice(page, 1).chunks, order.type)
            if key is not None and not limit.null_count and beyond(key, order.keys(limit)[0]):
                problems.add(name, f"page {page} has a value beyond the {name} that {LOOKUP} records")
    if highest is not None and low is not None and low < highest:
        problems.add("order", f"page {page} begins below the end of the page before it")
    return highest if high is None or (highest is not None and highest > high) else high


def _schema_text(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)[:200]


def corrupt_error(place: str, name: str, what: str) -> Corrupt:
    return Corrupt(what, path=f"{place}/{name}", field="pages")
