"""What a table's upkeep is to do and when, as it is declared. What makes no sense is said there and then."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

from lance_assets.writes.context import TableReference
from lance_core import InvalidInput
from lance_core.tasks.write import ROWS_PER_FILE_MAX

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
    """
    >>> nightly = Maintenance(every="0 3 * * *", compact_when_small_files=8, keep_for=timedelta(days=30))

    Compaction is due when so many small fragments could be joined, or such a share of the rows is deleted and would be
    dropped; upkeep of indices when some index leaves such a share of the rows uncovered, or so many rows, or when so
    many of its segments could become one; cleanup when so many versions are older than `keep_for` and not among the
    newest `keep_versions`. A bound of None never is. What is due is found by a sensor each `interval_s` (None: no
    sensor), and all is done at `every`, a cron expression: compaction first, which may leave rows to indices, then
    these, then cleanup.

    Versions that a Lance tag, a branch or a clone names stay; so do `pins`, and those that a version on any ledger of
    this Dagster was made of, or one of the `downstream` tables that are written elsewhere.
    """

    compact_when_small_files: int | None = 16
    small_file_rows: int | None = None
    """Fragments of fewer rows are small; `target_rows` unless it is said."""
    compact_when_deleted: float | None = 0.1
    target_rows: int = ROWS_PER_FILE_MAX
    index_when_uncovered: float | None = 0.1
    index_when_uncovered_rows: int | None = 1_000_000
    index_when_segments: int | None = 8
    clean_when_versions: int | None = 20
    keep_versions: int = 10
    keep_for: timedelta = timedelta(days=14)
    orphan_grace: timedelta = timedelta(days=7)
    """So long a file that no version names may belong to a write under way."""
    pins: Collection[int] | Mapping[int, str] = ()
    """Versions that stay; a mapping says why."""
    downstream: Sequence[TableReference | str] = ()
    """Tables made of this one that no ledger of this Dagster knows."""
    every: str | None = None
    timezone: str | None = None
    """Of `every`; UTC unless it is said."""
    interval_s: int | None = 300
    beside_writes: bool = False
    """Do not wait for runs that write the table: for one that is always written. Conflicts are settled as between any
    two writers."""

    def __post_init__(self) -> None:
        for name in _OPTIONAL_COUNTS:
            self._check_count(name, is_optional=True)
        for name in ("target_rows", "keep_versions"):
            self._check_count(name, is_optional=False)
        if not (self.compacts or self.indexes or self.cleans):
            raise _policy_error(
                "every bound is None, so that nothing would ever be due; leave maintenance= out instead"
            )
        if (self.small_file_rows or 0) > self.target_rows:
            raise _policy_error(
                f"small_file_rows={self.small_file_rows} is above target_rows={self.target_rows}: a compaction makes "
                "fragments of target_rows, which would be small ones for ever"
            )
        for name in ("compact_when_deleted", "index_when_uncovered"):
            share = getattr(self, name)
            if share is not None and (type(share) not in (int, float) or not 0 < share <= 1):
                raise _policy_error(f"{name}={share!r}: a share of the rows, above 0 and up to 1")
        for name, least in (("keep_for", timedelta(0)), ("orphan_grace", _GRACE_MIN)):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or value < least:
                raise _policy_error(f"{name}={value!r}: a timedelta of at least {least}")
        for number in self.pins:
            if type(number) is not int or number < 1:
                raise _policy_error(f"pins has {number!r}, and versions are whole numbers from 1 on")
        _check_cron(self.every, self.timezone)

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
            raise _policy_error(f"{name}={value!r}: a whole number from 1 on{', or None' if is_optional else ''}")


def _check_cron(every: str | None, timezone: str | None) -> None:
    if every is None:
        return
    try:
        dg.ScheduleDefinition(name="check", job_name="check", cron_schedule=every, execution_timezone=timezone)
    except dg.DagsterInvalidDefinitionError as error:
        raise _policy_error(f"every={every!r}: {error}") from error


def _policy_error(why: str) -> InvalidInput:
    return InvalidInput(f"Maintenance: {why}")
