"""Asset checks: the checks of a table on its ledger. Launched by hand, they are evaluated on the newest version."""

from collections.abc import Iterator, Sequence

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import context_at, evaluate_all, metadata_of, severity_of
from lance_assets.failures.error_translation import translate_errors
from lance_assets.ledger.ledger import Ledger

_LEDGER = "ledger"


def asset_checks(ledger: Ledger, checks: Sequence[Check]) -> dg.AssetChecksDefinition:
    """Return the checks as one op, so that checks that are launched together share a step."""
    specs = {
        f"check_{check.name}": dg.AssetCheckSpec(
            check.name, asset=ledger.key, description=check.description, metadata=_metadata(check)
        )
        for check in checks
    }

    @dg.op(
        name=f"lance_checks__{ledger.slug}",
        description=f"Evaluates the checks on the newest version of the Lance table {ledger.label}.",
        ins={_LEDGER: dg.In(dg.Nothing)},
        out={name: dg.Out(is_required=False) for name in specs},
    )
    def evaluate_checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        names = {key.name for key in context.selected_asset_check_keys}
        with translate_errors(ledger, retry_number=context.retry_number):
            check_context = context_at(ledger.open(), instance=context.instance)
        for evaluated in evaluate_all([check for check in checks if check.name in names], check_context):
            yield dg.AssetCheckResult(
                asset_key=ledger.key,
                check_name=evaluated.check.name,
                passed=evaluated.result.passed,
                severity=severity_of(evaluated.check),
                description=evaluated.result.description,
                metadata=metadata_of(evaluated, None),
            )

    # Built from an op, like profiles: @multi_asset_check would name its ins and outs after the ledger's key, and the
    # key of a branch's ledger contains `@`, which is not allowed in names.
    definition: dg.AssetChecksDefinition = dg.AssetChecksDefinition.create(
        keys_by_input_name={_LEDGER: ledger.key},
        node_def=evaluate_checks,
        check_specs_by_output_name=specs,
        can_subset=True,
        resource_defs=None,
    )
    return definition


def _metadata(check: Check) -> dict[str, dg.MetadataValue]:
    return {
        "lance/severity": dg.MetadataValue.text(check.severity.value),
        "lance/reads_data": dg.MetadataValue.bool(check.reads_data),
    }
