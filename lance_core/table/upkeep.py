"""Upkeep: compaction, cleanup of old versions, and a survey of what either would do.

No method in here changes a row; `maintenance/` does the work.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

from lance_core import validation
from lance_core.commit import write_protocol
from lance_core.commit.loop import ATTEMPTS
from lance_core.datafiles.fragment_writer import ROWS_PER_FILE_MAX
from lance_core.format.operations import Rewrite, UpdateConfig
from lance_core.maintenance import cleanup, compaction, survey
from lance_core.maintenance.cleanup import CleanupReport, Retention
from lance_core.maintenance.compaction_indices import Remap
from lance_core.maintenance.survey import Survey
from lance_core.progress import ProgressArgument, reporting
from lance_core.table.base import Committed, TableBase, WriteOptions
from lance_core.versions.recorded_files import find_missing_checksums


class Upkeep(TableBase):
    """Part of `Table` that maintains its files and versions."""

    def compact(
        self,
        *,
        target_rows: int = ROWS_PER_FILE_MAX,
        materialize_deletions: bool = True,
        remap: Literal["now", "reuse", "none"] | None = None,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        progress: ProgressArgument = False,
    ) -> Committed:
        """Rewrite small fragments, and fragments with many deleted rows, as full ones. Fragments with overlays are
        rewritten too, which puts the new values into their columns. Rows keep their values, ids and row versions. If
        there is nothing to compact, no version is committed.

        An index that stores stable row ids keeps its coverage. An index that stores row addresses is rewritten with the
        new addresses in the same commit. An index of a type that this library cannot rewrite, such as vector and text
        indices, keeps its coverage through a fragment reuse index, which records where the rows moved, if row ids are
        not stable, its type supports that, and no other index keeps entries of the moved rows. Other indices lose the
        compacted fragments from their coverage: queries scan those, and stay correct. `Committed.uncovered` names these
        indices.

        `remap` chooses one way for every index that stores row addresses. `"now"` rewrites it, and raises an error
        where that is impossible. `"reuse"` writes no index: the fragment reuse index records where the rows moved, and
        `optimize_indices()` rewrites the indices later (call it before pylance's `compact_files()`, which otherwise
        loses rows of b-trees); it is refused if row ids are stable and an index stores addresses. `"none"` reduces the
        coverage.

        `progress=True` shows a bar in terminals and notebooks and writes to the log elsewhere; a function receives an
        `OperationProgress` for each report. The same holds for the other long verbs.

        >>> appended = table.append({"id": [4]}).table
        >>> len(appended.fragments), len(appended.compact().table.fragments)
        (2, 1)
        """
        mode = None if remap is None else Remap.of(remap)
        checked = validation.check_properties(properties)
        with reporting(progress, "compact"):
            return self._write(
                "compact",
                lambda base: compaction.compact(
                    base,
                    target_rows=target_rows,
                    materialize_deletions=materialize_deletions,
                    remap=mode,
                    properties=checked,
                    runtime=self.runtime,
                ),
                WriteOptions(intent, properties, retries),
                operation=Rewrite.name,
            )

    def record_checksums(
        self,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        progress: ProgressArgument = False,
    ) -> Committed:
        """Record the checksums of files that have none, because another engine or an older release wrote or committed
        them. Checksums that older versions record are copied; other files are read, and none is rewritten. If all
        files have one, no version is committed.

        The present bytes of a file are assumed to be right: compare the rows with another copy first if you doubt them.

        >>> table.record_checksums().version == table.version  # every file has one
        True
        """
        with reporting(progress, "record_checksums"):
            return self._write(
                "record_checksums",
                lambda base: UpdateConfig(checksums=missing) if (missing := find_missing_checksums(base)) else None,
                WriteOptions(intent, properties, retries),
                operation=UpdateConfig.name,
            )

    def cleanup(
        self,
        *,
        older_than: timedelta = timedelta(days=14),
        keep: int = 10,
        orphan_grace: timedelta = cleanup.DEFAULT_ORPHAN_GRACE,
        protected: Mapping[int, str] | None = None,
        dry_run: bool = False,
        force: bool = False,
        progress: ProgressArgument = False,
    ) -> CleanupReport:
        """Remove old versions and the files that only they reference.

        A version is removed if it is older than `older_than` and not among the newest `keep`. Versions stay that a tag,
        a branch or a clone references, that `protected` lists with a reason (`{7: "source of features v3"}`), and this
        version with all newer ones. Orphan files, which no version references, are removed once they are older than
        `orphan_grace`; if they are most of the files, only with `force=True`. `dry_run=True` reports what a cleanup
        would remove.

        >>> newer = table.append({"id": [4]}).table
        >>> newer.cleanup(dry_run=True).versions  # both versions are young
        ()
        """
        self._snapshot.manifest.check_writable()
        write_protocol.check_not_detached(self._snapshot)
        retention = Retention(older_than, keep, orphan_grace, protected or {})
        with reporting(progress, "cleanup"):
            return cleanup.clean(self._snapshot, retention, dry_run=dry_run, force=force, runtime=self.runtime)

    def survey(
        self,
        *,
        target_rows: int = ROWS_PER_FILE_MAX,
        small_rows: int | None = None,
        older_than: timedelta = timedelta(days=14),
        keep: int = 10,
        protected: Mapping[int, str] | None = None,
        now: datetime | None = None,
    ) -> Survey:
        """Return what `compact` and `cleanup` would do with these arguments, from manifests and listings alone. Nothing
        is written. A fragment with fewer than `small_rows` rows (default: `target_rows`) counts as small.

        >>> survey = table.append({"id": [4]}).table.survey()
        >>> survey.fragments, survey.small_fragments
        (2, 2)
        """
        small = (
            target_rows
            if small_rows is None
            else validation.check_integer(
                small_rows, "small_rows", at_least=1, too_small="a small fragment has at least one row"
            )
        )
        moment = datetime.now(UTC) if now is None else validation.check_timestamp(now, "now")
        retention = Retention(older_than, keep, protected=protected or {})
        return survey.survey_table(self._snapshot, retention, target_rows=target_rows, small_rows=small, now=moment)
