"""Index survey: estimates the work of `optimize_indices` from the metadata of a version, without opening an index
file.

The survey counts only the changes that `index_maintenance.py` would make, so it finds none right after a maintenance.
The maintenance may find more when it opens the files (segments that must be rewritten), and never less.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lance_core.errors import LanceError
from lance_core.format import field_paths
from lance_core.format.field_paths import FieldPath
from lance_core.index import build
from lance_core.index.coverage import Coverage, SegmentCoverage, combined_coverage
from lance_core.index.statistics import RowCounts, is_behind
from lance_core.maintenance.index_maintenance import has_same_definition, small_segments, unclaimed_fragments
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class IndexSurvey:
    """State of one index that can be maintained here."""

    name: str
    kind: str
    column: str
    rows: int
    """Rows that the fragments of the table store, including deleted ones."""
    uncovered_rows: int
    """Rows that the maintenance would add to the coverage."""
    uncovered_fragments: int
    segments: int
    joined_segments: int
    """Segments that would become one, plus useless segments that would be removed."""
    behind: int
    """Segments whose rows were moved by compactions; the fragment reuse index is retained for them."""


def survey_indices(base: Snapshot) -> tuple[IndexSurvey, ...]:
    """Return the state of each index. An index whose state cannot be determined is left out; `fsck` reports what is
    wrong with it."""
    return tuple(_survey_all(base, Coverage(base)))


def _survey_all(base: Snapshot, coverage: Coverage) -> Iterator[IndexSurvey]:
    for name, segments in coverage.by_name.items():
        try:
            survey = _survey_index(base, coverage, name, segments)
        except LanceError:
            continue
        if survey is not None:
            yield survey


def _survey_index(
    base: Snapshot, coverage: Coverage, name: str, segments: Sequence[SegmentCoverage]
) -> IndexSurvey | None:
    newest = _newest_usable(segments)
    chain = None if newest is None else _indexed_field(base, newest)
    if newest is None or newest.kind is None or chain is None:
        return None
    ours = [segment for segment in segments if segment.kind is not None and has_same_definition(segment, newest)]
    uncovered = unclaimed_fragments(coverage, ours, segments)
    covering = [segment for segment in ours if segment.covered]
    behind = [segment for segment in covering if is_behind(coverage, segment)]
    current = [segment for segment in covering if segment not in behind]
    useless_count = len(ours) - len(covering)
    rows = RowCounts(base.manifest)
    new_rows = rows(uncovered) + rows(combined_coverage(behind))
    merged = len(small_segments(new_rows, [rows(segment.covered) for segment in current]))
    removed = useless_count if len(segments) > useless_count else 0
    return IndexSurvey(
        name=name,
        kind=newest.kind.name,
        column=field_paths.format_path(chain),
        rows=rows(coverage.live_fragments),
        uncovered_rows=rows(uncovered),
        uncovered_fragments=len(uncovered),
        segments=len(segments),
        joined_segments=(merged if merged > 1 or new_rows else 0) + removed,
        behind=len(behind),
    )


def _newest_usable(segments: Sequence[SegmentCoverage]) -> SegmentCoverage | None:
    usable = (segment for segment in segments if segment.kind is not None)
    return max(usable, key=lambda segment: segment.metadata.dataset_version, default=None)


def _indexed_field(base: Snapshot, segment: SegmentCoverage) -> FieldPath | None:
    """Return the field of a segment, or `None` if it has several or its index type does not support the field."""
    field_ids = segment.metadata.field_ids
    chain = build.chain_of(base.manifest.schema, field_ids[0]) if len(field_ids) == 1 else None
    if segment.kind is None or chain is None or not segment.kind.supports(build.arrow_of(base.manifest.schema, chain)):
        return None
    return chain
