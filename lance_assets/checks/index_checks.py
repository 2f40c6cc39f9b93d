"""Index checks: how many rows the indices of a version cover, from its metadata alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from lance_assets.checks.check import Check, CheckContext, CheckResult, Severity
from lance_assets.common.text import format_count
from lance_core import IndexStatistics

_NAMED_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCoverage(Check):
    """Each index covers at least a share of the live rows; queries by the index scan the others. The check covers all
    indices of the table, or the named ones, which must exist.

        IndexCoverage(at_least=0.9)
        IndexCoverage(name="lookups_are_fast", indices=["user_idx"], at_least=0.99, severity=Severity.ERROR)

    An index whose type is unknown to this library is not evaluated unless it is named, since only its writer can tell
    what it covers. An index with damaged metadata, which no query can use, fails the check.
    """

    name: str = "index_coverage"
    severity: Severity = Severity.WARN
    indices: Sequence[str] = ()
    at_least: float = 0.9

    def check(self) -> None:
        indices: object = self.indices
        if isinstance(indices, str) or "" in self.indices:
            raise self.declaration_error(f"indices= must be a list of index names, not {indices!r}")
        share: object = self.at_least
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise self.declaration_error(f"at_least= must be a share of the rows, above 0 and up to 1, not {share!r}")

    @property
    def description(self) -> str:
        subject = ", ".join(self.indices) or "Each index"
        return f"{subject} covers at least {self.at_least:.2%} of the rows."

    def judge(self, context: CheckContext) -> CheckResult:
        existing = {index.name: index for index in context.table.index_statistics()}
        indices = [existing[name] for name in dict.fromkeys(self.indices) if name in existing] or [
            index for index in existing.values() if not self.indices
        ]
        problems = [f"there is no index {name!r}" for name in dict.fromkeys(self.indices) if name not in existing]
        unknown: list[str] = []
        fine: list[IndexStatistics] = []
        for index in indices:
            if not index.is_known:
                (problems if self.indices else unknown).append(f"{index.name!r} {index.why_unused}")
            elif index.live_coverage < self.at_least:
                problems.append(self._describe_uncovered(index))
            else:
                fine.append(index)
        metadata = {
            f"lance/index_coverage/{index.name}": _coverage_metadata(index) for index in indices if index.is_known
        }
        left_out = f"; not evaluated: {_join_limited(unknown)}" if unknown else ""
        if problems:
            more = (
                f"; {format_count(len(fine), 'other')} {'is' if len(fine) == 1 else 'are'} covered well" if fine else ""
            )
            return CheckResult(False, f"{_join_limited(problems)}{more}{left_out}", metadata)
        if not fine:
            return CheckResult(True, f"there is no index to evaluate{left_out}", metadata)
        lowest = min(fine, key=lambda index: index.live_coverage)
        sentence = f"{format_count(len(fine), 'index', 'indices')} covered; the lowest is {lowest.name!r}, with "
        return CheckResult(True, f"{sentence}{lowest.live_coverage:.2%} of the rows{left_out}", metadata)

    def _describe_uncovered(self, index: IndexStatistics) -> str:
        rows = format_count(index.uncovered_live_rows, "row")
        fragments = format_count(index.uncovered_fragments, "fragment")
        sentence = (
            f"{index.name!r} on {index.column or 'a dropped column'} covers {index.live_coverage:.2%} of the rows, "
            f"less than the required {self.at_least:.2%}: {rows} in {fragments} "
            f"{'is' if index.uncovered_live_rows == 1 else 'are'} scanned"
        )
        reason = index.why_unused
        if reason is not None and index.covered_fragments == 0 and "covers no fragment" not in reason:
            return f"{sentence}, since it {reason}; rebuild it"
        return f"{sentence}; run SparkBuildIndex or SparkOptimizeIndices, or wait for the maintenance"


def _coverage_metadata(index: IndexStatistics) -> dg.MetadataValue:
    return dg.MetadataValue.float(round(index.live_coverage, 6))


def _join_limited(sentences: Sequence[str]) -> str:
    more = len(sentences) - _NAMED_MAX
    return "; ".join(sentences[:_NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
