"""The audit of a write: its checks, asked about the version that it would make before anybody else can see it.

    core: version beside the line -> each check judges it -> ERROR: refused, nothing is published -> the step fails
                                                          -> WARN: told, and published

The same checks can be asked about versions on the ledger; here they decide. What they found is on the page of the write
asset, as its asset checks, whichever way it went. How the core keeps what was refused: its
`lance_core/commit/audit.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import dagster as dg

from lance_assets.checks.check import Check, CheckContext, CheckResult, Severity
from lance_assets.checks.evaluate import SEVERITIES, evaluate
from lance_assets.failures.checks_failed import ChecksFailed
from lance_core import StorageError, Table


@dataclass(slots=True)
class Audit:
    """Of one step. What was found the last time counts: what is planned again is looked at again."""

    checks: Sequence[Check]
    check_results: dict[str, CheckResult] = field(default_factory=dict)

    def __call__(self, table: Table, parent: Table | None) -> None:
        """All of them are asked, so that whoever mends it sees everything at once."""
        seen = CheckContext(table, parent)
        # Where the store failed nothing was found, and another try may be able to look.
        found = [evaluate(check, seen, reraise=(StorageError,)) for check in self.checks]
        self.check_results = {each.check.name: each.result for each in found}
        decisive = [check.name for check in self.checks if check.severity is Severity.ERROR]
        if failed := {name: self.check_results[name] for name in decisive if not self.check_results[name].passed}:
            raise ChecksFailed(failed)

    def asset_check_results(self, default_description: str, version: int | None) -> list[dg.AssetCheckResult]:
        """One for each check, which Dagster asks for. `default_description` says why none was asked."""
        shown: dict[str, dg.MetadataValue] = {} if version is None else {"lance/version": dg.MetadataValue.int(version)}
        found = {
            check: self.check_results.get(check.name) or CheckResult(True, default_description) for check in self.checks
        }
        return [
            dg.AssetCheckResult(
                check_name=check.name,
                passed=finding.passed,
                severity=SEVERITIES[check.severity],
                description=finding.description,
                metadata={**shown, **finding.metadata},
            )
            for check, finding in found.items()
        ]

    def evaluations(self, key: dg.AssetKey, detached_version: int) -> list[dg.AssetCheckEvaluation]:
        """Of a change that was refused: the step has no result to put them into."""
        where = {"lance/detached_version": dg.MetadataValue.text(str(detached_version))}
        return [
            dg.AssetCheckEvaluation(
                asset_key=key,
                check_name=check.name,
                passed=finding.passed,
                severity=SEVERITIES[check.severity],
                description=finding.description,
                metadata={**where, **finding.metadata},
            )
            for check in self.checks
            if (finding := self.check_results.get(check.name)) is not None
        ]

    def warnings(self) -> list[str]:
        return [
            f"check {check.name}: {self.check_results[check.name].description}"
            for check in self.checks
            if check.name in self.check_results and not self.check_results[check.name].passed
        ]


def check_specs(checks: Sequence[Check], key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """They block nothing in Dagster: where one of them fails there is no new version that could be read."""
    return [
        dg.AssetCheckSpec(
            check.name, asset=key, description=f"Audit by {type(check).__name__}, before a version is published."
        )
        for check in checks
    ]
