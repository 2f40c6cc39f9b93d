"""BTREE range merge: splits several sorted segments into ranges of values and merges each range in order.

    range_cuts(segment, every) -> choose_splitters (external_sort.py) -> merge_range(order, sorted_inputs, ...) -> rows

A distributed build uses it: each worker merges one range and holds no more than a block of each segment in memory.
The first values of the pages tell which pages a range needs, so that nothing else is read. This module does not know
where a range is written, or by which worker.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from lance_core.index.btree_pages import (
    COLUMNS,
    DATA,
    IDS,
    LOOKUP,
    MIN,
    VALUES,
    Pages,
    corrupt_error,
    load_pages,
    value_type_of,
)
from lance_core.index.external_sort import merge_runs, sort_in_memory
from lance_core.index.index_type import ROW, VALUE, MergeInput, Segment
from lance_core.index.ordering import Key, Mask, Ordering, Span, concat_arrays, ordering
from lance_core.index.segment_files import read_row_range

CUT_BYTES_MAX = 1 << 10
"""Maximum size of a value at which ranges are split: longer values are skipped."""
_BLOCK_ROWS = 1 << 16
_SAMPLED_PAGES_MAX = 1 << 16


def range_cuts(segment: Segment, every: int) -> pa.Array:
    """Return values at which ranges can be split, about one for every `every` rows. If values are long, only the
    short ones are returned."""
    lookup, place = segment.files.open(LOOKUP), segment.metadata.qualified_path
    data = segment.files.open(DATA)
    arrow = value_type_of(data, place)
    pages = load_pages(lookup, ordering(arrow), data.row_count, place)
    step = max(every // pages.rows, 1, -(-lookup.row_count // _SAMPLED_PAGES_MAX))
    chosen = np.arange(0, lookup.row_count, step)
    if not len(chosen):
        return pa.array([], arrow)
    firsts = concat_arrays((batch.column(0) for batch in lookup.take([MIN], chosen)), arrow).drop_null()
    if (size := firsts.nbytes // max(len(firsts), 1)) <= CUT_BYTES_MAX // 2:
        return firsts
    short = (
        [position for position in range(len(firsts)) if firsts.slice(position, 1).nbytes <= CUT_BYTES_MAX]
        if size
        else []
    )
    return firsts.take(pa.array(short, pa.int64()))


def merge_range(
    order: Ordering,
    sorted_inputs: Sequence[MergeInput],
    unsorted_inputs: Sequence[MergeInput],
    low: Key | None,
    high: Key | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows from `low` up to but not including `high`, in order and with their current row numbers.

    NULL comes first, with the range that has no lower bound. `sorted_inputs` are known to be sorted within their pages;
    segments of other writers may not be.
    """
    runs = [_Run.of(merge_input, order, is_sorted=True) for merge_input in sorted_inputs]
    runs += [_Run.of(merge_input, order, is_sorted=False) for merge_input in unsorted_inputs]
    if low is None:
        for run in runs:
            yield from run.null_rows()
    span = Span(low, high, excludes_high=True)
    yield from merge_runs(order, [run.rows_within(span) for run in runs])


class _Run:
    """Rows of one segment, with their current row numbers."""

    def __init__(self, merge_input: MergeInput, order: Ordering, pages: Pages, is_sorted: bool) -> None:
        self._input, self._order, self._pages, self._is_sorted = merge_input, order, pages, is_sorted
        self._data = merge_input.segment.files.open(DATA)

    @classmethod
    def of(cls, merge_input: MergeInput, order: Ordering, *, is_sorted: bool) -> "_Run":
        segment = merge_input.segment
        place, data = segment.metadata.qualified_path, segment.files.open(DATA)
        if (stored_type := value_type_of(data, place)) != order.type:
            raise corrupt_error(place, DATA, f"has values of type {stored_type}; the column is {order.type}")
        pages = load_pages(segment.files.open(LOOKUP), order, data.row_count, place)
        return cls(merge_input, order, pages, is_sorted)

    def null_rows(self) -> Iterator[pa.RecordBatch]:
        pages = self._pages.with_nulls
        if len(pages):
            for batch in self._blocks(int(pages[0]), int(pages[-1]) + 1):
                yield from self._select_and_remap(batch, batch.column(VALUES).is_null().to_numpy(zero_copy_only=False))

    def rows_within(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a span in order. Pages are ordered; the rows within a page are sorted if necessary."""
        for batch in self._blocks(*self._pages.pages_within(span)):
            for rows in self._select_and_remap(batch, self._order.mask_within(batch.column(VALUES), span)):
                yield from [rows] if self._is_sorted else sort_in_memory(self._order, [rows])

    def _blocks(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield whole pages, in blocks of several."""
        size = self._pages.rows
        rows_per_block = max(_BLOCK_ROWS // size, 1) * size
        stop = min(end * size, self._data.row_count)
        for first in range(start * size, stop, rows_per_block):
            table = read_row_range(self._data, COLUMNS, first, min(rows_per_block, stop - first))
            yield from table.combine_chunks().to_batches()

    def _select_and_remap(self, batch: pa.RecordBatch, selected: Mask) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows that still exist, with their current numbers; nothing if there are none."""
        current, retained = self._input.row_remap.remap(batch.column(IDS).to_numpy())
        selected = selected & retained
        if not selected.any():
            return
        values, numbers = batch.column(VALUES), pa.array(current, pa.uint64())
        if not selected.all():
            values, numbers = values.filter(pa.array(selected)), numbers.filter(pa.array(selected))
        yield pa.RecordBatch.from_arrays([values, numbers], names=[VALUE, ROW])
