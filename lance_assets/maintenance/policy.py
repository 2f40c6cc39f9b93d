"""Maintenance policy: declares when a table is maintained and what is retained. Invalid values are refused at
declaration.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

from lance_assets.writes.context import TableReference
from lance_core import InvalidInput
from lance_core.tasks.rows.write import ROWS_PER_FILE_MAX

_GRACE_MIN = timedelta(hours=1)
_OPTIONAL_COUNTS = (
    "compact_when_small_files",
    "index_when_uncovered_rows",
    "index_when_segments",
    "clean_when_versions",
    "small_file_rows",
    "interval_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """Policy of the maintenance of a table, or of the tables of a fleet.

    >>> nightly = Maintenance(every="0 3 * * *", compact_when_small_files=8, keep_for=timedelta(days=30))

    Compaction is due when `compact_when_small_files` small fragments can be joined, or when the share
    `compact_when_deleted` of the rows is deleted and would be dropped. Index maintenance is due when an index leaves
    the share `index_when_uncovered` or the number `index_when_uncovered_rows` of its rows uncovered, when
    `index_when_segments` of its segments can be merged, or when a compaction moved rows that a segment covers. Cleanup
    is due when `clean_when_versions` versions are older than `keep_for` and not among the newest `keep_versions`. A
    bound of `None` never makes anything due.

    A sensor evaluates this every `interval_s` seconds (`None`: no sensor), and a schedule runs the maintenance at
    `every`, a cron expression. The order is compaction, which may leave rows uncovered, then indices, then cleanup.

    Versions that a Lance tag, a branch or a clone references are retained. So are the `pins`, and the inputs of
    versions on any ledger of this Dagster instance and of the `downstream` tables, which other programs write.
    """

    compact_when_small_files: int | None = 16
    small_file_rows: int | None = None
    """Fragments with fewer rows are small; the default is `target_rows`."""
    compact_when_deleted: float | None = 0.1
    target_rows: int = ROWS_PER_FILE_MAX
    index_when_uncovered: float | None = 0.1
    index_when_uncovered_rows: int | None = 1_000_000
    index_when_segments: int | None = 8
    clean_when_versions: int | None = 20
    keep_versions: int = 10
    keep_for: timedelta = timedelta(days=14)
    orphan_grace: timedelta = timedelta(days=7)
    """Age below which an unreferenced file may belong to a write in progress."""
    pins: Collection[int] | Mapping[int, str] = ()
    """Versions to retain; a mapping gives the reasons."""
    downstream: Sequence[TableReference | str] = ()
    """Tables that are made from this one and are on no ledger of this Dagster instance."""
    every: str | None = None
    timezone: str | None = None
    """Time zone of `every`; the default is UTC."""
    interval_s: int | None = 300
    beside_writes: bool = False
    """True to run concurrently with runs that write the table, for a table that is written all the time. Conflicts
    are resolved as between any two writers."""

    def __post_init__(self) -> None:
        for name in _OPTIONAL_COUNTS:
            self._check_count(name, is_optional=True)
        for name in ("target_rows", "keep_versions"):
            self._check_count(name, is_optional=False)
        if not (self.compacts or self.indexes or self.cleans):
            raise _policy_error("every bound is None, so nothing would ever be due; leave maintenance= out instead")
        if (self.small_file_rows or 0) > self.target_rows:
            raise _policy_error(
                f"small_file_rows={self.small_file_rows} is above target_rows={self.target_rows}: fragments of "
                "target_rows, which a compaction writes, would always count as small"
            )
        for name in ("compact_when_deleted", "index_when_uncovered"):
            share = getattr(self, name)
            if share is not None and (type(share) not in (int, float) or not 0 < share <= 1):
                raise _policy_error(f"{name}={share!r} must be a share of the rows, above 0 and up to 1")
        for name, least in (("keep_for", timedelta(0)), ("orphan_grace", _GRACE_MIN)):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or value < least:
                raise _policy_error(f"{name}={value!r} must be a timedelta of at least {least}")
        for number in self.pins:
            if type(number) is not int or number < 1:
                raise _policy_error(f"pins contains {number!r}, but versions are whole numbers from 1")
        check_cron(self.every, self.timezone, "Maintenance")

    @property
    def compacts(self) -> bool:
        return self.compact_when_small_files is not None or self.compact_when_deleted is not None

    @property
    def indexes(self) -> bool:
        bounds = (self.index_when_uncovered, self.index_when_uncovered_rows, self.index_when_segments)
        return any(bound is not None for bound in bounds)

    @property
    def cleans(self) -> bool:
        return self.clean_when_versions is not None

    @property
    def small_rows(self) -> int:
        return self.small_file_rows or self.target_rows

    @property
    def pinned(self) -> Mapping[int, str]:
        if isinstance(self.pins, Mapping):
            return dict(self.pins)
        return dict.fromkeys(self.pins, "pinned by the policy")

    def _check_count(self, name: str, *, is_optional: bool) -> None:
        value = getattr(self, name)
        if value is None and is_optional:
            return
        if type(value) is not int or value < 1:
            raise _policy_error(f"{name}={value!r} must be a whole number from 1{', or None' if is_optional else ''}")


def check_cron(every: str | None, timezone: str | None, owner: str) -> None:
    """Raise `InvalidInput` unless Dagster accepts the cron expression. `owner` names the declaration."""
    if every is None:
        return
    try:
        dg.ScheduleDefinition(name="check", job_name="check", cron_schedule=every, execution_timezone=timezone)
    except dg.DagsterInvalidDefinitionError as error:
        raise InvalidInput(f"{owner}: every={every!r}: {error}") from error


def _policy_error(reason: str) -> InvalidInput:
    return InvalidInput(f"Maintenance: {reason}")
