"""BTREE index: stores all rows in the order of their values, in pages, with the first and last value of each page.

`page_data.lance` has the rows, and `page_lookup.lance` has one row per page. A search looks up the page range in
memory and reads neighbouring pages in one request. Rows within a page may have any order, but pages may not: an index
with unordered pages is rejected when it is opened.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from lance_core.datafiles.codec import FileReader
from lance_core.errors import InvalidInput
from lance_core.expressions.tree import Comparison, In, IsNull, Like
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import Ids, RowSet, RowsUnder
from lance_core.index import btree_pages
from lance_core.index import ordering as orders
from lance_core.index.btree_pages import (
    COLUMNS,
    DATA,
    DEFAULT_PAGE_ROWS,
    IDS,
    LOOKUP,
    MAX,
    MIN,
    NULL_COUNT,
    PAGE,
    PAGE_ROWS,
    VALUES,
    Pages,
    corrupt_error,
    load_pages,
    read_page_rows,
    value_type_of,
)
from lance_core.index.external_sort import Sorter
from lance_core.index.index_type import (
    ROW,
    VALUE,
    Certainty,
    Leaf,
    MatchedRows,
    MergeInput,
    RangeCondition,
    Segment,
    SegmentBuild,
    SegmentExamination,
)
from lance_core.index.ordering import Mask, Ordering, Positions, Span, concat_arrays, ordering
from lance_core.index.page_cache import SegmentPages
from lance_core.index.segment_files import SegmentSink, open_files
from lance_core.index.supported_types import ORDERED_TYPES, is_ordered, is_plain

_BATCH_ROWS_MIN = 1 << 18
_CACHED_PAGES_MAX = 256
_GAP_PAGES_MAX = 8
"""Maximum gap between two pages that one read still spans: reading unneeded pages is cheaper than another read."""


@dataclass(frozen=True, slots=True)
class BTreeOptions:
    """Options of a BTREE index."""

    zone_size: int = DEFAULT_PAGE_ROWS
    """Rows per page."""


class BTree:
    name: str = "BTREE"
    type_url: str = "/lance.table.BTreeIndexDetails"
    max_readable_version: int = 1
    written_version: int = 0
    supported_types: str = ORDERED_TYPES

    def supports(self, column: pa.Field) -> bool:
        return is_plain(column) and is_ordered(column.type)

    def parse_options(self, parameters: Mapping[str, object]) -> BTreeOptions:
        if unknown := sorted(parameters.keys() - {"zone_size"}):
            raise InvalidInput(f"a BTREE index has no option {unknown[0]!r}; it has zone_size, the rows per page")
        size = parameters.get("zone_size", DEFAULT_PAGE_ROWS)
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < 1 << 31:
            raise InvalidInput(f"zone_size={size!r}: the rows per page of a BTREE index must be a whole number above 0")
        return BTreeOptions(size)

    def options_of(self, segment: Segment) -> BTreeOptions:
        return BTreeOptions(read_page_rows(segment.files.open(LOOKUP), segment.metadata.qualified_path))

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        return _certainty_of(leaf)

    def write(self, sink: SegmentSink, build: SegmentBuild) -> bytes:
        assert isinstance(build.options, BTreeOptions)
        arrow = build.column.type
        sorter = Sorter(ordering(arrow))
        for batch in build.rows:
            sorter.add(batch)
        for merge_input in build.inputs:
            for batch in _remapped_rows(merge_input, arrow):
                sorter.add(batch)
        write_pages(sink, arrow, sorter.sorted_batches(), build.options)
        return b""

    def open(self, segment: Segment, column: pa.Field) -> "BTreeSearcher":
        return BTreeSearcher.of(segment)

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        return btree_pages.examine_pages(segment, column)


BTREE = BTree()


def write_pages(
    sink: SegmentSink, arrow: pa.DataType, rows: Iterable[pa.RecordBatch], options: BTreeOptions = BTreeOptions()
) -> None:
    """Write the two files from all rows of a segment in order, NULL first: from one sorter, or from sorted ranges one
    after the other."""
    size = options.zone_size
    schema = pa.schema([pa.field(VALUES, arrow), pa.field(IDS, pa.uint64(), nullable=False)])
    data = sink.create(DATA, schema)
    firsts: list[pa.Array] = []
    lasts: list[pa.Array] = []
    written = nulls = 0
    for batch in _coalesce(rows):
        values, count = batch.column(VALUE), batch.num_rows
        if nulls == written and values.null_count:
            nulls += values.null_count
        firsts.append(values.take(pa.array(np.arange(-written % size, count, size))))
        lasts.append(values.take(pa.array(np.arange((-written - 1) % size, count, size))))
        data.write(pa.RecordBatch.from_arrays([values, batch.column(ROW)], schema=schema))
        written += count
        last = values.slice(count - 1)
    if written % size:
        lasts.append(last)
    data.finish()
    _write_lookup(sink, arrow, firsts, lasts, nulls, options)


def _write_lookup(
    sink: SegmentSink,
    arrow: pa.DataType,
    firsts: Sequence[pa.Array],
    lasts: Sequence[pa.Array],
    nulls: int,
    options: BTreeOptions,
) -> None:
    schema = pa.schema(
        [
            pa.field(MIN, arrow),
            pa.field(MAX, arrow),
            pa.field(NULL_COUNT, pa.uint32(), nullable=False),
            pa.field(PAGE, pa.uint32(), nullable=False),
        ]
    )
    writer = sink.create(LOOKUP, schema)
    low, high = concat_arrays(firsts, arrow), concat_arrays(lasts, arrow)
    pages = np.arange(len(low), dtype=np.int64)
    null_counts = np.clip(nulls - pages * options.zone_size, 0, options.zone_size)
    columns = [low, high, pa.array(null_counts, pa.uint32()), pa.array(pages, pa.uint32())]
    if len(low):
        writer.write(pa.RecordBatch.from_arrays(columns, schema=schema))
    writer.add_metadata(PAGE_ROWS, str(options.zone_size))
    writer.add_metadata("range_partitioned", "false")
    writer.finish()


def _coalesce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in larger batches."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        pending.append(batch)
        rows += batch.num_rows
        if rows >= _BATCH_ROWS_MIN:
            yield from pa.Table.from_batches(pending).combine_chunks().to_batches()
            pending, rows = [], 0
    if pending:
        yield from pa.Table.from_batches(pending).combine_chunks().to_batches()


def _remapped_rows(merge_input: MergeInput, arrow: pa.DataType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an existing segment that stay, with their current numbers."""
    place = merge_input.segment.metadata.qualified_path
    file = merge_input.segment.files.open(DATA)
    if (stored_type := value_type_of(file, place)) != arrow:
        raise corrupt_error(place, DATA, f"has values of type {stored_type}; the column is {arrow}")
    for batch in file.read(COLUMNS, 0, file.row_count) if file.row_count else ():
        rows, retained = merge_input.row_remap.remap(batch.column(IDS).to_numpy())
        values = batch.column(VALUES)
        if not retained.all():
            rows, values = rows[retained], values.filter(pa.array(retained))
        yield pa.RecordBatch.from_arrays([values, pa.array(rows, pa.uint64())], names=[VALUE, ROW])


Selector: TypeAlias = Callable[[pa.Array], Mask]


@dataclass(frozen=True, slots=True)
class _Entries:
    """Rows of a page, or of any portion of the data file."""

    values: pa.Array
    ids: Ids

    def select(self, selector: Selector) -> Ids:
        """Return the ids of the rows whose values are selected."""
        return self.ids[selector(self.values)]


@dataclass(frozen=True, slots=True)
class BTreeSearcher:
    """Searcher for one segment of a BTREE index."""

    order: Ordering
    _pages: Pages
    _data: FileReader
    _rows_under: RowsUnder
    _cache: SegmentPages[_Entries] = field(default_factory=SegmentPages)

    @classmethod
    def of(cls, segment: Segment) -> "BTreeSearcher":
        place = segment.metadata.qualified_path
        data, lookup = open_files(segment.files, (DATA, LOOKUP))
        order = ordering(value_type_of(data, place))
        return cls(order, load_pages(lookup, order, data.row_count, place), data, segment.rows_under)

    def search(self, leaf: Leaf) -> MatchedRows | None:
        certainty = _certainty_of(leaf)
        rows: RowSet | None = None
        if certainty is None:
            return None
        match leaf:
            case IsNull():
                rows = self._select_rows(self._pages.with_nulls, _null_mask)
            case In() if (keys := orders.keys_of(self.order, leaf)) is not None:
                pages = [np.arange(*self._pages.pages_within(Span(key, key))) for key in keys]
                pages_with_keys = np.unique(np.concatenate(pages)) if pages else np.arange(0)
                rows = self._select_rows(pages_with_keys, partial(self.order.mask_among, keys=keys))
            case Comparison() | RangeCondition() | Like() if (span := orders.span_of(self.order, leaf)) is not None:
                rows = self._select_rows(
                    np.arange(*self._pages.pages_within(span)), partial(self.order.mask_within, span=span)
                )
        return None if rows is None else MatchedRows(rows, certainty)

    def _select_rows(self, pages: Positions, selector: Selector) -> RowSet:
        """Return the rows of some pages whose values are selected. A few pages are read through the page cache."""
        if len(pages) > _CACHED_PAGES_MAX:
            portions = (portion for start, end in _page_runs(pages) for portion in self._read(start, end))
            selected = [portion.select(selector) for portion in portions]
        else:
            cached = [(number, self._cache.get(number)) for number in pages.tolist()]
            missing = np.array([number for number, page in cached if page is None], np.int64)
            entries = [page for _, page in cached if page is not None]
            entries += [page for start, end in _page_runs(missing) for page in self._read_pages(start, end)]
            selected = [page.select(selector) for page in entries]
        ids = np.concatenate(selected) if selected else np.empty(0, np.uint64)
        return RowSet.of(ids).drop_impossible_rows(self._rows_under)

    def _read(self, start: int, end: int) -> Iterator[_Entries]:
        """Yield the rows of the pages from `start` up to but not including `end`, in portions of any size."""
        first = start * self._pages.rows
        for batch in self._data.read(COLUMNS, first, min(end * self._pages.rows, self._data.row_count) - first):
            yield _Entries(batch.column(0), batch.column(1).to_numpy())

    def _read_pages(self, start: int, end: int) -> Iterator[_Entries]:
        """Yield these pages one by one and add them to the page cache."""
        portions = list(self._read(start, end))
        values = concat_arrays((portion.values for portion in portions), self.order.type)
        ids = np.concatenate([portion.ids for portion in portions])
        for number in range(start, end):
            position = slice((number - start) * self._pages.rows, (number - start + 1) * self._pages.rows)
            page = _Entries(values[position], ids[position])
            self._cache.put(number, page, page.values.nbytes + page.ids.nbytes)
            yield page


def _certainty_of(leaf: Leaf) -> Certainty | None:
    return Certainty.EXACT if isinstance(leaf, IsNull) else orders.certainty_of(leaf)


def _null_mask(values: pa.Array) -> Mask:
    return values.is_null().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _page_runs(pages: Positions) -> list[tuple[int, int]]:
    """Return the runs of ascending pages that are read in one request each, including small gaps between them."""
    if not len(pages):
        return []
    cuts = np.flatnonzero(np.diff(pages) > _GAP_PAGES_MAX) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(pages, cuts)]
