"""Asking indices: a filter in, by fragment the rows that can match out, with what is left to be looked at.

    select(base)(predicate) -> Selection        handed to `scan/`, which knows of no index

Segments are searched as `access_path.py` says. What they find is brought to where rows are in this version
(`row_remap.py`); deleted rows are among it, and are left out by who reads. Open segments are kept, with what they have
read, for all tables of the process. One that cannot be read answers nothing: its fragments are scanned, and a warning
says so once.
"""

import struct
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyroaring import BitMap

from lance_core.coordination.lru_cache import LruCache
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
from lance_core.scan.selection import FragmentSelection, RowSelector, Selection
from lance_core.versions.snapshot import Snapshot

_VERSIONS_KEPT = 16
_SEGMENTS_KEPT = 128
_WARNED_MAX = 10_000
_FEW_ROWS = 4096
"""So few rows are looked at in less time than it takes to find many others that do not match."""
_UNREADABLE = (LanceError, pa.ArrowException, ValueError, LookupError, OverflowError, struct.error)
"""What comes of files that are missing, cut short or not what they are said to be."""


class IndexLookup:
    """The indices of a version, ready to be asked."""

    def __init__(self, base: Snapshot) -> None:
        self.base = base
        self.coverage = Coverage(base)
        self.indices = IndicesByColumn(base.manifest.schema, self.coverage.by_name)

    @classmethod
    def of(cls, base: Snapshot) -> "IndexLookup":
        return _versions.get_or_create(
            id(base.manifest), lambda: cls(base), lambda kept: kept.base.manifest is base.manifest
        )

    def plan(self, predicate: Predicate) -> AccessPath:
        return AccessPath.of(predicate.tree, self.indices)

    def select(self, predicate: Predicate) -> Selection:
        route = self.plan(predicate)
        if not route.uses_indices:
            return Selection()
        known, found = _Search(self).all_of([step for _, step in route.steps])
        return Selection(known.fragments, dict(_chosen(predicate, route, known, found)))

    def select_candidates(self, tree: Node) -> Selection:
        """Rows to be looked at by somebody who knows what for."""
        known, _ = _Search(self).all_of([step for _, step in AccessPath.of(tree, self.indices).steps])
        return Selection(known.fragments, {id: FragmentSelection(rows) for id, rows in known.rows.parts.items()})


_versions: "LruCache[int, IndexLookup]" = LruCache(_VERSIONS_KEPT)
_segments: "LruCache[Hashable, Searcher]" = LruCache(_SEGMENTS_KEPT)
_warned: "set[tuple[str, str]]" = set()


def selector_of(base: Snapshot) -> RowSelector | None:
    """None where the version has no index that could be asked."""
    try:
        if base.manifest.index_section is None:
            return None
        indexed = IndexLookup.of(base)
        return indexed.select if any(each.covered for each in indexed.coverage.segments) else None
    except LanceError as error:
        _tell(
            (base.location.uri, str(base.version)),
            f"{base.location.uri}: the indices of version {base.version} cannot be told, and every fragment is "
            f"scanned: {error}. Nothing is missing from the answer; fsck() says what is wrong",
        )
        return None


@dataclass(frozen=True, slots=True)
class CandidateRows:
    """Rows that can make a condition true. Nothing is said of fragments that are in neither set."""

    rows: RowSet
    exact: BitMap
    at_most: BitMap

    @property
    def fragments(self) -> BitMap:
        return self.exact | self.at_most


_NOTHING = CandidateRows(RowSet(), BitMap(), BitMap())


class _Search:
    def __init__(self, indexed: IndexLookup) -> None:
        self._coverage = indexed.coverage
        self._base = indexed.base

    def all_of(self, steps: Sequence[Step]) -> tuple[CandidateRows, Sequence[CandidateRows]]:
        """Of all, and of each by itself. Once only few rows are left, large sets are not looked for."""
        found = [_NOTHING] * len(steps)
        together: CandidateRows | None = None
        for number in sorted(range(len(steps)), key=lambda number: _cost(steps[number])):
            step = steps[number]
            if together is not None and _cost(step) and self._leaves_few(together, step):
                together = CandidateRows(together.rows, BitMap(), together.fragments)
                continue
            found[number] = self.of(step)
            together = found[number] if together is None else _both(together, found[number])
        return together or _NOTHING, found

    def _leaves_few(self, found: CandidateRows, step: Step) -> bool:
        return len(found.rows) <= _FEW_ROWS and found.fragments.issuperset(_fragments(step, self._coverage.live_fragments))

    def of(self, step: Step) -> CandidateRows:
        match step:
            case IndexProbe():
                return self._asked(step)
            case AllOf(steps=parts):
                return self.all_of(parts)[0]
            case AnyOf(steps=parts):
                return _either([self.of(part) for part in parts])
            case Always(holds=holds):
                rows = self._everything(self._coverage.live_fragments) if holds else RowSet()
                return CandidateRows(rows, self._coverage.live_fragments, BitMap())
            case Unknown():
                return _NOTHING

    def _asked(self, ask: IndexProbe) -> CandidateRows:
        parts = [self._of_share(ask, share) for share in ask.scopes]
        if len(parts) == 1:
            return parts[0]
        return CandidateRows(
            RowSet.union(part.rows for part in parts),
            BitMap.union(BitMap(), *(part.exact for part in parts)),
            BitMap.union(BitMap(), *(part.at_most for part in parts)),
        )

    def _of_share(self, ask: IndexProbe, share: SegmentScope) -> CandidateRows:
        try:
            return self._searched(ask, share)
        except _UNREADABLE as error:
            _warn(self._base, share.segment, error)
            return _NOTHING

    def _searched(self, ask: IndexProbe, share: SegmentScope) -> CandidateRows:
        searcher = self._opened(share)
        found = searcher.search(ask.leaf)
        if found is None:
            return _NOTHING
        rows = self._here(found.rows, share)
        if not ask.negated:
            is_exact = found.certainty is Certainty.EXACT
            return CandidateRows(rows, *((share.fragments, BitMap()) if is_exact else (BitMap(), share.fragments)))
        if found.certainty is not Certainty.EXACT:
            return _NOTHING
        without = [rows]
        if not isinstance(ask.leaf, IsNull):
            nulls = searcher.search(IsNull(ask.leaf.path))
            if nulls is None or nulls.certainty is not Certainty.EXACT:
                return _NOTHING
            without.append(self._here(nulls.rows, share))
        return CandidateRows(self._everything(share.fragments) - RowSet.union(without), share.fragments, BitMap())

    def _here(self, rows: RowSet, share: SegmentScope) -> RowSet:
        """Where they are today, in the fragments that the segment is asked for."""
        moved = self._coverage.row_remap(share.segment).remap_set(rows)
        if share.fragments != share.segment.covered:
            moved = moved.in_fragments(share.fragments)
        for id, part in moved.parts.items():
            if part.max() >= self._coverage.physical_rows[id]:
                raise Corrupt(
                    f"names row {part.max()} of fragment {id}, which has {self._coverage.physical_rows[id]}",
                    path=share.segment.metadata.qualified_path,
                    field="rows",
                )
        return moved

    def _everything(self, fragments: BitMap) -> RowSet:
        return RowSet.full({id: self._coverage.physical_rows[id] for id in fragments})

    def _opened(self, share: SegmentScope) -> Searcher:
        """What is read of a segment depends on how many rows its fragments have, so versions with others open it
        again."""
        standing, coverage = share.segment, self._coverage
        assert standing.kind is not None
        segment = partial(coverage.segment_of, standing.metadata)
        key = (self._base.location.uri, standing.metadata.uuid, coverage.fingerprint(standing))
        kind = standing.kind
        return _segments.get_or_create(key, lambda: kind.open(segment(), share.column))


def _chosen(
    predicate: Predicate, route: AccessPath, known: CandidateRows, found: Sequence[CandidateRows]
) -> "list[tuple[int, FragmentSelection]]":
    """By fragment, with the conditions that were not answered exactly there: fragments that share those share the
    condition that is left."""
    residuals: dict[tuple[int, ...], Predicate | None] = {}
    chosen = []
    for id, rows in known.rows.parts.items():
        left = tuple(
            sorted(
                number
                for (numbers, _), each in zip(route.steps, found, strict=True)
                if id not in each.exact
                for number in numbers
            )
        )
        if left not in residuals:
            residuals[left] = predicate.select_conjuncts(left) if left else None
        chosen.append((id, FragmentSelection(rows, residuals[left])))
    return chosen


def _both(one: CandidateRows, other: CandidateRows) -> CandidateRows:
    shared = one.fragments & other.fragments
    rows = one.rows & other.rows
    if shared != one.fragments or shared != other.fragments:
        rows = RowSet.union((rows, one.rows.in_fragments(one.fragments - shared), other.rows.in_fragments(other.fragments - shared)))
    exact = one.exact & other.exact
    return CandidateRows(rows, exact, (one.fragments | other.fragments) - exact)


def _either(parts: Sequence[CandidateRows]) -> CandidateRows:
    known = BitMap.intersection(*(part.fragments for part in parts))
    exact = BitMap.intersection(*(part.exact for part in parts))
    return CandidateRows(RowSet.union(part.rows.in_fragments(known) for part in parts), exact, known - exact)


def _cost(step: Step) -> int:
    """Of finding the rows, as it grows with the table: equalities first, then bounds, then what is all but some."""
    match step:
        case IndexProbe(negated=True) | Always():
            return 2
        case IndexProbe(leaf=leaf):
            return 1 if _is_wide(leaf) else 0
        case AllOf(steps=parts):
            return min(map(_cost, parts))
        case AnyOf(steps=parts):
            return max(map(_cost, parts), default=0)
        case Unknown():
            return 3


def _is_wide(leaf: Leaf) -> bool:
    return not isinstance(leaf, In | IsNull) and not (isinstance(leaf, Comparison) and leaf.op is Op.EQ)


def _fragments(step: Step, live: BitMap) -> BitMap:
    """Of which anything would be known."""
    match step:
        case IndexProbe(scopes=shares):
            return BitMap.union(BitMap(), *(share.fragments for share in shares))
        case AllOf(steps=parts):
            return BitMap.union(BitMap(), *(_fragments(part, live) for part in parts))
        case AnyOf(steps=parts):
            return BitMap.intersection(*(_fragments(part, live) for part in parts))
        case Always():
            return live
        case Unknown():
            return BitMap()


def resolved_fragments(route: AccessPath, live: BitMap) -> BitMap:
    """The fragments in which anything would be known of a filter."""
    return BitMap.union(BitMap(), *(_fragments(step, live) for _, step in route.steps))


def _warn(base: Snapshot, standing: SegmentCoverage, error: Exception) -> None:
    uri, index = base.location.uri, standing.metadata
    told = str(error) if isinstance(error, LanceError) else type(error).__name__
    _tell(
        (uri, str(index.uuid)),
        f"{uri}: segment {index.uuid} of index {index.name!r} cannot be read, and the {len(standing.covered)} "
        f"fragments that it covers are scanned: {told}. Nothing is missing from the answer. Build it anew with "
        f"create_index(..., name={index.name!r}, replace=True), or drop_index({index.name!r}); fsck() says what else "
        "is wrong",
    )


def _tell(of: tuple[str, str], text: str) -> None:
    """Once in a process."""
    if of in _warned:
        return
    if len(_warned) < _WARNED_MAX:
        _warned.add(of)
    warnings.warn(text, IndexIgnored, stacklevel=2)


__all__ = ["IndexLookup", "resolved_fragments", "selector_of"]
