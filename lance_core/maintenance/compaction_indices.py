"""What becomes of each index segment when rows move to other fragments, and the segments that are written anew for it.

    STAYS      it finds its rows wherever they are, by stable ids, or covers none of them
    ANEW       it is written once more, with the addresses that its rows will have, and covers on
    NOTED      it stays as it is; the table notes where the rows went (`format/fragment_reuse.py`), and readers follow
    UNCOVERED  it stays as it is, and covers what moved no more: queries scan it

Which of them is what the caller asked for (`Remap`), or the best that each segment stands. To write one anew is to
merge it with nothing: its kind gets the old segment, and where its rows will be. Of zones nothing can follow a row, so
those of the new fragments are built from their rows. Start with `choose_actions`.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyroaring import BitMap

from lance_core import validation
from lance_core.errors import Unsupported
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import FragmentReuse, FragmentRewrite
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import Ids, RowSet
from lance_core.index import build
from lance_core.index.build import IndexSpec
from lance_core.index.coverage import Coverage, SegmentCoverage, follow_reuse
from lance_core.index.index_type import MergeInput, RowRemap
from lance_core.index.row_remap import CompactionLog, FollowCompactions, SameAddresses, Mask
from lance_core.runtime import Runtime
from lance_core.versions.snapshot import Snapshot


class Remap(enum.Enum):
    """What becomes of an index whose rows get other addresses."""

    NOW = "now"
    """It is written anew, and covers the new fragments at once; refused where that cannot be done."""
    REUSE = "reuse"
    """It stays as it is, and the table notes where the rows went. A kind whose readers do not follow such a note covers
    the new fragments no more."""
    NONE = "none"
    """It stays as it is and covers the new fragments no more: queries scan them."""

    @classmethod
    def of(cls, text: str) -> "Remap":
        return validation.check_choice(cls, text, "remap")


class SegmentAction(enum.Enum):
    KEEP = "stays"
    REBUILD = "anew"
    RECORD_MOVES = "noted"
    UNCOVER = "uncovered"


@dataclass(frozen=True, slots=True)
class SegmentActions:
    """Of the segments of a version, for these fragments."""

    coverage: Coverage
    moved_fragments: BitMap
    by_segment: tuple[tuple[SegmentCoverage, SegmentAction], ...]

    @property
    def records_moves(self) -> bool:
        return any(fate is SegmentAction.RECORD_MOVES for _, fate in self.by_segment)

    def uncovered_names(self, *, lasting: bool) -> tuple[str, ...]:
        """The names of those that do not go on over what moves. With a new note, those that would not outlive it leave
        what earlier ones led to."""
        alive = self.coverage.live_fragments
        names = set()
        for standing, fate in self.by_segment:
            index = standing.metadata
            covered = follow_reuse(index, self.coverage.reuse)
            lost = fate is SegmentAction.UNCOVER
            if covered is not None and self.records_moves and fate is not SegmentAction.REBUILD:
                follows = index.survives_remap if lasting else index.follows_reuse
                lost = not follows and bool((covered & alive) - ((index.covers or BitMap()) - self.moved_fragments))
                lost = lost or (index.is_zone_based and bool(covered & self.moved_fragments))
            if lost:
                names.add(index.name)
        return tuple(sorted(names))


def choose_actions(base: Snapshot, moving: BitMap, remap: Remap | None, *, bytes_max: int | None = None) -> SegmentActions:
    """`bytes_max`: a larger segment is not written anew unless that was asked for. Refuses what cannot be done as it
    was asked for."""
    coverage = Coverage(base)
    chosen = tuple((each, _fate(base, coverage, each, moving, remap, bytes_max)) for each in coverage.segments)
    if coverage.reuse is not None or any(fate is SegmentAction.RECORD_MOVES for _, fate in chosen):
        # What notes lead to is claimed for no zone, whatever it says of itself: nobody could tell it from one that is
        # claimed by mistake, as another library does.
        chosen = tuple(
            (each, SegmentAction.UNCOVER if fate is SegmentAction.REBUILD and each.metadata.is_zone_based else fate)
            for each, fate in chosen
        )
    return SegmentActions(coverage, moving, chosen)


def _fate(
    base: Snapshot,
    coverage: Coverage,
    standing: SegmentCoverage,
    moving: BitMap,
    remap: Remap | None,
    bytes_max: int | None,
) -> SegmentAction:
    index = standing.metadata
    covered, stable = follow_reuse(index, coverage.reuse), base.manifest.has_stable_row_ids
    if covered is None or not covered & moving or (stable and not index.stores_addresses):
        return SegmentAction.KEEP
    if remap is Remap.NONE:
        return SegmentAction.UNCOVER
    if remap is Remap.REUSE:
        if stable and index.is_zone_based:
            return SegmentAction.UNCOVER
        if stable:
            raise _cannot(base, index, "a table with stable row ids notes nothing", stable=stable)
        return SegmentAction.RECORD_MOVES
    wanted = _wanted(base, coverage, standing)
    size = sum(file.size for file in index.files)
    if wanted is not None and (remap is Remap.NOW or bytes_max is None or size <= bytes_max):
        return SegmentAction.REBUILD
    if remap is Remap.NOW:
        why = standing.unused_reason or "it cannot be written anew from what it holds"
        raise _cannot(base, index, why, stable=stable)
    follows = index.survives_remap and not index.is_zone_based and not stable
    return SegmentAction.RECORD_MOVES if follows else SegmentAction.UNCOVER


def rebuild_segments(
    base: Snapshot, of: SegmentActions, groups: Sequence[FragmentRewrite], runtime: Runtime
) -> tuple[tuple[bytes, IndexMetadata], ...]:
    """The uuid of each segment that is written anew, and what takes its place. The new fragments have their numbers."""
    step = CompactionLog(FragmentReuse.empty().with_compaction(base.version, groups), path=base.manifest.path)
    return tuple(
        (standing.metadata.uuid.bytes, _anew(base, of, standing, groups, step, runtime))
        for standing, fate in of.by_segment
        if fate is SegmentAction.REBUILD
    )


def _anew(
    base: Snapshot,
    of: SegmentActions,
    standing: SegmentCoverage,
    groups: Sequence[FragmentRewrite],
    step: CompactionLog,
    runtime: Runtime,
) -> IndexMetadata:
    wanted = _wanted(base, of.coverage, standing)
    assert wanted is not None, "it was looked at before"
    index, stays = standing.metadata, standing.covered - of.moved_fragments
    joined = [each for each in groups if BitMap(fragment.id for fragment in each.old) <= standing.covered]
    new = [fragment for each in joined for fragment in each.new]
    covers = stays | BitMap(fragment.id for fragment in new)
    segment = of.coverage.segment_of(index)
    try:
        if index.is_zone_based:
            parts = [MergeInput(segment, SameAddresses(stays))]
            return build.build_segment(_of(base, new), wanted, new, inputs=parts, covers=covers, runtime=runtime)
        moves = ComposedRemap(of.coverage.row_remap(standing), FollowCompactions(step, covers))
        return build.build_segment(base, wanted, (), inputs=[MergeInput(segment, moves)], covers=covers, runtime=runtime)
    except build.UNREADABLE_ERRORS:
        whole = [*(fragment for fragment in base.manifest.fragments if fragment.id in stays), *new]
        return build.build_segment(_of(base, whole), wanted, whole, covers=covers, runtime=runtime)


def _of(base: Snapshot, fragments: Sequence[Fragment]) -> Snapshot:
    """The version as if it had these, which may be written and in no version yet."""
    return replace(base, manifest=base.manifest.with_fragments(fragments))


@dataclass(frozen=True, slots=True)
class ComposedRemap:
    """One after the other."""

    first: RowRemap
    second: RowRemap

    def remap(self, rows: Ids) -> tuple[Ids, Mask]:
        between, still = self.first.remap(rows)
        now, still_then = self.second.remap(between)
        return now, np.logical_and(still, still_then)

    def remap_set(self, rows: RowSet) -> RowSet:
        return self.second.remap_set(self.first.remap_set(rows))


def _wanted(base: Snapshot, coverage: Coverage, standing: SegmentCoverage) -> IndexSpec | None:
    """None where nobody here can write such a segment from one that is there."""
    kind = standing.kind
    if kind is None or standing.unused_reason is not None:
        return None
    if standing.metadata.message.index_version != kind.written_version(stable_row_ids=base.manifest.has_stable_row_ids):
        return None
    return build.spec_of_segment(base, coverage, standing.metadata)


def _cannot(base: Snapshot, index: IndexMetadata, why: str, *, stable: bool) -> Unsupported:
    choices = "remap='none' to leave what is compacted uncovered until the index is built again"
    if not stable:
        choices = f"remap='reuse' to note where its rows went, which keeps it in use, or {choices}"
    return Unsupported(
        f"{base.location.uri}: index {index.name!r} ({index.kind}) stores the addresses of rows that a compaction "
        f"would move, and it cannot be kept up: {why}. Compact without remap to keep what can be kept, or with "
        f"{choices}"
    )
