"""Vector segment writer: writes the two files of a segment by partitions, of which one is in memory.

The storage file stores row numbers and codes unchanged, so that a search reads a partition with one request for each
column, or from a local disk without the codec. Row numbers take eight bytes instead of the three to five that packed
bits would take.
"""

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from lance_core.datafiles.codec import FileWriter
from lance_core.format.plain_values import FULL_ZIP, STRUCTURAL_ENCODING
from lance_core.format.row_sets import Ids
from lance_core.format.vector_index import IvfPartitions
from lance_core.index.segment_files import SegmentSink
from lance_core.index.vector.graph import GRAPH_KEY, GRAPH_SCHEMA, build_graph, describe_empty
from lance_core.index.vector.model import (
    FLAT_KEY,
    INDEX_FILE,
    INDEX_KEY,
    IVF_KEY,
    LEFT_OUT_KEY,
    METRIC_KEY,
    ROW_NUMBER,
    ROW_NUMBERS,
    STORAGE_FILE,
    STORAGE_KEY,
    Model,
)
from lance_core.index.vector.partitions import PartitionRows, PartitionSource
from lance_core.index.vector.quantizers import Codes, Ints
from lance_core.scan.vector_columns import vector_field

_ROWS_PER_BATCH = 65_536
_MARKER = pa.schema([pa.field("__flat_marker", pa.uint64(), nullable=False)])


def write_partitions(
    sink: SegmentSink,
    column: pa.Field,
    model: Model,
    sources: Sequence[PartitionSource],
    partitions: range,
    left_out: Ids,
    *,
    is_piece: bool = False,
) -> Ints:
    """Write the files of a segment that has these partitions of all sources, and return the rows of each partition. The
    other partitions are empty. A piece has no index file, since the centroids can be larger than its codes."""
    vector = vector_field(column).type
    count, dimension = len(model.centroids), vector.list_size
    fields = model.quantizer.columns(dimension, vector.value_type)
    unchanged = {STRUCTURAL_ENCODING: FULL_ZIP}
    schema = pa.schema([each.with_metadata(unchanged) for each in (pa.field(ROW_NUMBER, pa.uint64()), *fields)])
    storage = _StorageWriter(sink.create(STORAGE_FILE, schema), schema)
    index = None if is_piece else _GraphWriter(sink, model) if model.has_graphs else _MarkerWriter(sink, model)
    lengths = np.zeros(count, dtype=np.int64)
    for number, parts in zip(partitions, _by_partition(sources, partitions), strict=True):
        merged = _concat(parts)
        if merged is not None:
            lengths[number] = len(merged.rows)
            storage.add(merged.rows, model.quantizer.pack(merged.codes))
            if index is not None:
                index.add(number, merged)
    storage.finish(model, lengths, dimension, left_out)
    if index is not None:
        index.finish()
    return lengths


def _by_partition(sources: Sequence[PartitionSource], partitions: range) -> Iterator[tuple[PartitionRows, ...]]:
    """Yield the rows of each partition in each source."""
    if not sources:
        yield from (() for _ in partitions)
    yield from zip(*(source.read(partitions) for source in sources), strict=True)


def _concat(parts: Sequence[PartitionRows]) -> PartitionRows | None:
    """Return the rows of all parts of a partition; `None` if there are none."""
    occupied = [part for part in parts if len(part.rows)]
    if len(occupied) < 2:
        return occupied[0] if occupied else None
    columns = zip(*(part.codes for part in occupied), strict=True)
    return PartitionRows(
        np.concatenate([part.rows for part in occupied]), tuple(np.concatenate(column) for column in columns)
    )


class _StorageWriter:
    """Writer of the storage file. It gathers small partitions into batches."""

    def __init__(self, file: FileWriter, schema: pa.Schema) -> None:
        self._file, self._schema = file, schema
        self._buffered: list[tuple[Ids, Codes]] = []
        self._rows = 0

    def add(self, rows: Ids, codes: Codes) -> None:
        """Add the rows of a partition; the codes are packed."""
        self._buffered.append((rows, codes))
        self._rows += len(rows)
        if self._rows >= _ROWS_PER_BATCH:
            self._flush()

    def finish(self, model: Model, lengths: np.ndarray, dimension: int, left_out: Ids) -> None:
        """Write the description of the partitions and codes, and the rows without codes, and close the file."""
        if self._buffered:
            self._flush()
        file = self._file
        file.add_metadata(METRIC_KEY, model.metric.value)
        number = file.add_buffer(IvfPartitions(np.cumsum(lengths) - lengths, lengths).encode())
        file.add_metadata(IVF_KEY, str(number))
        details = model.quantizer.describe(dimension, model.centroids.dtype, file.add_buffer)
        file.add_metadata(STORAGE_KEY, json.dumps([json.dumps(details)]))
        if len(left_out):
            number = file.add_buffer(left_out.astype(ROW_NUMBERS).tobytes())
            file.add_metadata(LEFT_OUT_KEY, str(number))
        file.finish()

    def _flush(self) -> None:
        columns = [(rows, *codes) for rows, codes in self._buffered]
        self._buffered, self._rows = [], 0
        whole = [np.concatenate(parts) if len(parts) > 1 else parts[0] for parts in zip(*columns, strict=True)]
        for start in range(0, len(whole[0]), _ROWS_PER_BATCH):
            arrays = [
                _arrow(column[start : start + _ROWS_PER_BATCH], field.type)
                for column, field in zip(whole, self._schema, strict=True)
            ]
            self._file.write(pa.RecordBatch.from_arrays(arrays, schema=self._schema))


def _arrow(values: np.ndarray, type_: pa.DataType) -> pa.Array:
    if not pa.types.is_fixed_size_list(type_):
        return pa.array(values, type_)
    return pa.FixedSizeListArray.from_arrays(
        pa.array(np.ascontiguousarray(values).ravel(), type_.value_type), type=type_
    )


class _MarkerWriter:
    """Writer of the index file of a segment without graphs, which has no rows."""

    def __init__(self, sink: SegmentSink, model: Model) -> None:
        self._file, self._model = sink.create(INDEX_FILE, _MARKER), model

    def add(self, partition: int, rows: PartitionRows) -> None:
        """Write nothing."""

    def finish(self) -> None:
        count = len(self._model.centroids)
        self._file.add_metadata(FLAT_KEY, json.dumps([""] * count))
        _finish_index_file(self._file, self._model, np.zeros(count, dtype=np.int64))


class _GraphWriter:
    """Writer of the index file of a segment with graphs. It builds the graph of each partition that has none yet."""

    def __init__(self, sink: SegmentSink, model: Model) -> None:
        self._file, self._model = sink.create(INDEX_FILE, GRAPH_SCHEMA), model
        self._lengths = np.zeros(len(model.centroids), dtype=np.int64)
        self._described = [describe_empty(model)] * len(model.centroids)

    def add(self, partition: int, rows: PartitionRows) -> None:
        graph = rows.graph or build_graph(self._model, rows.codes)
        for batch in graph.to_batches():
            self._file.write(batch)
        self._lengths[partition] = len(graph.ids)
        self._described[partition] = graph.describe()

    def finish(self) -> None:
        self._file.add_metadata(GRAPH_KEY, json.dumps(self._described))
        _finish_index_file(self._file, self._model, self._lengths)


def _finish_index_file(file: FileWriter, model: Model, lengths: Ints) -> None:
    partitions = IvfPartitions(np.cumsum(lengths) - lengths, lengths, model.centroids, model.loss)
    file.add_metadata(IVF_KEY, str(file.add_buffer(partitions.encode())))
    file.add_metadata(INDEX_KEY, json.dumps({"type": model.kind, "distance_type": model.metric.value}))
    file.finish()
