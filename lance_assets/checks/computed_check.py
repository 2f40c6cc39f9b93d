"""Freshness check of a computed column: the share of the rows whose value belongs to their inputs and to the present
version of the code."""

from dataclasses import dataclass, field

import dagster as dg

from lance_assets.checks.check import Check, CheckContext, CheckResult
from lance_core import InvalidInput
from lance_core.tasks.columns.computed_fill import Declaration, Freshness, declared_columns

_CODE_CHARACTERS_MAX = 60


@dataclass(frozen=True, slots=True)
class ColumnFresh(Check):
    """At least a share of the rows has an up-to-date value in a computed column.

        ColumnFresh("embedding", at_least=0.99)

    The check reads the inputs of fragments that have changed since the last run of the computed column. The version of
    the code is the one that the last run declared.
    """

    name: str = field(default="", kw_only=True)
    column: str
    at_least: float = 1.0

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", f"{self.column}_fresh")
        Check.__post_init__(self)

    def check(self) -> None:
        share: object = self.at_least
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise self.declaration_error(f"at_least= must be a share above 0 and up to 1, not {share!r}")

    @property
    def reads_data(self) -> bool:
        return True

    @property
    def description(self) -> str:
        return f"At least {self.at_least:.1%} of the rows have an up-to-date value in {self.column}."

    def judge(self, context: CheckContext) -> CheckResult:
        try:
            counts = context.table.freshness(self.column)
        except InvalidInput as error:  # the version lacks an input
            return CheckResult(False, str(error))
        if counts is None:
            return CheckResult(
                False, f"{self.column} is not a computed column of this version; run its SparkComputedColumn first"
            )
        metadata = {
            "lance/filled_share": dg.MetadataValue.float(round(counts.fresh_share, 6)),
            "lance/rows_stale": dg.MetadataValue.int(counts.stale),
            **metadata_of_codes(counts, declared_columns(context.table.schema)[self.column]),
        }
        older = sum(counts.older_code.values())
        sentence = (
            f"{counts.fresh_share:.2%} of {counts.rows:,} rows are up to date in {self.column}: {counts.new:,} are "
            f"new, {counts.inputs_changed:,} have changed inputs, and {older:,} were computed by older code"
        )
        if counts.fresh_share < self.at_least:
            return CheckResult(False, f"{sentence}. Materialize the computed column to compute them", metadata)
        return CheckResult(True, sentence, metadata)


def metadata_of_codes(counts: Freshness, declaration: Declaration) -> dict[str, dg.MetadataValue]:
    """Return the share of the rows that each version of the code has computed, which Dagster plots over the versions.
    Rows with changed inputs and rows without a value belong to no version."""
    shares = {**counts.older_code, declaration.code: counts.rows - counts.stale}
    return {
        f"lance/share_of_code {code[:_CODE_CHARACTERS_MAX]}": dg.MetadataValue.float(
            round(rows / counts.rows if counts.rows else 0.0, 6)
        )
        for code, rows in shares.items()
    }
