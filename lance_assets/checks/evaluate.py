"""Asking checks about a version, and what Dagster is told of it.

    seen_at(table)            the version and its parent, as a check is shown them
    judged(check, seen)       what it finds; an exception is a finding too, and never the end of whoever asked
    evaluation(ledger, ...)   the same as an event of Dagster

`001-checks-run-at-recording.md` says who asks when. Nothing is decided here by what was found.
"""

import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import dagster as dg

from lance_assets.checks.check import Check, CheckContext, CheckResult, Severity
from lance_assets.ledger.ledger import Ledger
from lance_assets.provenance.properties import RUN_ID
from lance_core import Corrupt, LanceError, NotFound, Table, Unsupported

SEVERITIES = {Severity.ERROR: dg.AssetCheckSeverity.ERROR, Severity.WARN: dg.AssetCheckSeverity.WARN}
_TRACE_LINES = 6
_TEXT_MAX = 2_000


@dataclass(frozen=True, slots=True)
class EvaluatedCheck:
    check: Check
    result: CheckResult
    version: int
    seconds: float

    @property
    def summary(self) -> str:
        verdict = "passed" if self.result.passed else "failed"
        return f"{self.check.name} {verdict} for version {self.version}: {self.result.description}"


def check_unique_names(checks: Sequence[Check], label: str) -> None:
    """That each has its own, under which its results are kept."""
    names = [check.name for check in checks]
    for check in checks:
        if names.count(check.name) > 1:
            raise check.declaration_error(
                f"{names.count(check.name)} checks of the Lance table {label!r} are called so; give each its own name="
            )


def context_at(
    table: Table,
    *,
    instance: dg.DagsterInstance | None = None,
    is_head: bool = True,
    now: datetime | None = None,
) -> CheckContext:
    """`instance` is where the run that the version names is looked for."""
    try:
        parent = table.at(table.version - 1) if table.version > 1 else None
    except (Corrupt, NotFound, Unsupported):
        parent = None
    made_by = table.transaction()
    run_id = made_by.properties.get(RUN_ID) if made_by else None
    known = instance.has_run(run_id) if instance is not None and run_id else None
    if now is None:
        return CheckContext(table, parent, is_head, known)
    return CheckContext(table, parent, is_head, known, now)


def evaluate(check: Check, context: CheckContext, *, reraise: tuple[type[LanceError], ...] = ()) -> EvaluatedCheck:
    """A check that raises has failed; errors that are `reraise` are the caller's."""
    started = time.monotonic()
    try:
        finding = check.judge(context)
    except reraise:
        raise
    except LanceError as error:
        finding = CheckResult(False, f"it could not be judged: {error}", _error_metadata(error))
    except Exception as error:  # noqa: BLE001  # a project's own function may raise anything
        said = f"{type(error).__name__}: {error}"[:_TEXT_MAX]
        where = "".join(traceback.format_exception(error)[-_TRACE_LINES:])[-_TEXT_MAX:]
        trace = {"lance/trace": dg.MetadataValue.text(where)}
        finding = CheckResult(False, f"it could not be judged: {said}", {**_error_metadata(error), **trace})
    return EvaluatedCheck(check, finding, context.table.version, time.monotonic() - started)


def evaluate_all(checks: Iterable[Check], context: CheckContext) -> list[EvaluatedCheck]:
    return [evaluate(check, context) for check in checks]


def evaluation_event(ledger: Ledger, each: EvaluatedCheck, partition: str) -> dg.AssetCheckEvaluation:
    """Of one version: under its partition, so that a run that makes several versions keeps what it found of each."""
    return dg.AssetCheckEvaluation(
        asset_key=ledger.key,
        check_name=each.check.name,
        passed=each.result.passed,
        severity=SEVERITIES[each.check.severity],
        description=each.result.description,
        metadata=metadata_of(each, partition),
        partition=partition,
    )


def metadata_of(each: EvaluatedCheck, partition: str | None) -> dict[str, dg.MetadataValue]:
    told: dict[str, dg.MetadataValue] = {
        "lance/version": dg.MetadataValue.int(each.version),
        "lance/seconds": dg.MetadataValue.float(round(each.seconds, 3)),
    }
    if partition is not None:
        told["lance/partition"] = dg.MetadataValue.text(partition)
    return {**told, **each.result.metadata}


def evaluate_in_run(
    context: dg.AssetExecutionContext, ledger: Ledger, checks: Sequence[Check], table: Table, partition: str
) -> None:
    """Ask all of them about a version that this run has recorded. What they find is put down, and ends no run: the
    version is there already."""
    if not checks:
        return
    try:
        seen = context_at(table, instance=context.instance)
    except (LanceError, OSError) as error:
        context.log.warning(f"{ledger.label}: version {table.version} could not be looked at for its checks: {error}")
        return
    for each in evaluate_all(checks, seen):
        context.log_event(evaluation_event(ledger, each, partition))
        if not each.result.passed:
            context.log.warning(f"{ledger.label}: the check {each.summary}")


def severity_of(check: Check) -> dg.AssetCheckSeverity:
    return SEVERITIES[check.severity]


def _error_metadata(error: Exception) -> dict[str, dg.MetadataValue]:
    return {"lance/error": dg.MetadataValue.text(type(error).__name__)}
