"""Open vector segment: ranks its partitions by their distance from a query, loads those that a search needs, and
returns the nearest of their rows.

Rows are numbered by their place in the storage file (`ordinals`). Loaded partitions of all segments of the process
share one cache. An open segment does not depend on a version: `view.py` translates ordinals to rows of a version.
"""

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.coordination.lru_cache import LruCache
from lance_core.datafiles.codec import FileReader
from lance_core.errors import Corrupt
from lance_core.format.row_sets import Ids
from lance_core.index.index_type import Leaf, MatchedRows, Segment
from lance_core.index.segment_files import read_row_range
from lance_core.index.vector.kernels import Kernel, faiss
from lance_core.index.vector.model import INDEX_FILE, ROW_NUMBER, STORAGE_FILE, Vectors, read_model
from lance_core.scan.vector_search import Floats

PARTITION_CACHE_BYTES_MAX = 1 << 30
_GAP_ROWS_MAX = 4096
"""Reading this number of rows in between takes less time than another read."""

_DISTANCE_MAX = 1e36
"""Distance from a centroid up to which the distances from its rows do not overflow float32."""

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_segment_numbers = itertools.count()


class LoadedPartitions:
    """Partitions of one segment in memory. Loading adds partitions; a search uses one object until it ends."""

    def __init__(self, kernel: Kernel, partitions: int, rows: int) -> None:
        self.index: Any = kernel.new_index()
        self.is_loaded: Mask = np.zeros(partitions, dtype=np.bool_)
        self.row_numbers: Ids = np.empty(rows, dtype=np.uint64)
        """Row number of each ordinal; undefined for partitions that are not loaded."""
        self.rows = 0

    @property
    def size(self) -> int:
        return 16 * len(self.row_numbers) + self.rows * (int(self.index.code_size) + 16)


PARTITION_CACHE: "LruCache[int, LoadedPartitions]" = LruCache(PARTITION_CACHE_BYTES_MAX)


class VectorSegment:
    """Open segment of a vector index."""

    def __init__(self, index: FileReader, storage: FileReader, *, path: str) -> None:
        stored = read_model(index, storage, path=path)
        self.model = stored.model
        self.offsets, self.lengths = stored.partitions.offsets, stored.partitions.lengths
        self._storage = storage
        self._path = f"{path}/{STORAGE_FILE}"
        self._number = next(_segment_numbers)
        self._lock = threading.Lock()
        self.kernel = Kernel(self.model)
        self._coarse = self.kernel.coarse_index()

    @classmethod
    def open(cls, segment: Segment, column: pa.Field) -> "VectorSegment":
        path = segment.metadata.qualified_path
        opened = cls(segment.files.open(INDEX_FILE), segment.files.open(STORAGE_FILE), path=path)
        if opened.model.dimension != column.type.list_size:
            raise Corrupt(
                f"its vectors have {opened.model.dimension} dimensions, those of the column {column.type.list_size}",
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

    def rank_partitions(self, coarse: Vectors) -> tuple[Vectors, Ints] | None:
        """Return the distances and numbers of all partitions that have rows for each query, nearest first; `None` if
        a distance is too large for float32."""
        distances, numbers = self._coarse.search(coarse, len(self.lengths))
        if not (np.abs(distances) < _DISTANCE_MAX).all():
            return None
        occupied = self.lengths[numbers] > 0
        count = int((self.lengths > 0).sum())
        return distances[occupied].reshape(len(coarse), count), numbers[occupied].reshape(len(coarse), count)

    def load(self, partitions: Ints) -> LoadedPartitions:
        """Return the loaded partitions, among them at least these."""
        loaded = PARTITION_CACHE.get(self._number)
        if loaded is not None and loaded.is_loaded[partitions].all():
            return loaded
        with self._lock:
            loaded = PARTITION_CACHE.get(self._number)
            if loaded is None:
                loaded = LoadedPartitions(self.kernel, len(self.lengths), self.row_count)
            missing = partitions[~loaded.is_loaded[partitions]]
            for first, last in self._runs(np.unique(missing).tolist()):
                self._load_run(loaded, first, last)
            PARTITION_CACHE.put(self._number, loaded, loaded.size)
        return loaded

    def nearest(
        self, loaded: LoadedPartitions, coarse: Vectors, probes: tuple[Vectors, Ints], k: int, allowed: Any
    ) -> tuple[Floats, Ints]:
        """Return the distances and ordinals of the nearest `k` rows of the probed partitions for each query; an
        ordinal is -1 where there are fewer. `allowed` is a bitmap of ordinals as bytes, or `None` for all."""
        library = faiss()
        distances, numbers = probes
        parameters = library.SearchParametersIVF(nprobe=numbers.shape[1])
        if allowed is not None:
            parameters.sel = library.IDSelectorBitmap(allowed)
        # `swig_ptr` holds no reference, so each array has a name until the call has returned.
        queries = np.ascontiguousarray(self.kernel.code_queries(coarse))
        probed, centroid_distances = np.ascontiguousarray(numbers), np.ascontiguousarray(distances)
        raw = np.empty((len(queries), k), dtype=np.float32)
        ordinals = np.empty((len(queries), k), dtype=np.int64)
        loaded.index.search_preassigned_c(  # its Python form takes no parameters
            len(queries),
            library.swig_ptr(queries),
            k,
            library.swig_ptr(probed),
            library.swig_ptr(centroid_distances),
            library.swig_ptr(raw),
            library.swig_ptr(ordinals),
            False,
            parameters,
        )
        return self.kernel.distances(raw, coarse), ordinals

    def _runs(self, partitions: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield ranges of partitions that are read together."""
        start = previous = -1
        for number in partitions:
            if start >= 0 and self.offsets[number] - self.offsets[previous] - self.lengths[previous] <= _GAP_ROWS_MAX:
                previous = number
                continue
            if start >= 0:
                yield start, previous
            start = previous = number
        if start >= 0:
            yield start, previous

    def _load_run(self, loaded: LoadedPartitions, first: int, last: int) -> None:
        begin, end = int(self.offsets[first]), int(self.offsets[last] + self.lengths[last])
        if begin == end:
            loaded.is_loaded[first : last + 1] = True
            return
        row_numbers, codes = read_codes(self._storage, self.model.quantizer.column, begin, end - begin, path=self._path)
        loaded.row_numbers[begin:end] = row_numbers
        library = faiss()
        for number in range(first, last + 1):
            count, offset = int(self.lengths[number]), int(self.offsets[number])
            if count and not loaded.is_loaded[number]:
                part = np.ascontiguousarray(self.kernel.stored_codes(codes[offset - begin : offset - begin + count]))
                ordinals = np.arange(offset, offset + count, dtype=np.int64)
                loaded.index.invlists.add_entries(number, count, library.swig_ptr(ordinals), library.swig_ptr(part))
                loaded.rows += count
            loaded.is_loaded[number] = True


def read_codes(
    storage: FileReader, column: str, start: int, count: int, *, path: str
) -> tuple[Ids, npt.NDArray[np.generic]]:
    """Return the row numbers and the codes of a range of rows; codes have a row for each vector."""
    table = read_row_range(storage, [ROW_NUMBER, column], start, count).combine_chunks()
    rows, codes = table[ROW_NUMBER].combine_chunks(), table[column].combine_chunks()
    if isinstance(rows, pa.ChunkedArray) or table.num_rows != count or rows.null_count or codes.null_count:
        raise Corrupt("rows or codes are missing", path=path, field=column)
    values = codes.flatten()
    if values.null_count or len(values) != count * codes.type.list_size:
        raise Corrupt("codes are incomplete", path=path, field=column)
    return rows.to_numpy(), values.to_numpy(zero_copy_only=False).reshape(count, codes.type.list_size)
