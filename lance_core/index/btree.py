"""BTREE: all rows in the order of their values, in pages, and the first and last value of each page.

`page_data.lance` has the rows, `page_lookup.lance` a row for each page. Searching is a look into the second, which is
kept, and one read of neighbouring pages of the first. Any order within a page is right, that of pages is not: an index
whose pages are out of order is refused when it is opened.
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
    IndexOptions,
    Leaf,
    MatchedRows,
    MergeInput,
    RangeCondition,
    Segment,
    SegmentExamination,
)
from lance_core.index.ordering import Mask, Ordering, Positions, Span, concat_arrays, ordering
from lance_core.index.page_cache import SegmentPages
from lance_core.index.segment_files import SegmentSink
from lance_core.index.supported_types import ORDERED_TYPES, is_ordered, is_plain

_WRITTEN_ROWS = 1 << 18
_FEW_PAGES = 256
_GAP = 8
"""Pages that are read in vain rather than that a read ends before them."""


@dataclass(frozen=True, slots=True)
class BTreeOptions:
    zone_size: int = DEFAULT_PAGE_ROWS
    """Rows in a page."""


@dataclass(frozen=True, slots=True)
class BTree:
    name: str = "BTREE"
    type_url: str = "/lance.table.BTreeIndexDetails"
    max_readable_version: int = 1
    supported_types: str = ORDERED_TYPES

    def written_version(self, *, stable_row_ids: bool) -> int:
        return 1 if stable_row_ids else 0

    def supports(self, column: pa.Field) -> bool:
        return is_plain(column) and is_ordered(column.type)

    def parse_options(self, given: Mapping[str, object]) -> BTreeOptions:
        if unknown := sorted(given.keys() - {"zone_size"}):
            raise InvalidInput(f"a BTREE index has no option {unknown[0]!r}; it has zone_size, the rows in a page")
        size = given.get("zone_size", DEFAULT_PAGE_ROWS)
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < 1 << 31:
            raise InvalidInput(f"zone_size={size!r}: the rows in a page of a BTREE index are a whole number above 0")
        return BTreeOptions(size)

    def options_of(self, segment: Segment) -> BTreeOptions:
        return BTreeOptions(read_page_rows(segment.files.open(LOOKUP), segment.metadata.qualified_path))

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        return _certainty(leaf)

    def write(
        self,
        files: SegmentSink,
        column: pa.Field,
        rows: Iterable[pa.RecordBatch],
        parts: Sequence[MergeInput],
        options: IndexOptions,
    ) -> bytes:
        assert isinstance(options, BTreeOptions)
        sorter = Sorter(ordering(column.type))
        for batch in rows:
            sorter.add(batch)
        for part in parts:
            for batch in _rows_of(part, column.type):
                sorter.add(batch)
        write_pages(files, column.type, sorter.sorted_batches(), options)
        return b""

    def open(self, segment: Segment, column: pa.Field) -> "BTreeSearcher":
        return BTreeSearcher.of(segment)

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        return btree_pages.examine_pages(segment, column)


BTREE = BTree()


def write_pages(
    files: SegmentSink, arrow: pa.DataType, rows: Iterable[pa.RecordBatch], options: BTreeOptions = BTreeOptions()
) -> None:
    """The two files, from all rows of a segment in order, NULL first: of one sorter, or of sorted ranges one after the
    other."""
    size = options.zone_size
    schema = pa.schema([pa.field(VALUES, arrow), pa.field(IDS, pa.uint64(), nullable=False)])
    data = files.create(DATA, schema)
    firsts: list[pa.Array] = []
    lasts: list[pa.Array] = []
    written = nulls = 0
    for batch in _gathered(rows):
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
    _write_lookup(files, arrow, firsts, lasts, nulls, options)


def _write_lookup(
    files: SegmentSink,
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
    writer = files.create(LOOKUP, schema)
    low, high = concat_arrays(firsts, arrow), concat_arrays(lasts, arrow)
    pages = np.arange(len(low), dtype=np.int64)
    null_counts = np.clip(nulls - pages * options.zone_size, 0, options.zone_size)
    columns = [low, high, pa.array(null_counts, pa.uint32()), pa.array(pages, pa.uint32())]
    if len(low):
        writer.write(pa.RecordBatch.from_arrays(columns, schema=schema))
    writer.add_metadata(PAGE_ROWS, str(options.zone_size))
    writer.add_metadata("range_partitioned", "false")
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


def _rows_of(part: MergeInput, arrow: pa.DataType) -> Iterator[pa.RecordBatch]:
    """Those that are still there, by the numbers that they have now."""
    place = part.segment.metadata.qualified_path
    file = part.segment.files.open(DATA)
    if (found := value_type_of(file, place)) != arrow:
        raise corrupt_error(place, DATA, f"has values of the type {found}; the column is {arrow}")
    for batch in file.read(COLUMNS, 0, file.row_count) if file.row_count else ():
        rows, there = part.row_remap.remap(batch.column(IDS).to_numpy())
        values = batch.column(VALUES)
        if not there.all():
            rows, values = rows[there], values.filter(pa.array(there))
        yield pa.RecordBatch.from_arrays([values, pa.array(rows, pa.uint64())], names=[VALUE, ROW])


Choice: TypeAlias = Callable[[pa.Array], Mask]


@dataclass(frozen=True, slots=True)
class _Entries:
    values: pa.Array
    ids: Ids

    def chosen(self, choice: Choice) -> Ids:
        return self.ids[choice(self.values)]


@dataclass(frozen=True, slots=True)
class BTreeSearcher:
    order: Ordering
    _pages: Pages
    _data: FileReader
    _rows_under: RowsUnder
    _kept: SegmentPages[_Entries] = field(default_factory=SegmentPages)

    @classmethod
    def of(cls, segment: Segment) -> "BTreeSearcher":
        place = segment.metadata.qualified_path
        data = segment.files.open(DATA)
        order = ordering(value_type_of(data, place))
        return cls(
            order, load_pages(segment.files.open(LOOKUP), order, data.row_count, place), data, segment.rows_under
        )

    def search(self, leaf: Leaf) -> MatchedRows | None:
        certainty = _certainty(leaf)
        rows: RowSet | None = None
        if certainty is None:
            return None
        match leaf:
            case IsNull():
                rows = self._chosen(self._pages.with_nulls, _is_null)
            case In() if (keys := orders.keys_of(self.order, leaf)) is not None:
                pages = [np.arange(*self._pages.pages_within(Span(key, key))) for key in keys]
                some = np.unique(np.concatenate(pages)) if pages else np.arange(0)
                rows = self._chosen(some, partial(self.order.mask_among, keys=keys))
            case Comparison() | RangeCondition() | Like() if (span := orders.span_of(self.order, leaf)) is not None:
                rows = self._chosen(
                    np.arange(*self._pages.pages_within(span)), partial(self.order.mask_within, span=span)
                )
        return None if rows is None else MatchedRows(rows, certainty)

    def _chosen(self, pages: Positions, choice: Choice) -> RowSet:
        """The rows of some pages whose values are chosen. A few pages are kept, for whoever asks for them again."""
        if len(pages) > _FEW_PAGES:
            found = [some.chosen(choice) for start, end in _runs(pages) for some in self._read(start, end)]
        else:
            kept = [(number, self._kept.get(number)) for number in pages.tolist()]
            missing = np.array([number for number, page in kept if page is None], np.int64)
            several = [page for _, page in kept if page is not None]
            several += [page for start, end in _runs(missing) for page in self._read_pages(start, end)]
            found = [page.chosen(choice) for page in several]
        return RowSet.of(np.concatenate(found) if found else np.empty(0, np.uint64)).drop_impossible_rows(
            self._rows_under
        )

    def _read(self, start: int, end: int) -> Iterator[_Entries]:
        """From a page to before another, in portions of any size."""
        first = start * self._pages.rows
        for batch in self._data.read(COLUMNS, first, min(end * self._pages.rows, self._data.row_count) - first):
            yield _Entries(batch.column(0), batch.column(1).to_numpy())

    def _read_pages(self, start: int, end: int) -> Iterator[_Entries]:
        """Page by page."""
        portions = list(self._read(start, end))
        values = concat_arrays((each.values for each in portions), self.order.type)
        ids = np.concatenate([each.ids for each in portions])
        for number in range(start, end):
            at = slice((number - start) * self._pages.rows, (number - start + 1) * self._pages.rows)
            page = _Entries(values[at], ids[at])
            self._kept.put(number, page, page.values.nbytes + page.ids.nbytes)
            yield page


def _certainty(leaf: Leaf) -> Certainty | None:
    return Certainty.EXACT if isinstance(leaf, IsNull) else orders.certainty_of(leaf)


def _is_null(values: pa.Array) -> Mask:
    return values.is_null().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _runs(pages: Positions) -> list[tuple[int, int]]:
    """Of ascending pages: those that are read at once, a few others between them included."""
    if not len(pages):
        return []
    cuts = np.flatnonzero(np.diff(pages) > _GAP) + 1
    return [(int(some[0]), int(some[-1]) + 1) for some in np.split(pages, cuts)]
