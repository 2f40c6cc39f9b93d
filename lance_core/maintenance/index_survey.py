"""What an upkeep of indices would find to do, from the metadata of a version: no file of an index is opened.

Only what `index_maintenance.py` would change is counted, so that what was just looked after has nothing left. It may
find more when it opens what is there, segments that have to be written anew, and never less.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from lance_core.errors import LanceError
from lance_core.format import field_paths
from lance_core.index import build
from lance_core.index.coverage import Coverage, SegmentCoverage, combined_coverage, follow_reuse
from lance_core.index.statistics import RowCounts, is_behind
from lance_core.maintenance.index_maintenance import small_segments
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class IndexSurvey:
    """Of an index that can be looked after here."""

    name: str
    kind: str
    column: str
    rows: int
    """Of the table, as its fragments store them."""
    uncovered_rows: int
    """That it would cover afterwards."""
    uncovered_fragments: int
    segments: int
    joined_segments: int
    """Those that would become one, and those that are of no use any more."""
    behind: int
    """Segments whose rows a compaction moved, for whom its notes are kept."""


def survey_indices(base: Snapshot) -> tuple[IndexSurvey, ...]:
    """One that cannot be told of is left out: what is wrong with it, fsck says."""
    return tuple(_surveyed(base, Coverage(base)))


def _surveyed(base: Snapshot, coverage: Coverage) -> Iterator[IndexSurvey]:
    for name, segments in coverage.by_name.items():
        try:
            found = _of(base, coverage, name, segments)
        except LanceError:
            continue
        if found is not None:
            yield found


def _of(base: Snapshot, coverage: Coverage, name: str, segments: Sequence[SegmentCoverage]) -> IndexSurvey | None:
    usable = [each for each in segments if each.kind is not None]
    if not usable:
        return None
    newest = max(usable, key=lambda each: each.metadata.dataset_version)
    kind, field_ids = newest.kind, newest.metadata.field_ids
    chain = build.chain_of(base.manifest.schema, field_ids[0]) if len(field_ids) == 1 else None
    if kind is None or chain is None or not kind.supports(build.arrow_of(base.manifest.schema, chain)):
        return None
    ours = [each for each in usable if each.kind is kind and each.metadata.field_ids == field_ids]
    others = [each for each in segments if each not in ours]
    claimed = [follow_reuse(each.metadata, coverage.reuse) or BitMap() for each in others]
    uncovered = coverage.live_fragments - combined_coverage(ours) - BitMap.union(BitMap(), *claimed)
    rows = RowCounts(base.manifest)
    behind = [each for each in ours if each.covered and is_behind(coverage, each)]
    able = [each for each in ours if each.covered and each not in behind]
    gathered = rows(uncovered) + rows(combined_coverage(behind))
    joined = len(small_segments(gathered, [rows(each.covered) for each in able]))
    useless = len(ours) - len(able) - len(behind)
    return IndexSurvey(
        name=name,
        kind=kind.name,
        column=field_paths.format_path(chain),
        rows=rows(coverage.live_fragments),
        uncovered_rows=rows(uncovered),
        uncovered_fragments=len(uncovered),
        segments=len(segments),
        joined_segments=(joined if joined > 1 or gathered else 0) + (useless if len(segments) > useless else 0),
        behind=len(behind),
    )
