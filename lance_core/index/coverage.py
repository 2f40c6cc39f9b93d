"""Which fragments of a version each segment of its indices answers for, and why one answers for none.

A segment claims fragments of the version that it was built from. Some are gone since; some became others, which notes
of compactions tell (`format/fragment_reuse.py`); one of a kind that is not known answers nothing. What cannot be
vouched for is not claimed: the fragment is scanned. Where the rows of a covered fragment are now, `row_remap.py` knows.
Start with `Coverage`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyroaring import BitMap

from lance_core.datafiles.row_lineage import OFFSET_MAX
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


@dataclass(frozen=True, slots=True)
class SegmentCoverage:
    """A segment in a version."""

    metadata: IndexMetadata
    kind: IndexType | None
    """None where it cannot be used."""
    covered: BitMap
    """Fragments of the version that it knows all rows of. Nothing where it cannot be used."""
    unused_reason: str | None
    """Why it cannot be used, or why it covers nothing: the end of a sentence that begins with its name."""


class Coverage:
    """Of all indices of a version but the system's own. Nothing is read before it is asked for, and then it is kept;
    two threads may ask at once."""

    def __init__(self, base: Snapshot) -> None:
        self._base = base

    @cached_property
    def segments(self) -> tuple[SegmentCoverage, ...]:
        return tuple(self._standing(index) for index in self._base.manifest.indices if not index.is_system)

    @cached_property
    def by_name(self) -> Mapping[str, tuple[SegmentCoverage, ...]]:
        """The segments of each index."""
        found: dict[str, list[SegmentCoverage]] = {}
        for each in self.segments:
            found.setdefault(each.metadata.name, []).append(each)
        return {name: tuple(of_name) for name, of_name in found.items()}

    @cached_property
    def live_fragments(self) -> BitMap:
        """All fragments of the version."""
        self._base.manifest.check_ids()
        return BitMap(fragment.id for fragment in self._base.manifest.message.fragments)

    @cached_property
    def reuse(self) -> FragmentReuse | None:
        """Raises what keeps it from being read."""
        return load_reuse(self._base)

    @cached_property
    def row_id_index(self) -> RowIdIndex:
        """From the stable ids of rows to where they are."""
        return build_row_id_index(self._base.location, self._base.manifest)

    def uncovered_fragments(self, name: str) -> BitMap:
        """The fragments that an index knows nothing of."""
        return self.live_fragments - BitMap.union(BitMap(), *(each.covered for each in self.by_name.get(name, ())))

    def row_remap(self, standing: SegmentCoverage) -> RowRemap:
        """From the numbers that a segment holds to addresses in this version."""
        covered = standing.covered
        if self._base.manifest.has_stable_row_ids and not standing.metadata.stores_addresses:
            return ResolveRowIds(self.row_id_index, covered)
        notes = self.compaction_log
        return SameAddresses(covered) if notes is None else FollowCompactions(notes, covered)

    def merge_input(self, standing: SegmentCoverage, *, rows_by_id: bool) -> MergeInput:
        """A segment that goes into a new one, which is to hold row ids, or addresses of this version."""
        moves = self.row_remap(standing)
        if rows_by_id and self._base.manifest.has_stable_row_ids:
            if not isinstance(moves, ResolveRowIds):
                raise Unsupported(
                    f"{self._base.location.uri}: index {standing.metadata.name!r} holds addresses, and cannot go into "
                    "one that holds row ids; create it anew, with replace=True"
                )
            moves = KeepRowIds(moves)
        return MergeInput(self.segment_of(standing.metadata), moves)

    def segment_of(self, metadata: IndexMetadata) -> Segment:
        """As its kind sees it."""
        return Segment(metadata, OpenSegment(self._base.location, metadata), self.rows_under(metadata))

    def rows_under(self, metadata: IndexMetadata) -> "RowIdCounts | FragmentRowCounts":
        if self._base.manifest.has_stable_row_ids and not metadata.stores_addresses:
            return RowIdCounts(self._base.manifest.next_row_id)
        return FragmentRowCounts(self.physical_rows if self.compaction_log is None else self.compaction_log.rows_under | self.physical_rows)

    def fingerprint(self, standing: SegmentCoverage) -> tuple[object, ...]:
        """What a segment that is open depends on besides its files: with the same, it is the same."""
        if self._base.manifest.has_stable_row_ids and not standing.metadata.stores_addresses:
            return ()
        entry = reuse_entry(self._base.manifest.indices)
        return (None if entry is None else entry.uuid, bytes(standing.covered.serialize()))

    @cached_property
    def compaction_log(self) -> CompactionLog | None:
        """On compactions whose rows others have to follow."""
        return None if self.reuse is None else CompactionLog(self.reuse, path=self._path)

    @cached_property
    def physical_rows(self) -> dict[int, int]:
        """How many rows each fragment has, deleted ones included."""
        return {each.id: each.physical_rows for each in self._base.manifest.message.fragments}

    @property
    def _path(self) -> str:
        return f"{self._base.location.uri}/{self._base.manifest.path}"

    def _standing(self, index: IndexMetadata) -> SegmentCoverage:
        kind = registry.by_type_url(index)
        if kind is None:
            return SegmentCoverage(index, None, BitMap(), registry.reason_unknown(index))
        try:
            covered = self._covered(index)
        except LanceError as error:
            return SegmentCoverage(index, None, BitMap(), f"cannot be trusted: {error}")
        if covered is None:
            return SegmentCoverage(index, kind, BitMap(), "does not say which fragments it covers")
        return SegmentCoverage(index, kind, covered, None if covered else "covers no fragment of this version")

    def _covered(self, index: IndexMetadata) -> BitMap | None:
        """Zones are of fragments that are gone, wherever rows went; what was built since knows the new ones itself."""
        noted, notes = index.covers, self.compaction_log
        if noted is None:
            return None
        if notes is None or self.reuse is None:
            return noted & self.live_fragments
        if index.is_zone_based:
            return (noted & self.live_fragments) - notes.fragments_created_since(index.dataset_version)
        return self.reuse.follow_coverage(noted) & self.live_fragments


@dataclass(frozen=True, slots=True)
class FragmentRowCounts:
    """How many rows there are under an address's upper half; fragments that are gone count as they were."""

    rows: Mapping[int, int]

    def __call__(self, high: int) -> int:
        return self.rows.get(high, 0)


@dataclass(frozen=True, slots=True)
class RowIdCounts:
    """How many row ids there may be under an upper half."""

    next_row_id: int

    def __call__(self, high: int) -> int:
        return min(max(0, self.next_row_id - (high << HALF_BITS)), LOWER_HALF + 1)


def current_coverage(base: Snapshot) -> list[BitMap]:
    """What each segment was told to cover, in fragments of today; of kinds that are not known too."""
    reuse = load_reuse(base)
    return [covered for index in base.manifest.indices if (covered := follow_reuse(index, reuse)) is not None]


def follow_reuse(index: IndexMetadata, reuse: FragmentReuse | None) -> BitMap | None:
    """What a segment was told to cover, with fragments that became others as those; None for what covers none, or
    nobody knows which."""
    covered = index.covers
    if covered is None or index.is_system:
        return None
    return covered if reuse is None else reuse.follow_coverage(covered)


def load_reuse(base: Snapshot, indices: Sequence[IndexMetadata] | None = None) -> FragmentReuse | None:
    """The notes of compactions, inline or in a file of their own; of a clone, in the table that it was made of."""
    entry = reuse_entry(base.manifest.indices if indices is None else indices)
    if entry is None:
        return None
    content = content_of(entry)
    if isinstance(content, ExternalContent):
        if not naming.is_confined(content.name):
            raise Unsupported(f"{base.location.uri}: index {entry.name} keeps its content outside this table")
        path = f"{entry.qualified_path}/{content.name}"
        INDEX_DETAILS_BYTES.check(content.size, path=path)
        if content.offset > OFFSET_MAX:
            raise Corrupt(f"has no byte {content.offset}", path=path, field="index_details")
        return FragmentReuse.decode(base.location.store.read(path, content.offset, content.size), path=path)
    return content


def combined_coverage(standings: Iterable[SegmentCoverage]) -> BitMap:
    """What some segments cover."""
    return BitMap.union(BitMap(), *(each.covered for each in standings))
