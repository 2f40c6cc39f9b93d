"""Writer check: reports versions that no run of this Dagster instance committed."""

from dataclasses import dataclass

import dagster as dg

from lance_assets.checks.check import Check, CheckContext, CheckResult, Severity
from lance_assets.provenance.properties import ASSET_KEY, RUN_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignWriters(Check):
    """A run of this Dagster instance committed the version. Any process that can write to the store can also write
    any run id into a version, so this check detects foreign writers, not forged versions."""

    name: str = "foreign_writers"
    severity: Severity = Severity.WARN

    @property
    def description(self) -> str:
        return "A run of this Dagster instance committed the version."

    def judge(self, context: CheckContext) -> CheckResult:
        transaction = context.table.transaction()
        properties = transaction.properties if transaction else {}
        run_id, writer = properties.get(RUN_ID), context.table.manifest.writer
        metadata = {"lance/writer": dg.MetadataValue.text(writer)} if writer else {}
        if run_id is None:
            by = f" by {writer}" if writer else ""
            operation = f" ({transaction.operation.name})" if transaction else ""
            return CheckResult(
                False,
                f"written{by}{operation}, without a run id; find out which program writes to {context.table.uri}",
                metadata,
            )
        if context.run_is_known is False:
            return CheckResult(False, f"the run {run_id} is unknown to this Dagster instance", metadata)
        asset = properties.get(ASSET_KEY)
        return CheckResult(True, f"committed by the run {run_id}{f' of {asset}' if asset else ''}", metadata)
