"""Index statistics: size, age and coverage of the indices of a version, from its metadata alone.

No index or data file is opened, so that the statistics of a table with 50,000 fragments can be read at any time. The
exception are vector segments of other engines, whose files record the sizes of their partitions, and are read once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import numpy as np
from pyroaring import BitMap

from lance_core.format import field_paths
from lance_core.format.fragment import live_rows
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.index import build, registry
from lance_core.index.coverage import Coverage, SegmentCoverage, combined_coverage, follow_reuse
from lance_core.index.vector.segment_statistics import VectorStatistics, statistics_of
from lance_core.index.vector.vector_type import is_vector_segment
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class SegmentStatistics:
    """Statistics of one segment. A query searches every segment of an index."""

    uuid: UUID
    kind: str
    """Index type as users write it, such as `BTREE`; for an unknown type, the name that its writer recorded."""
    index_version: int
    """Version of the format of its files."""
    fragments: int
    """Number of fragments of this version that it answers for."""
    rows: int
    """Rows in these fragments, including rows that were deleted later."""
    bytes: int | None
    """Size of its files; `None` if its writer did not record the sizes."""
    created_at: datetime | None
    dataset_version: Version
    """Version whose rows it was built from."""
    unused: str | None
    """Reason why queries do not use it; `None` if they do."""
    is_known: bool
    """True if its index type is known, so that its files can be examined here."""
    vectors: VectorStatistics | None = None
    """Partitions and losses of a vector index, recorded in its metadata or its files; `None` for other indices."""

    def __repr__(self) -> str:
        others = {"unused": self.unused, "vectors": self.vectors}
        shown = "".join(f", {name}={value!r}" for name, value in others.items() if value is not None)
        return (
            f"SegmentStatistics(uuid='{self.uuid.hex[:8]}…', kind={self.kind!r}, fragments={self.fragments}, "
            f"rows={self.rows}, bytes={self.bytes}{shown})"
        )


@dataclass(frozen=True, slots=True)
class IndexStatistics:
    """Statistics of one index: all segments with its name."""

    name: str
    kind: str
    """Index type of its newest segment."""
    column: str | None
    """Path of its column; `None` if the column no longer exists."""
    segments: tuple[SegmentStatistics, ...]
    covered_fragments: int
    uncovered_fragments: int
    covered_rows: int
    uncovered_rows: int
    """Rows are counted as the fragments store them, including deleted ones."""
    bytes: int | None
    created_at: datetime | None
    """Creation time of the newest segment; `None` if no segment records it."""
    dataset_version: Version
    """Oldest version that a segment was built from."""
    notes_behind: int
    """Number of segments whose rows moved since they were built: readers follow the fragment reuse index until
    `optimize_indices()` rewrites them."""
    covered_live_rows: int
    uncovered_live_rows: int
    """The same counts without deleted rows."""

    def __repr__(self) -> str:
        rows = f"covered_rows={self.covered_rows}, uncovered_rows={self.uncovered_rows}"
        unused = "" if self.is_used else f", why_unused={self.why_unused!r}"
        return (
            f"IndexStatistics(name={self.name!r}, kind={self.kind!r}, column={self.column!r}, "
            f"segments={len(self.segments)}, {rows}, bytes={self.bytes}{unused})"
        )

    @property
    def is_known(self) -> bool:
        """Return whether the index type of any segment is known here."""
        return any(segment.is_known for segment in self.segments)

    @property
    def is_used(self) -> bool:
        """Return whether any segment answers queries."""
        return any(segment.unused is None for segment in self.segments)

    @property
    def why_unused(self) -> str | None:
        """Reason why no segment answers queries: the end of a sentence that begins with the index's name."""
        return None if self.is_used else self.segments[0].unused

    @property
    def coverage(self) -> float:
        """Share of rows that a query by this index need not scan; 1 for a table without rows."""
        rows = self.covered_rows + self.uncovered_rows
        return self.covered_rows / rows if rows else 1.0

    @property
    def live_coverage(self) -> float:
        """The same share among rows that are not deleted."""
        rows = self.covered_live_rows + self.uncovered_live_rows
        return self.covered_live_rows / rows if rows else 1.0


def index_statistics(base: Snapshot) -> tuple[IndexStatistics, ...]:
    """Return the statistics of each index, in the order of the version."""
    coverage = Coverage(base)
    by_name = coverage.by_name
    if not by_name:
        return ()
    count, live = RowCounts(base.manifest), RowCounts(base.manifest, live=True)
    return tuple(
        _statistics_of_index(base, coverage, name, segments, count, live) for name, segments in by_name.items()
    )


class RowCounts:
    """Counter of the rows that some fragments of a version store, or, with `live`, of those that are not deleted."""

    def __init__(self, manifest: Manifest, *, live: bool = False) -> None:
        messages = manifest.message.fragments
        self._ids = np.fromiter((fragment.id for fragment in messages), dtype=np.uint64, count=len(messages))
        rows = map(live_rows, messages) if live else (fragment.physical_rows for fragment in messages)
        self._rows = np.fromiter(rows, dtype=np.int64, count=len(messages))

    def __call__(self, fragments: BitMap) -> int:
        ids = np.frombuffer(fragments.to_array(), dtype=np.uint32)
        return int(self._rows[np.isin(self._ids, ids)].sum())


def _statistics_of_index(
    base: Snapshot,
    coverage: Coverage,
    name: str,
    segments: Sequence[SegmentCoverage],
    count: RowCounts,
    live: RowCounts,
) -> IndexStatistics:
    newest = max(segments, key=lambda each: (each.metadata.dataset_version, each.metadata.message.created_at))
    field_ids = newest.metadata.field_ids
    chain = build.chain_of(base.manifest.schema, field_ids[0]) if field_ids else None
    covered = combined_coverage(segments)
    segment_statistics = tuple(_statistics_of_segment(coverage, each, count) for each in segments)
    return IndexStatistics(
        name=name,
        kind=_type_name(newest),
        column=None if chain is None else field_paths.format_path(chain),
        segments=segment_statistics,
        covered_fragments=len(covered),
        uncovered_fragments=len(coverage.live_fragments - covered),
        covered_rows=count(covered),
        uncovered_rows=count(coverage.live_fragments - covered),
        bytes=_sum_if_known(each.bytes for each in segment_statistics),
        created_at=max((each.created_at for each in segment_statistics if each.created_at is not None), default=None),
        dataset_version=min(each.dataset_version for each in segment_statistics),
        notes_behind=sum(is_behind(coverage, each) for each in segments),
        covered_live_rows=live(covered),
        uncovered_live_rows=live(coverage.live_fragments - covered),
    )


def _statistics_of_segment(coverage: Coverage, segment: SegmentCoverage, count: RowCounts) -> SegmentStatistics:
    index = segment.metadata
    return SegmentStatistics(
        uuid=index.uuid,
        kind=_type_name(segment),
        index_version=index.message.index_version,
        fragments=len(segment.covered),
        rows=count(segment.covered),
        bytes=_sum_if_known(file.size or None for file in index.files) if index.files else None,
        created_at=index.created_at,
        dataset_version=index.dataset_version,
        unused=segment.unused_reason,
        is_known=registry.by_type_url(index) is not None,
        vectors=statistics_of(coverage.segment_of(index)) if is_vector_segment(index) else None,
    )


def _type_name(segment: SegmentCoverage) -> str:
    return segment.kind.name if segment.kind is not None else segment.metadata.kind or "unknown"


def is_behind(coverage: Coverage, segment: SegmentCoverage) -> bool:
    """Return whether rows of the segment moved since it was built. A segment of an unknown type, or one that cannot
    be trusted, follows no moves."""
    index = segment.metadata
    return segment.kind is not None and not index.is_zone_based and follow_reuse(index, coverage.reuse) != index.covers


def _sum_if_known(sizes: Iterable[int | None]) -> int | None:
    """Return the sum, or `None` if any size is unknown."""
    known = list(sizes)
    return None if None in known else sum(size for size in known if size is not None)
