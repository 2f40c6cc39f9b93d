"""Maintenance survey: estimates the maintenance that a version needs, from its manifest, the listing of versions and
the references to them.

No data file is opened and nothing is written, so that thousands of tables can be surveyed in a minute. The caller
decides whether the findings warrant maintenance.
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
    """Rows that are not deleted."""
    deleted_rows: int
    fragments: int
    files: int
    """Data files."""
    bytes: int
    """Size of all files that the version references, if it records their sizes."""
    groups: int
    """Sets of neighbouring fragments that a compaction would rewrite."""
    small_fragments: int
    """Fragments with few rows in these groups."""
    deleted_rows_compacted: int
    """Rows in these groups that are deleted and still stored."""
    expired_versions: tuple[Version, ...]
    """Versions that a cleanup would remove now."""
    kept: Mapping[Version, tuple[str, ...]]
    """Versions that are equally old but retained, with the reasons."""
    indices: tuple[IndexSurvey, ...] = ()
    """Indices with the work that `optimize_indices` would find."""

    @property
    def outlived(self) -> tuple[Version, ...]:
        """The name of `expired_versions` before version 0.2.0. Deprecated; removed in 0.3.0."""
        return self.expired_versions


def survey_table(base: Snapshot, retention: Retention, *, target_rows: int, small_rows: int, now: datetime) -> Survey:
    """Return the survey of a version. A fragment of fewer than `small_rows` rows counts as small. The store's clock
    may differ from `now`; a cleanup uses the store's clock."""
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
