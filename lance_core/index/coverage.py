"""Segment coverage: determines which fragments of a version each index segment answers for, and why a segment answers
for none.

A segment claims fragments of the version that it was built from. Some of them no longer exist, and some were
rewritten into others, which the fragment reuse index records (`format/fragment_reuse.py`). A segment of an unknown
index type answers for nothing. A fragment whose coverage is uncertain is not claimed, so queries scan it.
`row_remap.py` translates row numbers to current addresses. Start with `Coverage`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

from pyroaring import BitMap

from lance_core.datafiles.manifest_completion import OFFSET_MAX
from lance_core.errors import Corrupt, LanceError, Unsupported
from lance_core.format import naming
from lance_core.format.fragment_reuse import ExternalContent, FragmentReuse, content_of, reuse_entry
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_id_index import RowIdIndex
from lance_core.format.row_sets import HALF_BITS, LOWER_HALF
from lance_core.index import registry
from lance_core.index.index_type import IndexType, MergeInput, RowRemap, Segment
from lance_core.index.row_remap import CompactionLog, FollowCompactions, KeepRowIds, ResolveRowIds, SameAddresses
from lance_core.index.segment_files import OpenSegment
from lance_core.limits import INDEX_DETAILS_BYTES
from lance_core.scan.take import build_row_id_index
from lance_core.versions.snapshot import Snapshot

_NOT_BUILT = "is not built yet; optimize_indices() builds it once the table has enough rows"


@dataclass(frozen=True, slots=True)
class SegmentCoverage:
    """Index segment in a version, with the fragments that it answers for."""

    metadata: IndexMetadata
    kind: IndexType | None
    """Index type; `None` if the segment cannot be used."""
    covered: BitMap
    """Fragments of the version of which the segment knows all rows. Empty if it cannot be used."""
    unused_reason: str | None
    """Reason why the segment cannot be used or covers nothing: the end of a sentence that begins with its name."""


class Coverage:
    """Coverage of all indices of a version except system indices.

    Each property is read on first use and then cached; two threads may use them at the same time.
    """

    def __init__(self, base: Snapshot) -> None:
        self._base = base

    @cached_property
    def segments(self) -> tuple[SegmentCoverage, ...]:
        return tuple(
            self._assess(index_metadata)
            for index_metadata in self._base.manifest.indices
            if not index_metadata.is_system
        )

    @cached_property
    def by_name(self) -> Mapping[str, tuple[SegmentCoverage, ...]]:
        """Segments of each index."""
        by_name: dict[str, list[SegmentCoverage]] = {}
        for segment in self.segments:
            by_name.setdefault(segment.metadata.name, []).append(segment)
        return {name: tuple(segments) for name, segments in by_name.items()}

    @cached_property
    def live_fragments(self) -> BitMap:
        """All fragments of the version."""
        self._base.manifest.check_ids()
        return BitMap(fragment.id for fragment in self._base.manifest.message.fragments)

    @cached_property
    def reuse(self) -> FragmentReuse | None:
        """Fragment reuse index, or `None` if the version has none. Raises if it cannot be read."""
        return load_reuse(self._base)

    @cached_property
    def row_id_index(self) -> RowIdIndex:
        """Index from stable row ids to current addresses."""
        return build_row_id_index(self._base.location, self._base.manifest)

    def uncovered_fragments(self, name: str) -> BitMap:
        """Return the fragments that no segment of the index covers."""
        return self.live_fragments - combined_coverage(self.by_name.get(name, ()))

    def row_remap(self, segment: SegmentCoverage) -> RowRemap:
        """Return the translation from the row numbers in a segment to addresses in this version."""
        covered = segment.covered
        if self._base.manifest.has_stable_row_ids and not segment.metadata.stores_addresses:
            return ResolveRowIds(self.row_id_index, covered)
        log = self.compaction_log
        return SameAddresses(covered) if log is None else FollowCompactions(log, covered)

    def merge_input(self, segment: SegmentCoverage, *, rows_by_id: bool) -> MergeInput:
        """Return an existing segment as input of a new one, which is to contain row ids, or addresses in this
        version."""
        row_remap = self.row_remap(segment)
        if rows_by_id and self._base.manifest.has_stable_row_ids:
            if not isinstance(row_remap, ResolveRowIds):
                raise Unsupported(
                    f"{self._base.location.uri}: index {segment.metadata.name!r} contains row addresses and cannot be "
                    "merged into one of row ids; recreate it with replace=True"
                )
            row_remap = KeepRowIds(row_remap)
        return MergeInput(self.segment_of(segment.metadata), row_remap)

    def segment_of(self, metadata: IndexMetadata) -> Segment:
        """Return a segment as its index type sees it."""
        return Segment(metadata, OpenSegment(self._base.location, metadata), self.rows_under(metadata))

    def rows_under(self, metadata: IndexMetadata) -> "RowIdCounts | FragmentRowCounts":
        """Return the function that bounds the row numbers a segment may contain."""
        if self._base.manifest.has_stable_row_ids and not metadata.stores_addresses:
            return RowIdCounts(self._base.manifest.next_row_id)
        return FragmentRowCounts(
            self.physical_rows if self.compaction_log is None else self.compaction_log.rows_under | self.physical_rows
        )

    def fingerprint(self, segment: SegmentCoverage) -> tuple[object, ...]:
        """Return everything that an open segment depends on in addition to its files. Open segments with equal
        fingerprints are interchangeable."""
        if self._base.manifest.has_stable_row_ids and not segment.metadata.stores_addresses:
            return ()
        return (self._reuse_uuid, bytes(segment.covered.serialize()))

    @cached_property
    def _reuse_uuid(self) -> UUID | None:
        """Identity of the fragment reuse index of the version."""
        entry = reuse_entry(self._base.manifest.indices)
        return None if entry is None else entry.uuid

    @cached_property
    def compaction_log(self) -> CompactionLog | None:
        """Compactions whose row moves readers have to follow."""
        return None if self.reuse is None else CompactionLog(self.reuse, path=self._path)

    @cached_property
    def physical_rows(self) -> dict[int, int]:
        """Number of rows of each fragment, deleted ones included."""
        return {fragment.id: fragment.physical_rows for fragment in self._base.manifest.message.fragments}

    @property
    def _path(self) -> str:
        return f"{self._base.location.uri}/{self._base.manifest.path}"

    def _assess(self, index: IndexMetadata) -> SegmentCoverage:
        kind = registry.by_type_url(index)
        if kind is None:
            return SegmentCoverage(index, None, BitMap(), registry.reason_unknown(index))
        try:
            covered = self._covered_fragments(index)
        except LanceError as error:
            return SegmentCoverage(index, None, BitMap(), f"cannot be trusted: {error}")
        if covered is None:
            return SegmentCoverage(index, kind, BitMap(), "does not say which fragments it covers")
        if index.is_definition:
            return SegmentCoverage(index, kind, covered, _NOT_BUILT)
        return SegmentCoverage(index, kind, covered, None if covered else "covers no fragment of this version")

    def _covered_fragments(self, index: IndexMetadata) -> BitMap | None:
        """Return the live fragments that the segment covers.

        Zones describe only the fragments that they were built from, even if their rows moved later. A segment that is
        newer than a compaction was built from the new fragments themselves.
        """
        recorded, log = index.covers, self.compaction_log
        if recorded is None:
            return None
        if log is None or self.reuse is None:
            return recorded & self.live_fragments
        if index.is_zone_based:
            return (recorded & self.live_fragments) - log.fragments_created_since(index.dataset_version)
        return self.reuse.follow_coverage(recorded) & self.live_fragments


@dataclass(frozen=True, slots=True)
class FragmentRowCounts:
    """Number of rows under the upper half of an address. Fragments that no longer exist count with the rows they
    had."""

    rows: Mapping[int, int]

    def __call__(self, high: int) -> int:
        return self.rows.get(high, 0)


@dataclass(frozen=True, slots=True)
class RowIdCounts:
    """Number of row ids that may exist under an upper half."""

    next_row_id: int

    def __call__(self, high: int) -> int:
        return min(max(0, self.next_row_id - (high << HALF_BITS)), LOWER_HALF + 1)


def current_coverage(base: Snapshot) -> list[BitMap]:
    """Return the recorded coverage of each segment in current fragments, also for unknown index types."""
    reuse = load_reuse(base)
    return [covered for index in base.manifest.indices if (covered := follow_reuse(index, reuse)) is not None]


def follow_reuse(index: IndexMetadata, reuse: FragmentReuse | None) -> BitMap | None:
    """Return the recorded coverage of a segment, with rewritten fragments replaced by their successors. `None` for a
    system index or if the segment records no coverage."""
    covered = index.covers
    if covered is None or index.is_system:
        return None
    return covered if reuse is None else reuse.follow_coverage(covered)


def load_reuse(base: Snapshot, indices: Sequence[IndexMetadata] | None = None) -> FragmentReuse | None:
    """Return the fragment reuse index of a version, which is stored inline or in its own file; for a clone, in the
    table that it was cloned from."""
    entry = reuse_entry(base.manifest.indices if indices is None else indices)
    if entry is None:
        return None
    content = content_of(entry)
    if isinstance(content, ExternalContent):
        if not naming.is_confined(content.name):
            raise Unsupported(f"{base.location.uri}: index {entry.name} stores its content outside this table")
        path = f"{entry.qualified_path}/{content.name}"
        INDEX_DETAILS_BYTES.check(content.size, path=path)
        if content.offset > OFFSET_MAX:
            raise Corrupt(f"offset {content.offset} is too large", path=path, field="index_details")
        return FragmentReuse.decode(base.location.store.read(path, content.offset, content.size), path=path)
    return content


def combined_coverage(segments: Iterable[SegmentCoverage]) -> BitMap:
    """Return the union of the coverage of some segments."""
    return BitMap.union(BitMap(), *(segment.covered for segment in segments))
