"""When a table's maintenance runs: a sensor that launches what is due, and a schedule that launches it by the clock.

A look reads one manifest and some listings. It never launches beside a run that writes the table, nor beside one of its
own; what was launched once is not launched again for the same version, and after a failure it waits. What a tick did
not launch it says, with the reason.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg
import pyarrow as pa

from lance_assets.ledger.ledger import Ledger
from lance_assets.maintenance.active_runs import find_active_run
from lance_assets.maintenance.downstream_pins import PinCache, Pins, pins_of_table
from lance_assets.maintenance.maintenance_actions import survey_table
from lance_assets.maintenance.maintenance_step import maintenance_key
from lance_assets.maintenance.plan import describe_shape, plan_maintenance
from lance_assets.maintenance.policy import Maintenance
from lance_core import LanceError, NotFound, Table

PLAN_TAG = "lance/maintenance_plan"
TABLE_TAG = "lance/maintenance_of"
RETRY_DELAY = timedelta(hours=1)
_UNSUCCESSFUL = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_TABLE_ERRORS = (LanceError, pa.ArrowException, ArithmeticError, LookupError, OSError, RecursionError, ValueError)
_PIN_CACHE = PinCache()


def maintenance_sensor(
    ledger: Ledger,
    policy: Maintenance,
    writes: Collection[dg.AssetKey],
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> dg.SensorDefinition:
    def evaluate(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        at = now()
        return evaluate_tick(context.instance, ledger, policy, writes, at, lambda: _PIN_CACHE.read(context, at))

    return dg.SensorDefinition(
        name=f"lance_maintain__{ledger.table_slug}",
        evaluation_fn=evaluate,
        minimum_interval_seconds=policy.interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        target=dg.AssetSelection.assets(maintenance_key(ledger)),
        description=f"Launches the maintenance of the Lance table {ledger.label} when it is due.",
    )


def maintenance_schedule(ledger: Ledger, policy: Maintenance, writes: Collection[dg.AssetKey]) -> dg.ScheduleDefinition:
    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        why_not = _active_run_reason(context.instance, ledger, policy, writes)
        return dg.SkipReason(why_not) if why_not else dg.RunRequest(tags=_tags(ledger))

    assert policy.every is not None, "a policy by the clock"
    return dg.ScheduleDefinition(
        name=f"lance_maintain_on_schedule__{ledger.table_slug}",
        cron_schedule=policy.every,
        execution_timezone=policy.timezone,
        execution_fn=evaluate,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        target=dg.AssetSelection.assets(maintenance_key(ledger)),
        description=f"Launches the maintenance of the Lance table {ledger.label}, unless it is being written.",
    )


def evaluate_tick(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    policy: Maintenance,
    writes: Collection[dg.AssetKey],
    now: datetime,
    ledgers: Callable[[], Pins],
) -> dg.RunRequest | dg.SkipReason:
    try:
        table = ledger.open()
        found = survey_table(table, policy, now)
        due = plan_maintenance(found, policy)
        why_not = _active_run_reason(instance, ledger, policy, writes) if due.is_due else None
        if due.clean and not why_not:  # who else needs a version is asked where one would go
            due = plan_maintenance(found, policy, pinned=pins_of_table(table, policy, ledgers()).keys())
        key = f"{due.key}-{_identity_digest(ledger, table)}"
    except NotFound:
        return dg.SkipReason(f"{ledger.label}: there is no {ledger.description} at {ledger.shown_uri} yet")
    except _TABLE_ERRORS as error:
        return dg.SkipReason(f"{ledger.label} is not maintained: {error}")
    if not due.is_due:
        return dg.SkipReason(f"{ledger.label}: nothing is due; {describe_shape(found)}")
    same = instance.get_runs(dg.RunsFilter(tags={**_tags(ledger), PLAN_TAG: key}))
    if why_not := why_not or _earlier_run_reason(instance, ledger, same, now):
        return dg.SkipReason(f"{why_not}. What is due: {'; '.join(due.reasons)}")
    return dg.RunRequest(run_key=f"{key}-{len(same) + 1}", tags={**_tags(ledger), PLAN_TAG: key})


def _identity_digest(ledger: Ledger, table: Table) -> str:
    """A table made anew at the same place is another one."""
    identity = ledger.identity_of(table) or ""
    return hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:8]


def _active_run_reason(
    instance: dg.DagsterInstance, ledger: Ledger, policy: Maintenance, writes: Collection[dg.AssetKey]
) -> str | None:
    own = maintenance_key(ledger)
    if found := find_active_run(instance, [own] if policy.beside_writes else [own, *writes]):
        run_id, key = found
        what = "maintains it already" if key == own else f"is writing it ({key.to_user_string()})"
        return f"{ledger.label}: the run {run_id} {what}, and is not finished"
    return None


def _earlier_run_reason(
    instance: dg.DagsterInstance, ledger: Ledger, same: Sequence[dg.DagsterRun], now: datetime
) -> str | None:
    if done := [run for run in same if run.status is dg.DagsterRunStatus.SUCCESS]:
        return f"{ledger.label}: the run {done[0].run_id} was there for the same, and the table is as it was"
    failed = dg.RunsFilter(tags=_tags(ledger), created_after=now - RETRY_DELAY)
    latest = instance.get_runs(failed, limit=1)
    if latest and latest[0].status in _UNSUCCESSFUL:
        return (
            f"{ledger.label}: the run {latest[0].run_id} ended without success, and the next one waits for an hour "
            "from when it was launched"
        )
    return None


def _tags(ledger: Ledger) -> dict[str, str]:
    return {TABLE_TAG: ledger.run_tag.removeprefix("lance/")}
