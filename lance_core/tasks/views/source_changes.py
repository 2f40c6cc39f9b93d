"""Source changes: decides how a view follows its source, and has workers compute the rows.

    plan_refresh(view, source, ...)   nothing, only the changed rows, or all rows and why
    ScanWork, ChangeWork              functions of one partition: they write files with rows of the view

A changed row of the source that no longer matches the condition, or no longer exists, becomes a removal: a row of the
view whose only value is its key. Start with `plan_refresh`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from lance_core.dml.view_definition import SOURCE_ROW_ID, SOURCE_VERSION, ResolvedView
from lance_core.errors import NotFound
from lance_core.format import operations as op
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.operations import Operation, UpdateMode
from lance_core.format.view_records import VIEW, ViewRecord
from lance_core.scan.changes import Comparison, RowRange, Side, plan_changes, read_rows
from lance_core.scan.system_columns import LAST_UPDATED_AT, ROW_ID
from lance_core.tasks.rows.write import WriteTask
from lance_core.tasks.scan.change_plan import ChangePlan
from lance_core.tasks.scan.read import ReadPlan
from lance_core.versions.snapshot import Snapshot, load_at, load_transaction

_LINEAGE = (ROW_ID, LAST_UPDATED_AT)
_KEEPS_ROWS = (op.Rewrite, op.CreateIndex, op.UpdateConfig, op.ReserveFragments, op.UpdateBases, op.Merge, op.Project)
"""Operations that change no value of an existing column; a column that is dropped or converted is found by its type."""


@dataclass(frozen=True, slots=True)
class RefreshStep:
    """Step that brings a view from its version to one version of the source."""

    until: Snapshot
    """Version of the source."""
    since: Snapshot | None
    """Version of the source that the view contains; `None` if all rows are computed again."""
    reason: str = ""
    """Why all rows are computed again."""

    def record(self, resolved: ResolvedView, branch: str | None, *, planned_on: int) -> ViewRecord:
        """Return the record of the version that the step commits."""
        return ViewRecord(
            source=self.until.location.uri,
            branch=branch,
            source_version=self.until.version,
            source_hash=self.until.manifest.as_parent.sha256,
            definition=resolved.fingerprint,
            select={name: resolved.select[name] for name in resolved.order},
            where=resolved.where,
            planned_on=planned_on,
            refresh="rebuild" if self.since is None else "incremental",
            reason=self.reason,
            since=None if self.since is None else self.since.version,
        )


def plan_refresh(base: Snapshot, until: Snapshot, resolved: ResolvedView, *, rebuild: bool) -> RefreshStep | None:
    """Return the next step of a view, or `None` if it contains this version of its source already, or a later one."""
    record = ViewRecord.decode(base.manifest.config.get(VIEW))
    if record is None:
        return RefreshStep(until, None, "the table does not record a version of the source")
    since = _recorded_version(until, record)
    reason = (
        _reason_in_view(base, record, resolved)
        or _reason_in_source(since, until, record)
        or ("a rebuild was requested" if rebuild else "")
        or ("" if since is None else _reason_in_history(since, until, resolved))
    )
    if reason or since is None:
        return RefreshStep(until, None, reason)
    return None if until.version <= since.version else RefreshStep(until, since)


def _recorded_version(until: Snapshot, record: ViewRecord) -> Snapshot | None:
    """Load the version of the source that the view contains; `None` if it does not exist any more."""
    return until if record.source_version == until.version else _load_if_exists(until, record.source_version)


def load_recorded_version(until: Snapshot, record: ViewRecord) -> Snapshot | None:
    """Load the version of the source that the view contains; `None` if it was removed, or if the source is another
    table than then."""
    since = _recorded_version(until, record)
    return None if since is None or since.manifest.as_parent.sha256 != record.source_hash else since


def _reason_in_view(base: Snapshot, record: ViewRecord, resolved: ResolvedView) -> str:
    if record.definition != resolved.fingerprint:
        return "the definition changed, or a column of the source that it reads"
    stored = base.manifest.schema.arrow
    for field in resolved.schema:
        if field.name not in stored.names or stored.field(field.name).type != field.type:
            return f"the column {field.name!r} of the view was changed"
    return _reason_of_other_writers(base, record)


def _reason_of_other_writers(base: Snapshot, record: ViewRecord) -> str:
    """Return a reason if another writer may have changed rows of the view since its last refresh was planned.

    The history is read back to the version on which that refresh was planned. A version that restores an older one
    continues there."""
    own = {name for name in (*record.select, SOURCE_ROW_ID, SOURCE_VERSION) if name in base.manifest.schema.arrow.names}
    ids = {node.id for name in own for node in base.manifest.schema.field(name).walk()}
    snapshot: Snapshot | None = base
    number = int(base.version)
    while number > record.planned_on:
        snapshot = base if number == base.version else _load_if_exists(base, number)
        transaction = None if snapshot is None else load_transaction(snapshot.location, snapshot.manifest)
        if transaction is None:
            return f"version {number} of the view was cleaned up, so that it is unknown who changed rows in it"
        operation, is_refresh = transaction.operation, VIEW in transaction.properties
        if is_refresh and isinstance(operation, op.Overwrite):
            return ""  # it replaced all earlier rows
        if not is_refresh and not isinstance(operation, op.Restore) and not _keeps_rows(operation, ids):
            return f"another writer changed rows of the view in version {number}"
        number = operation.version if isinstance(operation, op.Restore) else number - 1
    return ""


def _load_if_exists(base: Snapshot, number: int) -> Snapshot | None:
    try:
        return load_at(base.location, Version(number))
    except NotFound:
        return None


def _keeps_rows(operation: Operation, own: set[int]) -> bool:
    """Return whether an operation certainly leaves the rows and the columns of the view unchanged."""
    if isinstance(operation, _KEEPS_ROWS):
        return True
    if isinstance(operation, op.Update):
        is_in_place = operation.mode is UpdateMode.REWRITE_COLUMNS and not operation.new and not operation.removed_ids
        return is_in_place and own.isdisjoint(operation.fields_modified)
    if isinstance(operation, op.DataReplacement):
        return own.isdisjoint(number for _, file in operation.replacements for number in file.field_ids)
    return False


def _reason_in_source(since: Snapshot | None, until: Snapshot, record: ViewRecord) -> str:
    if since is None:
        if record.source_version > until.version:
            return f"the source has no version {record.source_version} any more: it was created again, or restored"
        return f"version {record.source_version} of the source, which the view contains, was cleaned up"
    if since.manifest.as_parent.sha256 != record.source_hash:
        return f"version {record.source_version} of the source is another one than the view contains: it was recreated"
    return ""


def _reason_in_history(since: Snapshot, until: Snapshot, resolved: ResolvedView) -> str:
    """Return a reason if the change feed of the source does not tell which rows differ."""
    if until.version <= since.version:
        return ""
    if not (since.manifest.has_stable_row_ids and until.manifest.has_stable_row_ids):
        return "the source has no stable row ids, by which changed rows are found"
    comparison = Comparison.between(since, until)
    read = {node.id for name in resolved.inputs for node in resolved.source.field(name).walk()}
    before = {each.id: each for each in comparison.since.manifest.fragments}
    for fragment in comparison.until.manifest.fragments:
        if fragment.has_overlays or (fragment.id in before and before[fragment.id].has_overlays):
            return "values of the source were overlaid, which its change feed does not show"
        if fragment.id in before and _is_rewritten(before[fragment.id], fragment, read):
            return "a column of the source was rewritten in a way that its change feed does not show"
    return ""


def _is_rewritten(before: Fragment, after: Fragment, read: set[int]) -> bool:
    """Return whether columns that the view reads are in other files, although no row is recorded as changed."""
    files = [
        {(number, file.path) for file in each.files for number in file.field_ids if number in read}
        for each in (before, after)
    ]
    return files[0] != files[1] and before.last_updated_at == after.last_updated_at


@dataclass(frozen=True, slots=True)
class ScanWork:
    """Computes the rows of the view of one partition of the source. Picklable."""

    plan: ReadPlan
    view: ResolvedView
    write: WriteTask
    version: int | None
    """Version of the source, for a source that does not record when a row was changed."""

    def __call__(self, _partition: Snapshot, number: int) -> Iterator[bytes]:
        yield from written_fragments(self.write, self._rows(number))

    def _rows(self, number: int) -> Iterator[pa.RecordBatch]:
        for batch in self.plan.work.read(self.plan.partitions[number]):
            if self.version is None:
                yield self.view.compute_rows(batch, *_keys_of(batch))
            else:
                versions = pa.repeat(pa.scalar(self.version, pa.int64()), batch.num_rows)
                yield self.view.compute_rows(batch, _signed(batch, ROW_ID), versions)


@dataclass(frozen=True, slots=True)
class ChangeWork:
    """Computes what one partition of the changed rows changes in the view. Picklable."""

    plan: ChangePlan
    view: ResolvedView
    write: WriteTask

    def __call__(self, _partition: Snapshot, number: int) -> Iterator[bytes]:
        yield from written_fragments(self.write, self._rows(number))

    def _rows(self, number: int) -> Iterator[pa.RecordBatch]:
        partition = self.plan.partitions[number]
        comparison, scan_plan = self.plan.open()
        fragments = comparison.own(partition.side).manifest.fragments
        ranges = [RowRange(fragments[index], skip, take) for index, skip, take in partition.ranges]
        if partition.side is Side.SINCE:
            keys_only = plan_changes(comparison.until, [], None, with_row_id=True)
            for batch in read_rows(comparison, keys_only, partition.side, ranges):
                yield self.view.removals(_signed(batch, ROW_ID))
            return
        for batch in read_rows(comparison, scan_plan, partition.side, ranges):
            matching, other = self.view.split(batch)
            if matching.num_rows:
                yield self.view.compute_rows(matching, *_keys_of(matching))
            if other.num_rows:
                yield self.view.removals(_signed(other, ROW_ID))


def written_fragments(write: WriteTask, rows: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Write rows, and yield the rows of the task's result, encoded."""
    for result in write(rows):
        yield bytes(result.serialize())


def _keys_of(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    return _signed(batch, ROW_ID), _signed(batch, LAST_UPDATED_AT)


def _signed(batch: pa.RecordBatch, name: str) -> pa.Array:
    return batch.column(name).cast(pa.int64())


__all__ = ["ChangeWork", "RefreshStep", "ScanWork", "load_recorded_version", "plan_refresh"]
