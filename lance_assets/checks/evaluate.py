"""Check evaluation: runs checks on a version and reports the results to Dagster.

    context_at(table)               the version and its parent, as the argument of checks
    evaluate(check, context)        the result; an exception becomes a failed result and never ends the caller's run
    evaluation_event(ledger, ...)   the result as a Dagster event

`001-checks-run-at-recording.md` says when checks are evaluated. Nothing here decides what follows from a result.
"""

import inspect
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import dagster as dg

from lance_assets.checks.check import Check, CheckContext, CheckResult, Severity
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.recording import RunContext
from lance_assets.provenance.properties import RUN_ID
from lance_core import Corrupt, LanceError, NotFound, Table, Unsupported

SEVERITIES = {Severity.ERROR: dg.AssetCheckSeverity.ERROR, Severity.WARN: dg.AssetCheckSeverity.WARN}
_HAS_PARTITIONS = "partition" in inspect.signature(dg.AssetCheckEvaluation).parameters
"""False for Dagster 1.12, where only the metadata names the partition."""
_TRACE_LINES = 6
_TEXT_MAX = 2_000


@dataclass(frozen=True, slots=True)
class EvaluatedCheck:
    """Check with its result for one version."""

    check: Check
    result: CheckResult
    version: int
    seconds: float

    @property
    def summary(self) -> str:
        """Sentence for a log."""
        verdict = "passed" if self.result.passed else "failed"
        return f"{self.check.name} {verdict} for version {self.version}: {self.result.description}"


def check_unique_names(checks: Sequence[Check], label: str) -> None:
    """Raise `InvalidInput` if two checks have the same name, under which Dagster stores their results."""
    names = [check.name for check in checks]
    for check in checks:
        if names.count(check.name) > 1:
            raise check.declaration_error(
                f"{names.count(check.name)} checks of the Lance table {label!r} have this name; give each its own name="
            )


def context_at(
    table: Table,
    *,
    instance: dg.DagsterInstance | None = None,
    is_head: bool = True,
    now: datetime | None = None,
) -> CheckContext:
    """Return the context of a version. `instance` tells whether it knows the run that the version names."""
    try:
        parent = table.at(table.version - 1) if table.version > 1 else None
    except (Corrupt, NotFound, Unsupported):
        parent = None
    transaction = table.transaction()
    run_id = transaction.properties.get(RUN_ID) if transaction else None
    run_is_known = instance.has_run(run_id) if instance is not None and run_id else None
    if now is None:
        return CheckContext(table, parent, is_head, run_is_known)
    return CheckContext(table, parent, is_head, run_is_known, now)


def evaluate(check: Check, context: CheckContext, *, reraise: tuple[type[LanceError], ...] = ()) -> EvaluatedCheck:
    """Evaluate one check. An exception counts as a failure, except errors of the types in `reraise`."""
    started = time.monotonic()
    try:
        result = check.judge(context)
    except reraise:
        raise
    except LanceError as error:
        result = CheckResult(False, f"the check could not be evaluated: {error}", _error_metadata(error))
    except Exception as error:  # noqa: BLE001  # a project's own function may raise anything
        message = f"{type(error).__name__}: {error}"[:_TEXT_MAX]
        trace = "".join(traceback.format_exception(error)[-_TRACE_LINES:])[-_TEXT_MAX:]
        metadata = {**_error_metadata(error), "lance/trace": dg.MetadataValue.text(trace)}
        result = CheckResult(False, f"the check could not be evaluated: {message}", metadata)
    return EvaluatedCheck(check, result, context.table.version, time.monotonic() - started)


def evaluate_all(checks: Iterable[Check], context: CheckContext) -> list[EvaluatedCheck]:
    return [evaluate(check, context) for check in checks]


def evaluation_event(ledger: Ledger, evaluated: EvaluatedCheck, partition: str) -> dg.AssetCheckEvaluation:
    """Return a result as an event, with the partition of its version: a run that makes several versions keeps one for
    each."""
    of_partition: dict[str, Any] = {"partition": partition} if _HAS_PARTITIONS else {}
    return dg.AssetCheckEvaluation(
        asset_key=ledger.key,
        check_name=evaluated.check.name,
        passed=evaluated.result.passed,
        severity=SEVERITIES[evaluated.check.severity],
        description=evaluated.result.description,
        metadata=metadata_of(evaluated, partition),
        **of_partition,
    )


def metadata_of(evaluated: EvaluatedCheck, partition: str | None) -> dict[str, dg.MetadataValue]:
    metadata: dict[str, dg.MetadataValue] = {
        "lance/version": dg.MetadataValue.int(evaluated.version),
        "lance/seconds": dg.MetadataValue.float(round(evaluated.seconds, 3)),
    }
    if partition is not None:
        metadata["lance/partition"] = dg.MetadataValue.text(partition)
    return {**metadata, **evaluated.result.metadata}


def evaluate_in_run(context: RunContext, ledger: Ledger, checks: Sequence[Check], table: Table, partition: str) -> None:
    """Evaluate all checks on a version that this run has recorded, and log the results. A failure does not end the
    run, since the version is already committed."""
    if not checks:
        return
    try:
        check_context = context_at(table, instance=context.instance)
    except (LanceError, OSError) as error:
        context.log.warning(f"{ledger.label}: version {table.version} cannot be read for its checks: {error}")
        return
    for evaluated in evaluate_all(checks, check_context):
        # Dagster's annotation for ops lacks this type of event, which it stores all the same.
        cast("dg.AssetExecutionContext", context).log_event(evaluation_event(ledger, evaluated, partition))
        if not evaluated.result.passed:
            context.log.warning(f"{ledger.label}: the check {evaluated.summary}")


def severity_of(check: Check) -> dg.AssetCheckSeverity:
    return SEVERITIES[check.severity]


def _error_metadata(error: Exception) -> dict[str, dg.MetadataValue]:
    return {"lance/error": dg.MetadataValue.text(type(error).__name__)}
