"""Rows put in the order of their values, in a memory that does not grow with them, and cut into ranges by it.

    sorter = Sorter(order)            for batch in rows: sorter.add(batch)        yield from sorter.batches()
    splitters(order, some of them, parts)       for ranges that are sorted apart

What does not fit in the budget is sorted piece by piece, kept in temporary files, and merged; a value that most rows
have is no worse than others. NULL comes first and is never sorted. What is made of the rows is said elsewhere.
"""

import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from lance_core.index.index_type import ROW, VALUE
from lance_core.index.ordering import Key, Ordering, concat_arrays

BUDGET_BYTES = 512 << 20
"""Bytes of values and row numbers that are held at once; while they are sorted it is about three times as much."""
_BLOCK_ROWS = 1 << 16


@dataclass(slots=True)
class Sorter:
    order: Ordering
    budget: int = BUDGET_BYTES
    _held: list[pa.RecordBatch] = field(default_factory=list)
    _nulls: list[pa.Array] = field(default_factory=list)
    _size: int = 0
    _aside: "_SpilledRuns | None" = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Of `VALUE` and `ROW`, in any order."""
        if self._size and self._size + batch.nbytes > self.budget:
            self._put_aside()
        self._size += batch.nbytes
        values = batch.column(VALUE)
        if values.null_count:
            self._nulls.append(batch.column(ROW).filter(values.is_null()))
            batch = batch.filter(values.is_valid())
        if batch.num_rows:
            self._held.append(batch)

    def sorted_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in order. Once."""
        if self._aside is None:
            yield from self._null_rows()
            yield from self._in_order()
            return
        try:
            self._put_aside()
            yield from self._aside.nulls()
            yield from merge_runs(self.order, self._aside.runs())
        finally:
            self._aside.directory.cleanup()

    def _put_aside(self) -> None:
        if self._aside is None:
            self._aside = _SpilledRuns(tempfile.TemporaryDirectory(prefix="lance-sorting-"))
        self._aside.add(self._null_rows(), self._in_order())
        self._size = 0

    def _null_rows(self) -> Iterator[pa.RecordBatch]:
        nulls, self._nulls = self._nulls, []
        for rows in nulls:
            yield pa.RecordBatch.from_arrays([pa.nulls(len(rows), self.order.type), rows], names=[VALUE, ROW])

    def _in_order(self) -> Iterator[pa.RecordBatch]:
        held, self._held = self._held, []
        return sort_in_memory(self.order, held)


def sort_in_memory(order: Ordering, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """These rows, none of them NULL, sorted in memory. The list is emptied, since they are copied."""
    values = concat_arrays((each.column(VALUE) for each in batches), order.type)
    rows = concat_arrays((each.column(ROW) for each in batches), pa.uint64())
    batches.clear()
    positions = order.argsort(values)
    for start in range(0, len(positions), _BLOCK_ROWS):
        some = pa.array(positions[start : start + _BLOCK_ROWS])
        yield pa.RecordBatch.from_arrays([values.take(some), rows.take(some)], names=[VALUE, ROW])


@dataclass(slots=True)
class _SpilledRuns:
    """Sorted runs in files, and apart from them the rows that have no value."""

    directory: tempfile.TemporaryDirectory[str]
    _count: int = 0

    def add(self, nulls: Iterator[pa.RecordBatch], run: Iterator[pa.RecordBatch]) -> None:
        for path, batches in zip(self._paths(self._count), (nulls, run), strict=True):
            _put(path, batches)
        self._count += 1

    def nulls(self) -> Iterator[pa.RecordBatch]:
        for number in range(self._count):
            yield from _taken(self._paths(number)[0])

    def runs(self) -> list[Iterator[pa.RecordBatch]]:
        return [_taken(self._paths(number)[1]) for number in range(self._count)]

    def _paths(self, number: int) -> tuple[Path, Path]:
        return Path(self.directory.name, f"{number}-nulls.arrow"), Path(self.directory.name, f"{number}.arrow")


def _put(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    first = next(batches, None)
    if first is None:
        return
    with pa.ipc.new_file(path, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


def _taken(path: Path) -> Iterator[pa.RecordBatch]:
    if not path.exists():
        return
    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def merge_runs(order: Ordering, runs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
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
        yield from sort_in_memory(order, due)


def _last(order: Ordering, block: pa.RecordBatch) -> Key:
    return order.keys(block.column(VALUE).slice(block.num_rows - 1))[0]


def _key_at(order: Ordering, values: pa.Array, position: int) -> Key:
    return order.keys(values.slice(position, 1))[0]


def _up_to(order: Ordering, values: pa.Array, key: Key) -> int:
    """How many sorted values are no more than it."""
    return bisect_right(range(len(values)), key, key=lambda position: _key_at(order, values, position))


def choose_splitters(order: Ordering, sample: pa.Array, parts: int) -> pa.Array:
    """Where to cut so that the parts of what was sampled are about alike: fewer than `parts` values, ascending, each
    once. A value that very many rows have makes the part that begins with it larger than others."""
    sample = sample.drop_null()
    positions = order.argsort(sample)
    if not len(positions) or parts < 2:
        return sample.slice(0, 0)
    chosen = sample.take(pa.array(positions[[len(positions) * part // parts for part in range(1, parts)]]))
    keys = order.keys(chosen)
    return chosen.take(pa.array([at for at, key in enumerate(keys) if at == 0 or key != keys[at - 1]], pa.int64()))
