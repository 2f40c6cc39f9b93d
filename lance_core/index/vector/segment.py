"""Open vector segment: ranks its partitions by their distance from a query, loads those that a search needs, and
returns the nearest of their rows.

Rows are numbered by their place in the storage file (`ordinals`). Loaded partitions of all segments of the process
share one cache. An open segment does not depend on a version: `view.py` translates ordinals to rows of a version.
"""

import itertools
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.codec import FileReader, RowRange
from lance_core.errors import Corrupt
from lance_core.format.row_sets import Ids
from lance_core.format.vector_index import VectorDetails
from lance_core.index.index_type import Leaf, MatchedRows, Segment
from lance_core.index.vector.graph import LINK_COLUMNS, StoredGraphs
from lance_core.index.vector.graph_lists import GRAPH_ROWS_MIN, GraphLists
from lance_core.index.vector.kernels import CodeLists, InvertedLists, PartitionRanker
from lance_core.index.vector.model import STORAGE_FILE, StoredModel, open_segment_files, read_model
from lance_core.index.vector.partitions import read_codes, read_plain_codes
from lance_core.index.vector.quantizers import Codes, Ints, Vectors
from lance_core.index.vector.rabit import RabitCodes
from lance_core.index.vector.rabit_lists import RabitLists
from lance_core.scan.parallel import map_in_order
from lance_core.scan.vector_columns import vector_field
from lance_core.storage.lru_cache import LruCache

PARTITION_CACHE_BYTES_MAX = 1 << 30
_GAP_ROWS_MAX = 4096
"""Reading this number of rows in between takes less time than another read."""

_DISTANCE_MAX = 1e36
"""Distance from a centroid up to which the distances from its rows do not overflow float32."""

Mask = npt.NDArray[np.bool_]
_segment_numbers = itertools.count()


class LoadedPartitions:
    """Partitions of one segment in memory. Loading adds partitions; a search uses one object until it ends."""

    def __init__(self, lists: CodeLists, partitions: int, rows: int) -> None:
        self.lists = lists
        self.is_loaded: Mask = np.zeros(partitions, dtype=np.bool_)
        self.row_numbers: Ids = np.empty(rows, dtype=np.uint64)
        """Row number of each ordinal; undefined for partitions that are not loaded."""

    @property
    def size(self) -> int:
        return 16 * len(self.row_numbers) + self.lists.size


PARTITION_CACHE: "LruCache[int, LoadedPartitions]" = LruCache(PARTITION_CACHE_BYTES_MAX)


class VectorSegment:
    """Open segment of a vector index."""

    def __init__(self, index: FileReader, storage: FileReader, *, path: str) -> None:
        stored = read_model(index, storage, path=path)
        self._graphs = None
        if stored.model.has_graphs and int(stored.partitions.lengths.max(initial=0)) >= GRAPH_ROWS_MIN:
            self._graphs = StoredGraphs(index, stored, path=path)
        self.model = stored.model
        self._columns = _searched_columns(stored)
        self.left_out = stored.left_out
        self.offsets, self.lengths = stored.partitions.offsets, stored.partitions.lengths
        self._storage = storage
        self._path = f"{path}/{STORAGE_FILE}"
        self._number = next(_segment_numbers)
        self._lock = threading.Lock()
        self.ranker = PartitionRanker(self.model)

    @classmethod
    def open(cls, segment: Segment, column: pa.Field) -> "VectorSegment":
        path = segment.metadata.qualified_path
        details = VectorDetails.of(segment.metadata)
        columns = LINK_COLUMNS if details is not None and "HNSW" in details.kind else ()
        opened = cls(*open_segment_files(segment.files, path=path, columns=columns), path=path)
        dimension = vector_field(column).type.list_size
        if opened.model.dimension != dimension:
            raise Corrupt(
                f"its vectors have {opened.model.dimension} dimensions, those of the column {dimension}",
                path=path,
                field="dim",
            )
        return opened

    @property
    def row_count(self) -> int:
        return self._storage.row_count

    def search(self, leaf: Leaf) -> MatchedRows | None:
        """Answer no filter."""
        return None

    def rank_partitions(self, queries: Vectors) -> tuple[Vectors, Ints] | None:
        """Return the distances and numbers of all partitions that have rows for each query, nearest first; `None` if
        a distance is too large for float32."""
        distances, numbers = self.ranker.rank(queries)
        if not (np.abs(distances) < _DISTANCE_MAX).all():
            return None
        occupied = self.lengths[numbers] > 0
        count = int((self.lengths > 0).sum())
        return distances[occupied].reshape(len(queries), count), numbers[occupied].reshape(len(queries), count)

    def load(self, partitions: Ints) -> LoadedPartitions:
        """Return the loaded partitions, among them at least these."""
        loaded = PARTITION_CACHE.get(self._number)
        if loaded is not None and loaded.is_loaded[partitions].all():
            return loaded
        with self._lock:
            loaded = PARTITION_CACHE.get(self._number)
            if loaded is None:
                loaded = LoadedPartitions(self._new_lists(), len(self.lengths), self.row_count)
            missing = partitions[~loaded.is_loaded[partitions]]
            loaded.is_loaded[missing[self.lengths[missing] == 0]] = True
            for run, content in self._read(np.unique(missing).tolist()):
                self._add_run(loaded, run, content)
            PARTITION_CACHE.put(self._number, loaded, loaded.size)
        return loaded

    @property
    def follows_graphs(self) -> bool:
        """True if searches follow graphs, which only partitions of many rows are worth."""
        return self._graphs is not None

    def _new_lists(self) -> CodeLists:
        """Return lists for the codes of the segment, without rows yet."""
        if self._graphs is not None:
            return GraphLists(self.model, self._graphs)
        if isinstance(self.model.quantizer, RabitCodes):
            return RabitLists(self.model, self.row_count)
        return InvertedLists(self.model)

    def _read(self, partitions: Sequence[int]) -> Iterator[tuple[range, tuple[Ids, Codes]]]:
        """Yield ranges of partitions with their row numbers and codes."""
        occupied = [number for number in partitions if self.lengths[number]]
        runs = list(self._runs(occupied, 0))
        content = read_plain_codes(self._storage, self._columns, list(map(self._rows_of, runs)), path=self._path)
        if content is not None:
            yield from zip(runs, content, strict=True)
            return
        runs = list(self._runs(occupied, _GAP_ROWS_MAX))
        yield from zip(runs, map_in_order(self._read_by_codec, runs), strict=True)

    def _read_by_codec(self, run: range) -> tuple[Ids, Codes]:
        rows = self._rows_of(run)
        return read_codes(self._storage, self._columns, rows.start, rows.count, path=self._path)

    def _rows_of(self, run: range) -> RowRange:
        begin, last = int(self.offsets[run.start]), run.stop - 1
        return RowRange(begin, int(self.offsets[last] + self.lengths[last]) - begin)

    def _runs(self, partitions: Sequence[int], gap_rows_max: int) -> Iterator[range]:
        """Yield ranges of partitions that are read together."""
        start = previous = -1
        for number in partitions:
            if start >= 0 and self.offsets[number] - self.offsets[previous] - self.lengths[previous] <= gap_rows_max:
                previous = number
                continue
            if start >= 0:
                yield range(start, previous + 1)
            start = previous = number
        if start >= 0:
            yield range(start, previous + 1)

    def _add_run(self, loaded: LoadedPartitions, run: range, content: tuple[Ids, Codes]) -> None:
        row_numbers, codes = content
        begin = int(self.offsets[run.start])
        loaded.row_numbers[begin : begin + len(row_numbers)] = row_numbers
        if self._graphs is not None:
            self._graphs.prefetch(run)
        for number in run:
            count, offset = int(self.lengths[number]), int(self.offsets[number])
            if count and not loaded.is_loaded[number]:
                rows = slice(offset - begin, offset - begin + count)
                loaded.lists.add(number, offset, tuple(column[rows] for column in codes))
            loaded.is_loaded[number] = True


def _searched_columns(stored: StoredModel) -> tuple[str, ...]:
    """Return the columns of the codes that a search reads."""
    quantizer = stored.model.quantizer
    if not isinstance(quantizer, RabitCodes):
        return stored.code_columns
    return tuple(stored.code_columns[position] for position in quantizer.searched_columns)
