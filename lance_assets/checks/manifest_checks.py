"""What a manifest can be asked: how many rows there are, how they changed, how old it is, how its files lie.

Nothing here reads a row, so these checks are asked about every version wherever it is found.
"""

from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

from lance_assets.checks.check import Check, CheckContext, CheckResult, Severity
from lance_assets.common.text import format_duration
from lance_assets.common.version_stats import VersionStats

_CLOCK_SKEW_MAX = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCount(Check):
    """There are at least `min` and at most `max` rows.

    RowCount(min=1)
    """

    name: str = "row_count"
    min: int | None = None
    max: int | None = None

    def check(self) -> None:
        _check_bounds(self, min=self.min, max=self.max)
        if self.min is not None and self.max is not None and self.min > self.max:
            raise self.declaration_error(f"min={self.min} is more than max={self.max}")

    @property
    def description(self) -> str:
        return f"There are {_bounds_text(self.min, self.max)} rows."

    def judge(self, context: CheckContext) -> CheckResult:
        rows = context.table.count_rows()
        told = {"dagster/row_count": dg.MetadataValue.int(rows)}
        if self.min is not None and rows < self.min:
            return CheckResult(False, f"{rows:,} rows, and at least {self.min:,} should be there", told)
        if self.max is not None and rows > self.max:
            return CheckResult(False, f"{rows:,} rows, and at most {self.max:,} should be there", told)
        return CheckResult(True, f"{rows:,} rows", told)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange(Check):
    """The number of rows has not grown or shrunk by more than this since the version before: in rows, or as a share of
    the rows that there were.

    RowChange(max_loss_share=0.1, max_gain=1_000_000)
    """

    name: str = "row_change"
    max_gain: int | None = None
    max_loss: int | None = None
    max_gain_share: float | None = None
    max_loss_share: float | None = None

    def check(self) -> None:
        _check_bounds(self, max_gain=self.max_gain, max_loss=self.max_loss,
                      max_gain_share=self.max_gain_share, max_loss_share=self.max_loss_share)  # fmt: skip

    @property
    def description(self) -> str:
        return "The number of rows changes by no more than is allowed."

    def judge(self, context: CheckContext) -> CheckResult:
        if context.parent is None:
            return CheckResult(True, "there is no version before it to compare with")
        before, rows = context.parent.count_rows(), context.table.count_rows()
        change = rows - before
        told = {"lance/row_change": dg.MetadataValue.int(change)}
        grown = change > 0
        most, share = (self.max_gain, self.max_gain_share) if grown else (self.max_loss, self.max_loss_share)
        sentence = (
            f"{abs(change):,} rows {'more' if grown else 'fewer'} than the {before:,} of version {context.parent.version}"
            if change
            else f"{rows:,} rows, as in version {context.parent.version}"
        )
        if most is not None and abs(change) > most:
            return CheckResult(False, f"{sentence}, and at most {most:,} are allowed", told)
        if share is not None and change and before and abs(change) > share * before:
            return CheckResult(
                False,
                f"{sentence}, which is {_percent(abs(change) / before)}, and at most {_percent(share)} is allowed",
                told,
            )
        return CheckResult(True, sentence, told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh(Check):
    """The newest version is not older than `within`. It is asked of the newest alone: others may be as old as they are.

    Fresh(within=timedelta(hours=24))
    """

    name: str = "fresh"
    within: timedelta

    def check(self) -> None:
        within: object = self.within
        if not isinstance(within, timedelta) or within <= timedelta(0):
            raise self.declaration_error(f"within= is a timedelta above zero, not {self.within!r}")

    @property
    def description(self) -> str:
        return f"The newest version is at most {format_duration(self.within)} old."

    def judge(self, context: CheckContext) -> CheckResult:
        if not context.is_head:
            return CheckResult(True, "a newer version is there, of which this is asked instead")
        old = context.now - context.table.timestamp
        told = {"lance/age_seconds": dg.MetadataValue.float(round(old.total_seconds(), 1))}
        if old < -_CLOCK_SKEW_MAX:
            return CheckResult(
                False,
                f"it was made {format_duration(-old)} from now, by its writer's clock; set that clock right",
                told,
            )
        if old > self.within:
            return CheckResult(
                False,
                f"it is {format_duration(old)} old, and at most {format_duration(self.within)} is allowed; see what keeps the writers",
                told,
            )
        return CheckResult(True, f"it is {format_duration(max(old, timedelta(0)))} old", told)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFiles(Check):
    """At most `max_small` fragments are small: less than 32 MiB, and less than 1,048,576 rows."""

    name: str = "small_files"
    severity: Severity = Severity.WARN
    max_small: int = 100

    def check(self) -> None:
        _check_bounds(self, max_small=self.max_small)

    @property
    def description(self) -> str:
        return f"At most {self.max_small:,} fragments are small."

    def judge(self, context: CheckContext) -> CheckResult:
        layout = VersionStats.of(context.table)
        told = {
            "lance/small_fragments": dg.MetadataValue.int(layout.small_fragments),
            "lance/fragments": dg.MetadataValue.int(layout.fragments),
        }
        sentence = f"{layout.small_fragments:,} of {layout.fragments:,} fragments are small"
        if layout.small_fragments > self.max_small:
            return CheckResult(
                False, f"{sentence}, and at most {self.max_small:,} may be; compact the table (SparkCompact)", told
            )
        return CheckResult(True, sentence, told)


def _check_bounds(check: Check, **bounds: float | None) -> None:
    if all(each is None for each in bounds.values()):
        raise check.declaration_error(f"give a bound: {', '.join(f'{name}=' for name in bounds)}")
    for name, value in bounds.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and value >= 0 and (name.endswith("share") or isinstance(value, int))):
            kind = "a number" if name.endswith("share") else "a whole number"
            raise check.declaration_error(f"{name}= is {kind} from 0 on, not {value!r}")


def _bounds_text(low: int | None, high: int | None) -> str:
    told = [f"at least {low:,}"] if low is not None else []
    return " and ".join([*told, *([f"at most {high:,}"] if high is not None else [])])


def _percent(share: float) -> str:
    return f"{share:.2%}"
