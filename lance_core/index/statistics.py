"""What there is to say of the indices of a version, from its metadata alone: no file of an index or of data is opened,
so that it can be asked of a table with 50,000 fragments whenever somebody looks at it.
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
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class SegmentStatistics:
    """Of one segment; an index is searched in each of them."""

    uuid: UUID
    kind: str
    """As users say it, `BTREE`; of a kind that is not known, what its writer called it."""
    index_version: int
    """Of its files' format."""
    fragments: int
    """Of this version, that it answers for."""
    rows: int
    """In these fragments, those that are deleted since included."""
    bytes: int | None
    """None where its writer did not note the sizes of its files."""
    created_at: datetime | None
    dataset_version: Version
    """The version whose rows it was built from."""
    unused: str | None
    """Why queries do not use it; None where they do."""
    is_known: bool
    """Whether its kind is, so that what it says can be looked at here."""


@dataclass(frozen=True, slots=True)
class IndexStatistics:
    """Of one index, which is all segments of a name."""

    name: str
    kind: str
    """Of its newest segment."""
    column: str | None
    """The path of the column it is on; None where that is gone."""
    segments: tuple[SegmentStatistics, ...]
    covered_fragments: int
    uncovered_fragments: int
    covered_rows: int
    uncovered_rows: int
    """Rows are counted as the fragments store them, with those that are deleted."""
    bytes: int | None
    created_at: datetime | None
    """When the newest segment was made; None where no segment tells."""
    dataset_version: Version
    """The oldest that a segment was built from."""
    notes_behind: int
    """Segments whose rows moved since: readers follow the notes of a compaction until `optimize_indices()`."""
    covered_live_rows: int
    uncovered_live_rows: int
    """The same without those that are deleted."""

    @property
    def is_known(self) -> bool:
        """Whether any of it is of a kind that is known here."""
        return any(segment.is_known for segment in self.segments)

    @property
    def is_used(self) -> bool:
        """Whether any of it answers a query."""
        return any(segment.unused is None for segment in self.segments)

    @property
    def why_unused(self) -> str | None:
        """The end of a sentence that begins with its name."""
        return None if self.is_used else self.segments[0].unused

    @property
    def coverage(self) -> float:
        """The share of rows that a query by it need not scan; 1 of a table without rows."""
        rows = self.covered_rows + self.uncovered_rows
        return self.covered_rows / rows if rows else 1.0

    @property
    def live_coverage(self) -> float:
        """The same of rows that are not deleted."""
        rows = self.covered_live_rows + self.uncovered_live_rows
        return self.covered_live_rows / rows if rows else 1.0


def index_statistics(base: Snapshot) -> tuple[IndexStatistics, ...]:
    """By name, in the order in which the version has them."""
    coverage = Coverage(base)
    by_name = coverage.by_name
    if not by_name:
        return ()
    count, live = RowCounts(base.manifest), RowCounts(base.manifest, live=True)
    return tuple(_of(base, coverage, name, segments, count, live) for name, segments in by_name.items())


class RowCounts:
    """How many rows some fragments of a version store; or, without those that are deleted, have."""

    def __init__(self, manifest: Manifest, *, live: bool = False) -> None:
        messages = manifest.message.fragments
        self._ids = np.fromiter((each.id for each in messages), dtype=np.uint64, count=len(messages))
        rows = map(live_rows, messages) if live else (each.physical_rows for each in messages)
        self._rows = np.fromiter(rows, dtype=np.int64, count=len(messages))

    def __call__(self, fragments: BitMap) -> int:
        wanted = np.frombuffer(fragments.to_array(), dtype=np.uint32)
        return int(self._rows[np.isin(self._ids, wanted)].sum())


def _of(
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
    told = tuple(_segment(each, count) for each in segments)
    return IndexStatistics(
        name=name,
        kind=_kind(newest),
        column=None if chain is None else field_paths.format_path(chain),
        segments=told,
        covered_fragments=len(covered),
        uncovered_fragments=len(coverage.live_fragments - covered),
        covered_rows=count(covered),
        uncovered_rows=count(coverage.live_fragments - covered),
        bytes=_sum(each.bytes for each in told),
        created_at=max((each.created_at for each in told if each.created_at is not None), default=None),
        dataset_version=min(each.dataset_version for each in told),
        notes_behind=sum(is_behind(coverage, each) for each in segments),
        covered_live_rows=live(covered),
        uncovered_live_rows=live(coverage.live_fragments - covered),
    )


def _segment(standing: SegmentCoverage, count: RowCounts) -> SegmentStatistics:
    index = standing.metadata
    return SegmentStatistics(
        uuid=index.uuid,
        kind=_kind(standing),
        index_version=index.message.index_version,
        fragments=len(standing.covered),
        rows=count(standing.covered),
        bytes=_sum(file.size or None for file in index.files) if index.files else None,
        created_at=index.created_at,
        dataset_version=index.dataset_version,
        unused=standing.unused_reason,
        is_known=registry.by_type_url(index) is not None,
    )


def _kind(standing: SegmentCoverage) -> str:
    return standing.kind.name if standing.kind is not None else standing.metadata.kind or "unknown"


def is_behind(coverage: Coverage, standing: SegmentCoverage) -> bool:
    """Whether rows of it moved since. One that is not known, or cannot be trusted, follows nothing."""
    index = standing.metadata
    return standing.kind is not None and not index.is_zone_based and follow_reuse(index, coverage.reuse) != index.covers


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return None if None in known else sum(size for size in known if size is not None)
