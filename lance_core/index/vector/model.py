"""Model of a vector segment: what training produced (centroids, codebook, bounds), read from its files.

index.idx       centroids of the partitions, and the graph of an index that has one
auxiliary.idx   row number and code of each vector, partition after partition, and the codebook
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.codec import FileReader
from lance_core.datafiles.file_checks import LEGACY_FOOTER
from lance_core.errors import Corrupt, Unsupported
from lance_core.format.row_sets import Ids
from lance_core.format.vector_index import IvfPartitions, decode_tensor
from lance_core.index.segment_files import SegmentSource
from lance_core.index.vector.quantizers import FlatCodes, ProductCodes, Quantizer, ScalarCodes, Vectors
from lance_core.index.vector.rabit import BITS_MAX, RabitCodes
from lance_core.index.vector.rotation import ROUNDS, Rotation
from lance_core.scan.vector_search import Metric

INDEX_FILE, STORAGE_FILE = "index.idx", "auxiliary.idx"
ROW_NUMBER = "_rowid"
IVF_KEY, INDEX_KEY, STORAGE_KEY = "lance:ivf", "lance:index", "storage_metadata"
METRIC_KEY, FLAT_KEY = "distance_type", "lance:flat"
LEFT_OUT_KEY = "lance_assets.left_out"
"""Metadata with the number of the buffer of the row numbers that have no code; other readers ignore it."""
ROW_NUMBERS = np.dtype("<u8")

GRAPH_LINKS, GRAPH_CANDIDATES = 20, 150
"""Links of a row in a graph, and candidates from which they are chosen, unless the caller chooses, as in pylance."""
_COMPRESSIONS = ("FLAT", "PQ", "SQ", "RQ")


@dataclass(frozen=True, slots=True)
class Model:
    """Everything that training produced."""

    kind: str
    metric: Metric
    centroids: npt.NDArray[np.generic]
    """Centroids in the number type of the file: that of the vectors."""
    quantizer: Quantizer
    loss: float | None = None
    """Sum of the distances between the training vectors and their centroids."""
    mean_loss: float | None = None
    """Mean loss of the training vectors; `None` if it is not recorded."""
    trained_rows: int | None = None
    """Rows of the table when the model was trained; `None` if it is not recorded."""
    m: int = GRAPH_LINKS
    """Links of a row in the graph of its partition, for a kind with graphs; twice as many at the lowest level."""
    ef_construction: int = GRAPH_CANDIDATES
    """Candidates from which the links of a row are chosen."""

    @property
    def has_graphs(self) -> bool:
        return "HNSW" in self.kind

    @property
    def compares_products(self) -> bool:
        """True if products of vectors are compared, false if differences are."""
        return self.metric is Metric.DOT or (self.metric is Metric.COSINE and isinstance(self.quantizer, FlatCodes))

    @property
    def dimension(self) -> int:
        return int(self.centroids.shape[1])

    @property
    def float_centroids(self) -> Vectors:
        """Centroids as vectors are compared with them: bits for hamming."""
        stored = self.centroids
        if self.metric is Metric.HAMMING:
            stored = np.unpackbits(stored.astype(np.uint8), axis=1)
        return np.ascontiguousarray(stored, dtype=np.float32)

    def has_same_parameters(self, other: "Model") -> bool:
        """Return whether codes of one model are codes of the other."""
        return (
            self.metric is other.metric
            and np.array_equal(self.centroids, other.centroids)
            and self.quantizer.has_same_parameters(other.quantizer)
        )


@dataclass(frozen=True, slots=True)
class StoredModel:
    """Model of a segment with the rows of each partition in its storage file."""

    model: Model
    partitions: IvfPartitions
    code_columns: tuple[str, ...]
    """Columns of the codes in the storage file."""
    graph_partitions: IvfPartitions
    """Rows of the graph of each partition in the index file; none without graphs."""
    left_out: Ids
    """Rows that have no code, since their vectors are infinite or too long, and that a search compares exactly."""


def open_segment_files(
    files: SegmentSource, *, path: str, columns: Sequence[str] = ()
) -> tuple[FileReader, FileReader]:
    """Open the two files of a segment, with these columns of the index file. Raise `Unsupported` for the single file
    that pylance wrote before 0.24, and later on request."""
    try:
        return files.open(INDEX_FILE, columns), files.open(STORAGE_FILE)
    except Corrupt as error:
        if error.field != LEGACY_FOOTER:
            raise
        raise Unsupported(
            f"{path}: it is one file in the legacy layout of pylance, which cannot be read; build the index again"
        ) from error


def read_model(index: FileReader, storage: FileReader, *, path: str) -> StoredModel:
    """Read the model of a segment and check that its two files agree."""
    metadata, stored = index.metadata, storage.metadata
    described = _parsed(metadata, INDEX_KEY, path=f"{path}/{INDEX_FILE}")
    kind, metric_name = str(described.get("type")), str(described.get("distance_type")).lower()
    centroids = _partitions(index, path=f"{path}/{INDEX_FILE}")
    partitions = _partitions(storage, path=f"{path}/{STORAGE_FILE}")
    compression = kind.rpartition("_")[2]
    if compression not in _COMPRESSIONS:
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
    dimension, metric = centroids.centroids.shape[1], Metric(metric_name)
    quantizer = _read_quantizer(compression, metric, storage, dimension, path=f"{path}/{STORAGE_FILE}")
    model = Model(kind, metric, centroids.centroids, quantizer, centroids.loss)
    columns = _code_columns(quantizer, dimension)
    check_has_columns(storage, (ROW_NUMBER, *columns), path=f"{path}/{STORAGE_FILE}")
    return StoredModel(model, partitions, columns, centroids, _left_out(storage, path=f"{path}/{STORAGE_FILE}"))


def check_has_columns(file: FileReader, names: Sequence[str], *, path: str) -> None:
    """Raise `Corrupt` unless a file has these columns."""
    for name in names:
        if name not in file.schema.names:
            raise Corrupt(f"it has no column {name!r}", path=path, field=name)


def read_partitions_of_piece(storage: FileReader, model: Model, *, path: str) -> StoredModel:
    """Return the model with the partitions of a piece, which was encoded under the model and has no index file."""
    partitions = _partitions(storage, path=f"{path}/{STORAGE_FILE}")
    if len(partitions.lengths) != len(model.centroids) or int(partitions.lengths.sum()) != storage.row_count:
        raise Corrupt("it is not a piece of this model", path=f"{path}/{STORAGE_FILE}", field=IVF_KEY)
    left_out = _left_out(storage, path=f"{path}/{STORAGE_FILE}")
    return StoredModel(model, partitions, _code_columns(model.quantizer, model.dimension), partitions, left_out)


def _left_out(storage: FileReader, *, path: str) -> Ids:
    number = storage.metadata.get(LEFT_OUT_KEY)
    if number is None:
        return np.empty(0, dtype=np.uint64)
    try:
        return np.frombuffer(storage.read_buffer(int(number)), dtype=ROW_NUMBERS).astype(np.uint64)
    except ValueError as error:
        raise Corrupt("its list of rows without codes is damaged", path=path, field=LEFT_OUT_KEY) from error


def _code_columns(quantizer: Quantizer, dimension: int) -> tuple[str, ...]:
    return tuple(each.name for each in quantizer.columns(dimension, pa.null()))


def _read_quantizer(compression: str, metric: Metric, storage: FileReader, dimension: int, *, path: str) -> Quantizer:
    outer = _parsed(storage.metadata, STORAGE_KEY, path=path)
    try:
        details: dict[str, Any] = json.loads(outer[0])
        if compression == "RQ" and (estimator := details.get("query_estimator", "residual_query")) != "raw_query":
            raise Unsupported(
                f"{path}: RaBitQ codes with the estimator {estimator!r}, of pylance before 8, cannot be read; build "
                "the index again"
            )
        if quantizer_dimension(details) != dimension:
            raise Corrupt(
                f"its codes have {details} and its centroids {dimension} dimensions", path=path, field=STORAGE_KEY
            )
        if compression == "SQ":
            return ScalarCodes(float(details["bounds"]["start"]), float(details["bounds"]["end"]))
        if compression == "RQ":
            return _read_rabit_codes(details, metric, storage, dimension, path=path)
        if compression == "FLAT":
            return FlatCodes(is_nullable=metric is Metric.HAMMING)
        return _read_product_codes(details, metric, storage, dimension, path=path)
    except (KeyError, IndexError, TypeError, ValueError, StopIteration) as error:
        raise Corrupt("the description of its codes is incomplete", path=path, field=STORAGE_KEY) from error


def _read_product_codes(
    details: Mapping[str, Any], metric: Metric, storage: FileReader, dimension: int, *, path: str
) -> Quantizer:
    sub_vectors, is_transposed = int(details["num_sub_vectors"]), bool(details["transposed"])
    bits = int(details["nbits"] if "nbits" in details else details["num_bits"])  # its name before pylance 0.27
    position, inline = int(details["codebook_position"]), bytes(list(details.get("codebook_tensor", ())))
    if bits not in (4, 8) or sub_vectors < 1 or dimension % sub_vectors or sub_vectors * bits % 8:
        raise Corrupt(
            f"{sub_vectors} codes of {bits} bits do not fit {dimension} dimensions", path=path, field=STORAGE_KEY
        )
    encoded = inline or storage.read_buffer(position)  # pylance before 0.33 stores it in the description
    codebook = decode_tensor(encoded, path=path, field="codebook").astype(np.float32)
    if codebook.size != dimension << bits:
        raise Corrupt(f"its codebook has {codebook.size:,} numbers", path=path, field="codebook")
    shaped = codebook.reshape(sub_vectors, 1 << bits, dimension // sub_vectors)
    return ProductCodes(bits, shaped, is_residual=metric is not Metric.DOT, is_transposed=is_transposed)


def _read_rabit_codes(
    details: Mapping[str, Any], metric: Metric, storage: FileReader, dimension: int, *, path: str
) -> Quantizer:
    bits = int(details["num_bits"])
    if not 1 <= bits <= BITS_MAX or dimension % 8:
        raise Corrupt(f"it has codes of {bits} bits and {dimension} dimensions", path=path, field=STORAGE_KEY)
    is_dot, is_packed = metric is Metric.DOT, bool(details["packed"])
    if details.get("rotation_type", "matrix") == "matrix":
        buffer = storage.read_buffer(int(details["rotate_mat_position"]))
        matrix = decode_tensor(buffer, path=path, field="rotation").astype(np.float32)
        if matrix.shape != (dimension, dimension):
            raise Corrupt(f"its rotation has the shape {matrix.shape}", path=path, field="rotation")
        rotation = Rotation(dimension, stored_matrix=np.ascontiguousarray(matrix.T))
    else:
        signs = np.array(details["fast_rotation_signs"], dtype=np.int64)
        if len(signs) != ROUNDS * (dimension // 8) or not ((signs >= 0) & (signs < 256)).all():
            raise Corrupt(f"it has {len(signs)} bytes of signs", path=path, field="fast_rotation_signs")
        rotation = Rotation(dimension, signs.astype(np.uint8))
    codes = RabitCodes(bits, rotation, is_dot, is_packed)
    names = {each.name for each in codes.columns(dimension, pa.null())}
    if missing := names - set(storage.schema.names):
        raise Unsupported(f"{path}: it has no column {min(missing)!r}; a newer or older release wrote its RaBitQ codes")
    return codes


def quantizer_dimension(details: Mapping[str, Any]) -> int:
    return int(next(details[name] for name in ("dimension", "dim", "code_dim") if name in details))


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
