"""Rows put in the order of their values, in a memory that does not grow with them, and cut into ranges by it.

    sorter = Sorter(order)            for batch in rows: sorter.add(batch)        yield from sorter.batches()
    splitters(sample, parts)          partitioned(batch, splitters)               for ranges that are sorted apart

What does not fit in the budget is sorted piece by piece, kept in temporary files, and merged; a value that most rows
have is no worse than others. NULL comes first and is never sorted. What is made of the rows is said elsewhere.
"""

import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from lance_core.index.kind import ROW, VALUE
from lance_core.index.order import Key, Ordering, joined

BUDGET = 512 << 20
"""Bytes of values and row numbers that are held at once; sorting them takes about as much again."""
_BLOCK_ROWS = 1 << 16


@dataclass(slots=True)
class Sorter:
    order: Ordering
    budget: int = BUDGET
    _held: list[pa.RecordBatch] = field(default_factory=list)
    _size: int = 0
    _nulls: list[pa.Array] = field(default_factory=list)
    _runs: "_Runs | None" = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Of `VALUE` and `ROW`, in any order."""
        values = batch.column(VALUE)
        if values.null_count:
            valid = values.is_valid()
            self._nulls.append(batch.column(ROW).filter(values.is_null()))
            batch = batch.filter(valid)
        if not batch.num_rows:
            return
        size = batch.get_total_buffer_size() if batch.column(VALUE).offset == 0 else batch.nbytes
        if self._held and self._size + size > self.budget:
            self._put_aside()
        self._held.append(batch)
        self._size += size

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in order. Once."""
        schema = pa.schema([pa.field(VALUE, self.order.type), pa.field(ROW, pa.uint64())])
        nulls, self._nulls = self._nulls, []
        for rows in nulls:
            yield pa.RecordBatch.from_arrays([pa.nulls(len(rows), self.order.type), rows], schema=schema)
        if self._runs is None:
            yield from self._sorted()
            return
        try:
            self._put_aside()
            yield from _merged(self.order, self._runs.opened())
        finally:
            self._runs.directory.cleanup()

    def _put_aside(self) -> None:
        if self._runs is None:
            self._runs = _Runs(tempfile.TemporaryDirectory(prefix="lance-sorting-"))
        self._runs.write(self._sorted())

    def _sorted(self) -> Iterator[pa.RecordBatch]:
        held, self._held, self._size = self._held, [], 0
        if held:
            yield from in_order(self.order, held)


def in_order(order: Ordering, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """These rows, none of them NULL, sorted in memory."""
    values = joined((each.column(VALUE) for each in batches), order.type)
    rows = joined((each.column(ROW) for each in batches), pa.uint64())
    positions = order.sorted_positions(values)
    for start in range(0, len(positions), _BLOCK_ROWS):
        some = pa.array(positions[start : start + _BLOCK_ROWS])
        yield pa.RecordBatch.from_arrays([values.take(some), rows.take(some)], names=[VALUE, ROW])


@dataclass(slots=True)
class _Runs:
    directory: tempfile.TemporaryDirectory[str]
    paths: list[Path] = field(default_factory=list)

    def write(self, batches: Iterator[pa.RecordBatch]) -> None:
        first = next(batches, None)
        if first is None:
            return
        path = Path(self.directory.name, f"{len(self.paths)}.arrow")
        with pa.ipc.new_file(path, first.schema) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)
        self.paths.append(path)

    def opened(self) -> "list[Iterator[pa.RecordBatch]]":
        return [_blocks(path) for path in self.paths]


def _blocks(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _merged(order: Ordering, runs: "Sequence[Iterator[pa.RecordBatch]]") -> Iterator[pa.RecordBatch]:
    """Of sorted runs, a block of each at a time: up to the least of what blocks end with, no run has less to come."""
    waiting = [(block, run) for run in runs if (block := next(run, None)) is not None]
    while waiting:
        least = min(_last(order, block) for block, _ in waiting)
        due: list[pa.RecordBatch] = []
        left: list[tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]] = []
        for block, run in waiting:
            count = _up_to(order, block.column(VALUE), least)
            due.append(block.slice(0, count))
            more = block.slice(count) if count < block.num_rows else next(run, None)
            if more is not None:
                left.append((more, run))
        waiting = left
        yield from in_order(order, [each for each in due if each.num_rows])


def _last(order: Ordering, block: pa.RecordBatch) -> Key:
    return order.keys(block.column(VALUE).slice(block.num_rows - 1))[0]


def _key_at(order: Ordering, values: pa.Array, position: int) -> Key:
    return order.keys(values.slice(position, 1))[0]


def _up_to(order: Ordering, values: pa.Array, key: Key) -> int:
    """How many sorted values are no more than it."""
    return bisect_right(range(len(values)), key, key=lambda position: _key_at(order, values, position))


def splitters(order: Ordering, sample: pa.Array, parts: int) -> pa.Array:
    """Where to cut so that the parts of what was sampled are about alike: fewer than `parts` values, ascending, each
    once. A value that very many rows have makes the part that begins with it larger than others."""
    sample = sample.drop_null()
    positions = order.sorted_positions(sample)
    if not len(positions) or parts < 2:
        return sample.slice(0, 0)
    chosen = sample.take(pa.array(positions[[len(positions) * part // parts for part in range(1, parts)]]))
    keys = order.keys(chosen)
    return chosen.take(pa.array([at for at, key in enumerate(keys) if at == 0 or key != keys[at - 1]], pa.int64()))


def partitioned(order: Ordering, batch: pa.RecordBatch, cuts: pa.Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each part, sorted; NULL goes with the first. All rows of one value are in one part, the one that the
    value begins if it is one of `cuts`."""
    values = batch.column(VALUE)
    nulls = batch.filter(values.is_null()) if values.null_count else batch.slice(0, 0)
    valid = batch.filter(values.is_valid()) if values.null_count else batch
    inside = valid.take(pa.array(order.sorted_positions(valid.column(VALUE))))
    column = inside.column(VALUE)
    ends = [
        bisect_left(range(len(column)), key, key=lambda position: _key_at(order, column, position))
        for key in order.keys(cuts)
    ]
    for part, (start, end) in enumerate(zip([0, *ends], [*ends, len(column)], strict=True)):
        some = inside.slice(start, end - start)
        if part == 0 and nulls.num_rows:
            yield part, pa.Table.from_batches([nulls, some]).combine_chunks().to_batches()[0]
        elif some.num_rows:
            yield part, some


def sampled(values: pa.Array, count: int, seed: int) -> pa.Array:
    """So many of them, evenly drawn: all where there are no more."""
    if len(values) <= count:
        return values
    chosen = np.random.default_rng(seed).choice(len(values), count, replace=False)
    return values.take(pa.array(np.sort(chosen)))
