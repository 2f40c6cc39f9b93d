"""Build of a vector segment: trains a model, or takes that of existing segments, and writes the two files.

The rows are read three times: to count them, to draw a sample, and to encode them. All codes are in memory until they
are sorted by partition. Segments with different models are not merged from their files, since their codes differ.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.format.row_sets import Ids
from lance_core.format.vector_index import IvfPartitions, VectorDetails, encode_tensor
from lance_core.index.index_type import IncompatibleSegments, MergeInput
from lance_core.index.segment_files import SegmentSink
from lance_core.index.vector.model import (
    FLAT_KEY,
    INDEX_FILE,
    INDEX_KEY,
    IVF_KEY,
    METRIC_KEY,
    ROW_NUMBER,
    STORAGE_FILE,
    STORAGE_KEY,
    Model,
    StoredModel,
    read_model,
)
from lance_core.index.vector.segment import read_codes
from lance_core.index.vector.training import Array, Ints, VectorOptions, encode, read_vectors, train
from lance_core.scan.vector_search import Metric, resolve_metric

_ROWS_PER_BATCH = 65_536
_MARKER = pa.schema([pa.field("__flat_marker", pa.uint64(), nullable=False)])


@dataclass(frozen=True, slots=True)
class _Encoded:
    """Codes of some rows."""

    partitions: Ints
    rows: Ids
    codes: Array


def write_segment(
    sink: SegmentSink,
    kind: str,
    column: pa.Field,
    rows: Iterable[pa.RecordBatch],
    inputs: Sequence[MergeInput],
    options: VectorOptions,
) -> bytes:
    """Write the files of a segment, and return its details for the index section."""
    sources = [_StoredSegment.of(each) for each in inputs]
    if sources:
        model = sources[0].stored.model
        if any(not model.has_same_parameters(source.stored.model) for source in sources):
            raise IncompatibleSegments("the segments were trained apart")
    elif options.model is not None:
        model = replace(options.model, kind=kind)
    else:
        metric = resolve_metric(options.metric and options.metric.value, column.type.value_type, "the index")
        checked = _check_options(options, kind, column.type.list_size)
        total = sum(batch.num_rows for batch in rows)
        model = train(rows, kind, metric, checked, total=total)
    parts = [part for source in sources for part in source.read()]
    for batch in read_vectors(rows, model.metric):
        partitions, codes = encode(batch, model)
        parts.append(_Encoded(partitions, batch.rows, codes))
    _write_files(sink, column, model, parts)
    bits, sub_vectors = (0 if kind == "IVF_FLAT" else model.quantizer.num_bits), model.quantizer.num_sub_vectors
    return VectorDetails(kind, model.metric.value, bits, sub_vectors).encode()


@dataclass(frozen=True, slots=True)
class _StoredSegment:
    """Existing segment that is merged into a new one."""

    merge_input: MergeInput
    stored: StoredModel

    @classmethod
    def of(cls, merge_input: MergeInput) -> "_StoredSegment":
        files, path = merge_input.segment.files, merge_input.segment.metadata.qualified_path
        return cls(merge_input, read_model(files.open(INDEX_FILE), files.open(STORAGE_FILE), path=path))

    def read(self) -> Iterator[_Encoded]:
        """Yield the codes of the rows that the new segment retains, with their new numbers."""
        segment, stored = self.merge_input.segment, self.stored
        storage, path = segment.files.open(STORAGE_FILE), f"{segment.metadata.qualified_path}/{STORAGE_FILE}"
        quantizer = stored.model.quantizer
        for partition, (start, count) in enumerate(
            zip(stored.partitions.offsets.tolist(), stored.partitions.lengths.tolist(), strict=True)
        ):
            if not count:
                continue
            rows, codes = read_codes(storage, quantizer.column, start, count, path=path)
            if quantizer.is_transposed:
                codes = codes.reshape(codes.shape[1], count).T
            numbers, is_kept = self.merge_input.row_remap.remap(rows)
            yield _Encoded(np.full(int(is_kept.sum()), partition, dtype=np.int64), numbers[is_kept], codes[is_kept])


def _check_options(options: VectorOptions, kind: str, dimension: int) -> VectorOptions:
    """Return the options with the number of sub-vectors, which has to divide the dimension."""
    if kind != "IVF_PQ":
        return options
    sub_vectors = options.num_sub_vectors
    if sub_vectors is None:
        width = next((width for width in (16, 8) if dimension % width == 0), None)
        if width is None:
            raise InvalidInput(f"num_sub_vectors is required, since the dimension {dimension} is not a multiple of 8")
        sub_vectors = dimension // width
    if dimension % sub_vectors or sub_vectors * options.num_bits % 8:
        raise InvalidInput(
            f"num_sub_vectors={sub_vectors} must divide the dimension {dimension}, and be even if num_bits is 4"
        )
    return replace(options, num_sub_vectors=sub_vectors)


def _write_files(sink: SegmentSink, column: pa.Field, model: Model, parts: Sequence[_Encoded]) -> None:
    count, quantizer = len(model.centroids), model.quantizer
    is_product = quantizer.compression == "PQ"
    width = quantizer.num_sub_vectors * quantizer.num_bits // 8 if is_product else column.type.list_size
    element = column.type.value_type if quantizer.compression == "FLAT" else pa.uint8()
    code_type = pa.list_(pa.field("item", element), width)
    partitions = np.concatenate([np.empty(0, dtype=np.int64), *(part.partitions for part in parts)])
    lengths = np.bincount(partitions, minlength=count)
    offsets = np.cumsum(lengths) - lengths
    _write_index_file(sink, model, count)
    schema = pa.schema([pa.field(ROW_NUMBER, pa.uint64()), pa.field(quantizer.column, code_type)])
    if quantizer.compression == "FLAT" and model.metric is not Metric.HAMMING:
        schema = schema.set(1, schema.field(1).with_nullable(False))
    storage = sink.create(STORAGE_FILE, schema)
    if len(partitions):
        order = np.argsort(partitions, kind="stable")
        rows = np.concatenate([part.rows for part in parts])[order]
        codes = np.concatenate([part.codes for part in parts])[order]
        if quantizer.is_transposed:
            for start, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
                part = codes[start : start + length]
                codes[start : start + length] = np.ascontiguousarray(part.T).reshape(part.shape)
        for start in range(0, len(rows), _ROWS_PER_BATCH):
            stop = start + _ROWS_PER_BATCH
            values = pa.FixedSizeListArray.from_arrays(pa.array(codes[start:stop].ravel(), element), type=code_type)
            storage.write(pa.RecordBatch.from_arrays([pa.array(rows[start:stop]), values], schema=schema))
    storage.add_metadata(METRIC_KEY, model.metric.value)
    number = storage.add_buffer(IvfPartitions(offsets, lengths).encode())
    storage.add_metadata(IVF_KEY, str(number))
    details: dict[str, object] = {"dim": column.type.list_size}
    if quantizer.compression == "SQ":
        details |= {"num_bits": 8, "bounds": {"start": quantizer.start, "end": quantizer.end}}
    elif quantizer.compression == "PQ":
        assert quantizer.codebook is not None
        flat = quantizer.codebook.reshape(1 << quantizer.num_bits, column.type.list_size)
        details = {
            "codebook_position": storage.add_buffer(encode_tensor(flat.astype(model.centroids.dtype))),
            "nbits": quantizer.num_bits,
            "num_sub_vectors": quantizer.num_sub_vectors,
            "dimension": column.type.list_size,
            "codebook_tensor": [],
            "transposed": quantizer.is_transposed,
        }
    storage.add_metadata(STORAGE_KEY, json.dumps([json.dumps(details)]))
    storage.finish()


def _write_index_file(sink: SegmentSink, model: Model, count: int) -> None:
    index = sink.create(INDEX_FILE, _MARKER)
    nothing = np.zeros(count, dtype=np.int64)
    number = index.add_buffer(IvfPartitions(nothing, nothing, model.centroids, model.loss).encode())
    index.add_metadata(INDEX_KEY, json.dumps({"type": model.kind, "distance_type": model.metric.value}))
    index.add_metadata(IVF_KEY, str(number))
    index.add_metadata(FLAT_KEY, json.dumps([""] * count))
    index.finish()
