"""Keeping indices in shape: what is not covered is covered, small segments become one, those of no use go, and rows
that compactions moved are written where they are now.

    plan each index (`IndexWork`) -> write its new segment, if it takes one -> one CreateIndex for all of them
    then, as a change of its own: notes of compactions that nobody follows any more are dropped (`trim_reuse_index`)

A new segment has the rows of fragments that nobody covers, and of segments that are merged with it. Segments of a kind
that is not known stay as they are, with all that they cover and the notes that they need. Start with `optimize_indices`.
"""

import enum
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from lance_core import validation
from lance_core.errors import InvalidInput, LanceError, Unsupported
from lance_core.format import field_paths, naming
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import ExternalContent, content_of, reuse_entry
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import CreateIndex
from lance_core.format.row_versions import RowVersions
from lance_core.index import build
from lance_core.index.build import IndexSpec
from lance_core.index.coverage import Coverage, SegmentCoverage, combined_coverage, follow_reuse
from lance_core.index.index_type import SegmentExamination, MergeInput
from lance_core.index.row_remap import SameAddresses
from lance_core.index.statistics import RowCounts
from lance_core.runtime import Runtime
from lance_core.versions.snapshot import Snapshot, load_at

SMALL_SEGMENT_ROWS = 1_048_576
"""A segment of so few rows is merged with whatever comes."""


class Merge(enum.Enum):
    """Which segments of an index become one."""

    SMALL = "small"
    """Those that are small beside what they are merged with, so that each row is written a few times in all, and there
    are few segments to search."""
    ALL = "all"
    """All of them: the fewest to search, and the most to write."""
    NONE = "none"
    """What is not covered becomes a segment of its own."""

    @classmethod
    def of(cls, text: str) -> "Merge":
        return validation.check_choice(cls, text, "merge")


@dataclass(frozen=True, slots=True)
class IndexWork:
    """What is to be done for one index."""

    spec: IndexSpec
    merged: tuple[SegmentCoverage, ...]
    """Segments whose rows go into the new one, from what they hold."""
    fragments: tuple[Fragment, ...]
    """Whose rows are read from the table."""
    covers: BitMap
    removed: tuple[IndexMetadata, ...]


def optimize_indices(base: Snapshot, names: Sequence[str] | None, merge: Merge, *, runtime: Runtime) -> CreateIndex | None:
    """None where all is in shape. When it returns, the files are written."""
    coverage = Coverage(base)
    new: list[IndexMetadata] = []
    removed: list[IndexMetadata] = []
    for work in plan_work(base, coverage, names, merge):
        removed += work.removed
        if work.covers:
            new.append(_done(base, coverage, work, runtime))
    return CreateIndex(tuple(new), tuple(removed)) if new or removed else None


def trim_reuse_index(base: Snapshot, fresh: Collection[IndexMetadata], *, runtime: Runtime) -> CreateIndex | None:
    """Without the notes that no segment has to follow. `fresh` are segments of which this is known without a look into
    their files: they were written in the knowledge of all notes that there were. The entry itself stays, and says
    nothing in the end: somebody may be adding to it."""
    entry = reuse_entry(base.manifest.indices)
    coverage = Coverage(base)
    if entry is None or coverage.reuse is None or coverage.compaction_log is None:
        return None
    needed: set[int] = set()
    known = {index.uuid for index in fresh}
    for standing in coverage.segments:
        if standing.metadata.uuid in known:  # somebody may have compacted since
            needed |= set(_noted(coverage, standing, standing.metadata.covers or BitMap()))
        else:
            needed |= set(_followed(base, coverage, standing))
    kept = coverage.reuse.keep_compactions(needed)
    if kept == coverage.reuse:
        return None
    replaced = kept.as_index(
        runtime.new_uuid(), dataset_version=entry.dataset_version, created_ms=runtime.now_ns() // 1_000_000
    )
    if isinstance(content := content_of(replaced), ExternalContent):
        base.location.store.put(f"{naming.INDICES}/{replaced.uuid}/{content.name}", kept.encode())
    return CreateIndex((replaced,), (entry,))


def plan_work(base: Snapshot, coverage: Coverage, names: Sequence[str] | None, merge: Merge) -> Iterator[IndexWork]:
    """What is to be done, for each index that needs something."""
    for name in _chosen(base, coverage, names):
        segments = coverage.by_name[name]
        work = _work(base, coverage, segments, merge)
        if isinstance(work, IndexWork):
            yield work
        elif work is not None and names is not None:
            raise Unsupported(f"{base.location.uri}: index {name!r} cannot be optimized: it {work}")


def _chosen(base: Snapshot, coverage: Coverage, names: Sequence[str] | None) -> Sequence[str]:
    there = list(coverage.by_name)
    for name in names or ():
        if name not in coverage.by_name:
            hint = field_paths.suggest_name(name, there) if there else "this version has none"
            raise InvalidInput(f"{base.location.uri}: there is no index {name!r}; {hint}")
    return there if names is None else list(dict.fromkeys(names))


def _work(base: Snapshot, coverage: Coverage, segments: Sequence[SegmentCoverage], merge: Merge) -> IndexWork | str | None:
    """None where there is nothing to do; why nothing can be done."""
    usable = [each for each in segments if each.kind is not None]
    if not usable:
        return segments[0].unused_reason or "is not known here"
    template = max(usable, key=lambda each: each.metadata.dataset_version)
    wanted = build.spec_of_segment(base, coverage, template.metadata)
    if wanted is None:
        return "is on a column that is gone, or that its kind does not fit any more; drop it"
    ours = [each for each in usable if _is_alike(each, template)]
    others = [each for each in segments if each not in ours]
    elsewhere = BitMap.union(BitMap(), *(_claimed(coverage, each) for each in others))
    open_fragments = coverage.live_fragments - combined_coverage(ours) - elsewhere
    opened = tuple(fragment for fragment in base.manifest.fragments if fragment.id in open_fragments)
    stale = [
        each
        for each in ours
        if each.covered and (_is_stale(coverage, each) or _may_answer_for(base, coverage, each, opened))
    ]
    useless = [each for each in ours if not each.covered]
    rows = RowCounts(base.manifest)
    gathered = rows(open_fragments) + sum(rows(each.covered) for each in stale)
    merged = list(stale)
    if merge is not Merge.NONE:
        able = [each for each in ours if each.covered and each not in stale]
        sizes = [rows(each.covered) for each in able]
        merged += [
            able[place] for place in (range(len(able)) if merge is Merge.ALL else small_segments(gathered, sizes))
        ]
    if not open_fragments and not stale and len(merged) < 2:
        merged = []
    covers = open_fragments | combined_coverage(merged)
    if not covers:
        # One is kept, so that the index does not vanish.
        gone = useless if len(useless) < len(segments) else useless[:-1]
        return IndexWork(wanted, (), (), covers, tuple(each.metadata for each in gone)) if gone else None
    version = wanted.kind.written_version(stable_row_ids=base.manifest.has_stable_row_ids)
    again = [each for each in merged if each.metadata.message.index_version != version]
    read = open_fragments | combined_coverage(again)
    return IndexWork(
        wanted,
        tuple(each for each in merged if each not in again),
        tuple(fragment for fragment in base.manifest.fragments if fragment.id in read),
        covers,
        tuple(each.metadata for each in (*merged, *useless)),
    )


def small_segments(gathered: int, sizes: Sequence[int]) -> list[int]:
    """Which segments of so many rows each go into a new one of `gathered` rows.

    >>> small_beside(0, [9_000_000, 20_000, 1_000_000, 1_010_000, 2_040_000])
    [1, 2, 3]
    """
    chosen = []
    for place in sorted(range(len(sizes)), key=lambda place: sizes[place]):
        if sizes[place] <= max(gathered, SMALL_SEGMENT_ROWS):
            chosen.append(place)
            gathered += sizes[place]
    return chosen


def _done(base: Snapshot, coverage: Coverage, work: IndexWork, runtime: Runtime) -> IndexMetadata:
    parts = [merge_input_of(base, coverage, each) for each in work.merged]
    try:
        return build.build_segment(base, work.spec, work.fragments, inputs=parts, covers=work.covers, runtime=runtime)
    except build.UNREADABLE_ERRORS:
        if not parts:
            raise
        fragments = [fragment for fragment in base.manifest.fragments if fragment.id in work.covers]
        return build.build_segment(base, work.spec, fragments, covers=work.covers, runtime=runtime)


def merge_input_of(base: Snapshot, coverage: Coverage, standing: SegmentCoverage) -> MergeInput:
    """A segment that is there, as it goes into a new one."""
    if standing.metadata.is_zone_based:
        return MergeInput(coverage.segment_of(standing.metadata), SameAddresses(standing.covered))
    by_id = base.manifest.has_stable_row_ids and not standing.metadata.stores_addresses
    return coverage.merge_input(standing, rows_by_id=by_id)


def _is_alike(one: SegmentCoverage, other: SegmentCoverage) -> bool:
    return one.kind is other.kind and one.metadata.field_ids == other.metadata.field_ids


def _claimed(coverage: Coverage, standing: SegmentCoverage) -> BitMap:
    """What nobody else of its name may claim, whether we can use it or not."""
    return (follow_reuse(standing.metadata, coverage.reuse) or BitMap()) & coverage.live_fragments


def _is_stale(coverage: Coverage, standing: SegmentCoverage) -> bool:
    """Whether readers have to follow notes to find its rows, as far as it says; or claims what only notes deny."""
    return next(_noted(coverage, standing, standing.metadata.covers or BitMap()), None) is not None


def _may_answer_for(base: Snapshot, coverage: Coverage, standing: SegmentCoverage, opened: Sequence[Fragment]) -> bool:
    """Whether it holds rows of fragments that it does not cover and that another segment is to cover, with values that
    they had once: pylance believes whatever any segment says of a fragment that one of them covers."""
    index = standing.metadata
    if base.manifest.has_stable_row_ids and not index.stores_addresses:
        # It can have no row that was created later than what it was built from.
        return any(_oldest(base, fragment) <= index.dataset_version for fragment in opened)
    highest, built = (index.covers or standing.covered).max(), _highest_when_built(base, index)
    # A compaction that writes it anew leaves the version that it is of, so nobody knows which fragments there were.
    was_written_anew = built is not None and highest > built
    known = max(highest, built or 0)
    suspects = [each.id for each in opened if was_written_anew or len(each.files) > 1 or each.id <= known]
    if not suspects:
        return False
    try:
        examined = _examined(base, coverage, standing)
    except build.UNREADABLE_ERRORS:
        return True
    return examined is not None and not BitMap(examined.rows.parts).isdisjoint(BitMap(suspects))


def _highest_when_built(base: Snapshot, index: IndexMetadata) -> int | None:
    """No fragment of a higher number was there when it was built; None where that version is gone."""
    try:
        return load_at(base.location, index.dataset_version).manifest.max_fragment_id
    except LanceError:
        return None


def _oldest(base: Snapshot, fragment: Fragment) -> int:
    """The version in which the first of its rows was created."""
    rows, path = fragment.physical_rows, base.manifest.path
    versions = RowVersions.decode(fragment.created_at, rows=rows, path=path, field="created_at")
    return min((version for _count, version in versions.runs), default=base.version)


def _noted(coverage: Coverage, standing: SegmentCoverage, fragments: BitMap) -> Iterator[int]:
    """The numbers of the notes that lead on from these fragments, or that the segment is older than."""
    if coverage.reuse is None:
        return
    index, here = standing.metadata, fragments
    for number, (planned, groups) in enumerate(coverage.reuse.compactions()):
        old = BitMap(id for led in groups for id, _ in led.old)
        new = BitMap(id for led in groups for id, _ in led.new)
        leads = not index.is_zone_based and bool(here & old)
        if leads or (index.dataset_version <= planned and here & new):
            here = here | new
            yield number


def _followed(base: Snapshot, coverage: Coverage, standing: SegmentCoverage) -> Iterator[int]:
    """The same from what is in its files, where they can be read: what it says of itself may have been brought up to
    date by others who left the files as they were."""
    fragments = standing.metadata.covers or BitMap()
    if base.manifest.has_stable_row_ids and not standing.metadata.stores_addresses:
        return
    try:
        if not standing.metadata.is_zone_based and (examined := _examined(base, coverage, standing)) is not None:
            fragments = fragments | BitMap(examined.rows.parts)
    except build.UNREADABLE_ERRORS:
        return  # nobody finds rows by it, wherever notes lead
    yield from _noted(coverage, standing, fragments)


def _examined(base: Snapshot, coverage: Coverage, standing: SegmentCoverage) -> SegmentExamination | None:
    chain = build.chain_of(base.manifest.schema, (*standing.metadata.field_ids, -1)[0])
    if standing.kind is None or chain is None:
        return None
    return standing.kind.examine(coverage.segment_of(standing.metadata), build.arrow_of(base.manifest.schema, chain))
