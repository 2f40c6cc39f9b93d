"""Messages of vector indices: the details in the index section, and the partitions and arrays in their files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt, Unsupported
from lance_core.format import size_guard
from lance_core.format._pb import index_pb2
from lance_core.format.index_metadata import IndexMetadata

VECTOR_TYPE_URL = "/lance.index.pb.VectorIndexDetails"
Array = npt.NDArray[np.generic]

_METRICS = ("l2", "cosine", "dot", "hamming")
_COMPRESSIONS = {"flat": "FLAT", "pq": "PQ", "sq": "SQ", "rq": "RQ"}
_Tensor = index_pb2.Tensor
_DTYPES: Mapping[int, str] = {
    _Tensor.FLOAT16: "<f2",
    _Tensor.FLOAT32: "<f4",
    _Tensor.FLOAT64: "<f8",
    _Tensor.UINT8: "u1",
}


@dataclass(frozen=True, slots=True)
class VectorDetails:
    """Details of a vector index in the index section, as far as a query needs them."""

    kind: str
    """Index type, such as `IVF_PQ`."""
    metric: str
    num_bits: int = 0
    num_sub_vectors: int = 0
    hints: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the build."""
    graph: tuple[int, int, int] | None = None
    """Links of a row, candidates during the build, and levels of the graphs; `None` without graphs."""
    num_partitions: int | None = None
    """Number of partitions that the caller chose, for an index that is not built yet."""
    target_partition_size: int | None = None

    @classmethod
    def of(cls, metadata: IndexMetadata) -> "VectorDetails | None":
        """Return the details of a segment; `None` if it records none, so that its files have to be read."""
        data = bytes(metadata.message.index_details.value)
        if not data:
            return None
        path = f"index {metadata.name}"
        size_guard.check_message(data, path=path, kind=index_pb2.VectorIndexDetails)
        try:
            message = index_pb2.VectorIndexDetails.FromString(data)
        except DecodeError as error:
            raise Corrupt("the details of the vector index do not parse", path=path, field="index_details") from error
        compression = message.WhichOneof("compression")
        if compression is None or message.metric_type >= len(_METRICS):
            return None
        graph, config = None, message.hnsw_index_config
        if message.HasField("hnsw_index_config"):
            graph = config.max_connections, config.construction_ef, config.max_level
        codes = getattr(message, compression)
        return cls(
            f"IVF_{'' if graph is None else 'HNSW_'}{_COMPRESSIONS[compression]}",
            _METRICS[message.metric_type],
            getattr(codes, "num_bits", 0),
            getattr(codes, "num_sub_vectors", 0),
            dict(message.runtime_hints),
            graph,
            message.target_num_partitions or None,
            message.target_partition_size or None,
        )

    def encode(self) -> bytes:
        """Return the bytes of the details."""
        message = index_pb2.VectorIndexDetails(metric_type=_METRICS.index(self.metric), runtime_hints=self.hints)  # type: ignore[arg-type]
        if self.num_partitions is not None:
            message.target_num_partitions = self.num_partitions
        message.target_partition_size = self.target_partition_size or 0
        if self.graph is not None:
            config = message.hnsw_index_config
            config.max_connections, config.construction_ef, config.max_level = self.graph
        match self.kind.rpartition("_")[2]:
            case "FLAT":
                message.flat.SetInParent()
            case "PQ":
                message.pq.num_bits, message.pq.num_sub_vectors = self.num_bits, self.num_sub_vectors
            case "SQ":
                message.sq.num_bits = self.num_bits
            case "RQ":
                message.rq.num_bits = self.num_bits
            case _:
                raise Unsupported(f"details of {self.kind} are not written")
        return message.SerializeToString(deterministic=True)


@dataclass(frozen=True, slots=True)
class IvfPartitions:
    """Partitions of an index file: the rows of each and, in `index.idx`, their centroids."""

    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    centroids: Array | None = None
    loss: float | None = None
    """Sum of the distances between the training vectors and their centroids."""

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> "IvfPartitions":
        size_guard.check_message(data, path=path, kind=index_pb2.IVF)
        try:
            message = index_pb2.IVF.FromString(data)
        except DecodeError as error:
            raise Corrupt("the partitions do not parse", path=path, field="lance:ivf") from error
        lengths = np.array(message.lengths, dtype=np.int64)
        offsets = np.array(message.offsets, dtype=np.uint64).astype(np.int64)
        if not len(offsets):
            offsets = np.cumsum(lengths) - lengths
        if len(offsets) != len(lengths):
            raise Corrupt(
                f"it has {len(lengths)} lengths of partitions and {len(offsets)} offsets", path=path, field="lance:ivf"
            )
        centroids = None
        if message.HasField("centroids_tensor"):
            centroids = _array_of(message.centroids_tensor, path=path, field="centroids")
        return cls(offsets, lengths, centroids, message.loss if message.HasField("loss") else None)

    def encode(self) -> bytes:
        message = index_pb2.IVF(offsets=self.offsets.tolist(), lengths=self.lengths.tolist())
        if self.centroids is not None:
            message.centroids_tensor.CopyFrom(_tensor_of(self.centroids))
        if self.loss is not None:
            message.loss = self.loss
        return message.SerializeToString(deterministic=True)


def decode_tensor(data: bytes, *, path: str, field: str) -> Array:
    size_guard.check_message(data, path=path, kind=_Tensor)
    try:
        return _array_of(_Tensor.FromString(data), path=path, field=field)
    except DecodeError as error:
        raise Corrupt("the array does not parse", path=path, field=field) from error


def encode_tensor(array: Array) -> bytes:
    return _tensor_of(array).SerializeToString(deterministic=True)


def _array_of(tensor: index_pb2.Tensor, *, path: str, field: str) -> Array:
    if tensor.data_type not in _DTYPES:
        raise Unsupported(f"{path}: the numbers of {field} have the type {tensor.data_type}, which cannot be read")
    dtype, shape = np.dtype(_DTYPES[tensor.data_type]), tuple(tensor.shape)
    if len(tensor.data) != math.prod(shape) * dtype.itemsize:
        raise Corrupt(f"{len(tensor.data):,} bytes are not an array of shape {shape}", path=path, field=field)
    return np.frombuffer(tensor.data, dtype=dtype).reshape(shape)


def _tensor_of(array: Array) -> index_pb2.Tensor:
    codes = {dtype: code for code, dtype in _DTYPES.items()}
    little_endian = array.dtype.newbyteorder("<")
    code = codes[little_endian.str.replace("|", "")]
    return _Tensor(data_type=code, shape=array.shape, data=array.astype(little_endian).tobytes())  # type: ignore[arg-type]
