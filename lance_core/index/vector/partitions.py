"""Partitions of codes: rows sorted by partition, in memory and in temporary files, or in the storage files of existing
segments. The writer of a segment reads all sources one partition after the other.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.codec import FileReader, RowRange
from lance_core.errors import Corrupt
from lance_core.format.row_sets import Ids
from lance_core.index.index_type import MergeInput
from lance_core.index.segment_files import read_row_range
from lance_core.index.vector.encoding import EncodedRows
from lance_core.index.vector.graph import Graph, StoredGraphs
from lance_core.index.vector.model import (
    ROW_NUMBER,
    STORAGE_FILE,
    Model,
    StoredModel,
    open_segment_files,
    read_model,
    read_partitions_of_piece,
)
from lance_core.index.vector.quantizers import Array, Codes, Ints, Quantizer
from lance_core.index.vector.segment_statistics import statistics_of

BUDGET_BYTES = 256 << 20
"""Bytes of codes that are held in memory before they are written to a temporary file."""
_READ_AHEAD_ROWS = 65_536
"""Rows of neighbouring partitions of a file that are read together."""


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """Rows of one partition."""

    rows: Ids
    codes: Codes
    """Codes, row by row."""
    graph: Graph | None = None
    """Graph of these rows, if they come from a segment with graphs."""


class PartitionSource(Protocol):
    """Rows sorted by partition."""

    def read(self, partitions: range) -> Iterator[PartitionRows]:
        """Yield the rows of each of these neighbouring partitions, which may be none."""


def sort_by_partition(
    rows: Iterable[EncodedRows], count: int, directory: Path, *, budget: int = BUDGET_BYTES
) -> "list[PartitionSource]":
    """Return the rows sorted into `count` partitions. Rows beyond the budget are written to the directory, which the
    caller removes."""
    runs: list[PartitionSource] = []
    buffered: list[EncodedRows] = []
    size = 0
    for batch in rows:
        if buffered and size + batch.size > budget:
            runs.append(_SpilledRun.write(directory / f"{len(runs)}.codes", _SortedRun.of(buffered, count)))
            buffered, size = [], 0
        buffered.append(batch)
        size += batch.size
    return [*runs, _SortedRun.of(buffered, count)] if buffered else runs


@dataclass(frozen=True, slots=True)
class _SortedRun:
    """Rows in memory. Partitions are gathered when they are read, so that the codes exist once."""

    batch: EncodedRows
    order: Ints
    offsets: Ints

    @classmethod
    def of(cls, batches: list[EncodedRows], count: int) -> "_SortedRun":
        """Return the run of these batches. Empties the list, since the rows are copied."""
        partitions = np.concatenate([batch.partitions for batch in batches])
        rows = np.concatenate([batch.rows for batch in batches])
        columns = list(zip(*(batch.codes for batch in batches), strict=True))
        batches.clear()
        codes = []
        while columns:
            codes.append(np.concatenate(columns.pop(0)))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(partitions, minlength=count))])
        return cls(EncodedRows(partitions, rows, tuple(codes)), np.argsort(partitions, kind="stable"), offsets)

    def read(self, partitions: range) -> Iterator[PartitionRows]:
        for number in partitions:
            members = self.order[self.offsets[number] : self.offsets[number + 1]]
            yield PartitionRows(self.batch.rows[members], tuple(column[members] for column in self.batch.codes))


@dataclass(frozen=True, slots=True)
class _SpilledRun:
    """Rows in a temporary file: for each partition the row numbers, then each column of the codes."""

    path: Path
    lengths: Ints
    starts: Ints
    layout: tuple[tuple[np.dtype[np.generic], tuple[int, ...]], ...]
    """Number type of each column, and the shape of one row."""

    @classmethod
    def write(cls, path: Path, run: _SortedRun) -> "_SpilledRun":
        count = len(run.offsets) - 1
        starts, position = np.zeros(count, dtype=np.int64), 0
        with path.open("wb") as file:
            for number, part in enumerate(run.read(range(count))):
                starts[number] = position
                for column in (part.rows, *part.codes):
                    position += file.write(np.ascontiguousarray(column).data)
        columns = (run.batch.rows, *run.batch.codes)
        return cls(path, np.diff(run.offsets), starts, tuple((each.dtype, each.shape[1:]) for each in columns))

    def read(self, partitions: range) -> Iterator[PartitionRows]:
        with self.path.open("rb") as file:
            for number in partitions:
                file.seek(int(self.starts[number]))
                rows, *codes = (self._column(file, int(self.lengths[number]), *each) for each in self.layout)
                yield PartitionRows(rows, tuple(codes))  # type: ignore[arg-type]

    @staticmethod
    def _column(file: BinaryIO, count: int, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
        size = count * dtype.itemsize * math.prod(shape)
        return np.frombuffer(file.read(size), dtype=dtype).reshape(count, *shape)


@dataclass(frozen=True, slots=True)
class StoredPartitions:
    """Rows of an existing segment that a new segment retains, with their new numbers."""

    merge_input: MergeInput
    stored: StoredModel
    graphs: StoredGraphs | None = None
    read_ahead_rows: int = _READ_AHEAD_ROWS

    @classmethod
    def of(cls, merge_input: MergeInput) -> "StoredPartitions":
        files, path = merge_input.segment.files, merge_input.segment.metadata.qualified_path
        index, storage = open_segment_files(files, path=path)
        stored = read_model(index, storage, path=path)
        statistics = statistics_of(merge_input.segment)
        stored = replace(stored, model=statistics.complete(stored.model))
        graphs = StoredGraphs(index, stored, path=path) if stored.model.has_graphs else None
        if graphs is not None and (parameters := graphs.parameters) is not None:
            m, ef_construction = parameters
            stored = replace(stored, model=replace(stored.model, m=m, ef_construction=ef_construction))
        return cls(merge_input, stored, graphs)

    @classmethod
    def of_piece(cls, merge_input: MergeInput, model: Model) -> "StoredPartitions":
        """Return the rows of a piece, which was encoded under the model."""
        path = merge_input.segment.metadata.qualified_path
        storage = merge_input.segment.files.open(STORAGE_FILE)
        return cls(merge_input, read_partitions_of_piece(storage, model, path=path))

    def read(self, partitions: range) -> Iterator[PartitionRows]:
        offsets, lengths, quantizer = self.stored.partitions.offsets, self.stored.partitions.lengths, self.quantizer
        for group in _groups(partitions, lengths, self.read_ahead_rows):
            start = int(offsets[group.start])
            count = int(lengths[group.start : group.stop].sum())
            if not count:
                empty = np.empty(0, dtype=np.uint64)
                yield from (PartitionRows(empty, ()) for _ in group)
                continue
            rows, codes = self._read_rows(start, count)
            for number in group:
                part = slice(int(offsets[number]) - start, int(offsets[number]) - start + int(lengths[number]))
                numbers, is_kept = self.merge_input.row_remap.remap(rows[part])
                unpacked = quantizer.unpack(tuple(column[part] for column in codes))
                if is_kept.all():
                    graph = self.graphs.read(number, with_distances=True) if self.graphs and len(numbers) else None
                    yield PartitionRows(numbers, unpacked, graph)
                else:
                    yield PartitionRows(numbers[is_kept], tuple(column[is_kept] for column in unpacked))

    @property
    def quantizer(self) -> Quantizer:
        return self.stored.model.quantizer

    @property
    def left_out(self) -> Ids:
        """Rows without codes that the new segment retains, with their new numbers."""
        numbers, is_kept = self.merge_input.row_remap.remap(self.stored.left_out)
        return numbers[is_kept]

    def _read_rows(self, start: int, count: int) -> tuple[Ids, Codes]:
        segment = self.merge_input.segment
        storage = segment.files.open(STORAGE_FILE)
        path = f"{segment.metadata.qualified_path}/{STORAGE_FILE}"
        return read_codes(storage, self.stored.code_columns, start, count, path=path)


def share_memory(stored: Sequence[StoredPartitions], row_bytes: int) -> list[StoredPartitions]:
    """Return the sources with a read-ahead that keeps the rows of all of them within the budget."""
    rows = max(1, min(_READ_AHEAD_ROWS, BUDGET_BYTES // (max(1, len(stored)) * max(1, row_bytes))))
    return [replace(each, read_ahead_rows=rows) for each in stored]


def _groups(partitions: range, lengths: Ints, rows_max: int) -> Iterator[range]:
    """Yield ranges of partitions that are read together."""
    start, rows = partitions.start, 0
    for number in partitions:
        if rows and rows + int(lengths[number]) > rows_max:
            yield range(start, number)
            start, rows = number, 0
        rows += int(lengths[number])
    if start < partitions.stop:
        yield range(start, partitions.stop)


def read_codes(storage: FileReader, columns: Sequence[str], start: int, count: int, *, path: str) -> tuple[Ids, Codes]:
    """Return the row numbers and the codes of a range of rows, as they are stored."""
    if not count:
        raise ValueError("a range of rows that is read has at least one row")
    plain = read_plain_codes(storage, columns, [RowRange(start, count)], path=path)
    if plain is not None:
        return plain[0]
    table = read_row_range(storage, [ROW_NUMBER, *columns], start, count).combine_chunks()
    rows, *codes = (_whole(column, count, path=path) for column in table.columns)
    return rows, tuple(codes)  # type: ignore[return-value]


def read_plain_codes(
    storage: FileReader, columns: Sequence[str], ranges: Sequence[RowRange], *, path: str
) -> list[tuple[Ids, Codes]] | None:
    """Return the same for several ranges of rows, without the codec; `None` if the codec has to read them."""
    schema = storage.schema
    names = [ROW_NUMBER, *columns]
    read = storage.read_plain([schema.names.index(name) for name in names], ranges)
    if read is None:
        return None
    types = [schema.field(name).type for name in names]
    found = []
    for each in read:
        rows, *codes = (_numbers(values, type_, path=path) for values, type_ in zip(each, types, strict=True))
        found.append((rows, tuple(codes)))
    return found  # type: ignore[return-value]


def _numbers(values: npt.NDArray[np.uint8], type_: pa.DataType, *, path: str) -> Array:
    """Return the numbers or the lists of numbers of these bytes."""
    is_list = pa.types.is_fixed_size_list(type_)
    element = type_.value_type if is_list else type_
    if values.shape[1] * 8 != element.bit_width * (type_.list_size if is_list else 1):
        raise Corrupt("rows or codes have another size than their type", path=path, field=str(type_))
    numbers = values.view(element.to_pandas_dtype())
    return np.asarray(numbers if is_list else numbers[:, 0])


def _whole(column: pa.ChunkedArray, count: int, *, path: str) -> Array:
    """Return a column without nulls as an array with `count` rows."""
    values = column.combine_chunks()
    width = values.type.list_size if pa.types.is_fixed_size_list(values.type) else None
    if len(values) == count and not values.null_count:
        if width is None:
            return np.asarray(values.to_numpy(zero_copy_only=False))
        numbers = values.flatten()
        if len(numbers) == count * width and not numbers.null_count:
            return np.asarray(numbers.to_numpy(zero_copy_only=False).reshape(count, width))
    raise Corrupt("rows or codes are missing", path=path, field=ROW_NUMBER if width is None else "codes")
