"""Index maintenance: covers uncovered fragments, merges small segments, removes useless ones, and rewrites segments
whose rows were moved by compactions to current addresses.

    plan each index (`IndexWork`) -> write its new segment, if it needs one -> one CreateIndex for all of them
    then, as a separate change: drop recorded compactions that no segment follows (`trim_reuse_index`)

A new segment contains the rows of fragments that no segment covers and of the segments merged with it. Segments of an
unknown index type stay unchanged, with their whole coverage and the recorded compactions that they need. Start with
`optimize_indices`.
"""

import enum
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from pyroaring import BitMap

from lance_core import validation
from lance_core.errors import InvalidInput, Unsupported
from lance_core.format import field_paths, naming
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import ExternalContent, content_of, reuse_entry
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import CreateIndex
from lance_core.format.row_lineage import RowVersions
from lance_core.index import build, verification
from lance_core.index.build import IndexSpec
from lance_core.index.coverage import Coverage, SegmentCoverage, combined_coverage, follow_reuse
from lance_core.index.index_type import MergeInput
from lance_core.index.row_remap import SameAddresses
from lance_core.index.statistics import RowCounts
from lance_core.index.vector.options import VectorOptions
from lance_core.index.vector.segment_statistics import rebuild_options, statistics_of
from lance_core.index.vector.vector_type import UNDECLARED
from lance_core.progress import track
from lance_core.runtime import Runtime
from lance_core.scan.vector_columns import is_multivector
from lance_core.versions.snapshot import Snapshot

SMALL_SEGMENT_ROWS = 1_048_576
"""A segment of at most this number of rows is merged with every new one."""


class Merge(enum.Enum):
    """Selection of the segments of an index that are merged into one."""

    SMALL = "small"
    """Segments that are small relative to what they are merged with, so that each row is rewritten a few times in
    total and the number of segments stays small."""
    ALL = "all"
    """All segments: the fewest to search, and the most to write."""
    NONE = "none"
    """Uncovered fragments become a segment of their own."""

    @classmethod
    def of(cls, text: str) -> "Merge":
        return validation.check_choice(cls, text, "merge")


@dataclass(frozen=True, slots=True)
class IndexWork:
    """Maintenance of one index."""

    spec: IndexSpec
    merged: tuple[SegmentCoverage, ...]
    """Segments that are merged into the new one, from their own files."""
    fragments: tuple[Fragment, ...]
    """Fragments whose rows are read from the table."""
    covers: BitMap
    """Coverage of the new segment. Empty if no segment is written."""
    removed: tuple[IndexMetadata, ...]


def optimize_indices(
    base: Snapshot, names: Sequence[str] | None, merge: Merge, *, runtime: Runtime
) -> CreateIndex | None:
    """Write the new segments and return the operation, or `None` if no index needs maintenance."""
    coverage = Coverage(base)
    new: list[IndexMetadata] = []
    removed: list[IndexMetadata] = []
    for work in track(tuple(plan_work(base, coverage, names, merge)), "build segments", "indices"):
        segment = _write_segment(base, coverage, work, runtime) if work.covers else None
        if segment is not None and is_still_unbuilt(work, segment):
            continue
        removed += work.removed
        new += [segment] if segment is not None else []
    return CreateIndex(tuple(new), tuple(removed)) if new or removed else None


def is_still_unbuilt(work: IndexWork, segment: IndexMetadata) -> bool:
    """Return whether an index was only defined before, and still has too few rows to be built."""
    return segment.is_definition and bool(work.removed) and all(index.is_definition for index in work.removed)


def trim_reuse_index(base: Snapshot, fresh: Collection[IndexMetadata], *, runtime: Runtime) -> CreateIndex | None:
    """Return the operation that drops recorded compactions that no segment follows, or `None` if every one is needed.

    `fresh` are segments that were just written with knowledge of all recorded compactions, so that their files need
    not be read. The entry itself stays, in the end empty, since a concurrent transaction may be adding to it.
    """
    entry = reuse_entry(base.manifest.indices)
    coverage = Coverage(base)
    if entry is None or coverage.reuse is None or coverage.compaction_log is None:
        return None
    needed: set[int] = set()
    known = {index.uuid for index in fresh}
    for segment in coverage.segments:
        if segment.metadata.uuid in known:  # A compaction may have been committed since it was written.
            needed |= set(_compactions_followed_from(coverage, segment, segment.metadata.covers or BitMap()))
        else:
            needed |= set(_compactions_needed_by(base, coverage, segment))
    trimmed = coverage.reuse.keep_compactions(needed)
    if trimmed == coverage.reuse:
        return None
    new_entry = trimmed.as_index(
        runtime.new_uuid(), dataset_version=entry.dataset_version, created_ms=runtime.now_ns() // 1_000_000
    )
    if isinstance(content := content_of(new_entry), ExternalContent):
        base.location.store.put(f"{naming.INDICES}/{new_entry.uuid}/{content.name}", trimmed.encode())
    return CreateIndex((new_entry,), (entry,))


def plan_work(base: Snapshot, coverage: Coverage, names: Sequence[str] | None, merge: Merge) -> Iterator[IndexWork]:
    """Yield the maintenance of each index that needs some. Raise if an index in `names` cannot be maintained."""
    for name in _checked_names(base, coverage, names):
        segments = coverage.by_name[name]
        work = _plan_index(base, coverage, segments, merge)
        if isinstance(work, IndexWork):
            yield work
        elif work is not None and names is not None:
            raise Unsupported(f"{base.location.uri}: index {name!r} cannot be optimized: it {work}")


def _checked_names(base: Snapshot, coverage: Coverage, names: Sequence[str] | None) -> Sequence[str]:
    existing = list(coverage.by_name)
    for name in names or ():
        if name not in coverage.by_name:
            hint = field_paths.suggest_name(name, existing) if existing else "this version has none"
            raise InvalidInput(f"{base.location.uri}: there is no index {name!r}; {hint}")
    return existing if names is None else list(dict.fromkeys(names))


def _plan_index(
    base: Snapshot, coverage: Coverage, segments: Sequence[SegmentCoverage], merge: Merge
) -> IndexWork | str | None:
    """Return the work for one index, `None` if it needs none, or the reason why it cannot be maintained."""
    segments = [_verified(base, coverage, segment) for segment in segments]
    usable = [segment for segment in segments if segment.kind is not None]
    if not usable:
        return segments[0].unused_reason or "has an unknown index type"
    template = max(usable, key=lambda segment: segment.metadata.dataset_version)
    spec = build.spec_of_segment(base, coverage, template.metadata)
    if spec is None:
        return _reason_without_spec(template)
    ours = [segment for segment in usable if has_same_definition(segment, template)]
    uncovered = unclaimed_fragments(coverage, ours, segments)
    if merge is not Merge.NONE and (retrained := _retrained(base, coverage, spec, ours, uncovered)) is not None:
        return retrained
    merged = _segments_to_merge(base, coverage, ours, uncovered, merge)
    useless = [segment for segment in ours if not segment.covered]
    if uncovered or merged:
        return _work_with_segment(base, spec, uncovered, merged, useless)
    # One segment stays, so that the index does not disappear.
    removed = useless if len(useless) < len(segments) else useless[:-1]
    return IndexWork(spec, (), (), BitMap(), tuple(segment.metadata for segment in removed)) if removed else None


def _reason_without_spec(segment: SegmentCoverage) -> str:
    """Return why an index cannot be built again from what its segment records."""
    if segment.kind is UNDECLARED:
        return "has files that cannot be read, so that its type is not known; build it again, with replace=True"
    return "is on a column that no longer exists or whose type the index type does not support; drop the index"


def _retrained(
    base: Snapshot, coverage: Coverage, spec: IndexSpec, segments: Sequence[SegmentCoverage], uncovered: BitMap
) -> IndexWork | None:
    """Return the work that trains a vector index again, on all rows that it covers and will cover; `None` if its model
    still fits them."""
    if not isinstance(spec.options, VectorOptions):
        return None
    covers = uncovered | combined_coverage(segments)
    metadata = tuple(segment.metadata for segment in segments)
    known = [statistics_of(coverage.segment_of(segment)) for segment in metadata]
    vectors = RowCounts(base.manifest, live=True)(covers)
    if is_multivector(build.arrow_of(base.manifest.schema, spec.chain).type):
        listed = sum(each.rows or 0 for each in known)
        vectors = vectors * listed // max(1, RowCounts(base.manifest)(combined_coverage(segments)))
    options = rebuild_options(spec.options, known, vectors)
    if options is None:
        return None
    fragments = tuple(fragment for fragment in base.manifest.fragments if fragment.id in covers)
    return IndexWork(replace(spec, options=options), (), fragments, covers, metadata)


def _verified(base: Snapshot, coverage: Coverage, segment: SegmentCoverage) -> SegmentCoverage:
    """Return the segment without the fragments of which it misses rows. Return a segment whose files cannot be read
    unchanged: if it is merged, the rows of the table are read instead."""
    try:
        return verification.verified(base, coverage, segment)
    except build.UNREADABLE_ERRORS:
        return segment


def _work_with_segment(
    base: Snapshot,
    spec: IndexSpec,
    uncovered: BitMap,
    merged: Sequence[SegmentCoverage],
    useless: Sequence[SegmentCoverage],
) -> IndexWork:
    """Return the work that writes a new segment. Outdated segments are rebuilt from the table's rows."""
    outdated = [segment for segment in merged if _is_outdated(base, segment)]
    read = uncovered | combined_coverage(outdated)
    return IndexWork(
        spec,
        tuple(segment for segment in merged if segment not in outdated),
        tuple(fragment for fragment in base.manifest.fragments if fragment.id in read),
        uncovered | combined_coverage(merged),
        tuple(segment.metadata for segment in (*merged, *useless)),
    )


def _segments_to_merge(
    base: Snapshot, coverage: Coverage, ours: Sequence[SegmentCoverage], uncovered: BitMap, merge: Merge
) -> list[SegmentCoverage]:
    """Return the segments whose rows go into the new one; none if no segment is written.

    Stale segments, those that claim fragments without listing their rows, and those that may list rows of uncovered
    fragments are always merged. Segments of row addresses in a table with stable row ids are merged if a segment is
    written: pylance 14 refuses an index that mixes both numbers.
    """
    covering = [segment for segment in ours if segment.covered]
    to_cover = tuple(fragment for fragment in base.manifest.fragments if fragment.id in uncovered)
    merged = [
        segment
        for segment in covering
        if _is_stale(coverage, segment)
        or _claims_too_much(coverage, segment)
        or _may_list_rows_of(base, coverage, segment, to_cover)
    ]
    must_write = bool(uncovered or merged)
    others = [segment for segment in covering if segment not in merged]
    merged += _others_to_merge(RowCounts(base.manifest), others, merged, uncovered, merge)
    if not must_write and len(merged) < 2:
        return []
    if base.manifest.has_stable_row_ids:
        merged += [segment for segment in covering if segment not in merged and _lists_addresses(segment)]
    return merged


def _others_to_merge(
    rows: RowCounts,
    others: Sequence[SegmentCoverage],
    merged: Sequence[SegmentCoverage],
    uncovered: BitMap,
    merge: Merge,
) -> Sequence[SegmentCoverage]:
    """Return the segments that are merged because the caller wants fewer segments."""
    if merge is not Merge.SMALL:
        return others if merge is Merge.ALL else ()
    new_rows = rows(uncovered) + sum(rows(segment.covered) for segment in merged)
    return [others[position] for position in small_segments(new_rows, [rows(segment.covered) for segment in others])]


def small_segments(gathered: int, sizes: Sequence[int]) -> list[int]:
    """Return the positions of the segments that are merged into a new one of `gathered` rows.

    `sizes` has the number of rows of each segment. Starting with the smallest, a segment is merged if it has at most
    `SMALL_SEGMENT_ROWS` rows or no more than what has been gathered so far.

    >>> small_segments(0, [9_000_000, 20_000, 1_000_000, 1_010_000, 2_040_000])
    [1, 2, 3]
    """
    chosen = []
    for position in sorted(range(len(sizes)), key=lambda position: sizes[position]):
        if sizes[position] <= max(gathered, SMALL_SEGMENT_ROWS):
            chosen.append(position)
            gathered += sizes[position]
    return chosen


def _write_segment(base: Snapshot, coverage: Coverage, work: IndexWork, runtime: Runtime) -> IndexMetadata:
    """Write the new segment, from the rows of the table alone if the files of a merged segment cannot be read."""
    inputs = [merge_input_of(base, coverage, segment) for segment in work.merged]
    try:
        return build.build_segment(base, work.spec, work.fragments, inputs=inputs, covers=work.covers, runtime=runtime)
    except build.UNREADABLE_ERRORS:
        if not inputs:
            raise
        fragments = [fragment for fragment in base.manifest.fragments if fragment.id in work.covers]
        return build.build_segment(base, work.spec, fragments, covers=work.covers, runtime=runtime)


def merge_input_of(base: Snapshot, coverage: Coverage, segment: SegmentCoverage) -> MergeInput:
    """Return an existing segment as input of a new one."""
    if segment.metadata.is_zone_based:
        return MergeInput(coverage.segment_of(segment.metadata), SameAddresses(segment.covered))
    by_id = base.manifest.has_stable_row_ids and not segment.metadata.stores_addresses
    return coverage.merge_input(segment, rows_by_id=by_id)


def has_same_definition(one: SegmentCoverage, other: SegmentCoverage) -> bool:
    """Return whether two segments have the same index type and column."""
    return one.kind is other.kind and one.metadata.field_ids == other.metadata.field_ids


def unclaimed_fragments(
    coverage: Coverage, ours: Sequence[SegmentCoverage], segments: Sequence[SegmentCoverage]
) -> BitMap:
    """Return the live fragments that no segment of an index claims.

    `ours` claim what they cover. The other segments of the index claim what they record, whether or not they can be
    used here: no two segments of one name may claim the same fragment.
    """
    others = (segment.metadata for segment in segments if segment not in ours)
    claimed = (follow_reuse(index, coverage.reuse) or BitMap() for index in others)
    return coverage.live_fragments - combined_coverage(ours) - BitMap.union(BitMap(), *claimed)


def _is_stale(coverage: Coverage, segment: SegmentCoverage) -> bool:
    """Return whether, by its metadata, readers must follow recorded compactions to find its rows, or the segment claims
    fragments that only recorded compactions exclude."""
    fragments = segment.metadata.covers or BitMap()
    return next(_compactions_followed_from(coverage, segment, fragments), None) is not None


def _claims_too_much(coverage: Coverage, segment: SegmentCoverage) -> bool:
    """Return whether a segment records more fragments than it covers after verification."""
    recorded = follow_reuse(segment.metadata, coverage.reuse) or BitMap()
    return not segment.metadata.is_zone_based and recorded & coverage.live_fragments != segment.covered


def _lists_addresses(segment: SegmentCoverage) -> bool:
    return segment.metadata.stores_addresses and not segment.metadata.is_zone_based


def _is_outdated(base: Snapshot, segment: SegmentCoverage) -> bool:
    """Return whether a new segment cannot be merged from the files of this one: their index version, and with it their
    row numbers or contents, differs from that of new files, or they may list old values."""
    if segment.kind is None:
        return False
    try:
        is_current = segment.metadata.message.index_version == segment.kind.written_version
        return not is_current or verification.may_list_old_values(base, segment)
    except build.UNREADABLE_ERRORS:
        return True


def _may_list_rows_of(
    base: Snapshot, coverage: Coverage, segment: SegmentCoverage, fragments: Sequence[Fragment]
) -> bool:
    """Return whether the segment may list rows of fragments that it does not cover, with values that they once had.

    Another segment is about to cover these fragments, and pylance accepts what any segment says about a fragment that
    one of them covers.
    """
    index = segment.metadata
    if base.manifest.has_stable_row_ids and not index.stores_addresses:
        # The segment cannot list a row that was created after the version that it was built from.
        return any(_oldest_row_version(base, fragment) <= index.dataset_version for fragment in fragments)
    highest = (index.covers or segment.covered).max()
    highest_when_built = verification.highest_fragment_when_built(base, index)
    # A compaction that rewrites the segment leaves its dataset_version unchanged, so that the fragments that existed
    # when it was written are unknown.
    was_rewritten = highest_when_built is not None and highest > highest_when_built
    known = max(highest, highest_when_built or 0)
    suspects = [
        fragment.id for fragment in fragments if was_rewritten or len(fragment.files) > 1 or fragment.id <= known
    ]
    if not suspects:
        return False
    try:
        examination = verification.examine_segment(base, coverage, segment)
    except build.UNREADABLE_ERRORS:
        return True
    return examination is not None and not BitMap(examination.rows.parts).isdisjoint(BitMap(suspects))


def _oldest_row_version(base: Snapshot, fragment: Fragment) -> int:
    """Return the version in which the first of the fragment's rows was created."""
    rows, path = fragment.physical_rows, base.manifest.path
    versions = RowVersions.decode(fragment.created_at, rows=rows, path=path, field="created_at")
    return min((version for _count, version in versions.runs), default=base.version)


def _compactions_followed_from(coverage: Coverage, segment: SegmentCoverage, fragments: BitMap) -> Iterator[int]:
    """Yield the numbers of the recorded compactions that lead on from these fragments, or that are newer than the
    segment."""
    if coverage.reuse is None:
        return
    index, reached = segment.metadata, fragments
    for number, (planned, groups) in enumerate(coverage.reuse.compactions()):
        old = BitMap(id for group in groups for id, _ in group.old)
        new = BitMap(id for group in groups for id, _ in group.new)
        moves_rows = not index.is_zone_based and bool(reached & old)
        if moves_rows or (index.dataset_version <= planned and reached & new):
            reached = reached | new
            yield number


def _compactions_needed_by(base: Snapshot, coverage: Coverage, segment: SegmentCoverage) -> Iterator[int]:
    """Yield the same, judged by what the files of the segment contain if they can be read: another writer may have
    updated its recorded coverage and left the files unchanged."""
    fragments = segment.metadata.covers or BitMap()
    if base.manifest.has_stable_row_ids and not segment.metadata.stores_addresses:
        return
    try:
        if (
            not segment.metadata.is_zone_based
            and (examination := verification.examine_segment(base, coverage, segment)) is not None
        ):
            fragments = fragments | BitMap(examination.rows.parts)
    except build.UNREADABLE_ERRORS:
        return  # No reader can use the segment, with or without the compactions.
    yield from _compactions_followed_from(coverage, segment, fragments)
