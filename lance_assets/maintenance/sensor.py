"""Maintenance sensor and schedule: launch the maintenance of a table when it is due, or at fixed times.

A tick reads one manifest and some listings. It launches no run while another run writes or maintains the table, none
for work that a run has already done for the same version, and none within an hour after a failure. If nothing is
launched, the skip reason says why.
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
    """Return the sensor of a table. `writes` are the assets that write it."""

    def evaluate(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        tick_time = now()
        return evaluate_tick(
            context.instance, ledger, policy, writes, tick_time, lambda: _PIN_CACHE.read(context, tick_time)
        )

    return dg.SensorDefinition(
        name=f"lance_maintain__{ledger.table_slug}",
        evaluation_fn=evaluate,
        minimum_interval_seconds=policy.interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        target=dg.AssetSelection.assets(maintenance_key(ledger)),
        description=f"Launches the maintenance of the Lance table {ledger.label} when it is due.",
    )


def maintenance_schedule(ledger: Ledger, policy: Maintenance, writes: Collection[dg.AssetKey]) -> dg.ScheduleDefinition:
    """Return the schedule of a table, for a policy with `every`."""

    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        skip_reason = _active_run_reason(context.instance, ledger, policy, writes)
        return dg.SkipReason(skip_reason) if skip_reason else dg.RunRequest(tags=_tags(ledger))

    assert policy.every is not None, "a schedule needs policy.every"
    return dg.ScheduleDefinition(
        name=f"lance_maintain_on_schedule__{ledger.table_slug}",
        cron_schedule=policy.every,
        execution_timezone=policy.timezone,
        execution_fn=evaluate,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        target=dg.AssetSelection.assets(maintenance_key(ledger)),
        description=f"Launches the maintenance of the Lance table {ledger.label}, unless a run is writing it.",
    )


def evaluate_tick(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    policy: Maintenance,
    writes: Collection[dg.AssetKey],
    now: datetime,
    ledgers: Callable[[], Pins],
) -> dg.RunRequest | dg.SkipReason:
    """Return the run to launch, or the reason to launch none."""
    try:
        table = ledger.open()
        survey = survey_table(table, policy, now)
        due = plan_maintenance(survey, policy)
        skip_reason = _active_run_reason(instance, ledger, policy, writes) if due.is_due else None
        if due.clean and not skip_reason:  # pins are read only if a version would be removed
            due = plan_maintenance(survey, policy, pinned=pins_of_table(table, policy, ledgers()).keys())
        key = f"{due.key}-{_identity_digest(ledger, table)}"
    except NotFound:
        return dg.SkipReason(f"{ledger.label}: there is no {ledger.description} at {ledger.shown_uri} yet")
    except _TABLE_ERRORS as error:
        return dg.SkipReason(f"{ledger.label} is not maintained: {error}")
    if not due.is_due:
        return dg.SkipReason(f"{ledger.label}: nothing is due; {describe_shape(survey)}")
    same_plan = instance.get_runs(dg.RunsFilter(tags={**_tags(ledger), PLAN_TAG: key}))
    if skip_reason := skip_reason or _earlier_run_reason(instance, ledger, same_plan, now):
        return dg.SkipReason(f"{skip_reason}. Due: {'; '.join(due.reasons)}")
    return dg.RunRequest(run_key=f"{key}-{len(same_plan) + 1}", tags={**_tags(ledger), PLAN_TAG: key})


def _identity_digest(ledger: Ledger, table: Table) -> str:
    """Return a digest of the table's identity: a table that is recreated at the same location needs maintenance of
    its own."""
    identity = ledger.identity_of(table) or ""
    return hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:8]


def _active_run_reason(
    instance: dg.DagsterInstance, ledger: Ledger, policy: Maintenance, writes: Collection[dg.AssetKey]
) -> str | None:
    own = maintenance_key(ledger)
    if active := find_active_run(instance, [own] if policy.beside_writes else [own, *writes]):
        run_id, key = active
        action = "is maintaining it" if key == own else f"is writing it ({key.to_user_string()})"
        return f"{ledger.label}: the run {run_id} {action} and is not finished"
    return None


def _earlier_run_reason(
    instance: dg.DagsterInstance, ledger: Ledger, same_plan: Sequence[dg.DagsterRun], now: datetime
) -> str | None:
    if succeeded := [run for run in same_plan if run.status is dg.DagsterRunStatus.SUCCESS]:
        return f"{ledger.label}: the run {succeeded[0].run_id} did the same, and the table has not changed since"
    failed = dg.RunsFilter(tags=_tags(ledger), created_after=now - RETRY_DELAY)
    latest = instance.get_runs(failed, limit=1)
    if latest and latest[0].status in _UNSUCCESSFUL:
        return (
            f"{ledger.label}: the run {latest[0].run_id} did not succeed; the next run waits until an hour after its "
            "launch"
        )
    return None


def _tags(ledger: Ledger) -> dict[str, str]:
    return {TABLE_TAG: ledger.run_tag.removeprefix("lance/")}
