"""What can be asked of a version's indices, from its metadata alone: whether they cover the rows that are there."""

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from lance_assets.checks.check import Check, CheckContext, CheckResult, Severity
from lance_assets.common.text import format_count
from lance_core import IndexStatistics

_NAMED_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCoverage(Check):
    """Each index covers at least such a share of the live rows; the others every query by it has to scan. It is asked
    of all indices of the table, or of those that are named, and one that is named is there.

        IndexCoverage(at_least=0.9)
        IndexCoverage(name="lookups_are_fast", indices=["user_idx"], at_least=0.99, severity=Severity.ERROR)

    An index of a kind that is not known here is not judged, unless it is named: what it covers only its maker can tell.
    One that nobody can use, for what it says of itself is damaged, fails the check.
    """

    name: str = "index_coverage"
    severity: Severity = Severity.WARN
    indices: Sequence[str] = ()
    at_least: float = 0.9

    def check(self) -> None:
        indices: object = self.indices
        if isinstance(indices, str) or "" in self.indices:
            raise self.declaration_error(f"indices= is a list of names of indices, not {indices!r}")
        share: object = self.at_least
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise self.declaration_error(f"at_least= is a share of the rows, above 0 and up to 1, not {share!r}")

    @property
    def description(self) -> str:
        which = ", ".join(self.indices) or "Each index"
        return f"{which} covers at least {self.at_least:.2%} of the rows."

    def judge(self, context: CheckContext) -> CheckResult:
        there = {each.name: each for each in context.table.index_statistics()}
        asked = [there[name] for name in dict.fromkeys(self.indices) if name in there] or [
            each for each in there.values() if not self.indices
        ]
        wrong = [f"there is no index {name!r}" for name in dict.fromkeys(self.indices) if name not in there]
        unknown: list[str] = []
        fine: list[IndexStatistics] = []
        for each in asked:
            if not each.is_known:
                (wrong if self.indices else unknown).append(f"{each.name!r} {each.why_unused}")
            elif each.live_coverage < self.at_least:
                wrong.append(self._describe_uncovered(each))
            else:
                fine.append(each)
        told = {f"lance/index_coverage/{each.name}": _coverage_metadata(each) for each in asked if each.is_known}
        left_out = f"; not judged: {_join_limited(unknown)}" if unknown else ""
        if wrong:
            more = (
                f"; {format_count(len(fine), 'other')} {'is' if len(fine) == 1 else 'are'} covered well" if fine else ""
            )
            return CheckResult(False, f"{_join_limited(wrong)}{more}{left_out}", told)
        if not fine:
            return CheckResult(True, f"there is no index to judge{left_out}", told)
        least = min(fine, key=lambda each: each.live_coverage)
        sentence = f"{format_count(len(fine), 'index', 'indices')} covered; the least is {least.name!r}, with "
        return CheckResult(True, f"{sentence}{least.live_coverage:.2%} of the rows{left_out}", told)

    def _describe_uncovered(self, each: IndexStatistics) -> str:
        sentence = (
            f"{each.name!r} on {each.column or 'a column that is gone'} covers {each.live_coverage:.2%} of the rows, "
            f"and at least {self.at_least:.2%} should be: {format_count(each.uncovered_live_rows, 'row')} in "
            f"{format_count(each.uncovered_fragments, 'fragment')} {'is' if each.uncovered_live_rows == 1 else 'are'} scanned"
        )
        if each.why_unused is not None and each.covered_fragments == 0 and "covers no fragment" not in each.why_unused:
            return f"{sentence}, since it {each.why_unused}; build it anew"
        return f"{sentence}; run SparkBuildIndex or SparkOptimizeIndices, or let the maintenance do it"


def _coverage_metadata(found: IndexStatistics) -> dg.MetadataValue:
    return dg.MetadataValue.float(round(found.live_coverage, 6))


def _join_limited(sentences: Sequence[str]) -> str:
    more = len(sentences) - _NAMED_MAX
    return "; ".join(sentences[:_NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
