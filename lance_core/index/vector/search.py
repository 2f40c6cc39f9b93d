"""Vector search: the nearest rows of a version, by its vector indices and, where none answers, by exact distances.

    nearest rows of each segment  +  exact scan of fragments that no segment covers  ->  refine  ->  the best `k`

A filter is evaluated first. If few rows pass, their distances are computed exactly; otherwise it becomes a mask inside
the search of each segment (`filter_cost.py` compares the two). A segment is searched in more partitions until it has
`k` rows that pass, so that `k` rows come back whenever as many match. The candidates of a query of several vectors, in
a column of lists of vectors, are the rows near to one of them, and are always refined. Rows at the same distance come
in table order. The fragments of a segment that cannot be read are scanned, and one warning names it. Start with
`search`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core import validation
from lance_core.errors import Corrupt, LanceError, MissingDependency
from lance_core.expressions.engine_batches import is_time_independent
from lance_core.index import build
from lance_core.index.coverage import SegmentCoverage
from lance_core.index.lookup import UNREADABLE_ERRORS, IndexLookup, selector_of, warn_once, warn_unreadable
from lance_core.index.scoped_segments import ScopedSegment
from lance_core.index.table_order import NO_POSITION, TableOrder, read_deleted_positions
from lance_core.index.vector.faiss_library import faiss
from lance_core.index.vector.filter_cost import IndexWork, is_exact_faster, probes_under_filter
from lance_core.index.vector.model import open_segment_files, read_model
from lance_core.index.vector.plan import (
    MULTIVECTOR_CANDIDATES,
    NPROBES,
    SearchPlan,
    SearchRequest,
    explain_plan,
    plan_search,
    recorded_metric,
)
from lance_core.index.vector.quantizers import Ints
from lance_core.index.vector.segment import Mask, VectorSegment
from lance_core.index.vector.view import SegmentView
from lance_core.index.verification import may_list_old_values, missed_fragments
from lance_core.scan.executor import matching_rows
from lance_core.scan.pair_filter import PairFilter
from lance_core.scan.plan import plan_scan
from lance_core.scan.selection import RowSelector
from lance_core.scan.take import By, take, take_vectors
from lance_core.scan.vector_search import (
    Floats,
    Metric,
    NearestRows,
    Values,
    Vector,
    VectorQueries,
    has_multivectors,
    parse_queries,
    plan_nearest,
    read_nearest,
    result_columns,
    scan_nearest,
    vector_type,
)
from lance_core.storage.lru_cache import LruCache
from lance_core.versions.snapshot import Snapshot

_VERSIONS_CACHED_MAX = 8
_FILTER_BYTES_MAX = 32 << 20
"""Bytes of the rows that passed recent filters, for each version: searches of one application repeat their filters."""
_SEGMENTS_CACHED_MAX = 128
_PLANS_CACHED_MAX = 16


def search(base: Snapshot, vector: Vector, request: SearchRequest, pair_filter: PairFilter | None = None) -> pa.Table:
    """Return the rows nearest to a vector, or to each vector of a two-dimensional array, with their distances. A filter
    of pairs of a query and a row needs `exact=True`."""
    request = check_request(request)
    stored = vector_type(base.manifest, request.column)
    select = selector_of(base)
    vectors = VectorLookup.of(base)
    plan = vectors.plan(request)
    is_multivector = has_multivectors(base.manifest, request.column)
    queries = parse_queries(vector, stored, plan.metric, request.column, is_multivector=is_multivector)
    columns = result_columns(base.manifest, request.columns, is_batch=queries.is_batch)
    nearest = _Search(base, vectors, plan, queries, select, pair_filter).run()
    return read_nearest(base.location, base.manifest, nearest, columns, is_batch=queries.is_batch)


def explain_search(base: Snapshot, request: SearchRequest) -> str:
    """Return the plan of a search as text. Nothing is searched."""
    request = check_request(request)
    return "\n".join(explain_plan(base, VectorLookup.of(base).plan(request)))


def check_request(request: SearchRequest) -> SearchRequest:
    """Return the request with plain integers."""
    validation.check_text(request.column, "column")
    validation.check_flag(request.exact, "exact")
    k = validation.check_integer(request.k, "k", at_least=1, too_small="a search returns at least one row")

    def checked(number: int | None, name: str) -> int | None:
        if number is None:
            return None
        return validation.check_integer(number, name, at_least=1, too_small="it counts from 1")

    nprobes, refine, ef = (checked(getattr(request, name), name) for name in ("nprobes", "refine", "ef"))
    return replace(request, k=k, nprobes=nprobes, refine=refine, ef=ef)


class VectorLookup:
    """Vector indices of a version, ready to be searched."""

    def __init__(self, base: Snapshot) -> None:
        self.base = base
        self._views: LruCache[tuple[object, ...], SegmentView] = LruCache(_SEGMENTS_CACHED_MAX)
        self._plans: LruCache[tuple[str, str, bool], SearchPlan] = LruCache(_PLANS_CACHED_MAX)
        self.filters: LruCache[tuple[str, bytes], Mask] = LruCache(_FILTER_BYTES_MAX)
        """Rows that pass the filters of recent searches, by filter and fragments."""

    @classmethod
    def of(cls, base: Snapshot) -> "VectorLookup":
        return _versions.get_or_create(
            id(base.manifest), lambda: cls(base), lambda kept: kept.base.manifest is base.manifest
        )

    @cached_property
    def lookup(self) -> IndexLookup:
        return IndexLookup.of(self.base)

    @cached_property
    def order(self) -> TableOrder:
        return TableOrder(self.base)

    def plan(self, request: SearchRequest) -> SearchPlan:
        """Return the plan of a search. Applications repeat their searches, so a plan that uses an index is cached."""
        key = (request.column, str(request.metric), request.exact)
        if (known := self._plans.get(key)) is not None:
            return replace(known, request=request)
        has_indices = self.base.manifest.index_section is not None
        plan = plan_search(self.base, self.lookup.coverage if has_indices else None, request, self.metric_of)
        if plan.segments:
            self._plans.put(key, plan)
        return plan

    def metric_of(self, segment: SegmentCoverage) -> Metric | None:
        """Return the metric in the index section, or else in the files; `None` if these cannot be read."""
        if (recorded := recorded_metric(segment)) is not None:
            return recorded
        try:
            files = self.lookup.coverage.segment_of(segment.metadata).files
            path = segment.metadata.qualified_path
            return read_model(*open_segment_files(files, path=path), path=path).model.metric
        except UNREADABLE_ERRORS as error:
            warn_unreadable(self.base, segment, error)
            return None

    def view(self, scope: ScopedSegment) -> SegmentView:
        """Return the view of a segment, opened and checked against what the index section records."""
        key = (scope.coverage.metadata.uuid, bytes(scope.fragments.serialize()))
        return self._views.get_or_create(key, lambda: self._create_view(scope))

    def _create_view(self, scope: ScopedSegment) -> SegmentView:
        opened = self._open(scope.coverage)
        recorded = recorded_metric(scope.coverage)
        if recorded is not None and recorded is not opened.model.metric:
            raise Corrupt(
                f"the index section records the metric {recorded.value}, and the files {opened.model.metric.value}",
                path=scope.coverage.metadata.qualified_path,
                field="metric_type",
            )
        row_remap = self.lookup.coverage.row_remap(scope.coverage)
        deleted = read_deleted_positions(self.base, self.order, scope.fragments)
        return SegmentView(opened, row_remap, scope.fragments, self.order, deleted)

    def _open(self, segment: SegmentCoverage) -> VectorSegment:
        metadata, access = segment.metadata, self.base.location.access
        key = (self.base.location.uri, access.verify, access.trusted, metadata.uuid)
        chain = build.chain_of(self.base.manifest.schema, metadata.field_ids[0])
        assert chain is not None
        column = build.arrow_of(self.base.manifest.schema, chain)
        return _segments.get_or_create(
            key, lambda: VectorSegment.open(self.lookup.coverage.segment_of(metadata), column)
        )


_versions: "LruCache[int, VectorLookup]" = LruCache(_VERSIONS_CACHED_MAX)
_segments: "LruCache[tuple[object, ...], VectorSegment]" = LruCache(_SEGMENTS_CACHED_MAX)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Rows that segments found for one query."""

    distances: Floats
    positions: Ints

    @classmethod
    def empty(cls) -> "_Candidates":
        return cls(np.empty(0), np.empty(0, dtype=np.int64))

    @classmethod
    def best_of(cls, parts: "Sequence[_Candidates]", k: int) -> "_Candidates":
        """Return the best `k` of all parts, in order of distance and position, each row once."""
        distances = np.concatenate([part.distances for part in parts])
        positions = np.concatenate([part.positions for part in parts])
        is_row = ~np.isnan(distances) & (positions != NO_POSITION)
        distances, positions = distances[is_row], positions[is_row]
        order = np.lexsort((positions, distances))
        distances, positions = distances[order], positions[order]
        _, first = np.unique(positions, return_index=True)
        if len(first) < len(positions):
            first.sort()
            distances, positions = distances[first], positions[first]
        return cls(distances[:k], positions[:k])


class _Search:
    """One search."""

    def __init__(
        self,
        base: Snapshot,
        vectors: VectorLookup,
        plan: SearchPlan,
        queries: VectorQueries,
        select: RowSelector | None,
        pair_filter: PairFilter | None = None,
    ) -> None:
        assert pair_filter is None or not plan.segments
        self._pair_filter = pair_filter
        self._base, self._vectors, self._plan, self._queries, self._select = base, vectors, plan, queries, select
        self._request = plan.request
        self._scanned = plan.scanned
        self._must_recheck = False

    def run(self) -> list[NearestRows]:
        """Return the nearest rows of each query."""
        if not self._queries.count:
            return []
        if not self._plan.segments:
            return self._scan(None)
        try:
            faiss()
        except MissingDependency as error:
            _warn_missing_library(self._base, self._request.column, error)
            return self._scan(None)
        scopes = list(self._readable_scopes(self._vectors))
        selected = self._selected_rows(self._vectors.order, scopes)
        if selected is not None and self._is_exact_faster(scopes, int(selected.sum())):
            rows = np.flatnonzero(selected)
            found = self._with_exact_distances([_Candidates(np.zeros(len(rows)), rows)] * self._queries.count)
        else:
            found = self._search_segments(scopes, selected)
        return self._merge(self._vectors.order, found)

    def _scan(self, fragments: BitMap | None) -> list[NearestRows]:
        also = self._pair_filter.columns if self._pair_filter is not None else ()
        request = self._request
        plan = plan_nearest(self._base.manifest, request.column, request.filter, self._select, fragments, also)
        return scan_nearest(self._base.location, plan, self._queries, request.k, self._pair_filter)

    def _readable_scopes(self, vectors: VectorLookup) -> Iterator[tuple[ScopedSegment, SegmentView]]:
        """Yield the segments that can be read, without fragments of which they miss rows. The others are scanned."""
        for planned in self._plan.segments:
            scope = planned
            try:
                missed = missed_fragments(self._base, vectors.lookup.coverage, scope.coverage)
                if missed & scope.fragments:
                    self._scanned = self._scanned | (missed & scope.fragments)
                    scope = replace(scope, fragments=scope.fragments - missed)
                self._must_recheck |= may_list_old_values(self._base, scope.coverage)
                yield scope, vectors.view(scope)
            except UNREADABLE_ERRORS as error:
                self._replace_by_scan(scope, error)

    def _replace_by_scan(self, scope: ScopedSegment, error: Exception) -> None:
        warn_unreadable(self._base, scope.coverage, error)
        self._scanned = self._scanned | scope.fragments

    def _selected_rows(self, order: TableOrder, scopes: Sequence[tuple[ScopedSegment, SegmentView]]) -> Mask | None:
        """Return a mask of the positions that pass the filter in the fragments of the segments; `None` without a
        filter."""
        if self._request.filter is None:
            return None
        fragments = BitMap.union(BitMap(), *(scope.fragments for scope, _ in scopes))
        key = (self._request.filter, bytes(fragments.serialize()))
        if (known := self._vectors.filters.get(key)) is not None:
            return known
        plan = plan_scan(self._base.manifest, columns=(), filter=self._request.filter, select=self._select)
        plan = replace(plan, tasks=tuple(task for task in plan.tasks if task.fragment.id in fragments))
        selected = np.zeros(order.row_count, dtype=np.bool_)
        for fragment, offsets in matching_rows(self._base.location, plan):
            selected[order.start_of(fragment.id) + offsets] = True
        if is_time_independent(self._request.filter, self._base.manifest.schema.arrow):
            self._vectors.filters.put(key, selected, selected.nbytes)
        return selected

    def _is_exact_faster(self, scopes: Sequence[tuple[ScopedSegment, SegmentView]], count: int) -> bool:
        """Return whether comparing all vectors that pass the filter takes less time than searching the indices."""
        share = count / max(1, sum(self._rows(scope) for scope, _ in scopes))
        work = IndexWork.empty()
        for scope, view in scopes:
            partitions = len(view.segment.lengths)
            probed = min(partitions, probes_under_filter(self._request.nprobes or NPROBES, share))
            refined = self._request.k * (self._request.refine or 0)
            work = work.plus(self._rows(scope) * probed // max(1, partitions), refined)
        return count <= self._request.k or is_exact_faster(count, work, len(self._queries.vectors))

    def _search_segments(
        self, scopes: Sequence[tuple[ScopedSegment, SegmentView]], selected: Mask | None
    ) -> list[_Candidates]:
        """Return the candidates of each query, with exact distances if they are refined."""
        compressions = {view.segment.model.quantizer.compression for _, view in scopes}
        refines = self._must_recheck or (self._request.refine is not None and compressions != {"FLAT"})
        count = self._request.k * (self._request.refine or 1)
        share = 1.0
        if selected is not None:
            share = int(selected.sum()) / max(1, sum(self._rows(scope) for scope, _ in scopes))
        if self._queries.starts is not None:
            found = self._with_exact_distances(self._search_multivectors(scopes, count, share, selected))
        else:
            parts = self._search_vectors(scopes, count, share, selected)
            found = [_Candidates.best_of(each, count) for each in parts]
            found = self._with_exact_distances(found) if refines else found
        left_out = np.concatenate([np.empty(0, dtype=np.int64), *(view.left_out(selected) for _, view in scopes)])
        if not len(left_out):
            return found
        others = self._with_exact_distances([_Candidates(np.zeros(len(left_out)), left_out)] * len(found))
        return [_Candidates.best_of(pair, count) for pair in zip(found, others, strict=True)]

    def _search_multivectors(
        self, scopes: Sequence[tuple[ScopedSegment, SegmentView]], count: int, share: float, selected: Mask | None
    ) -> list[_Candidates]:
        """Return rows that have a vector near to one of the vectors of each query. Several of these may belong to one
        row, so the search is repeated with more candidates and partitions until it finds `k` rows."""
        vectors = max((view.segment.row_count for _, view in scopes), default=0)
        partitions = max((len(view.segment.lengths) for _, view in scopes), default=0)
        effort = MULTIVECTOR_CANDIDATES
        while True:
            wider = share * MULTIVECTOR_CANDIDATES / effort
            parts = self._search_vectors(scopes, count * effort, wider, selected)
            found = []
            for number in range(self._queries.count):
                each = [part for row in self._queries.vectors_of(number) for part in parts[row]]
                found.append(_Candidates.best_of(each, sum(len(part.positions) for part in each)))
            probes = probes_under_filter(self._request.nprobes or NPROBES, wider)
            is_everything = count * effort >= vectors and probes >= partitions
            if is_everything or all(len(each.positions) >= self._request.k for each in found):
                return found
            effort *= 4

    def _search_vectors(
        self, scopes: Sequence[tuple[ScopedSegment, SegmentView]], count: int, share: float, selected: Mask | None
    ) -> list[list[_Candidates]]:
        """Return the candidates of each segment for each vector of the queries."""
        parts: list[list[_Candidates]] = [[_Candidates.empty()] for _ in self._queries.vectors]
        for scope, view in scopes:
            try:
                for number, candidates in self._search_segment(scope, view, count, share, selected):
                    parts[number].append(candidates)
            except UNREADABLE_ERRORS as error:
                self._replace_by_scan(scope, error)
        return parts

    def _rows(self, scope: ScopedSegment) -> int:
        return sum(
            fragment.physical_rows
            for fragment in self._base.manifest.message.fragments
            if fragment.id in scope.fragments
        )

    def _search_segment(
        self, scope: ScopedSegment, view: SegmentView, count: int, share: float, selected: Mask | None
    ) -> Iterator[tuple[int, _Candidates]]:
        """Yield the candidates of one segment for each query. The fewer rows pass the filter, the more partitions are
        searched."""
        segment = view.segment
        answered = np.arange(len(self._queries.vectors))
        if segment.model.metric is Metric.COSINE:  # a vector of length zero has no direction
            answered = np.flatnonzero(self._queries.vectors.any(axis=1))
        coarse = segment.ranker.queries(self._queries.vectors[answered])
        ranked = segment.rank_partitions(coarse)
        if ranked is None:
            self._scanned = self._scanned | scope.fragments
            return
        distances, numbers = ranked
        partitions = numbers.shape[1]
        if not partitions or not len(answered):
            return
        probes = min(partitions, probes_under_filter(self._request.nprobes or NPROBES, share))
        count = min(count, segment.row_count)
        enough = min(self._request.k, count)
        while True:
            probed = np.ascontiguousarray(numbers[:, :probes])
            needed = np.unique(probed)
            loaded = segment.load(needed)
            view.prepare(loaded, needed)
            allowed = view.allowed(needed, selected)
            found, ordinals = loaded.lists.nearest(
                coarse, (distances[:, :probes], probed), count, allowed, self._request.ef
            )
            if probes == partitions or (ordinals[:, enough - 1] >= 0).all():
                break
            probes = min(partitions, probes * 2)
        positions = view.positions(ordinals)
        for row, number in enumerate(answered.tolist()):
            yield number, _Candidates(found[row], positions[row])

    def _with_exact_distances(self, found: Sequence[_Candidates]) -> list[_Candidates]:
        """Return the candidates with distances that are computed from their vectors."""
        positions = np.unique(np.concatenate([each.positions for each in found]))
        if not len(positions):
            return list(found)
        addresses = self._vectors.order.addresses(positions)
        vectors = self._vectors_at(addresses)
        if len(found) == 1:
            refined = [_Candidates(self._queries.distances(vectors, 0), positions)]
        else:
            refined = []
            for number, candidates in enumerate(found):
                rows = np.searchsorted(positions, candidates.positions)
                chosen = vectors[rows] if isinstance(vectors, np.ndarray) else vectors.take(pa.array(rows))
                refined.append(_Candidates(self._queries.distances(chosen, number), candidates.positions))
        return [_Candidates.best_of([each], self._request.k) for each in refined]

    def _vectors_at(self, addresses: npt.NDArray[np.uint64]) -> Values | pa.FixedSizeListArray:
        """Return the vectors of these rows, which are in table order: read directly, or else by the codec."""
        location, manifest, column = self._base.location, self._base.manifest, self._request.column
        data = take_vectors(location, manifest, addresses, column)
        if data is not None:
            return data.view(self._queries.stored.value_type.to_pandas_dtype())
        return take(location, manifest, addresses, [column], by=By.ROW_ADDRESS).column(0).combine_chunks()

    def _merge(self, order: TableOrder, found: Sequence[_Candidates]) -> list[NearestRows]:
        """Return the best rows of the candidates and of the fragments that are scanned."""
        scanned = self._scan(self._scanned) if self._scanned else [NearestRows.empty() for _ in found]
        merged = []
        for candidates, exact in zip(found, scanned, strict=True):
            others = _Candidates(exact.distances, order.positions(exact.addresses))
            best = _Candidates.best_of([candidates, others], self._request.k)
            merged.append(NearestRows(best.distances, order.addresses(best.positions)))
        return merged


def _warn_missing_library(base: Snapshot, column: str, error: LanceError) -> None:
    warn_once(
        (base.location.uri, f"vector index on {column}"),
        f"{base.location.uri}: the vector index on column {column!r} is not used, so every vector is compared, "
        f"and the result is exact: {error}",
    )


__all__ = ["SearchRequest", "explain_search", "search"]
