"""Rows of several BTREE segments, each in order for itself, cut into ranges and put in one order: for a build that is
spread over workers, and holds no more of them than a block of each.

    cuts_of(segment, every) -> splitters (external_sort.py) -> in_range(parts, low, high) -> the rows of one range, in
    order

A segment tells with what its pages begin, so that a range is found without reading what is not in it. Where a range
goes, and who writes it, is not known here.
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
"""Of a value that ranges are cut at: there are others."""
_BLOCK_ROWS = 1 << 16
_LOOKED_AT_MAX = 1 << 16


def range_cuts(segment: Segment, every: int) -> pa.Array:
    """With what about each `every`-th row begins: where ranges can be cut. Some of them, where they are long."""
    lookup, place = segment.files.open(LOOKUP), segment.metadata.qualified_path
    data = segment.files.open(DATA)
    arrow = value_type_of(data, place)
    pages = load_pages(lookup, ordering(arrow), data.row_count, place)
    step = max(every // pages.rows, 1, -(-lookup.row_count // _LOOKED_AT_MAX))
    chosen = np.arange(0, lookup.row_count, step)
    if not len(chosen):
        return pa.array([], arrow)
    firsts = concat_arrays((batch.column(0) for batch in lookup.take([MIN], chosen)), arrow).drop_null()
    if (size := firsts.nbytes // max(len(firsts), 1)) <= CUT_BYTES_MAX // 2:
        return firsts
    kept = [at for at in range(len(firsts)) if firsts.slice(at, 1).nbytes <= CUT_BYTES_MAX] if size else []
    return firsts.take(pa.array(kept, pa.int64()))


def merge_range(
    order: Ordering, ours: Sequence[MergeInput], others: Sequence[MergeInput], low: Key | None, high: Key | None
) -> Iterator[pa.RecordBatch]:
    """From a key to before another one, by the numbers that rows have now. NULL comes with the range that has no
    lower end, before all. `ours` are sorted within their pages; of other writers' nobody knows."""
    runs = [_Run.of(part, order, in_order=True) for part in ours]
    runs += [_Run.of(part, order, in_order=False) for part in others]
    if low is None:
        for run in runs:
            yield from run.without_value()
    span = Span(low, high, excludes_high=True)
    yield from merge_runs(order, [run.within(span) for run in runs])


class _Run:
    """A segment, and what has become of its rows."""

    def __init__(self, part: MergeInput, order: Ordering, pages: Pages, in_order: bool) -> None:
        self._part, self._order, self._pages, self._in_order = part, order, pages, in_order
        self._data = part.segment.files.open(DATA)

    @classmethod
    def of(cls, part: MergeInput, order: Ordering, *, in_order: bool) -> "_Run":
        segment = part.segment
        place, data = segment.metadata.qualified_path, segment.files.open(DATA)
        if (found := value_type_of(data, place)) != order.type:
            raise corrupt_error(place, DATA, f"has values of the type {found}; the column is {order.type}")
        pages = load_pages(segment.files.open(LOOKUP), order, data.row_count, place)
        return cls(part, order, pages, in_order)

    def without_value(self) -> Iterator[pa.RecordBatch]:
        pages = self._pages.with_nulls
        if len(pages):
            for batch in self._blocks(int(pages[0]), int(pages[-1]) + 1):
                yield from self._moved(batch, batch.column(VALUES).is_null().to_numpy(zero_copy_only=False))

    def within(self, span: Span) -> Iterator[pa.RecordBatch]:
        """In order: pages are, and within one the rows may be in any."""
        for batch in self._blocks(*self._pages.pages_within(span)):
            for some in self._moved(batch, self._order.mask_within(batch.column(VALUES), span)):
                yield from [some] if self._in_order else sort_in_memory(self._order, [some])

    def _blocks(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Whole pages."""
        size = self._pages.rows
        at_once = max(_BLOCK_ROWS // size, 1) * size
        stop = min(end * size, self._data.row_count)
        for first in range(start * size, stop, at_once):
            table = read_row_range(self._data, COLUMNS, first, min(at_once, stop - first))
            yield from table.combine_chunks().to_batches()

    def _moved(self, batch: pa.RecordBatch, chosen: Mask) -> Iterator[pa.RecordBatch]:
        """Those that are still there."""
        now, there = self._part.row_remap.remap(batch.column(IDS).to_numpy())
        chosen = chosen & there
        if not chosen.any():
            return
        values, numbers = batch.column(VALUES), pa.array(now, pa.uint64())
        if not chosen.all():
            values, numbers = values.filter(pa.array(chosen)), numbers.filter(pa.array(chosen))
        yield pa.RecordBatch.from_arrays([values, numbers], names=[VALUE, ROW])
