"""What upkeep would find in a version: from its manifest, the names of the other versions, and what names those.

No data file is looked for and nothing is written, so that thousands of tables can be surveyed in a minute. Whether what
is found is enough to act on is the caller's to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from lance_core.format.ids import Version
from lance_core.maintenance import cleanup, compaction, index_survey
from lance_core.maintenance.cleanup import Retention
from lance_core.maintenance.index_survey import IndexSurvey
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Survey:
    """Figures of a table at its newest version."""

    version: Version
    rows: int
    """Live ones."""
    deleted_rows: int
    fragments: int
    files: int
    """Of data."""
    bytes: int
    """Of those that the version names, as far as it knows their sizes."""
    groups: int
    """How many sets of neighbours a compaction would write anew."""
    small_fragments: int
    """In these groups, those of few rows."""
    deleted_rows_compacted: int
    """In these groups, rows that are gone and still stored."""
    expired_versions: tuple[Version, ...]
    """What a cleanup would remove at this moment."""
    kept: Mapping[Version, tuple[str, ...]]
    """What is as old, and why it stays."""
    indices: tuple[IndexSurvey, ...] = ()
    """What `optimize_indices` would find to do."""


def survey_table(base: Snapshot, retention: Retention, *, target_rows: int, small_rows: int, now: datetime) -> Survey:
    """`small_rows`: a fragment of fewer rows counts as small. The store's clock may differ from `now`: the cleanup
    itself asks it."""
    groups = compaction.plan_compaction(base, target_rows=target_rows, materialize_deletions=True)
    compacted = [fragment for group in groups for fragment in group]
    fragments = base.manifest.fragments
    rows = base.manifest.row_count()
    choice = cleanup.expired_versions(base, retention, now=now)
    return Survey(
        version=base.version,
        rows=rows,
        deleted_rows=sum(fragment.physical_rows for fragment in fragments) - rows,
        fragments=len(fragments),
        files=sum(len(fragment.files) for fragment in fragments),
        bytes=sum(fragment.file_bytes for fragment in fragments),
        groups=len(groups),
        small_fragments=sum(fragment.physical_rows < small_rows for fragment in compacted),
        deleted_rows_compacted=sum(fragment.physical_rows - fragment.live_rows for fragment in compacted),
        expired_versions=choice.versions,
        kept=choice.kept,
        indices=index_survey.survey_indices(base),
    )
