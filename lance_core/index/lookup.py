"""Index lookup: searches the indices of a version for a filter and returns the candidate rows of each fragment.

    selector_of(base)(predicate) -> Selection        passed to `scan/`, which does not know about indices

`access_path.py` plans which segments are searched. `row_remap.py` translates the rows that they return to current row
addresses. These include deleted rows, which the scan skips. Open segments and the pages that they have read are cached
for all tables of the process. If a segment cannot be read, its fragments are scanned, and one warning reports it.
"""

import os
import struct
import warnings
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import Corrupt, IndexIgnored, LanceError
from lance_core.expressions import Predicate
from lance_core.expressions.tree import Comparison, In, IsNull, Node, Op
from lance_core.format.row_sets import RowSet
from lance_core.index.access_path import (
    AccessPath,
    AllOf,
    Always,
    AnyOf,
    IndexProbe,
    IndicesByColumn,
    SegmentScope,
    Step,
    Unknown,
)
from lance_core.index.coverage import Coverage, SegmentCoverage
from lance_core.index.index_type import Certainty, Leaf, Searcher
from lance_core.index.verification import may_list_old_values, missed_fragments
from lance_core.scan.parallel import map_in_order, threads_of
from lance_core.scan.selection import FragmentSelection, RowSelector, Selection
from lance_core.storage.local import LocalStore
from lance_core.storage.lru_cache import LruCache
from lance_core.versions.snapshot import Snapshot

_VERSIONS_CACHED_MAX = 16
_SEGMENTS_CACHED_MIN, _SEGMENTS_CACHED_MAX = 128, 1024
"""Bounds of the number of open segments in the cache. An index of a growing table often has more than a hundred."""
_DESCRIPTORS_PER_SEGMENT = 4
"""File descriptors of the process for each cached segment. A segment keeps one open; the rest are for other use."""
_WARNED_MAX = 10_000
CANDIDATES_READ_MAX = 4096
"""Number of candidate rows that a scan checks in less time than a search of another index takes."""
UNREADABLE_ERRORS = (LanceError, pa.ArrowException, ValueError, LookupError, OverflowError, struct.error)
"""Errors that missing, truncated or mislabelled files raise."""


class IndexLookup:
    """Indices of a version, ready to be searched."""

    def __init__(self, base: Snapshot) -> None:
        self.base = base
        self.coverage = Coverage(base)
        self.indices = IndicesByColumn(base.manifest.schema, self.coverage.by_name)

    @classmethod
    def of(cls, base: Snapshot) -> "IndexLookup":
        return _versions.get_or_create(
            id(base.manifest), lambda: cls(base), lambda cached: cached.base.manifest is base.manifest
        )

    def plan(self, predicate: Predicate) -> AccessPath:
        """Return the access path of a filter."""
        return AccessPath.of(predicate.tree, self.indices)

    def select(self, predicate: Predicate) -> Selection:
        """Return the rows that may match a filter, with the conditions that are left to check."""
        path = self.plan(predicate)
        if not path.uses_indices:
            return Selection()
        combined, results = _Search(self).search_all([step for _, step in path.steps])
        return Selection(combined.fragments, dict(_fragment_selections(predicate, path, combined, results)))

    def select_candidates(self, tree: Node) -> Selection:
        """Return rows that may match, without the conditions left to check: the caller checks its own condition."""
        combined, _ = _Search(self).search_all([step for _, step in AccessPath.of(tree, self.indices).steps])
        return Selection(combined.fragments, {id: FragmentSelection(rows) for id, rows in combined.rows.parts.items()})


_versions: "LruCache[int, IndexLookup]" = LruCache(_VERSIONS_CACHED_MAX)


def _segments_capacity() -> int:
    """Return how many open segments this process may cache within its limit of open files."""
    descriptors = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else 0  # `sysconf` exists on Unix only
    capacity = descriptors // _DESCRIPTORS_PER_SEGMENT if descriptors >= 0 else _SEGMENTS_CACHED_MAX
    return max(_SEGMENTS_CACHED_MIN, min(_SEGMENTS_CACHED_MAX, capacity))


_segments: "LruCache[Hashable, Searcher]" = LruCache(_segments_capacity())
_warned: "set[tuple[str, str]]" = set()


def selector_of(base: Snapshot) -> RowSelector | None:
    """Return the function that selects rows by the indices of a version, or `None` if the version has no usable
    index."""
    try:
        if base.manifest.index_section is None:
            return None
        lookup = IndexLookup.of(base)
        return lookup.select if any(segment.covered for segment in lookup.coverage.segments) else None
    except LanceError as error:
        warn_once(
            (base.location.uri, str(base.version)),
            f"{base.location.uri}: the indices of version {base.version} cannot be read, so every fragment is "
            f"scanned: {error}. The result is complete; run fsck() to find out what is wrong",
        )
        return None


@dataclass(frozen=True, slots=True)
class CandidateRows:
    """Rows that can make a condition true, with the fragments for which the set is exact or a superset. Fragments in
    neither set are unresolved: any of their rows may match."""

    rows: RowSet
    exact: BitMap
    at_most: BitMap

    @property
    def fragments(self) -> BitMap:
        return self.exact | self.at_most


_NOTHING = CandidateRows(RowSet(), BitMap(), BitMap())


class _Search:
    """Evaluation of the steps of one access path."""

    def __init__(self, lookup: IndexLookup) -> None:
        self._coverage = lookup.coverage
        self._base = lookup.base

    def search_all(self, steps: Sequence[Step]) -> tuple[CandidateRows, Sequence[CandidateRows]]:
        """Return the rows that satisfy all steps, and those of each step alone.

        Cheap steps run first. Once they leave few rows, steps that would return large sets are skipped.
        """
        results = [_NOTHING] * len(steps)
        combined: CandidateRows | None = None
        for number in sorted(range(len(steps)), key=lambda number: _cost(steps[number])):
            step = steps[number]
            if combined is not None and _cost(step) and self._can_skip(combined, step):
                combined = CandidateRows(combined.rows, BitMap(), combined.fragments)
                continue
            results[number] = self.search(step)
            combined = results[number] if combined is None else _intersect(combined, results[number])
        return combined or _NOTHING, results

    def _can_skip(self, candidates: CandidateRows, step: Step) -> bool:
        return len(candidates.rows) <= CANDIDATES_READ_MAX and candidates.fragments.issuperset(
            _covered_fragments(step, self._coverage.live_fragments)
        )

    def search(self, step: Step) -> CandidateRows:
        match step:
            case IndexProbe():
                return self._search_probe(step)
            case AllOf(steps=steps):
                return self.search_all(steps)[0]
            case AnyOf(steps=steps):
                return _unite([self.search(inner) for inner in steps])
            case Always(holds=holds):
                rows = self._all_rows(self._coverage.live_fragments) if holds else RowSet()
                return CandidateRows(rows, self._coverage.live_fragments, BitMap())
            case Unknown():
                return _NOTHING

    def _search_probe(self, probe: IndexProbe) -> CandidateRows:
        results = self._search_scopes(probe)
        if len(results) == 1:
            return results[0]
        return CandidateRows(
            RowSet.union(result.rows for result in results),
            BitMap.union(BitMap(), *(result.exact for result in results)),
            BitMap.union(BitMap(), *(result.at_most for result in results)),
        )

    def _search_scopes(self, probe: IndexProbe) -> Sequence[CandidateRows]:
        """Return the candidates of each segment. Segments that are not open yet are opened concurrently. On an object
        store they are also searched concurrently, since a search reads pages."""
        store, scopes = self._base.location.own_store, probe.scopes
        search = partial(self._search_scope, probe)
        if not isinstance(store, LocalStore):
            return list(map_in_order(search, scopes, threads=threads_of(store)))
        # More segments than the cache holds would be opened twice.
        if 1 < len(scopes) <= _segments.capacity and _segments.get(self._key(scopes[-1])) is None:
            for _ in map_in_order(self._open_ahead, scopes):
                pass
        return [search(scope) for scope in scopes]

    def _open_ahead(self, scope: SegmentScope) -> None:
        """Open a segment before its search. Errors are ignored here, since the search reports them."""
        with suppress(*UNREADABLE_ERRORS):
            self._open_searcher(scope)

    def _search_scope(self, probe: IndexProbe, scope: SegmentScope) -> CandidateRows:
        """Return the candidates of one segment, and none if the segment cannot be read."""
        try:
            return self._search_segment(probe, scope)
        except UNREADABLE_ERRORS as error:
            warn_unreadable(self._base, scope.segment, error)
            return _NOTHING

    def _search_segment(self, probe: IndexProbe, scope: SegmentScope) -> CandidateRows:
        scope = self._verified_scope(scope)
        if not scope.fragments:
            return _NOTHING
        searcher = self._open_searcher(scope)
        matches = searcher.search(probe.leaf)
        if matches is None:
            return _NOTHING
        rows = self._current_rows(matches.rows, scope)
        is_exact = matches.certainty is Certainty.EXACT and not may_list_old_values(self._base, scope.segment)
        if not probe.negated:
            return CandidateRows(rows, *((scope.fragments, BitMap()) if is_exact else (BitMap(), scope.fragments)))
        if not is_exact:
            return _NOTHING
        without = [rows]
        if not isinstance(probe.leaf, IsNull):
            nulls = searcher.search(IsNull(probe.leaf.path))
            if nulls is None or nulls.certainty is not Certainty.EXACT:
                return _NOTHING
            without.append(self._current_rows(nulls.rows, scope))
        return CandidateRows(self._all_rows(scope.fragments) - RowSet.union(without), scope.fragments, BitMap())

    def _verified_scope(self, scope: SegmentScope) -> SegmentScope:
        """Return the scope without the fragments of which the segment misses rows; these are scanned."""
        missed = scope.fragments & missed_fragments(self._base, self._coverage, scope.segment)
        if not missed:
            return scope
        _warn_missed(self._base, scope.segment, missed)
        return replace(scope, fragments=scope.fragments - missed)

    def _current_rows(self, rows: RowSet, scope: SegmentScope) -> RowSet:
        """Return the current addresses of rows that a segment returned, in the fragments of its scope."""
        moved = self._coverage.row_remap(scope.segment).remap_set(rows)
        if scope.fragments != scope.segment.covered:
            moved = moved.in_fragments(scope.fragments)
        for id, offsets in moved.parts.items():
            if offsets.max() >= self._coverage.physical_rows[id]:
                raise Corrupt(
                    f"names row {offsets.max()} of fragment {id}, which has {self._coverage.physical_rows[id]}",
                    path=scope.segment.metadata.qualified_path,
                    field="rows",
                )
        return moved

    def _all_rows(self, fragments: BitMap) -> RowSet:
        return RowSet.full({id: self._coverage.physical_rows[id] for id in fragments})

    def _open_searcher(self, scope: SegmentScope) -> Searcher:
        """Return the open segment from the cache. An open segment depends on the number of rows of its fragments, so
        versions that differ in these open it separately."""
        segment, index_type = scope.segment, scope.segment.kind
        assert index_type is not None
        open_segment = partial(self._coverage.segment_of, segment.metadata)
        return _segments.get_or_create(self._key(scope), lambda: index_type.open(open_segment(), scope.column))

    def _key(self, scope: SegmentScope) -> Hashable:
        location, segment = self._base.location, scope.segment
        access = location.access
        return location.uri, access.verify, access.trusted, segment.metadata.uuid, self._coverage.fingerprint(segment)


def _fragment_selections(
    predicate: Predicate, path: AccessPath, combined: CandidateRows, results: Sequence[CandidateRows]
) -> "list[tuple[int, FragmentSelection]]":
    """Return the selection of each fragment with the conditions that were not answered exactly in it. Fragments that
    have the same conditions left share one `Predicate`."""
    residuals: dict[tuple[int, ...], Predicate | None] = {}
    selections = []
    for id, rows in combined.rows.parts.items():
        unresolved = tuple(
            sorted(
                number
                for (numbers, _), result in zip(path.steps, results, strict=True)
                if id not in result.exact
                for number in numbers
            )
        )
        if unresolved not in residuals:
            residuals[unresolved] = predicate.select_conjuncts(unresolved) if unresolved else None
        selections.append((id, FragmentSelection(rows, residuals[unresolved])))
    return selections


def _intersect(left: CandidateRows, right: CandidateRows) -> CandidateRows:
    shared = left.fragments & right.fragments
    rows = left.rows & right.rows
    if shared != left.fragments or shared != right.fragments:
        rows = RowSet.union(
            (rows, left.rows.in_fragments(left.fragments - shared), right.rows.in_fragments(right.fragments - shared))
        )
    exact = left.exact & right.exact
    return CandidateRows(rows, exact, (left.fragments | right.fragments) - exact)


def _unite(results: Sequence[CandidateRows]) -> CandidateRows:
    resolved = BitMap.intersection(*(result.fragments for result in results))
    exact = BitMap.intersection(*(result.exact for result in results))
    return CandidateRows(
        RowSet.union(result.rows.in_fragments(resolved) for result in results), exact, resolved - exact
    )


def _cost(step: Step) -> int:
    """Return a rank of the cost of a search as the table grows: equalities, then ranges, then steps that return
    nearly all rows."""
    match step:
        case IndexProbe(negated=True) | Always():
            return 2
        case IndexProbe(leaf=leaf):
            return 1 if _is_wide(leaf) else 0
        case AllOf(steps=steps):
            return min(map(_cost, steps))
        case AnyOf(steps=steps):
            return max(map(_cost, steps), default=0)
        case Unknown():
            return 3


def _is_wide(leaf: Leaf) -> bool:
    return not isinstance(leaf, In | IsNull) and not (isinstance(leaf, Comparison) and leaf.op is Op.EQ)


def _covered_fragments(step: Step, live: BitMap) -> BitMap:
    """Return the fragments in which the indices resolve a step."""
    match step:
        case IndexProbe(scopes=scopes):
            return BitMap.union(BitMap(), *(scope.fragments for scope in scopes))
        case AllOf(steps=steps):
            return BitMap.union(BitMap(), *(_covered_fragments(inner, live) for inner in steps))
        case AnyOf(steps=steps):
            return BitMap.intersection(*(_covered_fragments(inner, live) for inner in steps))
        case Always():
            return live
        case Unknown():
            return BitMap()


def resolved_fragments(path: AccessPath, live: BitMap) -> BitMap:
    """Return the fragments in which the indices resolve any condition of a filter."""
    return BitMap.union(BitMap(), *(_covered_fragments(step, live) for _, step in path.steps))


def warn_unreadable(base: Snapshot, segment: SegmentCoverage, error: Exception) -> None:
    uri, index = base.location.uri, segment.metadata
    reason = str(error) if isinstance(error, LanceError) else f"{type(error).__name__}: {error}"
    warn_once(
        (uri, str(index.uuid)),
        f"{uri}: segment {index.uuid} of index {index.name!r} cannot be read, so the {len(segment.covered)} "
        f"fragments that it covers are scanned: {reason}. The result is complete. Rebuild the index with "
        f"create_index(..., name={index.name!r}, replace=True), or drop it with drop_index({index.name!r}); run "
        "fsck() to find out what else is wrong",
    )


def _warn_missed(base: Snapshot, segment: SegmentCoverage, missed: BitMap) -> None:
    uri, index = base.location.uri, segment.metadata
    warn_once(
        (uri, str(index.uuid)),
        f"{uri}: segment {index.uuid} of index {index.name!r} claims {len(missed)} fragments without listing all of "
        "their rows, so they are scanned; an old release of pylance compacted the table or optimized the index. The "
        f"result is complete. Run optimize_indices([{index.name!r}]) to repair the index for every reader",
    )


def warn_once(subject: tuple[str, str], text: str) -> None:
    """Warn once per process and subject."""
    if subject in _warned:
        return
    if len(_warned) < _WARNED_MAX:
        _warned.add(subject)
    warnings.warn(text, IndexIgnored, stacklevel=2)


__all__ = ["UNREADABLE_ERRORS", "IndexLookup", "resolved_fragments", "selector_of", "warn_once", "warn_unreadable"]
