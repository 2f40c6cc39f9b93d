"""Stream source: reads a table as a stream, version by version, each row once.

    planner   Stream(version_ref, transport=...)              lives as long as the query
              stream.latest_offset(start, limited=)           the end of the rows to send; with `limited`, of one batch
              stream.plan_partitions(start, end, slots=)      the rows between two offsets, for workers
    workers   partition.read(schema)                          the rows of a partition

Every version is read in its own state: rows that a later version deleted, moved or changed are sent as added. So
the rows between two offsets are the same whenever they are requested, as long as the versions exist.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import pyarrow as pa

from lance_core.errors import InvalidInput, LanceError, NotFound
from lance_core.format.ids import Version
from lance_core.format.refs import MAIN
from lance_core.runtime import SYSTEM_RUNTIME, Runtime
from lance_core.storage.store import ReportsLastChange
from lance_core.tasks.scan.read import VersionRef, plan_read
from lance_core.tasks.streaming.change_feed import AddedRows, OnChange, rows_added_by
from lance_core.tasks.streaming.offsets import NOT_STARTED, Offset, StreamStart
from lance_core.tasks.streaming.stream_partitions import (
    StreamedColumns,
    StreamPartition,
    StreamSlice,
    fragment_ranges,
    group_slices,
)
from lance_core.validation import check_timestamp
from lance_core.versions import version_hint
from lance_core.versions.snapshot import (
    Snapshot,
    format_ranges,
    list_versions,
    load_at,
    load_latest,
    load_transaction,
    table_id,
)

_VERSIONS_CACHED, _SNAPSHOTS_CACHED = 1024, 2
_NO_END = 1 << 62
_POLL_SECONDS, _POLL_SECONDS_MAX = 1.0, 3600
"""Default and maximum interval between two requests for the newest version. Requests cost money on an object store, and
a trigger without an interval would send a hundred per second."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Maximum size of one micro-batch; `None` means no limit. Rows count before the filter, and files are fragments."""

    rows: int | None = None
    files: int | None = None
    versions: int | None = None

    def __post_init__(self) -> None:
        for name, limit in (("rows", self.rows), ("files", self.files), ("versions", self.versions)):
            if limit is not None and limit < 1:
                raise InvalidInput(f"{limit} {name} at once: a limit is at least 1")


class Stream:
    """A table as the source of a query. It caches the versions that it has read, which never change."""

    def __init__(
        self,
        version_ref: VersionRef,
        *,
        transport: Callable[[pa.Schema], pa.Schema],
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        start: StreamStart | None = None,
        on_change: OnChange = OnChange.FAIL,
        limits: ReadLimits | None = None,
        poll_seconds: float | None = None,
        runtime: Runtime = SYSTEM_RUNTIME,
    ) -> None:
        """Open the stream. The last known version counts as the newest for `poll_seconds`; the default is 0 on a local
        disk, and 1 elsewhere."""
        if poll_seconds is not None and not 0 <= poll_seconds <= _POLL_SECONDS_MAX:
            raise InvalidInput(f"poll_seconds={poll_seconds}: it must be between 0 and {_POLL_SECONDS_MAX} seconds")
        if version_ref.version is not None or version_ref.tag is not None:
            raise InvalidInput(
                "a stream follows a table and cannot read one version or tag; give its start with starting_version"
            )
        head = version_ref.snapshot()
        plan = plan_read(head, transport=transport, slots=1, columns=columns, filter=filter)
        self.arrow = plan.arrow
        """Schema in which the table stores the columns."""
        self._columns = StreamedColumns(plan.work.scan_spec.columns, head.manifest.schema, filter)
        self._start, self._on_change, self.limits = start or StreamStart(), on_change, limits or ReadLimits()
        self._location, self._branch = head.location, head.manifest.branch
        self._newest_version, self._table = int(head.version), table_id(head)
        self._until: int | None = None
        is_remote = not isinstance(head.location.own_store, ReportsLastChange)
        self._poll_ns = int(1e9 * ((_POLL_SECONDS if is_remote else 0) if poll_seconds is None else poll_seconds))
        self._runtime, self._polled_ns = runtime, runtime.elapsed_ns()
        self._snapshots: dict[int, Snapshot] = {int(head.version): head}
        self._added_by_version: dict[tuple[int, bool], AddedRows] = {}

    @staticmethod
    def initial_offset() -> dict[str, object]:
        """Return the offset before the start. The first call of `latest_offset` decides where the stream starts, and
        later offsets keep it: Spark may ask for the initial offset again, after further commits, for a batch whose
        end it knows."""
        return dict(NOT_STARTED)

    def stop_at_newest(self) -> None:
        """Send nothing beyond the version that is the newest now."""
        self._until = self._poll_newest()

    def newest_offset(self) -> dict[str, object]:
        """Return the last known end of the table, for monitoring how far the stream is behind."""
        return Offset(self._table, self._branch, 1, False, self._newest_version + 1).to_json()

    def latest_offset(self, offset: Mapping[str, object], *, limited: bool = False) -> dict[str, object]:
        """Return the end of the rows that may be sent after `offset`. If a version cannot be sent, the end is before
        it, and the next call raises the error."""
        newest = self._newest_version if self._is_recently_polled else self._poll_newest()
        if self._until is not None:
            newest = min(newest, self._until)
        first = end = Offset.from_json(offset) or self._start_offset(newest)
        self._check_offset(end, newest)
        limits = self.limits if limited else ReadLimits()
        rows, files, versions = (limit or _NO_END for limit in (limits.rows, limits.files, limits.versions))
        while end.version <= newest and rows and files and versions:
            try:
                added = self._added_rows(end)
            except LanceError:
                if end == first:
                    raise
                break
            sent = 0
            for _, _, count in islice(fragment_ranges(added, end.row), files):
                files -= 1
                sent += min(count, rows - sent)
                if sent == rows:
                    break
            rows, versions = rows - sent, versions - bool(sent)
            is_done = end.row + sent >= added.total
            end = end.after_version(end.version) if is_done else replace(end, row=end.row + sent)
        return end.to_json()

    def plan_partitions(
        self, start: Mapping[str, object], end: Mapping[str, object], *, slots: int
    ) -> list[StreamPartition]:
        """Return the partitions of the rows between two offsets, in order."""
        last = Offset.from_json(end)
        if last is None:
            return []
        self._check_offset(last, self._poll_newest())
        position = Offset.from_json(start) or last.start
        slices: list[StreamSlice] = []
        while (position.version, position.row) < (last.version, last.row):
            added = self._added_rows(position)
            stop = min(last.row, added.total) if position.version == last.version else added.total
            if position.row < stop:
                slices += self._columns.slice_rows(self._snapshot(position.version), added, position.row, stop)
            position = position.after_version(position.version)
        return group_slices(slices, slots)

    def _start_offset(self, newest: int) -> Offset:
        """Return the offset at which a stream without a checkpoint starts."""
        start = self._start
        if start.version is not None:
            if not 1 <= start.version <= newest + 1:
                raise InvalidInput(
                    f"{self._location.uri}: starting_version={start.version} cannot be; the table is at version "
                    f"{newest}, and the next one is {newest + 1}"
                )
            first = start.version
        elif start.timestamp is not None:
            first = self._first_after(start)
        elif start.latest:
            first = newest + 1
        else:
            return Offset(self._table, self._branch, newest, True, newest)
        return Offset(self._table, self._branch, first, False, first)

    def _first_after(self, start: StreamStart) -> int:
        """Return the version after the newest one that was committed at that time or before. Clocks of committers may
        run backwards, so timestamps need not ascend."""
        assert start.timestamp is not None
        time = check_timestamp(start.timestamp, "starting_timestamp")
        numbers = list_versions(self._location).numbers
        for number in reversed(numbers):
            if self._snapshot(number).manifest.timestamp <= time:
                return number + 1
        if numbers[0] == 1:
            return 1
        raise NotFound(
            f"{self._location.uri}: starting_timestamp={time.isoformat()} is before version {numbers[0]}, the oldest "
            "one that exists: the rows that were added since are unknown. Start with that version "
            "(starting_version), or with all rows"
        )

    def _added_rows(self, offset: Offset) -> AddedRows:
        key = (offset.version, offset.is_initial_snapshot)
        if key not in self._added_by_version:
            snapshot = self._snapshot(offset.version)
            if offset.is_initial_snapshot:
                added = AddedRows.all_of(snapshot.manifest.fragments)
            else:
                transaction = load_transaction(snapshot.location, snapshot.manifest)
                added = rows_added_by(snapshot, transaction, self._on_change, self._columns.field_ids)
            while len(self._added_by_version) >= _VERSIONS_CACHED:
                del self._added_by_version[next(iter(self._added_by_version))]
            self._added_by_version[key] = added
        return self._added_by_version[key]

    def _snapshot(self, number: int) -> Snapshot:
        if number not in self._snapshots:
            try:
                snapshot = load_at(self._location, Version(number))
            except NotFound:
                raise self._version_gone_error(number) from None
            while len(self._snapshots) >= _SNAPSHOTS_CACHED:
                del self._snapshots[next(iter(self._snapshots))]
            self._snapshots[number] = snapshot
        return self._snapshots[number]

    @property
    def _is_recently_polled(self) -> bool:
        return self._runtime.elapsed_ns() - self._polled_ns < self._poll_ns

    def _poll_newest(self) -> int:
        """Return the newest version. This takes one request, unless the table has changed."""
        self._polled_ns = self._runtime.elapsed_ns()
        probed = version_hint.find_newest(self._location.own_store)
        numbers = (probed[0],) if probed else list_versions(self._location).numbers
        if not numbers or numbers[-1] != self._newest_version:
            head = load_latest(self._location)
            self._newest_version, self._table = int(head.version), table_id(head)
        return self._newest_version

    def _check_offset(self, offset: Offset, newest: int) -> None:
        """Raise if the checkpoint belongs to another table or branch, or is ahead of the table."""
        uri = self._location.uri
        if offset.branch != self._branch:
            raise InvalidInput(
                f"{uri}: the checkpoint is of the branch {offset.branch or MAIN!r}, and this query reads "
                f"{self._branch or MAIN!r}; give it a checkpointLocation of its own"
            )
        if offset.table and self._table and offset.table != self._table:
            raise InvalidInput(
                f"{uri}: there is another table now than the one that this query has read: its id was {offset.table}, "
                f"and is {self._table}. The table was recreated; start a query with a new checkpointLocation"
            )
        if offset.version > newest + 1 or (offset.row and offset.version > newest):
            raise InvalidInput(
                f"{uri}: this query has read up to version {offset.version - (not offset.row)}, and the table ends at "
                f"{newest}: it was reset to an earlier state. Start a query with a new checkpointLocation"
            )

    def _version_gone_error(self, number: int) -> NotFound:
        numbers = list_versions(self._location).numbers
        return NotFound(
            f"{self._location.uri}: version {number}, which is to be sent next, was cleaned up; there is "
            f"{format_ranges(numbers) or 'none'}. The rows that it added are unknown: start a query with a new "
            "checkpointLocation, from all rows or from an existing version (starting_version). Let cleanup keep "
            "versions for longer than a stream is behind (older_than), or tag them"
        )
