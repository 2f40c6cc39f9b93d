"""The checks of a table as Dagster knows them: they belong to its ledger, and launched by hand they judge its head."""

from collections.abc import Iterator, Sequence

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import context_at, evaluate_all, metadata_of, severity_of
from lance_assets.failures.error_translation import translate_errors
from lance_assets.ledger.ledger import Ledger

_LEDGER = "ledger"


def asset_checks(ledger: Ledger, checks: Sequence[Check]) -> dg.AssetChecksDefinition:
    """One step for those that are launched together."""
    specs = {
        f"check_{check.name}": dg.AssetCheckSpec(
            check.name, asset=ledger.key, description=check.description, metadata=_metadata(check)
        )
        for check in checks
    }

    @dg.op(
        name=f"lance_checks__{ledger.slug}",
        description=f"Judges the newest version of the Lance table {ledger.label}.",
        ins={_LEDGER: dg.In(dg.Nothing)},
        out={name: dg.Out(is_required=False) for name in specs},
    )
    def judge(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        names = {key.name for key in context.selected_asset_check_keys}
        with translate_errors(ledger, retry_number=context.retry_number):
            seen = context_at(ledger.open(), instance=context.instance)
        for each in evaluate_all([check for check in checks if check.name in names], seen):
            yield dg.AssetCheckResult(
                asset_key=ledger.key,
                check_name=each.check.name,
                passed=each.result.passed,
                severity=severity_of(each.check),
                description=each.result.description,
                metadata=metadata_of(each, None),
            )

    # Made of an op, as profiles are: @multi_asset_check would name its ins and outs after the ledger's key, and a
    # branch's has a sign that names may not have.
    made: dg.AssetChecksDefinition = dg.AssetChecksDefinition.create(
        keys_by_input_name={_LEDGER: ledger.key},
        node_def=judge,
        check_specs_by_output_name=specs,
        can_subset=True,
        resource_defs=None,
    )
    return made


def _metadata(check: Check) -> dict[str, dg.MetadataValue]:
    return {
        "lance/severity": dg.MetadataValue.text(check.severity.value),
        "lance/reads_data": dg.MetadataValue.bool(check.reads_data),
    }
