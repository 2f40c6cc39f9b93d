"""Model of a vector segment: what training produced (centroids, codebook, bounds), read from its files.

index.idx       centroids of the partitions, and the graph of an index that has one
auxiliary.idx   row number and code of each vector, partition after partition, and the codebook
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lance_core.datafiles.codec import FileReader
from lance_core.errors import Corrupt, Unsupported
from lance_core.format.vector_index import IvfPartitions, decode_tensor
from lance_core.scan.vector_search import Metric

INDEX_FILE, STORAGE_FILE = "index.idx", "auxiliary.idx"
ROW_NUMBER = "_rowid"
IVF_KEY, INDEX_KEY, STORAGE_KEY = "lance:ivf", "lance:index", "storage_metadata"
METRIC_KEY, FLAT_KEY = "distance_type", "lance:flat"

Vectors = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]
_CODE_COLUMNS = {"FLAT": "flat", "PQ": "__pq_code", "SQ": "__sq_code"}


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Encoding of the vectors of a segment. Only the fields of its type are used."""

    compression: str
    """FLAT, PQ or SQ."""
    num_bits: int = 8
    num_sub_vectors: int = 0
    codebook: Vectors | None = None
    """Centroids of product quantization, by sub-vector and code."""
    start: float = 0.0
    end: float = 0.0
    """Bounds of scalar quantization."""
    is_transposed: bool = False
    """True if the file stores the codes of a partition column by column."""

    @property
    def column(self) -> str:
        return _CODE_COLUMNS[self.compression]

    @property
    def scale(self) -> float:
        """Distance between two neighbouring codes of scalar quantization."""
        return (self.end - self.start) / 255

    def quantize(self, vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """Return the codes of scalar quantization, as numbers."""
        width = (self.end - self.start) or 1.0
        return np.clip(np.floor((vectors.astype(np.float64) - self.start) * (255 / width)), 0, 255)


@dataclass(frozen=True, slots=True)
class Model:
    """Everything that training produced."""

    kind: str
    metric: Metric
    centroids: npt.NDArray[np.generic]
    """Centroids in the number type of the file: that of the vectors."""
    quantizer: Quantizer
    loss: float | None = None

    @property
    def dimension(self) -> int:
        return int(self.centroids.shape[1])

    @property
    def encodes_residuals(self) -> bool:
        """True if product quantization encodes the difference between a vector and its centroid."""
        return self.quantizer.compression == "PQ" and self.metric is not Metric.DOT

    def has_same_parameters(self, other: "Model") -> bool:
        """Return whether codes of one model are codes of the other."""
        mine, theirs = self.quantizer, other.quantizer
        return (
            (self.kind, self.metric) == (other.kind, other.metric)
            and np.array_equal(self.centroids, other.centroids)
            and (mine.num_bits, mine.num_sub_vectors, mine.start, mine.end)
            == (theirs.num_bits, theirs.num_sub_vectors, theirs.start, theirs.end)
            and (mine.codebook is None or np.array_equal(mine.codebook, np.asarray(theirs.codebook)))
        )


@dataclass(frozen=True, slots=True)
class StoredModel:
    """Model of a segment with the rows of each partition in its storage file."""

    model: Model
    partitions: IvfPartitions


def read_model(index: FileReader, storage: FileReader, *, path: str) -> StoredModel:
    """Read the model of a segment and check that its two files agree."""
    metadata, stored = index.metadata, storage.metadata
    described = _parsed(metadata, INDEX_KEY, path=f"{path}/{INDEX_FILE}")
    kind, metric_name = str(described.get("type")), str(described.get("distance_type")).lower()
    centroids = _partitions(index, path=f"{path}/{INDEX_FILE}")
    partitions = _partitions(storage, path=f"{path}/{STORAGE_FILE}")
    compression = kind.rpartition("_")[2]
    if compression not in _CODE_COLUMNS:
        raise Unsupported(f"{path}: a vector index of type {kind} cannot be read")
    if centroids.centroids is None or centroids.centroids.ndim != 2:
        raise Corrupt("it has no centroids", path=f"{path}/{INDEX_FILE}", field=IVF_KEY)
    if stored.get(METRIC_KEY, "").lower() != metric_name or metric_name not in [each.value for each in Metric]:
        raise Corrupt(
            f"its two files record the metrics {metric_name!r} and {stored.get(METRIC_KEY)!r}",
            path=path,
            field=METRIC_KEY,
        )
    lengths, offsets = partitions.lengths, partitions.offsets
    if len(lengths) != len(centroids.centroids) or not np.array_equal(offsets, np.cumsum(lengths) - lengths):
        raise Corrupt("the partitions of its two files differ", path=f"{path}/{STORAGE_FILE}", field=IVF_KEY)
    if int(lengths.sum()) != storage.row_count:
        raise Corrupt(
            f"the partitions have {int(lengths.sum()):,} rows, and the file {storage.row_count:,}",
            path=f"{path}/{STORAGE_FILE}",
            field=IVF_KEY,
        )
    quantizer = _read_quantizer(compression, storage, centroids.centroids.shape[1], path=f"{path}/{STORAGE_FILE}")
    model = Model(kind, Metric(metric_name), centroids.centroids, quantizer, centroids.loss)
    return StoredModel(model, partitions)


def _read_quantizer(compression: str, storage: FileReader, dimension: int, *, path: str) -> Quantizer:
    outer = _parsed(storage.metadata, STORAGE_KEY, path=path)
    try:
        details: dict[str, Any] = json.loads(outer[0])
        if quantizer_dimension(details) != dimension:
            raise Corrupt(
                f"its codes have {details} and its centroids {dimension} dimensions", path=path, field=STORAGE_KEY
            )
        if compression == "SQ":
            return Quantizer("SQ", 8, start=float(details["bounds"]["start"]), end=float(details["bounds"]["end"]))
        if compression == "FLAT":
            return Quantizer("FLAT")
        bits, sub_vectors = int(details["nbits"]), int(details["num_sub_vectors"])
        is_transposed, position = bool(details["transposed"]), int(details["codebook_position"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Corrupt("the description of its codes is incomplete", path=path, field=STORAGE_KEY) from error
    if bits not in (4, 8) or sub_vectors < 1 or dimension % sub_vectors or sub_vectors * bits % 8:
        raise Corrupt(
            f"{sub_vectors} codes of {bits} bits do not fit {dimension} dimensions", path=path, field=STORAGE_KEY
        )
    codebook = decode_tensor(storage.read_buffer(position), path=path, field="codebook").astype(np.float32)
    if codebook.size != dimension << bits:
        raise Corrupt(f"its codebook has {codebook.size:,} numbers", path=path, field="codebook")
    shaped = codebook.reshape(sub_vectors, 1 << bits, dimension // sub_vectors)
    return Quantizer("PQ", bits, sub_vectors, shaped, is_transposed=is_transposed)


def quantizer_dimension(details: Mapping[str, Any]) -> int:
    return int(details["dimension"] if "dimension" in details else details["dim"])


def _partitions(file: FileReader, *, path: str) -> IvfPartitions:
    try:
        number = int(file.metadata[IVF_KEY])
    except (KeyError, ValueError) as error:
        raise Corrupt("it does not say where its partitions are", path=path, field=IVF_KEY) from error
    return IvfPartitions.decode(file.read_buffer(number), path=path)


def _parsed(metadata: Mapping[str, str], key: str, *, path: str) -> Any:
    try:
        return json.loads(metadata[key])
    except (KeyError, ValueError) as error:
        raise Corrupt(f"it has no valid {key!r}", path=path, field=key) from error
