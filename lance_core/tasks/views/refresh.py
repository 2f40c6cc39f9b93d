"""Refresh of a materialized view: brings a table to the newest version of its source, as one version.

    driver    plan_refresh(...)                        nothing, the changed rows, or all rows (`source_changes.py`)
    workers   read the source, compute rows of the view and write them to files
    workers   match the changed rows with the view by the row ids of the source, and rewrite what differs
    driver    commits rows and record as one version; after a conflict, it decides again on the newest version

The record of the source's version is part of the committed version (`format/view_records.py`), so a refresh that is
killed at any point leaves the view as it was, and of two refreshes that run at once each change is applied by one. The
view then equals the query of the source version that it records. Start with `refresh_view`.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from lance_core.commit import openlineage
from lance_core.commit.write_protocol import (
    Change,
    Planned,
    StartedWrite,
    WriteResult,
    commit_with_retry,
    new_table_config,
)
from lance_core.datafiles.blob_writing import stored_schema
from lance_core.datafiles.column_layout import check_storable
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml.upsert_join import UpsertRules
from lance_core.dml.view_definition import SOURCE_ROW_ID, SOURCE_VERSION, ResolvedView, Select, ViewDefinition
from lance_core.errors import IncompatibleConflict, InvalidInput, NotFound
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.operations import Overwrite, Update
from lance_core.format.schema import TableSchema
from lance_core.format.view_records import VIEW, VIEW_FOLLOWS, ViewRecord
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.scan.system_columns import LAST_UPDATED_AT, ROW_ID
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.table.base import Committed
from lance_core.table.table import Table
from lance_core.tasks.driver import NewTableOptions, TableRef, WriteOptions, run_over_partitions
from lance_core.tasks.partitioning import LocalRunner, PartitionFunction, Runner
from lance_core.tasks.rows.upsert import UpsertRun
from lance_core.tasks.rows.write import RESULT, WritePlan, WriteTask, collect_fragments
from lance_core.tasks.scan.change_plan import plan_read_changes
from lance_core.tasks.scan.read import VersionRef, plan_read
from lance_core.tasks.version_stamp import VersionStamp
from lance_core.tasks.views.source_changes import ChangeWork, RefreshStep, ScanWork, load_recorded_version, plan_refresh
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import Location
from lance_core.versions.refs import branch_location
from lance_core.versions.snapshot import Snapshot

VERB = "refresh_view"
_REPLACED_MAX = 8
"""Number of times a refresh starts again because all rows of the view were replaced meanwhile."""
NEW_VIEW = NewTableOptions(stable_row_ids=True)
"""A view has stable row ids by default, so that it can be the source of another view."""


@dataclass(frozen=True, slots=True)
class RefreshReport:
    """Result of one refresh."""

    committed: Committed
    refresh: str
    """"incremental", "rebuild", or "unchanged" if the view contained the version already."""
    reason: str
    """Why all rows were computed again; empty if they were not."""
    source_version: int
    """Version of the source that the view contains now."""
    since: int | None
    """Version of the source that it contained before, for an incremental refresh."""
    record: ViewRecord
    seconds: float


def refresh_view(
    uri: str,
    *,
    of: str,
    select: Select = None,
    where: str | None = None,
    version: int | None = None,
    rebuild: bool = False,
    branch: str | None = None,
    source_branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    source_storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> RefreshReport:
    """Bring a materialized view to the newest version of its source, in this process, and return what was done.

    The table at `uri` is created by the first call. It has the rows of the table `of` that match `where`, with the
    columns `select`: names, `SQL AS name`, or a mapping of names to SQL. Only rows that changed since the last refresh
    are computed. All rows are computed again if the definition changed, if the needed history of the source was
    cleaned up, if another writer changed rows of the view, or with `rebuild=True`; the report says why.

    `version` is the version of the source to bring the view to; the view never goes back to an older one.
    `source_storage_options` are those of the source, `storage_options` by default.
    """
    options = storage_options if source_storage_options is None else source_storage_options
    return refresh(
        TableRef(uri, branch, storage_options, manifest_store),
        VersionRef(of, version, None, source_branch, options),
        ViewDefinition.of(select, where),
        rebuild=rebuild,
        options=WriteOptions(intent, properties),
        runner=LocalRunner(),
    )


def refresh(
    view: TableRef,
    source: VersionRef,
    definition: ViewDefinition,
    *,
    rebuild: bool = False,
    new_table: NewTableOptions = NEW_VIEW,
    limits: FileLimits | None = None,
    options: WriteOptions,
    runner: Runner,
) -> RefreshReport:
    """Refresh a view with the workers of `runner`."""
    started = time.monotonic()
    properties = options.check()
    location = branch_location(view.locate(), view.branch)
    run = _Refresh(source, definition, rebuild, limits or FileLimits(), runner)
    change = Change(
        VERB, run.plan, Update.name, audit=options.audit_function(Table), create=lambda each: run.create(location, each)
    )

    def commit(attempts_left: int) -> WriteResult:
        base = run.open_view(view, new_table)
        try:
            return commit_with_retry(
                change,
                base.location if isinstance(base, Snapshot) else location,
                base,
                intent=options.intent,
                properties=properties,
                retries=options.retries,
                runtime=SYSTEM_RUNTIME,
            )
        except IncompatibleConflict:  # all rows were replaced meanwhile, as by a rebuild of another runner
            if not attempts_left:
                raise
            return commit(attempts_left - 1)

    try:
        result = commit(_REPLACED_MAX)
    finally:
        run.discard()
    committed = Committed.of(result, Table)
    record = ViewRecord.decode(result.snapshot.manifest.config.get(VIEW))
    if record is None:
        raise InvalidInput(
            f"{location.uri}: version {committed.version} does not record a version of the source, since another "
            "writer removed the record; run the refresh again"
        )
    changed = bool(committed.attempts or committed.already_committed)
    return RefreshReport(
        committed,
        record.refresh if changed else "unchanged",
        record.reason if changed else "",
        record.source_version,
        record.since if changed else None,
        record,
        time.monotonic() - started,
    )


class _Refresh:
    """One refresh on the driver. It keeps the changed rows that workers have written across replans."""

    def __init__(
        self,
        source: VersionRef,
        definition: ViewDefinition,
        rebuild: bool,
        limits: FileLimits,
        runner: Runner,
    ) -> None:
        self._source, self._definition, self._rebuild = source, definition, rebuild
        self._limits, self._runner = limits, runner
        self._upsert: tuple[tuple[object, ...], UpsertRun] | None = None
        self._until: Snapshot | None = None

    def open_view(self, view: TableRef, new_table: NewTableOptions) -> Snapshot | NewTable:
        """Open the newest version of the view, if it exists. Raise `InvalidInput` if the table is no view, since a
        refresh would replace its rows."""
        try:
            base = view.newest()
        except NotFound:
            return new_table.new_table()
        base.manifest.check_writable()
        new_table.check_existing(base)
        if VIEW not in base.manifest.config and not {SOURCE_ROW_ID, SOURCE_VERSION} <= set(
            base.manifest.schema.arrow.names
        ):
            raise InvalidInput(
                f"{base.location.uri} is a table that no refresh has written, and a refresh as a view of "
                f"{self._source.uri} would replace its rows; give the view another location, or remove that table first"
            )
        return base

    def create(self, location: Location, started: StartedWrite) -> Planned:
        """Write the rows of a new view."""
        assert isinstance(started.base, NewTable)
        until, resolved = self._open_source(None)
        record = RefreshStep(until, None, "the view is new").record(resolved, self._source.branch, planned_on=0)
        schema = _table_schema(resolved, started.base.storage_version)
        fragments = self._compute_all(location, until, resolved, schema, started.base.storage_version)
        operation = Overwrite(fragments, schema, new_table_config(started))
        sources = self._column_sources(until, resolved)
        return Planned(operation, {VIEW: record.encode(), VIEW_FOLLOWS: "", **sources})

    def plan(self, base: Snapshot) -> Planned | None:
        """Plan the refresh of a version of the view; `None` if it contains the version of the source already."""
        follows = base.manifest.config.get(VIEW, "")
        until, resolved = self._open_source(ViewRecord.decode(follows))
        step = plan_refresh(base, until, resolved, rebuild=self._rebuild)
        if step is None:
            return None
        record = step.record(resolved, self._source.branch, planned_on=base.version)
        properties = {VIEW: record.encode(), VIEW_FOLLOWS: follows, **self._column_sources(until, resolved)}
        if step.since is not None:
            return Planned(self._apply_changes(base, step.since, until, resolved), properties)
        version = base.manifest.storage_version
        schema = _table_schema(resolved, version)
        fragments = self._compute_all(base.location, until, resolved, schema, version)
        return Planned(Overwrite(fragments, schema, {}), properties)

    def _column_sources(self, until: Snapshot, resolved: ResolvedView) -> Mapping[str, str]:
        """Return the property with the columns of the source from which those of the view are computed."""
        sources = {column: [[0, name] for name in names] for column, names in resolved.column_sources().items()}
        recorded = {"columns": sources, "tables": [[until.location.uri, None]]}
        return {openlineage.COLUMNS: json.dumps(recorded, sort_keys=True)}

    def discard(self) -> None:
        """Delete the files with changed rows."""
        if self._upsert is not None:
            self._upsert[1].discard()
            self._upsert = None

    def _open_source(self, record: ViewRecord | None) -> tuple[Snapshot, ResolvedView]:
        """Open the version of the source. A replan stays at the version of the plan before, whose rows are written,
        unless another refresh has brought the view further. A view that contains a later version of the source than
        the requested one stays at that version."""
        if self._until is None or (record is not None and record.source_version > self._until.version):
            self._until = self._source.snapshot()
            if record is not None and record.source_version > self._until.version:
                self._until = load_recorded_version(self._until, record) or self._until
        until = self._until
        return until, self._definition.resolve(until.manifest.schema, what=until.location.uri)

    def _compute_all(
        self, location: Location, until: Snapshot, resolved: ResolvedView, schema: TableSchema, version: StorageVersion
    ) -> tuple[Fragment, ...]:
        has_lineage = until.manifest.has_stable_row_ids
        plan = plan_read(
            until,
            columns=[*resolved.inputs, ROW_ID, *([LAST_UPDATED_AT] if has_lineage else [])],
            filter=resolved.predicate,
            transport=_unchanged,
            slots=self._runner.slots,
        )
        write = WriteTask(_write_plan(location, schema, version, self._limits))
        work = ScanWork(plan, resolved, write, None if has_lineage else int(until.version))
        return tuple(map(Fragment.decode, collect_fragments(self._run(until, len(plan.partitions), work))))

    def _apply_changes(self, base: Snapshot, since: Snapshot, until: Snapshot, resolved: ResolvedView) -> Update:
        key = (since.version, until.version, resolved.fingerprint)
        if self._upsert is None or self._upsert[0] != key:
            self.discard()
            plan = plan_read_changes(
                until,
                since.version,
                columns=list(resolved.inputs),
                transport=_unchanged,
                slots=self._runner.slots,
            )
            if not plan.partitions:
                return Update()

            def stage(task: WriteTask) -> pa.Table:
                return self._run(until, len(plan.partitions), ChangeWork(plan, resolved, task))

            rules = UpsertRules.of(
                SOURCE_ROW_ID,
                matched="update",
                matched_if=None,
                insert=True,
                delete_unmatched=False,
                delete_if=f"{SOURCE_VERSION} IS NULL",
            )
            self._upsert = key, UpsertRun(resolved.schema, stage, rules, self._limits, self._runner)
        return self._upsert[1].plan(base) or Update()

    def _run(self, source: Snapshot, partitions: int, work: PartitionFunction) -> pa.Table:
        """Run `work` for each partition of the source, and return the results of its writes."""
        results = run_over_partitions(source, ((),) * partitions, work, self._runner)
        batches = [
            pa.ipc.read_record_batch(pa.py_buffer(encoded), RESULT)
            for _, written in sorted(results.items())
            for encoded in written
        ]
        return pa.Table.from_batches(batches, RESULT)


def _unchanged(schema: pa.Schema) -> pa.Schema:
    """Return the schema in which batches are computed: workers write them themselves."""
    return schema


def _table_schema(resolved: ResolvedView, version: StorageVersion) -> TableSchema:
    schema = TableSchema.from_arrow(stored_schema(resolved.schema, version))
    check_storable(schema, version)
    return schema


def _write_plan(location: Location, schema: TableSchema, version: StorageVersion, limits: FileLimits) -> WritePlan:
    access = location.access
    return WritePlan(
        uri=location.uri,
        schema=schema,
        storage_version=version,
        limits=limits,
        durable=access.durable,
        stamp=VersionStamp.of_this_process(),
        storage_options=dict(access.storage_options),
    )


__all__ = ["RefreshReport", "Select", "ViewDefinition", "refresh", "refresh_view"]
