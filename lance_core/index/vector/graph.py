"""Graphs of vector indices (IVF_HNSW_*): one navigable graph for each partition, its rows in the index file, and its
exchange with faiss.

A graph has levels. Level 0 lists all rows of the partition, each with up to `2 * m` neighbours, and each higher level
some rows of the level below, with up to `m` neighbours. Rows are numbered by their place in the partition.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.codec import FileReader
from lance_core.errors import Corrupt
from lance_core.index.segment_files import read_row_range
from lance_core.index.vector.faiss_library import faiss, one_thread
from lance_core.index.vector.model import INDEX_FILE, Model, StoredModel, check_has_columns
from lance_core.index.vector.quantizers import Codes, FlatCodes, Ints, ProductCodes, ScalarCodes, Vectors
from lance_core.scan.vector_search import Metric

GRAPH_KEY = "lance:hnsw"
LEVELS_MAX = 7
GRAPH_SCHEMA = pa.schema(
    [
        pa.field("__vector_id", pa.uint32()),
        pa.field("__neighbors", pa.list_(pa.field("item", pa.uint32()))),
        pa.field("_distance", pa.list_(pa.field("item", pa.float32()))),
    ]
)
LINK_COLUMNS = ("__vector_id", "__neighbors")
"""Columns that searches read."""
_ROWS_PER_BATCH = 16_384
_PREFETCHED_ROWS_MAX = 1 << 18
_ADDED_ROWS = 65_536
"""Rows whose vectors are decoded at a time."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Graph of one partition. The rows of all levels follow each other, and so do their neighbours."""

    ids: Ints
    """Number of the row of the partition, for each row of the graph."""
    neighbor_offsets: Ints
    neighbors: Ints
    distances: Vectors
    level_offsets: tuple[int, ...]
    """First row of the graph of each level, and the number of its rows."""
    entry_point: int
    m: int
    ef_construction: int

    @property
    def row_count(self) -> int:
        """Rows of the partition."""
        return self.level_offsets[1]

    @property
    def widest_m(self) -> int:
        """Links that each row has room for. pylance lists more than `m` for products."""
        counts = np.diff(self.neighbor_offsets)
        return max(self.m, (int(counts[: self.row_count].max()) + 1) // 2, int(counts[self.row_count :].max(initial=0)))

    def describe(self) -> str:
        """Return the description in the metadata of the index file."""
        return _describe(self.entry_point, self.m, self.ef_construction, self.level_offsets)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the graph."""
        offsets = self.neighbor_offsets
        for start in range(0, len(self.ids), _ROWS_PER_BATCH):
            stop = min(start + _ROWS_PER_BATCH, len(self.ids))
            places = pa.array(offsets[start : stop + 1] - offsets[start], pa.int32())
            part = slice(int(offsets[start]), int(offsets[stop]))
            linked, distances = (pa.array(self.neighbors[part], pa.uint32()), pa.array(self.distances[part]))
            _, neighbor_type, distance_type = GRAPH_SCHEMA.types
            columns = [
                pa.array(self.ids[start:stop], pa.uint32()),
                pa.ListArray.from_arrays(places, linked, type=neighbor_type),
                pa.ListArray.from_arrays(places, distances, type=distance_type),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=GRAPH_SCHEMA)


def describe_empty(model: Model) -> str:
    """Return the description of the graph of a partition without rows."""
    return _describe(0, model.m, model.ef_construction, [0] * (LEVELS_MAX + 1))


def _describe(entry_point: int, m: int, ef_construction: int, level_offsets: Sequence[int]) -> str:
    parameters = {"max_level": LEVELS_MAX, "m": m, "ef_construction": ef_construction, "prefetch_distance": 2}
    described = {"entry_point": entry_point, "params": parameters, "level_offsets": list(level_offsets)}
    return json.dumps(described, separators=(",", ":"))  # pylance compares it with its own text when rows move


class StoredGraphs:
    """Graphs in the index file of a segment."""

    def __init__(self, index: FileReader, stored: StoredModel, *, path: str) -> None:
        self._index, self._path = index, f"{path}/{INDEX_FILE}"
        self._partitions, self._lengths = stored.graph_partitions, stored.partitions.lengths
        check_has_columns(index, GRAPH_SCHEMA.names, path=self._path)
        self._prefetched: dict[int, pa.Table] = {}
        try:
            self._described: Sequence[str] = json.loads(index.metadata[GRAPH_KEY])
        except (KeyError, ValueError) as error:
            raise Corrupt("it has no description of its graphs", path=self._path, field=GRAPH_KEY) from error
        if len(self._described) != len(self._lengths):
            raise Corrupt(
                f"it describes {len(self._described)} graphs, and there are {len(self._lengths)} partitions",
                path=self._path,
                field=GRAPH_KEY,
            )

    @property
    def parameters(self) -> tuple[int, int] | None:
        """Links and candidates of the first graph that has rows; `None` if there is none."""
        occupied = np.flatnonzero(self._lengths)
        return self._description(int(occupied[0]))[2:] if len(occupied) else None

    def _description(self, partition: int) -> tuple[tuple[int, ...], int, int, int]:
        """Return the level offsets, the entry point, the links and the candidates of a graph."""
        try:
            described: Mapping[str, Any] = json.loads(self._described[partition])
            parameters = described["params"]
            levels = tuple(int(each) for each in described["level_offsets"])
            return levels, int(described["entry_point"]), int(parameters["m"]), int(parameters["ef_construction"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._corrupt(partition, "its description is incomplete") from error

    def read(self, partition: int, *, with_distances: bool = False) -> Graph:
        """Return the graph of a partition that has rows, checked so that no number lies outside of it."""
        rows, count = int(self._lengths[partition]), int(self._partitions.lengths[partition])
        levels, entry, m, candidates = self._description(partition)
        if len(levels) > 2 and count == levels[-1] + len(levels) - 2:
            levels = _with_entry_points(levels)
        if not 1 <= m <= 1024 or len(levels) < 2 or levels[0] or sorted(levels) != list(levels) or levels[-1] != count:
            raise self._corrupt(partition, "its levels do not fit its rows")
        if levels[1] != rows or not 0 <= entry < rows:
            raise self._corrupt(partition, f"it does not list the {rows:,} rows of the partition")
        names = [*LINK_COLUMNS, *(["_distance"] if with_distances else [])]
        table = self._prefetched.pop(partition, None) if not with_distances else None
        if table is None:
            table = read_row_range(self._index, names, int(self._partitions.offsets[partition]), count).combine_chunks()
        ids, offsets, neighbors = self._numbers(table, partition, rows)
        distances = np.empty(0, dtype=np.float32)
        if with_distances:
            lists = table["_distance"].combine_chunks()
            distances = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
            if len(distances) != len(neighbors):
                raise self._corrupt(partition, "it has another number of distances than of neighbours")
        graph = Graph(ids, offsets, neighbors, distances, levels, entry, m, candidates)
        self._check(graph, partition)
        return graph

    def prefetch(self, partitions: range) -> None:
        """Read the links of neighbouring partitions with one request, if they are few, for the next calls of `read`."""
        self._prefetched = {}
        offsets, counts = self._partitions.offsets, self._partitions.lengths
        start, last = int(offsets[partitions.start]), partitions.stop - 1
        rows = int(offsets[last] + counts[last]) - start
        if len(partitions) < 2 or not 0 < rows <= _PREFETCHED_ROWS_MAX or rows != counts[list(partitions)].sum():
            return
        table = read_row_range(self._index, LINK_COLUMNS, start, rows).combine_chunks()
        for number in partitions:
            if counts[number]:
                self._prefetched[number] = table.slice(int(offsets[number]) - start, int(counts[number]))

    def _numbers(self, table: pa.Table, partition: int, rows: int) -> tuple[Ints, Ints, Ints]:
        ids, lists = table["__vector_id"].combine_chunks(), table["__neighbors"].combine_chunks()
        flat = lists.flatten()
        if ids.null_count or lists.null_count or flat.null_count:
            raise self._corrupt(partition, "it has rows without neighbours")
        numbers = [np.asarray(each.to_numpy(zero_copy_only=False), dtype=np.int64) for each in (ids, flat)]
        offsets = np.asarray(lists.offsets.to_numpy(), dtype=np.int64)
        if any(len(each) and int(each.max()) >= rows for each in numbers):
            raise self._corrupt(partition, f"it names a row beyond the {rows:,} rows of the partition")
        return numbers[0], offsets - offsets[0], numbers[1]

    def _check(self, graph: Graph, partition: int) -> None:
        """Raise unless each level lists its rows in order, and links only them. faiss does not check it."""
        if not np.array_equal(graph.ids[: graph.row_count], np.arange(graph.row_count)):
            raise self._corrupt(partition, "its lowest level does not list the rows in order")
        offsets = graph.neighbor_offsets
        above = np.ones(graph.row_count, dtype=np.bool_)
        for level, (low, high) in enumerate(itertools.pairwise(graph.level_offsets)):
            members, linked = graph.ids[low:high], graph.neighbors[offsets[low] : offsets[high]]
            is_member = np.zeros(graph.row_count, dtype=np.bool_)
            is_member[members] = True
            if (np.diff(members) <= 0).any() or not above[members].all() or not is_member[linked].all():
                raise self._corrupt(partition, f"level {level} does not list its rows in order, or links others")
            above = is_member

    def _corrupt(self, partition: int, problem: str) -> Corrupt:
        return Corrupt(f"the graph of partition {partition}: {problem}", path=self._path, field=GRAPH_KEY)


def _with_entry_points(levels: tuple[int, ...]) -> tuple[int, ...]:
    """Return the level offsets of a graph that pylance wrote before release 11: it did not count the entry point, which
    is a row of each higher level.

    >>> _with_entry_points((0, 245, 256, 256, 256))
    (0, 245, 257, 258, 259)
    """
    return (*levels[:2], *(offset + number for number, offset in enumerate(levels[2:], 1)))


def new_graph_index(model: Model, m: int) -> Any:
    """Return an index of faiss for one partition: a graph, and storage for its codes."""
    library, quantizer = faiss(), model.quantizer
    compares_products = model.compares_products
    metric = library.METRIC_INNER_PRODUCT if compares_products else library.METRIC_L2
    dimension = model.float_centroids.shape[1]
    kinds = library.ScalarQuantizer
    if model.metric is Metric.HAMMING:
        index = library.IndexHNSWSQ(dimension, kinds.QT_8bit_direct, m, metric)
    elif isinstance(quantizer, FlatCodes):
        return library.IndexHNSWFlat(dimension, m, metric)
    elif isinstance(quantizer, ScalarCodes):
        kind = kinds.QT_8bit_uniform if compares_products else kinds.QT_8bit_direct
        index = library.IndexHNSWSQ(dimension, kind, m, metric)
        if compares_products:
            width = quantizer.end - quantizer.start
            bounds = np.array([quantizer.start - width / 510, width], dtype=np.float32)  # faiss decodes to the middle
            library.copy_array_to_vector(bounds, library.downcast_index(index.storage).sq.trained)
    else:
        assert isinstance(quantizer, ProductCodes)
        index = library.IndexHNSWPQ(dimension, quantizer.num_sub_vectors, m, quantizer.num_bits, metric)
        product = library.downcast_index(index.storage).pq
        library.copy_array_to_vector(quantizer.codebook.ravel(), product.centroids)
    index.storage.is_trained = index.is_trained = True
    return index


def _new_build_index(model: Model) -> Any:
    """Return an index of faiss that builds the graph of a partition. For product quantization it stores the decoded
    vectors, since their distances take a tenth of the time of those of codes."""
    if not isinstance(model.quantizer, ProductCodes):
        return new_graph_index(model, model.m)
    library = faiss()
    metric = library.METRIC_INNER_PRODUCT if model.compares_products else library.METRIC_L2
    return library.IndexHNSWFlat(model.dimension, model.m, metric)


def build_graph(model: Model, codes: Codes) -> Graph:
    """Return the graph of the rows of one partition; the codes are in their order, row by row."""
    index = _new_build_index(model)
    index.hnsw.efConstruction = model.ef_construction
    rows = codes[0]
    with one_thread():
        for start in range(0, len(rows), _ADDED_ROWS):
            index.add(graph_vectors(model, rows[start : start + _ADDED_ROWS]))
        return _export(index, model, rows)


def graph_vectors(model: Model, rows: npt.NDArray[np.generic]) -> Vectors:
    """Return the vectors of codes, as the storage of a graph encodes them again."""
    quantizer, values = model.quantizer, rows
    if model.metric is Metric.HAMMING:
        values = np.unpackbits(np.ascontiguousarray(rows, dtype=np.uint8), axis=1)
    elif isinstance(quantizer, ScalarCodes) and model.metric is Metric.DOT:
        values = rows.astype(np.float32) * np.float32(quantizer.scale) + np.float32(quantizer.start)
    elif isinstance(quantizer, ProductCodes):
        return quantizer.decode(np.ascontiguousarray(rows, dtype=np.uint8))
    return np.ascontiguousarray(values, dtype=np.float32)


def fill_graph(index: Any, graph: Graph) -> None:
    """Set the links of an index of faiss to those of a graph. The index has as many codes as the graph has rows."""
    library, hnsw, m = faiss(), index.hnsw, graph.widest_m
    levels = np.ones(graph.row_count, dtype=np.int32)
    for low, high in zip(graph.level_offsets[1:-1], graph.level_offsets[2:], strict=True):
        levels[graph.ids[low:high]] += 1
    offsets = np.concatenate([[0], np.cumsum(2 * m + m * (levels.astype(np.int64) - 1))])
    links = np.full(int(offsets[-1]), -1, dtype=np.int32)
    counts = np.diff(graph.neighbor_offsets)
    level_of = np.repeat(np.arange(len(graph.level_offsets) - 1), np.diff(graph.level_offsets))
    starts = offsets[graph.ids] + np.where(level_of == 0, 0, 2 * m + m * (level_of - 1))
    places = np.repeat(starts - graph.neighbor_offsets[:-1], counts) + np.arange(len(graph.neighbors))
    links[places] = graph.neighbors
    library.copy_array_to_vector(levels, hnsw.levels)
    library.copy_array_to_vector(offsets.astype(np.uint64), hnsw.offsets)
    library.copy_array_to_vector(links, hnsw.neighbors)
    hnsw.entry_point, hnsw.max_level = graph.entry_point, int(levels[graph.entry_point]) - 1
    index.ntotal = graph.row_count


def _export(index: Any, model: Model, rows: npt.NDArray[np.generic]) -> Graph:
    """Return the graph of an index of faiss. Rows above the highest level of Lance are listed at that level."""
    library, hnsw, m = faiss(), index.hnsw, model.m
    levels = np.minimum(library.vector_to_array(hnsw.levels), LEVELS_MAX)
    offsets = library.vector_to_array(hnsw.offsets).astype(np.int64)
    links = library.vector_to_array(hnsw.neighbors)
    ids, linked, level_offsets = [], [], [0]
    for level in range(LEVELS_MAX):
        members = np.flatnonzero(levels > level)
        width, first = (2 * m, 0) if level == 0 else (m, 2 * m + m * (level - 1))
        ids.append(members)
        linked.append(links[(offsets[members] + first)[:, None] + np.arange(width)])
        level_offsets.append(level_offsets[-1] + len(members))
    distances = [_link_distances(model, rows, members, each) for members, each in zip(ids, linked, strict=True)]
    is_link = [each >= 0 for each in linked]
    counts = np.concatenate([each.sum(axis=1) for each in is_link])
    return Graph(
        np.concatenate(ids),
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([each[mask] for each, mask in zip(linked, is_link, strict=True)]).astype(np.int64),
        np.concatenate([each[mask] for each, mask in zip(distances, is_link, strict=True)]),
        tuple(level_offsets),
        int(hnsw.entry_point),
        m,
        model.ef_construction,
    )


def _link_distances(
    model: Model, rows: npt.NDArray[np.generic], members: Ints, links: npt.NDArray[np.int32]
) -> Vectors:
    """Return the distance of each link, between the codes of its rows."""
    library, distances = faiss(), np.zeros(links.shape, dtype=np.float32)
    if not len(members):
        return distances
    vectors = graph_vectors(model, rows)
    compared = np.ascontiguousarray(vectors[members])
    numbers = np.ascontiguousarray(links, dtype=np.int64)
    measure = library.fvec_inner_products_by_idx if model.compares_products else library.fvec_L2sqr_by_idx
    measure(
        library.swig_ptr(distances),
        library.swig_ptr(compared),
        library.swig_ptr(vectors),
        library.swig_ptr(numbers),
        vectors.shape[1],
        len(members),
        links.shape[1],
    )
    if model.compares_products:
        return np.float32(1) - distances
    if isinstance(model.quantizer, ScalarCodes):
        return distances * np.float32(model.quantizer.scale**2)
    return distances
