"""External sort: sorts rows by their values in bounded memory, and chooses the values at which sorted ranges are
split.

    sorter = Sorter(order)            for batch in rows: sorter.add(batch)        yield from sorter.sorted_batches()
    choose_splitters(order, sample, parts)       for ranges that are sorted separately

Rows that exceed the budget are sorted in runs, spilled to temporary files and merged; a value that most rows have
costs no more than others. Later runs are larger, so that the number of runs and the memory grow more slowly than the
number of rows. NULL comes first and is never sorted.
"""

import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from lance_core.index.index_type import ROW, VALUE
from lance_core.index.ordering import Key, Ordering, concat_arrays

BUDGET_BYTES = 32 << 20
"""Bytes of values and row numbers that the first runs hold in memory; sorting them takes about three times as much.
Small runs are sorted in the caches of the processor, which saves the time of spilling them if there are few."""
_BUDGET_BYTES_MAX = 512 << 20
_RUNS_PER_BUDGET = 8
"""Number of runs after which the budget doubles: a merge of many runs takes more time for each row."""
_BLOCK_ROWS = 1 << 16
_SPILLED_ROWS = 1 << 12
"""Rows of a batch in a run: the minimum that a merge holds of a run in memory."""
_MERGED_ROWS = 1 << 20
"""Rows of all runs that a merge holds in memory: at most `_BLOCK_ROWS` and at least `_SPILLED_ROWS` of each."""


@dataclass(slots=True)
class Sorter:
    """External sorter for one column."""

    order: Ordering
    budget: int = BUDGET_BYTES
    _buffered: list[pa.RecordBatch] = field(default_factory=list)
    _nulls: list[pa.Array] = field(default_factory=list)
    _size: int = 0
    _spilled: "_SpilledRuns | None" = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch of `VALUE` and `ROW`, in any order."""
        if self._size and self._size + batch.nbytes > self._run_bytes():
            self._spill()
        self._size += batch.nbytes
        values = batch.column(VALUE)
        if values.null_count:
            self._nulls.append(batch.column(ROW).filter(values.is_null()))
            batch = batch.filter(values.is_valid())
        if batch.num_rows:
            self._buffered.append(batch)

    def sorted_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order. Can be called once."""
        if self._spilled is None:
            yield from self._null_rows()
            yield from self._sorted_buffer()
            return
        try:
            self._spill()
            yield from self._spilled.nulls()
            yield from merge_runs(self.order, self._spilled.runs())
        finally:
            self._spilled.directory.cleanup()

    def _run_bytes(self) -> int:
        runs = 0 if self._spilled is None else self._spilled.count
        return min(self.budget << runs // _RUNS_PER_BUDGET, max(self.budget, _BUDGET_BYTES_MAX))

    def _spill(self) -> None:
        if self._spilled is None:
            self._spilled = _SpilledRuns(tempfile.TemporaryDirectory(prefix="lance-sorting-"))
        self._spilled.add(self._null_rows(), self._sorted_buffer(_SPILLED_ROWS))
        self._size = 0

    def _null_rows(self) -> Iterator[pa.RecordBatch]:
        nulls, self._nulls = self._nulls, []
        for rows in nulls:
            yield pa.RecordBatch.from_arrays([pa.nulls(len(rows), self.order.type), rows], names=[VALUE, ROW])

    def _sorted_buffer(self, block_rows: int = _BLOCK_ROWS) -> Iterator[pa.RecordBatch]:
        batches, self._buffered = self._buffered, []
        return sort_in_memory(self.order, batches, block_rows)


def sort_in_memory(
    order: Ordering, batches: list[pa.RecordBatch], block_rows: int = _BLOCK_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield these rows, none of them NULL, in order. Empties the list, since the rows are copied."""
    values = concat_arrays((batch.column(VALUE) for batch in batches), order.type)
    rows = concat_arrays((batch.column(ROW) for batch in batches), pa.uint64())
    batches.clear()
    positions = order.argsort(values)
    for start in range(0, len(positions), block_rows):
        block_positions = pa.array(positions[start : start + block_rows])
        yield pa.RecordBatch.from_arrays([values.take(block_positions), rows.take(block_positions)], names=[VALUE, ROW])


@dataclass(slots=True)
class _SpilledRuns:
    """Sorted runs in temporary files; rows without a value are in separate files."""

    directory: tempfile.TemporaryDirectory[str]
    count: int = 0

    def add(self, nulls: Iterator[pa.RecordBatch], run: Iterator[pa.RecordBatch]) -> None:
        for path, batches in zip(self._paths(self.count), (nulls, run), strict=True):
            _write_run(path, batches)
        self.count += 1

    def nulls(self) -> Iterator[pa.RecordBatch]:
        for number in range(self.count):
            yield from _read_run(self._paths(number)[0])

    def runs(self) -> list[Iterator[pa.RecordBatch]]:
        batches = max(1, min(_BLOCK_ROWS, _MERGED_ROWS // self.count) // _SPILLED_ROWS)
        return [_read_run(self._paths(number)[1], batches) for number in range(self.count)]

    def _paths(self, number: int) -> tuple[Path, Path]:
        return Path(self.directory.name, f"{number}-nulls.arrow"), Path(self.directory.name, f"{number}.arrow")


def _write_run(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    first = next(batches, None)
    if first is None:
        return
    with pa.ipc.new_file(path, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


def _read_run(path: Path, batches_at_once: int = 1) -> Iterator[pa.RecordBatch]:
    if not path.exists():
        return
    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
        for start in range(0, reader.num_record_batches, batches_at_once):
            numbers = range(start, min(start + batches_at_once, reader.num_record_batches))
            yield pa.concat_batches(list(map(reader.get_batch, numbers)))


def merge_runs(order: Ordering, runs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Merge sorted runs, one block of each at a time.

    No run has further rows up to the least of the blocks' last keys, so that everything up to it can be sorted and
    yielded.
    """
    waiting = [(block, run) for run in runs if (block := next(run, None)) is not None]
    while waiting:
        least = min(_last_key(order, block) for block, _ in waiting)
        due: list[pa.RecordBatch] = []
        remaining: list[tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]] = []
        for block, run in waiting:
            count = _count_up_to(order, block.column(VALUE), least)
            due.append(block.slice(0, count))
            rest = block.slice(count) if count < block.num_rows else next(run, None)
            if rest is not None:
                remaining.append((rest, run))
        waiting = remaining
        yield from sort_in_memory(order, due)


def _last_key(order: Ordering, block: pa.RecordBatch) -> Key:
    return order.keys(block.column(VALUE).slice(block.num_rows - 1))[0]


def _key_at(order: Ordering, values: pa.Array, position: int) -> Key:
    return order.keys(values.slice(position, 1))[0]


def _count_up_to(order: Ordering, values: pa.Array, key: Key) -> int:
    """Return how many of the sorted values are at most `key`."""
    return bisect_right(range(len(values)), key, key=lambda position: _key_at(order, values, position))


def choose_splitters(order: Ordering, sample: pa.Array, parts: int) -> pa.Array:
    """Return values that split the sampled rows into about equal parts: fewer than `parts`, ascending and distinct. A
    value that very many rows have makes the part that begins with it larger than the others."""
    sample = sample.drop_null()
    positions = order.argsort(sample)
    if not len(positions) or parts < 2:
        return sample.slice(0, 0)
    chosen = sample.take(pa.array(positions[[len(positions) * part // parts for part in range(1, parts)]]))
    keys = order.keys(chosen)
    return chosen.take(
        pa.array(
            [position for position, key in enumerate(keys) if position == 0 or key != keys[position - 1]], pa.int64()
        )
    )
