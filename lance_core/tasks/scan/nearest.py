"""Nearest join: workers find the nearest rows of a table for each row of a partition of another frame.

    driver    plan_nearest_join(base, request, left, ...) -> NearestJoin    checks the arguments, pins the version
    workers   NearestJoin(batches)                                          rows of the frame with their nearest rows

A worker opens the pinned version once and searches for the queries of many batches at a time: with the vector index, or
by exact matrix products where these take no longer (`search_cost.py`). Partitions of the index stay in memory for the
next batches, within the limit of the process.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.datafiles.conform import Conversion, conform
from lance_core.errors import InvalidInput
from lance_core.expressions.pair_condition import PairCondition, names_left
from lance_core.format.ids import Version
from lance_core.index.vector.plan import SearchRequest
from lance_core.index.vector.search import VectorLookup, check_request, search
from lance_core.scan.column_resolution import check_condition, filterable_schema
from lance_core.scan.pair_filter import PairFilter
from lance_core.scan.plan import plan_scan
from lance_core.scan.vector_search import DISTANCE, QUERY, has_multivectors, result_columns, vector_type
from lance_core.storage.lru_cache import LruCache
from lance_core.tasks.partitioning import VersionHeader
from lance_core.tasks.scan.search_cost import SearchCost
from lance_core.versions.snapshot import Snapshot, load_at

GROUP_QUERIES_MAX = 4096
GROUP_BYTES_MAX = 64 << 20
"""Rows and bytes of the frame for which a worker searches at a time."""
_VERSIONS_OPEN_MAX = 2
_open_versions: "LruCache[tuple[object, ...], Snapshot]" = LruCache(_VERSIONS_OPEN_MAX)


@dataclass(frozen=True, slots=True)
class NearestJoin:
    """Runs in a worker: batches of the frame in, their rows with the nearest rows of the table out."""

    header: VersionHeader
    request: SearchRequest
    vector: str
    """Column of the frame that has the query vectors."""
    keeps_all: bool
    """True if rows without a nearest row are returned too, with nulls."""
    right: pa.Schema
    """Columns of the table in the result, in types that the receiver can hold."""
    condition: PairCondition | None = None
    """Condition that reads columns of the frame."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        base: Snapshot | None = None
        for group in _groups(batches, self.vector):
            if base is None:
                self.header.stamp.check()
                base = open_version(self.header)
            yield from self._join(base, group)

    def _join(self, base: Snapshot, left: pa.Table) -> Iterator[pa.RecordBatch]:
        column = left.column(self.vector).combine_chunks()
        is_multivector = has_multivectors(base.manifest, self.request.column)
        valid_rows = np.flatnonzero(_has_query(column))
        asked = column.take(pa.array(valid_rows))
        queries = query_matrices(asked, self.vector) if is_multivector else query_matrix(asked, self.vector)
        matches = pa.Table.from_batches([], pa.schema([]))
        rows = np.empty(0, dtype=np.int64)
        if len(valid_rows):
            if self.condition is None:
                vectors = sum(map(len, queries)) if is_multivector else None
                cost = SearchCost.of(base, self.request, len(valid_rows), vectors)
                request = replace(self.request, exact=self.request.exact or cost.exact_is_cheaper)
                matches = search(base, queries, request)
            else:
                pair_filter = PairFilter.of(self.condition, left.take(pa.array(valid_rows)))
                matches = search(base, queries, replace(self.request, exact=True), pair_filter)
            rows = valid_rows[matches.column(QUERY).to_numpy()]
        if self.keeps_all:
            missing = np.setdiff1d(np.arange(left.num_rows), rows)
            order = np.argsort(np.concatenate([rows, missing]), kind="stable")
            match_indices = pa.array(np.concatenate([np.arange(len(rows)), np.full(len(missing), -1)])[order])
            match_indices = pc.if_else(pc.less(match_indices, 0), None, match_indices)
            rows = np.concatenate([rows, missing])[order]
        else:
            match_indices = pa.array(np.arange(len(rows)))
        if not len(rows):
            return
        right = self._right_columns(matches, match_indices)
        step = _rows_at_a_time(left, right)
        for start in range(0, len(rows), step):
            left_rows = left.take(pa.array(rows[start : start + step]))
            nearest = right.slice(start, step)
            names = [*left_rows.column_names, *nearest.column_names]
            yield from pa.table([*left_rows.columns, *nearest.columns], names=names).combine_chunks().to_batches()

    def _right_columns(self, matches: pa.Table, match_indices: pa.Array) -> pa.Table:
        """Return the rows of the table in the types of the result."""
        if not matches.num_columns:
            return pa.table([pa.nulls(len(match_indices), field.type) for field in self.right], schema=self.right)
        batches = matches.select(self.right.names).combine_chunks().to_batches()
        conformed = [conform(each, self.right, conversion=Conversion.OUTWARD, what=self.header.uri) for each in batches]
        return pa.Table.from_batches(conformed, self.right).take(match_indices)


def plan_nearest_join(
    base: Snapshot, request: SearchRequest, left: Sequence[str], vector: str, *, keeps_all: bool
) -> tuple[SearchRequest, pa.Schema]:
    """Check the arguments, and return the request with the columns to read and their stored schema."""
    uri = base.location.uri
    if vector not in left:
        raise InvalidInput(f"vector={vector!r} is not a column of the frame, which has {', '.join(left)}")
    request = check_request(request)
    vector_type(base.manifest, request.column)
    if request.filter is not None:
        plan_scan(base.manifest, columns=(), filter=request.filter)
    names = [name for name in result_columns(base.manifest, request.columns, is_batch=True) if name != QUERY]
    if common := [name for name in names if name in left]:
        raise InvalidInput(
            f"{uri}: both sides have a column {common[0]!r}; rename that of the frame, or choose columns= of the table"
        )
    fields = [pa.field(DISTANCE, pa.float32()) if name == DISTANCE else _result_field(base, name) for name in names]
    if keeps_all:
        fields = [field.with_nullable(True) for field in fields]
    VectorLookup.of(base).plan(request)
    return replace(request, columns=names), pa.schema(fields)


def has_lists_of_vectors(base: Snapshot, column: str) -> bool:
    """Return whether the values of a column of vectors are lists of them."""
    return has_multivectors(base.manifest, column)


def _result_field(base: Snapshot, name: str) -> pa.Field:
    (column,) = plan_scan(base.manifest, columns=[name]).output
    return column.arrow if column.is_stored else column.arrow.with_type(pa.int64())


def add_condition(
    base: Snapshot, request: SearchRequest, condition: str, left: pa.Schema
) -> tuple[SearchRequest, PairCondition | None]:
    """Return a request with a condition over both sides, `left.x` and `right.y`. A condition that reads the table
    alone becomes a part of the filter; the condition is returned if it reads the frame."""
    schema = filterable_schema(base.manifest)
    parsed = PairCondition.parse(condition, left, schema)
    check_condition(base.manifest, parsed.right.names, what="condition=")
    if (of_right := parsed.right_filter(schema)) is None:
        return request, parsed
    parts = [each.rstrip().removesuffix(";") for each in (request.filter, of_right) if each is not None]
    return replace(request, filter=" AND ".join(f"({each}\n)" for each in parts) if parts[1:] else of_right), None


def explain_nearest_join(base: Snapshot, request: SearchRequest, queries: int, condition: str | None = None) -> str:
    """Return the plan of the search in a worker, with its estimated cost for a number of queries."""
    request = check_request(request)
    if condition is not None and not names_left(condition):
        request, parsed = add_condition(base, request, condition, pa.schema([]))
        condition = None if parsed is None else condition
    return SearchCost.of(base, request, queries, condition=condition).describe()


def is_list(arrow: pa.DataType) -> bool:
    """Return whether the values of a type are lists of any kind."""
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(arrow) for is_kind in kinds)


def query_matrices(column: pa.Array, name: str) -> list[np.ndarray]:
    """Return the vectors of each query as rows of a matrix. A query, which is not null, has one vector or a list of
    them."""
    if not is_list(column.type.value_type):
        return [vector[None, :] for vector in query_matrix(column, name)]
    vectors = column.flatten()
    if vectors.null_count:
        raise InvalidInput(f"a list of column {name!r} has a null instead of a vector; remove the nulls")
    matrix = query_matrix(vectors, name)
    return np.split(matrix, np.cumsum(_list_lengths(column))[:-1]) if len(column) else []


def _has_query(column: pa.Array) -> np.ndarray:
    """Return which values of a column have a vector: those that are neither null nor an empty list of vectors."""
    has_query = np.asarray(column.is_valid())
    if is_list(column.type.value_type):
        has_query = has_query & np.asarray(pc.fill_null(pc.greater(pc.list_value_length(column), 0), False))
    return has_query


def _list_lengths(column: pa.Array) -> np.ndarray:
    return np.asarray(pc.list_value_length(column), dtype=np.int64)


def query_matrix(column: pa.Array, name: str) -> np.ndarray:
    """Return query vectors, which are lists without nulls, as rows."""
    if is_list(column.type.value_type):
        raise InvalidInput(
            f"column {name!r} has lists of vectors, but a value of the column of the table is one vector; give each "
            "row one vector"
        )
    sizes = _list_lengths(column)
    if len(sizes) and (sizes != sizes[0]).any():
        different = int(sizes[sizes != sizes[0]][0])
        raise InvalidInput(f"the vectors of column {name!r} have different lengths, such as {sizes[0]} and {different}")
    values = column.flatten()
    if values.null_count:
        raise InvalidInput(f"a vector of column {name!r} has a null element; give each element a number")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(column), int(sizes[0]) if len(sizes) else 0)


def _rows_at_a_time(left: pa.Table, right: pa.Table) -> int:
    """Return the number of result rows that take about `GROUP_BYTES_MAX`. A row of the frame is repeated `k` times."""
    row_bytes = left.nbytes / max(1, left.num_rows) + right.nbytes / max(1, right.num_rows)
    return max(1, int(GROUP_BYTES_MAX / max(1, row_bytes)))


def open_version(header: VersionHeader) -> Snapshot:
    """Return the pinned version of a plan, which a worker opens once."""
    # Another table may have been created at the location since, with the same numbers of versions.
    options = tuple(sorted(header.storage_options.items()))
    identity = (header.uri, header.path, header.manifest_header)
    key = (*identity, header.bases, header.verify, header.trusted, header.durable, options)
    return _open_versions.get_or_create(key, lambda: load_at(header.location(), Version(header.version)))


def _groups(batches: Iterable[pa.RecordBatch], vector: str) -> Iterator[pa.Table]:
    """Yield the rows of several batches at a time, with about `GROUP_QUERIES_MAX` vectors at most."""
    buffered: list[pa.RecordBatch] = []
    vectors = size = 0
    for batch in batches:
        step = max(1, GROUP_QUERIES_MAX * batch.num_rows // max(1, _count_vectors(batch, vector)))
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            count = _count_vectors(part, vector)
            if buffered and (vectors + count > GROUP_QUERIES_MAX or size + part.nbytes > GROUP_BYTES_MAX):
                yield pa.Table.from_batches(buffered)
                buffered, vectors, size = [], 0, 0
            buffered.append(part)
            vectors += count
            size += part.nbytes
    if buffered:
        yield pa.Table.from_batches(buffered)


def _count_vectors(batch: pa.RecordBatch, vector: str) -> int:
    """Return the number of query vectors, in which a row without a vector counts as one."""
    column = batch.column(vector)
    if not is_list(column.type.value_type):
        return int(batch.num_rows)
    return int(np.maximum(1, np.asarray(pc.fill_null(pc.list_value_length(column), 0))).sum())


__all__ = ["NearestJoin", "SearchRequest", "explain_nearest_join", "open_version", "plan_nearest_join"]
