"""Scoped segments: the segments of a ranked index, each with the fragments for which it is searched.

If several segments cover a fragment, only the first of them is searched for its rows.
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
    """Return the segments that cover a fragment that no earlier segment covers, each with these fragments."""
    scopes, assigned = [], BitMap()
    for segment in segments:
        if fragments := segment.covered - assigned:
            scopes.append(ScopedSegment(segment, fragments))
            assigned |= fragments
    return tuple(scopes)


def fragments_of(scopes: Iterable[ScopedSegment]) -> BitMap:
    """Return the fragments of all scopes."""
    return BitMap.union(BitMap(), *(scope.fragments for scope in scopes))
