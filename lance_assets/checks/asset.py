"""The checks of a table as Dagster knows them: they belong to its ledger, and launched by hand they judge its head."""

from collections.abc import Iterator, Sequence

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.checks.judging import judge_all, metadata_of, seen_at, severity_of
from lance_assets.failures import lance_errors
from lance_assets.ledger import Ledger


def asset_checks(ledger: Ledger, checks: Sequence[Check]) -> dg.AssetChecksDefinition:
    """One step for those that are launched together."""
    specs = [
        dg.AssetCheckSpec(check.name, asset=ledger.key, description=check.says, metadata=_metadata(check))
        for check in checks
    ]

    @dg.multi_asset_check(
        name=f"lance_checks__{ledger.node}",
        specs=specs,
        can_subset=True,
        description=f"Judges the newest version of the Lance table {ledger.label}.",
    )
    def judge(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        names = {key.name for key in context.selected_asset_check_keys}
        with lance_errors(ledger, retry_number=context.retry_number):
            seen = seen_at(ledger.open(), instance=context.instance)
        for each in judge_all([check for check in checks if check.name in names], seen):
            yield dg.AssetCheckResult(
                asset_key=ledger.key,
                check_name=each.check.name,
                passed=each.finding.passed,
                severity=severity_of(each.check),
                description=each.finding.description,
                metadata=metadata_of(each, None),
            )

    return judge


def _metadata(check: Check) -> dict[str, dg.MetadataValue]:
    return {
        "lance/severity": dg.MetadataValue.text(check.severity.value),
        "lance/reads_data": dg.MetadataValue.bool(check.reads_data),
    }
