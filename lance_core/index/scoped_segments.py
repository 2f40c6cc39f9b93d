"""Scoped segments: the segments of a ranked index, each with the fragments for which it is searched.

Two segments may cover a fragment; its rows are then found by the first of them alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pyroaring import BitMap

from lance_core.index.coverage import SegmentCoverage


@dataclass(frozen=True, slots=True)
class ScopedSegment:
    """Segment with the fragments for which it is searched."""

    coverage: SegmentCoverage
    fragments: BitMap


def scope_segments(segments: Iterable[SegmentCoverage]) -> tuple[ScopedSegment, ...]:
    """Return the segments that cover fragments which no segment before them covers."""
    scopes, assigned = [], BitMap()
    for segment in segments:
        if fragments := segment.covered - assigned:
            scopes.append(ScopedSegment(segment, fragments))
            assigned |= fragments
    return tuple(scopes)


def fragments_of(scopes: Iterable[ScopedSegment]) -> BitMap:
    """Return the fragments of all scopes."""
    return BitMap.union(BitMap(), *(scope.fragments for scope in scopes))
