"""Whose work a version is."""

from dataclasses import dataclass

import dagster as dg

from lance_assets.checks.check import Check, CheckContext, CheckResult, Severity
from lance_assets.provenance.properties import ASSET_KEY, RUN_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignWriters(Check):
    """The version was made by a run of this Dagster. Whoever can write to the store can write any name into a version:
    this finds strangers, not forgers."""

    name: str = "foreign_writers"
    severity: Severity = Severity.WARN

    @property
    def description(self) -> str:
        return "The version was made by a run of this Dagster."

    def judge(self, context: CheckContext) -> CheckResult:
        made_by = context.table.transaction()
        properties = made_by.properties if made_by else {}
        run_id, writer = properties.get(RUN_ID), context.table.manifest.writer
        told = {"lance/writer": dg.MetadataValue.text(writer)} if writer else {}
        if run_id is None:
            by = f" by {writer}" if writer else ""
            operation = f" ({made_by.operation.name})" if made_by else ""
            return CheckResult(
                False,
                f"it was written{by}{operation}, and names no run; find out who writes to {context.table.uri}",
                told,
            )
        if context.run_is_known is False:
            return CheckResult(False, f"it names the run {run_id}, which this Dagster does not know", told)
        asset = properties.get(ASSET_KEY)
        return CheckResult(True, f"it was made by the run {run_id}{f' of {asset}' if asset else ''}", told)
