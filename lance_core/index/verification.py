"""Coverage verification: compares the fragments that a segment claims with the rows that its files list.

Some releases of pylance extend the coverage of a segment to new fragments without adding their rows: releases 12 and 13
when they compact a table with stable row ids and a b-tree of row addresses, release 8 when it optimizes indices after a
compaction with deferred remapping. Such a segment claims fragments of which it lists no row, and a query by it would
miss these rows. Reading the files of every segment would take longer than most queries save. Only suspect segments are
therefore read, once per process.

Releases up to 12 also merge segments of row ids without removing the entries of changed rows: release 8 for all index
types, releases 9 to 12 for label lists. The merged segment lists such a row by its old value and by its new one, so
lookups re-check the rows that the segment returns.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace

from pyroaring import BitMap

from lance_core.datafiles.fragment_reader import read_deletions
from lance_core.errors import LanceError
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import bitmap_of
from lance_core.index import build
from lance_core.index.coverage import Coverage, SegmentCoverage
from lance_core.index.index_type import SegmentExamination
from lance_core.index.segment_files import WRITER_KEY, OpenSegment
from lance_core.storage.lru_cache import LruCache
from lance_core.versions.snapshot import Snapshot, load_at

_SEGMENTS_CACHED_MAX = 1024
_written_here: "LruCache[Hashable, bool]" = LruCache(_SEGMENTS_CACHED_MAX)
_unlisted: "LruCache[Hashable, Mapping[int, BitMap]]" = LruCache(_SEGMENTS_CACHED_MAX)


def verified(base: Snapshot, coverage: Coverage, segment: SegmentCoverage) -> SegmentCoverage:
    """Return the segment without the fragments of which it misses rows. Raise if its files cannot be read."""
    missed = missed_fragments(base, coverage, segment)
    return replace(segment, covered=segment.covered - missed) if missed else segment


def missed_fragments(base: Snapshot, coverage: Coverage, segment: SegmentCoverage) -> BitMap:
    """Return the fragments that a segment covers although it misses live rows of them.

    Return none, without reading its files, for a segment that is not suspect."""
    key = (base.location.uri, segment.metadata.uuid, coverage.fingerprint(segment))
    unlisted = _unlisted.get_or_create(key, lambda: _unlisted_if_suspect(base, coverage, segment))
    return BitMap(count_missing_rows(base, unlisted)) if unlisted else BitMap()


def may_list_old_values(base: Snapshot, segment: SegmentCoverage) -> bool:
    """Return whether a segment may list rows by old values in addition to their current ones: it stores row ids,
    another engine wrote it, and rows that it covers have changed."""
    index = segment.metadata
    if not base.manifest.has_stable_row_ids or index.stores_addresses:
        return False
    key = (base.location.uri, index.uuid)
    if _written_here.get_or_create(key, lambda: _is_written_here(OpenSegment(base.location, index))):
        return False
    return _has_changed_rows(base, segment.covered)  # visits every fragment, so it comes last


def _has_changed_rows(base: Snapshot, covered: BitMap) -> bool:
    return any(
        fragment.created_at != fragment.last_updated_at
        for fragment in base.manifest.fragments
        if fragment.id in covered
    )


def _is_written_here(files: OpenSegment) -> bool:
    names = files.metadata.file_names
    return bool(names) and WRITER_KEY in files.open(names[0]).metadata


def unlisted_rows(
    coverage: Coverage, segment: SegmentCoverage, examination: SegmentExamination
) -> Mapping[int, BitMap]:
    """Return the rows of each covered fragment that the files do not list, deleted ones included.

    An index type that does not store every row is checked only for fragments of which it has no row at all.
    """
    listed = coverage.row_remap(segment).remap_set(examination.rows)
    unlisted = {}
    for fragment_id in segment.covered:
        rows, count = listed.bitmap_under(fragment_id), coverage.physical_rows[fragment_id]
        if len(rows) < count and (examination.lists_every_row or not rows):
            unlisted[fragment_id] = BitMap(range(count)) - rows
    return unlisted


def count_missing_rows(base: Snapshot, unlisted: Mapping[int, BitMap]) -> Mapping[int, int]:
    """Return the number of live rows of each fragment among unlisted ones."""
    missing = {}
    for fragment in base.manifest.fragments:
        rows = unlisted.get(fragment.id)
        if rows is None or not fragment.live_rows:
            continue
        deleted = read_deletions(base.location.store, fragment)
        count = len(rows if deleted is None else rows - bitmap_of(deleted.offsets))
        if count:
            missing[int(fragment.id)] = count
    return missing


def examine_segment(base: Snapshot, coverage: Coverage, segment: SegmentCoverage) -> SegmentExamination | None:
    """Examine the files of a segment; `None` if its index type or column is unknown."""
    field_ids = segment.metadata.field_ids
    chain = build.chain_of(base.manifest.schema, field_ids[0]) if len(field_ids) == 1 else None
    if chain is None or segment.kind is None:
        return None
    column = build.arrow_of(base.manifest.schema, chain)
    return segment.kind.examine(coverage.segment_of(segment.metadata), column)


def highest_fragment_when_built(base: Snapshot, index: IndexMetadata) -> int | None:
    """Return the highest fragment id that existed when the segment was built; `None` if that version no longer
    exists."""
    try:
        return load_at(base.location, index.dataset_version).manifest.max_fragment_id
    except LanceError:
        return None


def _unlisted_if_suspect(base: Snapshot, coverage: Coverage, segment: SegmentCoverage) -> Mapping[int, BitMap]:
    if not _is_suspect(base, coverage, segment):
        return {}
    examination = examine_segment(base, coverage, segment)
    return {} if examination is None else unlisted_rows(coverage, segment, examination)


def _is_suspect(base: Snapshot, coverage: Coverage, segment: SegmentCoverage) -> bool:
    """Return whether another engine may have extended the coverage of a segment without adding the rows.

    Only a segment of row addresses can miss rows, and only of fragments that compactions created. In a table with
    stable row ids, these are fragments that are newer than the segment; otherwise, fragments that were created since
    the oldest recorded compaction.
    """
    index = segment.metadata
    if index.is_zone_based or not segment.covered:
        return False
    if base.manifest.has_stable_row_ids:
        if not index.stores_addresses:
            return False
        highest = highest_fragment_when_built(base, index)
        return highest is None or segment.covered.max() > highest
    log = coverage.compaction_log
    created = BitMap() if log is None else log.fragments_created_since(0)
    return bool(created) and segment.covered.max() >= created.min()
