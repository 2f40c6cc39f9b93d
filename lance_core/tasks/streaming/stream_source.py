"""A table read as a stream: the rows of its versions, one version after another, each row once.

    planner   Stream(which, transport=...)          what is followed, remembered between calls
              stream.latest(start, limited=)        how far there is something to send, or may be sent at once
              stream.parts(start, end, slots=)      what lies between two offsets, for workers
    workers   part.rows(schema)                     the rows of a part

Every version is read as it was: rows that a later version deleted, moved or changed are sent as they were added. So
what lies between two offsets is the same whenever it is asked for, as long as these versions exist.
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
from lance_core.tasks.read import VersionRef, plan_read
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
from lance_core.versions.snapshot import Snapshot, format_ranges, list_versions, load_at, load_latest, load_transaction
from lance_core.versions.table_id import table_id

_VERSIONS_KEPT, _SNAPSHOTS_KEPT = 1024, 2
_NO_END = 1 << 62
_POLL_SECONDS, _POLL_SECONDS_MAX = 1.0, 3600
"""Where each look is a request that is paid for: a trigger without an interval asks a hundred times a second."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much is sent at once; what is None has no limit. Rows count before the filter, and files are fragments."""

    rows: int | None = None
    files: int | None = None
    versions: int | None = None

    def __post_init__(self) -> None:
        for name, limit in (("rows", self.rows), ("files", self.files), ("versions", self.versions)):
            if limit is not None and limit < 1:
                raise InvalidInput(f"{limit} {name} at once: a stream sends one at least")


class Stream:
    """Lives as long as a query: it remembers what it has read of versions, which never change."""

    def __init__(
        self,
        which: VersionRef,
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
        """`poll_seconds` is how long what was seen of the table may be taken for its end; None: not at all on a disk,
        and a second elsewhere."""
        if poll_seconds is not None and not 0 <= poll_seconds <= _POLL_SECONDS_MAX:
            raise InvalidInput(
                f"poll_seconds={poll_seconds}: a stream looks again after 0 to {_POLL_SECONDS_MAX} seconds"
            )
        if which.version is not None or which.tag is not None:
            raise InvalidInput(
                "a stream does not stay with a version or a tag: say where it begins (starting_version), and it goes on"
            )
        head = which.snapshot()
        plan = plan_read(head, transport=transport, slots=1, columns=columns, filter=filter)
        self.arrow = plan.arrow
        """What the columns are, as the table stores them."""
        self._followed = StreamedColumns(plan.work.scan_spec.columns, head.manifest.schema, filter)
        self._start, self._on_change, self.limits = start or StreamStart(), on_change, limits or ReadLimits()
        self._location, self._branch = head.location, head.manifest.branch
        self._seen, self._table = int(head.version), table_id(head)
        self._until: int | None = None
        costs = not isinstance(head.location.own_store, ReportsLastChange)
        self._poll_ns = int(1e9 * ((_POLL_SECONDS if costs else 0) if poll_seconds is None else poll_seconds))
        self._runtime, self._looked_ns = runtime, runtime.elapsed_ns()
        self._snapshots: dict[int, Snapshot] = {int(head.version): head}
        self._brought: dict[tuple[int, bool], AddedRows] = {}

    @staticmethod
    def initial_offset() -> dict[str, object]:
        """Where it begins is decided by the first `latest_offset`, whose answer keeps it: this may be asked for again when
        the table has gone on, for a batch whose end is known."""
        return dict(NOT_STARTED)

    def stop_at_newest(self) -> None:
        """Go no further than what there is now."""
        self._until = self._newest()

    def newest_offset(self) -> dict[str, object]:
        """The end of the table as it was last seen, for people who ask how far behind a stream is."""
        return Offset(self._table, self._branch, 1, False, self._seen + 1).to_json()

    def latest_offset(self, told: Mapping[str, object], *, limited: bool = False) -> dict[str, object]:
        """The end of what may be sent after `to_json`. Where a version is in the way, what comes before it is sent first,
        and the next call says what is wrong with it."""
        newest = self._seen if self._has_just_looked else self._newest()
        if self._until is not None:
            newest = min(newest, self._until)
        begun = at = Offset.from_json(told) or self._begun(newest)
        self._check(at, newest)
        limits = self.limits if limited else ReadLimits()
        rows, files, versions = (limit or _NO_END for limit in (limits.rows, limits.files, limits.versions))
        while at.version <= newest and rows and files and versions:
            try:
                found = self._rows_of(at)
            except LanceError:
                if at == begun:
                    raise
                break
            sent = 0
            for _, _, count in islice(fragment_ranges(found, at.row), files):
                files -= 1
                sent += min(count, rows - sent)
                if sent == rows:
                    break
            rows, versions = rows - sent, versions - bool(sent)
            is_done = at.row + sent >= found.total
            at = at.after_version(at.version) if is_done else replace(at, row=at.row + sent)
        return at.to_json()

    def plan_partitions(
        self, start: Mapping[str, object], end: Mapping[str, object], *, slots: int
    ) -> list[StreamPartition]:
        """In order."""
        last = Offset.from_json(end)
        if last is None:
            return []
        self._check(last, self._newest())
        at = Offset.from_json(start) or last.start
        pieces: list[StreamSlice] = []
        while (at.version, at.row) < (last.version, last.row):
            found = self._rows_of(at)
            stop = min(last.row, found.total) if at.version == last.version else found.total
            if at.row < stop:
                pieces += self._followed.slice_rows(self._snapshot(at.version), found, at.row, stop)
            at = at.after_version(at.version)
        return group_slices(pieces, slots)

    def _begun(self, newest: int) -> Offset:
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
        """Clocks of committers may run backwards: the newest version of that time or before is what counts."""
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
            "that there is: what was added since cannot be told. Begin with that version (starting_version), or with "
            "all rows"
        )

    def _rows_of(self, at: Offset) -> AddedRows:
        key = (at.version, at.is_initial_snapshot)
        if key not in self._brought:
            snapshot = self._snapshot(at.version)
            if at.is_initial_snapshot:
                found = AddedRows.all_of(snapshot.manifest.fragments)
            else:
                made_by = load_transaction(snapshot.location, snapshot.manifest)
                found = rows_added_by(snapshot, made_by, self._on_change, self._followed.field_ids)
            while len(self._brought) >= _VERSIONS_KEPT:
                del self._brought[next(iter(self._brought))]
            self._brought[key] = found
        return self._brought[key]

    def _snapshot(self, number: int) -> Snapshot:
        if number not in self._snapshots:
            try:
                found = load_at(self._location, Version(number))
            except NotFound:
                raise self._gone(number) from None
            while len(self._snapshots) >= _SNAPSHOTS_KEPT:
                del self._snapshots[next(iter(self._snapshots))]
            self._snapshots[number] = found
        return self._snapshots[number]

    @property
    def _has_just_looked(self) -> bool:
        return self._runtime.elapsed_ns() - self._looked_ns < self._poll_ns

    def _newest(self) -> int:
        """One glance, unless something happened."""
        self._looked_ns = self._runtime.elapsed_ns()
        probed = version_hint.find_newest(self._location.own_store)
        numbers = (probed[0],) if probed else list_versions(self._location).numbers
        if not numbers or numbers[-1] != self._seen:
            head = load_latest(self._location)
            self._seen, self._table = int(head.version), table_id(head)
        return self._seen

    def _check(self, at: Offset, newest: int) -> None:
        """That the checkpoint is of this table, and the table has gone on since."""
        uri = self._location.uri
        if at.branch != self._branch:
            raise InvalidInput(
                f"{uri}: the checkpoint is of the branch {at.branch or MAIN!r}, and this query reads "
                f"{self._branch or MAIN!r}; give it a checkpointLocation of its own"
            )
        if at.table and self._table and at.table != self._table:
            raise InvalidInput(
                f"{uri}: there is another table now than the one that this query has read: its id was {at.table}, and "
                f"is {self._table}. It was created anew; begin anew too, with a new checkpointLocation"
            )
        if at.version > newest + 1 or (at.row and at.version > newest):
            raise InvalidInput(
                f"{uri}: this query has read up to version {at.version - (not at.row)}, and the table ends at "
                f"{newest}: it was put back to an earlier state. Begin anew, with a new checkpointLocation"
            )

    def _gone(self, number: int) -> NotFound:
        numbers = list_versions(self._location).numbers
        return NotFound(
            f"{self._location.uri}: version {number}, which is to be sent next, was cleaned up; there is "
            f"{format_ranges(numbers) or 'none'}. What it added cannot be told any more: begin anew, with a new "
            "checkpointLocation and all rows, or with the option starting_version and one that is there. Let cleanup "
            "keep versions for longer than a stream is behind (older_than), or tag them"
        )
