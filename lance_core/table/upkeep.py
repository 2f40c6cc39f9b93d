"""The verbs that keep a table in shape and change none of its rows: compaction, cleanup, indices."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from lance_core import validation
from lance_core.commit import write_protocol
from lance_core.commit.loop import ATTEMPTS
from lance_core.datafiles.fragment_writer import ROWS_PER_FILE_MAX
from lance_core.dml import index_definition as edit_indices
from lance_core.dml import retry
from lance_core.errors import RetryableConflict
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import CreateIndex, Rewrite
from lance_core.maintenance import cleanup, compaction, index_maintenance
from lance_core.maintenance import survey as surveying
from lance_core.maintenance.cleanup import CleanupReport, Retention
from lance_core.maintenance.compaction_indices import Remap
from lance_core.maintenance.survey import Survey
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.table.committed import Committed
from lance_core.table.reading import TableReader
from lance_core.versions.snapshot import Snapshot

_HAS_ROWS = "a small fragment has at least one row"


class TableUpkeep(TableReader, ABC):
    @abstractmethod
    def _changed(
        self,
        verb: str,
        plan: retry.Plan,
        intent: str | None,
        properties: Mapping[str, str] | None,
        retries: int,
        *,
        operation: str = "",
    ) -> Committed: ...

    def compact(
        self,
        *,
        target_rows: int = ROWS_PER_FILE_MAX,
        materialize_deletions: bool = True,
        remap: Literal["now", "reuse", "none"] | None = None,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Write small fragments, and those with many deleted rows, anew as full ones. The rows stay as they are, with
        their ids and versions. A table in shape gets no version.

        An index that stores stable row ids covers on. One that stores where rows are is written anew, with where they
        are then, and covers on. One of a kind that cannot be written here, vector and text indices for two: where row
        ids are not stable and its kind stands it, the table notes where the rows went (a fragment reuse index) and it
        covers on. The others cover what was compacted no more: queries scan it, and are right. `Committed.uncovered`
        names them.

        `remap` says it for every index that stores where rows are: written anew `"now"`, which is refused where that
        cannot be done; `"reuse"`, no index is written, the table notes where the rows went, and `optimize_indices()`
        brings indices up to that later (before pylance's `compact_files()`, which loses rows of b-trees otherwise), and
        it is refused where row ids are stable and an index stores addresses; `"none"`, queries scan instead.
        """
        wanted = None if remap is None else Remap.of(remap)
        noted = validation.properties(properties)
        return self._changed(
            "compact",
            lambda base: compaction.compact(
                base,
                target_rows=target_rows,
                materialize_deletions=materialize_deletions,
                remap=wanted,
                properties=noted,
                runtime=SYSTEM_RUNTIME,
            ),
            intent,
            properties,
            retries,
            operation=Rewrite.name,
        )

    def cleanup(
        self,
        *,
        older_than: timedelta = timedelta(days=14),
        keep: int = 10,
        orphan_grace: timedelta = cleanup.GRACE,
        protected: Mapping[int, str] | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> CleanupReport:
        """Remove versions that are older than `older_than` and not among the newest `keep`, and the files that only
        they name. Versions that a tag, a branch or a clone names stay, and so do this version and newer ones; so do
        those of `protected`, for what it says: `{7: "features v3 was made of it"}`.

        Files that no version names go too, once they are older than `orphan_grace`; `force` lets them go even where
        they are most of what is there. A dry run tells what would go.
        """
        self.manifest.check_writable()
        write_protocol.check_not_detached(self._snapshot)
        retention = Retention(older_than, keep, orphan_grace, protected or {})
        return cleanup.clean(self._snapshot, retention, dry_run=dry_run, force=force, runtime=SYSTEM_RUNTIME)

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
        """What `compact` and `cleanup` would find to do with these arguments, from manifests and listings alone:
        nothing is written. `small_rows`: a fragment of fewer rows counts as a small one; `target_rows` without it."""
        small = (
            target_rows
            if small_rows is None
            else validation.whole_number(small_rows, "small_rows", at_least=1, too_small=_HAS_ROWS)
        )
        moment = datetime.now(UTC) if now is None else validation.moment(now, "now")
        retention = Retention(older_than, keep, protected=protected or {})
        return surveying.survey(self._snapshot, retention, target_rows=target_rows, small_rows=small, now=moment)

    def create_index(
        self,
        column: str,
        kind: str,
        *,
        name: str | None = None,
        replace: bool = False,
        fragments: Iterable[int] | None = None,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        **params: object,
    ) -> Committed:
        """An index of this kind on a column, or on a field within (`address.city`). `params` are what the kind may be
        told, such as `rows_per_zone=4096` for a zone map. It covers all rows that there are, or those of some
        `fragments`; rows that come later are scanned until `optimize_indices()` covers them.

        Its name is that of the column with `_idx`, unless told. One that is taken is an error; `replace` builds the
        index anew under it."""
        chosen = None if fragments is None else validation.numbers(fragments, "fragments")
        asked = edit_indices.IndexRequest(column, kind, name, replace, chosen, params)
        return self._changed(
            "create_index",
            lambda base: edit_indices.create(base, asked, runtime=SYSTEM_RUNTIME),
            intent,
            properties,
            retries,
            operation=CreateIndex.name,
        )

    def drop_index(
        self,
        name: str,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """No rows go with it; its files stay for the versions that name them."""
        return self._changed(
            "drop_index",
            lambda base: edit_indices.drop(base, name),
            intent,
            properties,
            retries,
            operation=CreateIndex.name,
        )

    def optimize_indices(
        self,
        names: Sequence[str] | None = None,
        *,
        merge: Literal["small", "all", "none"] = "small",
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Cover with all indices, or those of some `names`, what they do not cover yet; drop segments of no use; bring
        those up to date whose rows a compaction moved, and then drop its notes on where they went.

        `merge` says which segments of an index become one with what is new: `"small"` ones, so that there are few and
        each row is written a few times in all; `"all"`; or `"none"`. Where all is in shape there is no new version."""
        wanted = None if names is None else validation.names(names, "names")
        how = index_maintenance.Merge.of(merge)
        fresh: list[IndexMetadata] = []

        def plan(base: Snapshot) -> CreateIndex | None:
            operation = index_maintenance.optimize(base, wanted, how, runtime=SYSTEM_RUNTIME)
            fresh[:] = operation.new if operation else ()
            return operation

        done = self._changed("optimize_indices", plan, intent, properties, retries, operation=CreateIndex.name)
        try:
            trimmed = done.table._changed(
                "optimize_indices",
                lambda base: index_maintenance.trim(base, fresh, runtime=SYSTEM_RUNTIME),
                None,
                properties,
                retries,
                operation=CreateIndex.name,
            )
        except RetryableConflict:
            return done  # the next one drops them
        return done.followed_by(trimmed)
