"""Vector index types: partitions of vectors (IVF_FLAT) or of codes (IVF_PQ, IVF_SQ, IVF_RQ), some with graphs (HNSW).

They are ranked indices: they answer no filter and return the nearest rows (`search.py`). All of them have one type
URL; the details of a segment, or its files, record which it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lance_core.errors import Corrupt, InvalidInput, NotFound, StorageError
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.vector_index import VECTOR_TYPE_URL, VectorDetails
from lance_core.index.index_type import Certainty, IndexOptions, Leaf, Segment, SegmentBuild, SegmentExamination
from lance_core.index.segment_files import SegmentSink
from lance_core.index.vector import examination
from lance_core.index.vector.build import write_segment
from lance_core.index.vector.model import open_segment_files, read_model
from lance_core.index.vector.options import VectorOptions
from lance_core.index.vector.quantizers import ProductCodes
from lance_core.index.vector.rabit import BITS_MAX, RabitCodes
from lance_core.index.vector.segment import VectorSegment
from lance_core.index.vector.segment_statistics import statistics_of
from lance_core.scan.vector_columns import is_multivector, vector_type_of
from lance_core.scan.vector_search import parse_metric

_FLOATS = (pa.float16(), pa.float32(), pa.float64())
_PARAMETERS = ("metric", "num_partitions", "max_iters", "sample_rate", "target_partition_size")
_CODE_PARAMETERS = {"PQ": ("num_sub_vectors", "num_bits"), "RQ": ("num_bits",)}
_GRAPH_PARAMETERS = ("m", "ef_construction")
_BITS = {"PQ": (4, 8), "RQ": tuple(range(1, BITS_MAX + 1))}


@dataclass(frozen=True, slots=True)
class VectorIndexType:
    """One type of vector index."""

    name: str
    type_url: str = VECTOR_TYPE_URL
    max_readable_version: int = 2
    written_version: int = 1

    @property
    def compression(self) -> str:
        """Encoding of its vectors, such as PQ."""
        return self.name.rpartition("_")[2]

    @property
    def supported_types(self) -> str:
        numbers = "float16, float32, float64" + (" or uint8" if self.compression == "FLAT" else "")
        return f"vectors: fixed-size lists of {numbers}, or for cosine lists of vectors of float numbers"

    def supports(self, column: pa.Field) -> bool:
        vector = vector_type_of(column.type)
        if self is UNDECLARED or vector is None:
            return False
        is_flat = self.compression == "FLAT" and not is_multivector(column.type)
        return vector.value_type in _FLOATS or (is_flat and vector.value_type == pa.uint8())

    def parse_options(self, parameters: Mapping[str, object]) -> IndexOptions:
        known = (*_PARAMETERS, *_CODE_PARAMETERS.get(self.compression, ()))
        if "HNSW" in self.name:
            known += _GRAPH_PARAMETERS
        if unknown := sorted(parameters.keys() - set(known)):
            raise InvalidInput(f"{self.name} has no option {unknown[0]!r}; it has {', '.join(known)}")
        for name, number in parameters.items():
            if name != "metric" and (type(number) is not int or number < 1) and number is not None:
                raise InvalidInput(f"{name}={number!r} must be a whole number from 1")
        bits, allowed = parameters.get("num_bits"), _BITS.get(self.compression, ())
        if bits is not None and bits not in allowed:
            raise InvalidInput(f"num_bits={bits!r} must be one of {', '.join(map(str, allowed))}")
        options: dict[str, Any] = {name: value for name, value in parameters.items() if value is not None}
        if "metric" in options:
            options["metric"] = parse_metric(options["metric"])
        return VectorOptions(**options)

    def options_of(self, segment: Segment) -> IndexOptions:
        """Return the options of a segment and its model; without the model if the files cannot be read."""
        details = VectorDetails.of(segment.metadata)
        try:
            path = segment.metadata.qualified_path
            model = read_model(*open_segment_files(segment.files, path=path), path=path).model
        except (NotFound, StorageError, Corrupt):
            if details is None:
                raise
            return VectorOptions.of_details(details)
        model = statistics_of(segment).complete(model)
        quantizer = model.quantizer
        options = VectorOptions(model.metric, len(model.centroids), model=model)
        if isinstance(quantizer, RabitCodes):
            return replace(options, num_bits=quantizer.num_bits)
        if isinstance(quantizer, ProductCodes):
            return replace(options, num_sub_vectors=quantizer.num_sub_vectors, num_bits=quantizer.num_bits)
        return options

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        """Answer no filter."""
        return None

    def write(self, sink: SegmentSink, build: SegmentBuild) -> bytes:
        return write_segment(sink, self.name, build.column, build.rows, build.inputs, VectorOptions.of(build.options))

    def open(self, segment: Segment, column: pa.Field) -> VectorSegment:
        return VectorSegment.open(segment, column)

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        return examination.examine(segment, column)


UNDECLARED = VectorIndexType("VECTOR")
"""Type of segments that record their type in their files, not in the details."""
BUILT_TYPES: tuple[VectorIndexType, ...] = tuple(
    VectorIndexType(name, written_version=2 if name == "IVF_RQ" else 1)
    for name in ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ")
)


def type_of(metadata: IndexMetadata) -> VectorIndexType | None:
    """Return the index type of a segment; `None` if it cannot be read."""
    details = VectorDetails.of(metadata)
    if details is None:
        return UNDECLARED
    return next((each for each in BUILT_TYPES if each.name == details.kind), None)


def read_type(segment: Segment) -> VectorIndexType:
    """Return the index type that the files of a segment record."""
    path = segment.metadata.qualified_path
    kind = read_model(*open_segment_files(segment.files, path=path), path=path).model.kind
    return next((each for each in BUILT_TYPES if each.name == kind), UNDECLARED)


def is_vector_segment(metadata: IndexMetadata) -> bool:
    """Return whether a segment belongs to a vector index, whether or not it can be read."""
    return metadata.kind == VECTOR_TYPE_URL.rpartition(".")[2]
