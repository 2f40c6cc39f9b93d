"""Compaction of indexed fragments: decides what happens to each index segment when rows move, and rebuilds segments.

    KEEP          it finds its rows at any address, by stable row ids, or covers none of them
    REBUILD       it is rewritten with the new addresses of its rows and keeps its coverage
    RECORD_MOVES  it stays unchanged; the fragment reuse index records where the rows went, and readers follow it
    UNCOVER       it stays unchanged and no longer covers the moved rows: queries scan them

The caller chooses the action (`Remap`), or each segment gets the best action it supports. A segment is rebuilt as a
merge with one input: its index type gets the old segment and the translation of its row numbers. Zones cannot follow
rows, so the zones of the new fragments are built from their rows. Start with `choose_actions`.
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
from lance_core.index import build, verification
from lance_core.index.build import IndexSpec
from lance_core.index.coverage import Coverage, SegmentCoverage, follow_reuse
from lance_core.index.index_type import MergeInput, RowRemap
from lance_core.index.row_remap import CompactionLog, FollowCompactions, Mask, SameAddresses
from lance_core.runtime import Runtime
from lance_core.versions.snapshot import Snapshot


class Remap(enum.Enum):
    """Treatment of indices whose rows get new addresses."""

    NOW = "now"
    """Rewrite the index, so that it covers the new fragments immediately; raise if that is not possible."""
    REUSE = "reuse"
    """Leave the index unchanged and record where the rows went. An index whose readers do not follow such a record no
    longer covers the new fragments."""
    NONE = "none"
    """Leave the index unchanged; it no longer covers the new fragments, and queries scan them."""

    @classmethod
    def of(cls, text: str) -> "Remap":
        return validation.check_choice(cls, text, "remap")


class SegmentAction(enum.Enum):
    """Treatment of one index segment by a compaction."""

    KEEP = "keep"
    REBUILD = "rebuild"
    RECORD_MOVES = "record_moves"
    UNCOVER = "uncover"


@dataclass(frozen=True, slots=True)
class SegmentActions:
    """Actions for the index segments of a version when these fragments are rewritten."""

    coverage: Coverage
    moved_fragments: BitMap
    by_segment: tuple[tuple[SegmentCoverage, SegmentAction], ...]

    @property
    def records_moves(self) -> bool:
        """Return whether the compaction adds to the fragment reuse index."""
        return any(action is SegmentAction.RECORD_MOVES for _, action in self.by_segment)

    def uncovered_names(self, *, must_survive_remap: bool) -> tuple[str, ...]:
        """Return the names of the indices that lose coverage.

        If moves are recorded, an index that does not follow the record also loses the fragments that it covers through
        an earlier record. With `must_survive_remap`, only an index that stays correct when another library rewrites it
        counts as following.
        """
        return tuple(
            sorted(
                {
                    segment.metadata.name
                    for segment, action in self.by_segment
                    if self._loses_coverage(segment.metadata, action, must_survive_remap)
                }
            )
        )

    def _loses_coverage(self, index: IndexMetadata, action: SegmentAction, must_survive_remap: bool) -> bool:
        covered = follow_reuse(index, self.coverage.reuse)
        if covered is None or not self.records_moves or action is SegmentAction.REBUILD:
            return action is SegmentAction.UNCOVER
        if index.is_zone_based and covered & self.moved_fragments:
            return True
        if index.survives_remap if must_survive_remap else index.follows_reuse:
            return False
        still_covered = (index.covers or BitMap()) - self.moved_fragments
        return bool((covered & self.coverage.live_fragments) - still_covered)


def choose_actions(
    base: Snapshot, moving: BitMap, remap: Remap | None, *, bytes_max: int | None = None
) -> SegmentActions:
    """Choose an action for each index segment when the fragments in `moving` are rewritten.

    Without `remap`, a segment larger than `bytes_max` is not rebuilt, and moves are recorded only if no segment that
    loses coverage lists the moved rows. Raise if an action that the caller chose is not possible.
    """
    coverage = Coverage(base)
    by_segment = tuple(
        (segment, _choose_action(base, coverage, segment, moving, remap, bytes_max)) for segment in coverage.segments
    )
    if remap is None and any(_keeps_listing_rows(segment, action) for segment, action in by_segment):
        by_segment = tuple((segment, _without_recorded_moves(action)) for segment, action in by_segment)
    if coverage.reuse is not None or any(action is SegmentAction.RECORD_MOVES for _, action in by_segment):
        # In a table with a fragment reuse index, zones must not cover the fragments that compactions created: readers
        # could not distinguish a correct coverage from the wrong one that another library records.
        by_segment = tuple((segment, _without_zones(segment, action)) for segment, action in by_segment)
    return SegmentActions(coverage, moving, by_segment)


def _keeps_listing_rows(segment: SegmentCoverage, action: SegmentAction) -> bool:
    """Return whether a segment loses coverage and still lists the rows that move.

    pylance follows a fragment reuse index from these entries too: it finds a row twice, or by a value that it once had,
    as soon as another segment of the index covers the row.
    """
    return action is SegmentAction.UNCOVER and not segment.metadata.is_zone_based


def _without_recorded_moves(action: SegmentAction) -> SegmentAction:
    return SegmentAction.UNCOVER if action is SegmentAction.RECORD_MOVES else action


def _without_zones(segment: SegmentCoverage, action: SegmentAction) -> SegmentAction:
    rebuilds_zones = action is SegmentAction.REBUILD and segment.metadata.is_zone_based
    return SegmentAction.UNCOVER if rebuilds_zones else action


def _choose_action(
    base: Snapshot,
    coverage: Coverage,
    segment: SegmentCoverage,
    moving: BitMap,
    remap: Remap | None,
    bytes_max: int | None,
) -> SegmentAction:
    index = segment.metadata
    covered = follow_reuse(index, coverage.reuse)
    finds_rows_by_id = base.manifest.has_stable_row_ids and not index.stores_addresses
    if covered is None or not covered & moving or finds_rows_by_id:
        return SegmentAction.KEEP
    if remap is Remap.NONE:
        return SegmentAction.UNCOVER
    if remap is Remap.REUSE:
        return _action_without_rebuild(base, index)
    return _action_with_rebuild(base, coverage, segment, remap, bytes_max)


def _action_without_rebuild(base: Snapshot, index: IndexMetadata) -> SegmentAction:
    """Return the action if the caller requests recorded moves."""
    if not base.manifest.has_stable_row_ids:
        return SegmentAction.RECORD_MOVES
    if index.is_zone_based:
        return SegmentAction.UNCOVER
    raise _cannot_keep_up(base, index, "a table with stable row ids has no fragment reuse index")


def _action_with_rebuild(
    base: Snapshot, coverage: Coverage, segment: SegmentCoverage, remap: Remap | None, bytes_max: int | None
) -> SegmentAction:
    """Return the action if the caller requests a rebuild (`Remap.NOW`) or the best action."""
    index = segment.metadata
    can_rebuild = _rebuild_spec(base, coverage, segment) is not None
    if remap is Remap.NOW:
        if can_rebuild:
            return SegmentAction.REBUILD
        reason = segment.unused_reason or "it cannot be rebuilt from its own files"
        raise _cannot_keep_up(base, index, reason)
    if can_rebuild and (bytes_max is None or sum(file.size for file in index.files) <= bytes_max):
        return SegmentAction.REBUILD
    follows = index.survives_remap and not index.is_zone_based and not base.manifest.has_stable_row_ids
    return SegmentAction.RECORD_MOVES if follows else SegmentAction.UNCOVER


def rebuild_segments(
    base: Snapshot, actions: SegmentActions, moves: Sequence[FragmentRewrite], runtime: Runtime
) -> tuple[tuple[bytes, IndexMetadata], ...]:
    """Rebuild the segments whose action is REBUILD. Return the uuid of each old segment with the new one.

    The new fragments already have their ids.
    """
    log = CompactionLog(FragmentReuse.empty().with_compaction(base.version, moves), path=base.manifest.path)
    return tuple(
        (segment.metadata.uuid.bytes, _rebuild_segment(base, actions, segment, moves, log, runtime))
        for segment, action in actions.by_segment
        if action is SegmentAction.REBUILD
    )


def _rebuild_segment(
    base: Snapshot,
    actions: SegmentActions,
    segment: SegmentCoverage,
    moves: Sequence[FragmentRewrite],
    log: CompactionLog,
    runtime: Runtime,
) -> IndexMetadata:
    """Build the segment from its own files, or from the rows of the table if its files cannot be read, miss rows or
    have another version than new ones."""
    coverage, index = actions.coverage, segment.metadata
    spec = _rebuild_spec(base, coverage, segment)
    assert spec is not None, "the action REBUILD was chosen only if the spec exists"
    staying = segment.covered - actions.moved_fragments
    covered_moves = [move for move in moves if BitMap(fragment.id for fragment in move.old) <= segment.covered]
    new = [fragment for move in covered_moves for fragment in move.new]
    covers = staying | BitMap(fragment.id for fragment in new)
    old_segment = coverage.segment_of(index)
    try:
        if _lists_current_rows(base, coverage, segment, spec):
            if index.is_zone_based:
                inputs = [MergeInput(old_segment, SameAddresses(staying))]
                base_of_new = _with_fragments(base, new)
                return build.build_segment(base_of_new, spec, new, inputs=inputs, covers=covers, runtime=runtime)
            remap = ComposedRemap(coverage.row_remap(segment), FollowCompactions(log, covers))
            inputs = [MergeInput(old_segment, remap)]
            return build.build_segment(base, spec, (), inputs=inputs, covers=covers, runtime=runtime)
    except build.UNREADABLE_ERRORS:
        pass  # the segment is built from the rows of the table
    whole = [*(fragment for fragment in base.manifest.fragments if fragment.id in staying), *new]
    return build.build_segment(_with_fragments(base, whole), spec, whole, covers=covers, runtime=runtime)


def _lists_current_rows(base: Snapshot, coverage: Coverage, segment: SegmentCoverage, spec: IndexSpec) -> bool:
    """Return whether a new segment can be written from the files of this one alone."""
    is_current = segment.metadata.message.index_version == spec.kind.written_version
    return is_current and not verification.missed_fragments(base, coverage, segment)


def _with_fragments(base: Snapshot, fragments: Sequence[Fragment]) -> Snapshot:
    """Return the version as if it had these fragments, whose files may be written but not committed yet."""
    return replace(base, manifest=base.manifest.with_fragments(fragments))


@dataclass(frozen=True, slots=True)
class ComposedRemap:
    """Two translations of row numbers, applied one after the other."""

    first: RowRemap
    second: RowRemap

    def remap(self, rows: Ids) -> tuple[Ids, Mask]:
        intermediate, exists_after_first = self.first.remap(rows)
        current, exists_after_second = self.second.remap(intermediate)
        return current, np.logical_and(exists_after_first, exists_after_second)

    def remap_set(self, rows: RowSet) -> RowSet:
        return self.second.remap_set(self.first.remap_set(rows))


def _rebuild_spec(base: Snapshot, coverage: Coverage, segment: SegmentCoverage) -> IndexSpec | None:
    """Return the definition for rebuilding a segment, or `None` if its type cannot be written here."""
    kind = segment.kind
    if kind is None or segment.unused_reason is not None:
        return None
    return build.spec_of_segment(base, coverage, segment.metadata)


def _cannot_keep_up(base: Snapshot, index: IndexMetadata, reason: str) -> Unsupported:
    choices = "remap='none' to leave the new fragments uncovered until the index is built again"
    if not base.manifest.has_stable_row_ids:
        choices = f"remap='reuse' to record where its rows went, which keeps it in use, or {choices}"
    return Unsupported(
        f"{base.location.uri}: index {index.name!r} ({index.kind}) stores the addresses of rows that a compaction "
        f"would move, and it cannot be kept up to date: {reason}. Compact without remap to keep the indices that can "
        f"be kept, or with {choices}"
    )
