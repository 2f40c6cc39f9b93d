"""Build of a vector segment: trains a model, or takes that of existing segments, encodes rows, and writes the two files
one partition after the other.

In one process, `write_segment` does everything. Workers share a build as follows; each product is a segment of its own
under the same model, which `partitions.py` reads back; a piece lacks the index file:

    driver    `plan_training`, `draw_sample`, `train`              model
              `write_model(model)`                                 a segment without rows, read by the workers
    workers   `write_piece(rows, model)`                           codes of some rows, sorted by partition, no graph
    workers   `merge_partitions(pieces, model, range)`             some partitions of all pieces, with their graphs
    one       `merge_partitions((), model, all, segments=ranges)`  the segment; whole partitions are copied as they are

A worker holds `BUDGET_BYTES` of codes, a few neighbouring partitions of each piece, and one graph.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from lance_core.format.vector_index import VectorDetails
from lance_core.index.index_type import VALUE, CountedRows, IncompatibleSegments, MergeInput
from lance_core.index.segment_files import SegmentSink
from lance_core.index.vector.encoding import EncodedRows, encode_rows
from lance_core.index.vector.graph import LEVELS_MAX
from lance_core.index.vector.model import GRAPH_CANDIDATES, GRAPH_LINKS, Model
from lance_core.index.vector.options import VectorOptions
from lance_core.index.vector.partitions import PartitionSource, StoredPartitions, share_memory, sort_by_partition
from lance_core.index.vector.quantizers import ProductCodes
from lance_core.index.vector.rabit import RabitCodes
from lance_core.index.vector.segment_statistics import VectorStatistics, mean_of, statistics_of
from lance_core.index.vector.segment_writer import write_partitions
from lance_core.index.vector.training import TrainingPlan, draw_sample, plan_training, train
from lance_core.scan.vector_columns import is_multivector, vector_field

ROW_BYTES = 8
"""Bytes of a row number."""


def write_segment(
    sink: SegmentSink,
    kind: str,
    column: pa.Field,
    rows: Iterable[pa.RecordBatch],
    inputs: Sequence[MergeInput],
    options: VectorOptions,
) -> bytes:
    """Write the files of a segment of rows and existing segments, and return its details for the index section. If the
    rows are too few to train a model, write no files: the index is defined, and built later."""
    stored = [StoredPartitions.of(each) for each in inputs]
    if stored:
        model = _common_model(stored)
    elif options.model is not None:
        model = options.model
    else:
        total = _count_vectors(column, rows)
        plan = plan_training(kind, column, options, total)
        sample = draw_sample(rows, plan, total)
        if len(sample.rows) < plan.vectors_min:  # nearly all vectors may be null
            sample = draw_sample(rows, replace(plan, sample_size=total), total)
        if len(sample.rows) < plan.vectors_min:
            return details_of_definition(plan)
        model = train(sample, plan)
    model = with_options(model, kind, options)
    return _write(sink, column, rows, stored, model, range(len(model.centroids)))


def _count_vectors(column: pa.Field, rows: Iterable[pa.RecordBatch]) -> int:
    """Return the number of vectors, or a little more. Lists of vectors have to be read."""
    if is_multivector(column.type):
        return sum(len(batch[VALUE].flatten()) for batch in rows)
    return rows.row_count if isinstance(rows, CountedRows) else sum(batch.num_rows for batch in rows)


def with_options(model: Model, kind: str, options: VectorOptions) -> Model:
    """Return the model as a segment of this kind uses it, with the parameters of its graphs."""
    m, candidates = options.m or model.m, options.ef_construction or model.ef_construction
    return replace(model, kind=kind, m=m, ef_construction=candidates)


def write_model(sink: SegmentSink, column: pa.Field, model: Model) -> bytes:
    """Write a segment without rows, from which workers read the model, and return its details."""
    without_graph = replace(model, kind=model.kind.replace("HNSW_", ""))
    return _write(sink, column, (), (), without_graph, range(len(model.centroids)))


def write_piece(sink: SegmentSink, column: pa.Field, rows: Iterable[pa.RecordBatch], model: Model) -> bytes:
    """Write the codes of some rows, sorted by partition, as the storage file of a segment, and return its details."""
    return _write(sink, column, rows, (), model, range(len(model.centroids)), is_piece=True)


def merge_partitions(
    sink: SegmentSink,
    column: pa.Field,
    pieces: Sequence[MergeInput],
    model: Model,
    partitions: range,
    *,
    segments: Sequence[MergeInput] = (),
) -> bytes:
    """Write a segment with these partitions of all segments and pieces, and return its details. The other partitions
    are empty."""
    stored = [StoredPartitions.of(each) for each in segments]
    if any(not model.has_same_parameters(each.stored.model) for each in stored):
        raise IncompatibleSegments("the segments were trained apart")
    stored += [StoredPartitions.of_piece(each, model) for each in pieces]
    return _write(sink, column, (), stored, model, partitions)


def code_bytes_of(model: Model, column: pa.Field) -> int:
    """Return the number of bytes of a row in the storage file."""
    vector = vector_field(column).type
    fields = model.quantizer.columns(vector.list_size, vector.value_type)
    return ROW_BYTES + sum(_width_of(each.type) for each in fields)


def details_of(model: Model, statistics: VectorStatistics) -> bytes:
    """Return the details of a segment for the index section."""
    quantizer = model.quantizer
    bits = {"FLAT": 0, "SQ": 8}.get(quantizer.compression)
    if isinstance(quantizer, ProductCodes | RabitCodes):
        bits = quantizer.num_bits
    assert bits is not None
    sub_vectors = quantizer.num_sub_vectors if isinstance(quantizer, ProductCodes) else 0
    graph = (model.m, model.ef_construction, LEVELS_MAX) if model.has_graphs else None
    return VectorDetails(model.kind, model.metric.value, bits, sub_vectors, statistics.to_hints(), graph).encode()


def details_of_definition(plan: TrainingPlan) -> bytes:
    """Return the details of an index that is not built yet, with the options of the caller."""
    options = plan.options
    bits = {"FLAT": 0, "SQ": 8}.get(plan.compression) or options.num_bits or 0
    graph = None
    if "HNSW" in plan.kind:
        graph = options.m or GRAPH_LINKS, options.ef_construction or GRAPH_CANDIDATES, LEVELS_MAX
    return VectorDetails(
        plan.kind,
        plan.metric.value,
        bits,
        options.num_sub_vectors or 0,
        options.to_hints(),
        graph,
        options.num_partitions,
        options.target_partition_size,
    ).encode()


def _width_of(type_: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(type_):
        return int(type_.list_size * type_.value_type.bit_width // 8)
    return int(type_.bit_width // 8)


def _common_model(stored: Sequence[StoredPartitions]) -> Model:
    model = stored[0].stored.model
    if any(not model.has_same_parameters(each.stored.model) for each in stored[1:]):
        raise IncompatibleSegments("the segments were trained apart")
    return model


def _write(
    sink: SegmentSink,
    column: pa.Field,
    rows: Iterable[pa.RecordBatch],
    stored: Sequence[StoredPartitions],
    model: Model,
    partitions: range,
    *,
    is_piece: bool = False,
) -> bytes:
    stored = share_memory(stored, code_bytes_of(model, column))
    encoded = _EncodedRows(rows, model)
    with tempfile.TemporaryDirectory(prefix="lance-vectors-") as directory:
        runs = sort_by_partition(encoded, len(model.centroids), Path(directory))
        sources: list[PartitionSource] = [*stored, *runs]
        left_out = np.unique(np.concatenate([*(each.left_out for each in stored), *encoded.left_out]))
        lengths = write_partitions(sink, column, model, sources, partitions, left_out, is_piece=is_piece)
    known = [statistics_of(each.merge_input.segment) for each in stored]
    statistics = VectorStatistics(
        len(lengths),
        int(lengths.sum()),
        int(lengths.max(initial=0)),
        mean_of((encoded.count, encoded.mean_loss), *((each.rows, each.loss) for each in known)),
        model.mean_loss,
        model.trained_rows,
    )
    return details_of(model, statistics)


class _EncodedRows:
    """Codes of rows, which can be read once. It sums up their losses."""

    def __init__(self, rows: Iterable[pa.RecordBatch], model: Model) -> None:
        self._rows, self._model = rows, model
        self.count = 0
        self.left_out = [np.empty(0, dtype=np.uint64)]
        self._loss = 0.0

    def __iter__(self) -> Iterator[EncodedRows]:
        for batch in encode_rows(self._rows, self._model):
            self.count += len(batch.rows)
            self.left_out.append(batch.left_out)
            self._loss += batch.loss
            if len(batch.rows):
                yield batch

    @property
    def mean_loss(self) -> float | None:
        return self._loss / self.count if self.count else None
