"""Audit: evaluates the checks of a write on the detached version, before it is published (write-audit-publish).

    core: detached version -> evaluate each check -> severity ERROR failed: nothing is published, the step fails
                                                  -> severity WARN failed: logged, and published

The same checks can be evaluated on versions of the ledger; here their results decide. The page of the write asset
shows the results as asset checks in either case. `lance_core/commit/audit.py` describes how the core keeps a refused
version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from lance_assets.checks.check import Check, CheckContext, CheckResult, Severity
from lance_assets.checks.evaluate import SEVERITIES, evaluate
from lance_assets.failures.checks_failed import ChecksFailed
from lance_core import StorageError, Table


@dataclass(slots=True)
class Audit:
    """Audit function of one step. After a replan it runs again, and the results of the last run count."""

    checks: Sequence[Check]
    check_results: dict[str, CheckResult] = field(default_factory=dict)

    def __call__(self, table: Table, parent: Table | None) -> None:
        """Evaluate all checks, so that one run shows every problem. Raise `ChecksFailed` if a check of severity ERROR
        failed."""
        context = CheckContext(table, parent)
        # A failure of the store says nothing about the data, and a retry may succeed.
        evaluated = [evaluate(check, context, reraise=(StorageError,)) for check in self.checks]
        self.check_results = {each.check.name: each.result for each in evaluated}
        blocking = [check.name for check in self.checks if check.severity is Severity.ERROR]
        if failed := {name: self.check_results[name] for name in blocking if not self.check_results[name].passed}:
            raise ChecksFailed(failed)

    def asset_check_results(self, default_description: str, version: int | None) -> list[dg.AssetCheckResult]:
        """Return one result per check, as Dagster requires. `default_description` explains a check that was not
        evaluated."""
        version_metadata: dict[str, dg.MetadataValue] = {}
        if version is not None:
            version_metadata["lance/version"] = dg.MetadataValue.int(version)
        not_evaluated = CheckResult(True, default_description)
        results = [(check, self.check_results.get(check.name, not_evaluated)) for check in self.checks]
        return [
            dg.AssetCheckResult(
                check_name=check.name,
                passed=result.passed,
                severity=SEVERITIES[check.severity],
                description=result.description,
                metadata={**version_metadata, **result.metadata},
            )
            for check, result in results
        ]

    def evaluations(self, key: dg.AssetKey, detached_version: int) -> list[dg.AssetCheckEvaluation]:
        """Return the evaluations of a refused change as events, since the failed step returns no result to put them
        into."""
        version_metadata = {"lance/detached_version": dg.MetadataValue.text(str(detached_version))}
        return [
            dg.AssetCheckEvaluation(
                asset_key=key,
                check_name=check.name,
                passed=result.passed,
                severity=SEVERITIES[check.severity],
                description=result.description,
                metadata={**version_metadata, **result.metadata},
            )
            for check in self.checks
            if (result := self.check_results.get(check.name)) is not None
        ]

    def warnings(self) -> list[str]:
        """Return a message for each check that did not pass."""
        return [
            f"check {check.name}: {self.check_results[check.name].description}"
            for check in self.checks
            if check.name in self.check_results and not self.check_results[check.name].passed
        ]


def check_specs(checks: Sequence[Check], key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """Return the specs of the audit's checks. Dagster need not block on them: if one fails, no new version is
    readable."""
    return [
        dg.AssetCheckSpec(
            check.name, asset=key, description=f"{type(check).__name__}, evaluated before a version is published."
        )
        for check in checks
    ]


def combine_results(results: Mapping[str, "dg.MaterializeResult[None]"]) -> list[dg.AssetCheckResult]:
    """Return one result per check for the partitions of a run, since Dagster accepts no more: the worst of them."""
    by_check: dict[str, list[tuple[str, dg.AssetCheckResult]]] = {}
    for partition, result in results.items():
        for each in result.check_results or ():
            by_check.setdefault(str(each.check_name), []).append((partition, each))
    return [_combine(each) for each in by_check.values()]


def _combine(results: Sequence[tuple[str, dg.AssetCheckResult]]) -> dg.AssetCheckResult:
    _, worst = min(results, key=lambda each: (each[1].passed, each[1].severity is not dg.AssetCheckSeverity.ERROR))
    failed = [partition for partition, each in results if not each.passed]
    passed = f"passed for all {len(results)} partitions"
    shown = f"failed for {len(failed)} of {len(results)} partitions, the first {failed[0]}" if failed else passed
    return dg.AssetCheckResult(
        check_name=worst.check_name,
        passed=worst.passed,
        severity=worst.severity,
        description=f"{shown}. {worst.description or ''}".strip(),
        metadata=worst.metadata,
    )
