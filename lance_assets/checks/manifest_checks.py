"""Manifest checks: row count, row change, age and small files of a version.

They read no row, so both runs and sensors evaluate them on every version.
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
    """The version has at least `min` and at most `max` rows.

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
        return f"The version has {_bounds_text(self.min, self.max)} rows."

    def judge(self, context: CheckContext) -> CheckResult:
        rows = context.table.count_rows()
        metadata = {"dagster/row_count": dg.MetadataValue.int(rows)}
        if self.min is not None and rows < self.min:
            return CheckResult(False, f"{rows:,} rows, fewer than the required {self.min:,}", metadata)
        if self.max is not None and rows > self.max:
            return CheckResult(False, f"{rows:,} rows, more than the allowed {self.max:,}", metadata)
        return CheckResult(True, f"{rows:,} rows", metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange(Check):
    """The number of rows differs from that of the parent version by at most a number of rows, or a share of the
    parent's rows.

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
        return "The number of rows changes within the allowed bounds."

    def judge(self, context: CheckContext) -> CheckResult:
        if context.parent is None:
            return CheckResult(True, "there is no parent version to compare with")
        before, rows = context.parent.count_rows(), context.table.count_rows()
        change = rows - before
        metadata = {"lance/row_change": dg.MetadataValue.int(change)}
        grown = change > 0
        most, share = (self.max_gain, self.max_gain_share) if grown else (self.max_loss, self.max_loss_share)
        parent = f"version {context.parent.version}"
        sentence = (
            f"{abs(change):,} rows {'more' if grown else 'fewer'} than the {before:,} of {parent}"
            if change
            else f"{rows:,} rows, as in {parent}"
        )
        if most is not None and abs(change) > most:
            return CheckResult(False, f"{sentence}, more than the allowed {most:,}", metadata)
        if share is not None and change and before and abs(change) > share * before:
            return CheckResult(
                False,
                f"{sentence}, which is {_percent(abs(change) / before)}, more than the allowed {_percent(share)}",
                metadata,
            )
        return CheckResult(True, sentence, metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh(Check):
    """The newest version is not older than `within`. The check is evaluated on the newest version only and passes on
    others.

        Fresh(within=timedelta(hours=24))
    """

    name: str = "fresh"
    within: timedelta

    def check(self) -> None:
        within: object = self.within
        if not isinstance(within, timedelta) or within <= timedelta(0):
            raise self.declaration_error(f"within= must be a timedelta above zero, not {self.within!r}")

    @property
    def description(self) -> str:
        return f"The newest version is at most {format_duration(self.within)} old."

    def judge(self, context: CheckContext) -> CheckResult:
        if not context.is_head:
            return CheckResult(True, "not evaluated: a newer version exists")
        age = context.now - context.table.timestamp
        metadata = {"lance/age_seconds": dg.MetadataValue.float(round(age.total_seconds(), 1))}
        if age < -_CLOCK_SKEW_MAX:
            return CheckResult(
                False,
                f"its timestamp is {format_duration(-age)} in the future; correct the clock of its writer",
                metadata,
            )
        if age > self.within:
            return CheckResult(
                False,
                f"it is {format_duration(age)} old, more than the allowed {format_duration(self.within)}; check why "
                "the writers have not committed",
                metadata,
            )
        return CheckResult(True, f"it is {format_duration(max(age, timedelta(0)))} old", metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFiles(Check):
    """At most `max_small` fragments are small: less than 32 MiB and fewer than 1,048,576 rows."""

    name: str = "small_files"
    severity: Severity = Severity.WARN
    max_small: int = 100

    def check(self) -> None:
        _check_bounds(self, max_small=self.max_small)

    @property
    def description(self) -> str:
        return f"At most {self.max_small:,} fragments are small."

    def judge(self, context: CheckContext) -> CheckResult:
        stats = VersionStats.of(context.table)
        metadata = {
            "lance/small_fragments": dg.MetadataValue.int(stats.small_fragments),
            "lance/fragments": dg.MetadataValue.int(stats.fragments),
        }
        sentence = f"{stats.small_fragments:,} of {stats.fragments:,} fragments are small"
        if stats.small_fragments > self.max_small:
            return CheckResult(
                False,
                f"{sentence}, more than the allowed {self.max_small:,}; compact the table (SparkCompact)",
                metadata,
            )
        return CheckResult(True, sentence, metadata)


def _check_bounds(check: Check, **bounds: float | None) -> None:
    if all(bound is None for bound in bounds.values()):
        raise check.declaration_error(f"give a bound: {', '.join(f'{name}=' for name in bounds)}")
    for name, value in bounds.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and value >= 0 and (name.endswith("share") or isinstance(value, int))):
            kind = "a number" if name.endswith("share") else "a whole number"
            raise check.declaration_error(f"{name}= must be {kind} of at least 0, not {value!r}")


def _bounds_text(low: int | None, high: int | None) -> str:
    lower = [f"at least {low:,}"] if low is not None else []
    return " and ".join([*lower, *([f"at most {high:,}"] if high is not None else [])])


def _percent(share: float) -> str:
    return f"{share:.2%}"
