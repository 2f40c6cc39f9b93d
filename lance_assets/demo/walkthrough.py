"""The demo from its first step to the last: each day loaded by a run of the job, then the history read back.

Kill it anywhere and start it again: what has landed stays, what had not lands now, nothing lands twice. Each step is a
function of its own, in the order in which `run_walkthrough` calls them.
"""

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg

from lance_assets.demo.definitions import LOCATION, days, defs, load_orders, orders, spark
from lance_assets.demo.workspace import DemoWorkspace, exclusive_lock, prepare_home
from lance_assets.ledger.incarnations import incarnation_of
from lance_assets.ledger.partition_keys import partition_key
from lance_assets.ledger.recording import recorded_data_versions
from lance_assets.ledger.recording_claims import UNFINISHED_STATUSES
from lance_assets.provenance.properties import ASSET_KEY, PARTITION, RUN_ID
from lance_core import LanceError, Table, VersionInfo

DEMO_TAG = "lance_assets/demo"
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class DemoFailed(LanceError):
    """A run of the demo did not succeed; the message says why."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Tells what is being done, and when."""

    show: Callable[[str], None]
    started: float = field(default_factory=time.monotonic)

    def __call__(self, text: str) -> None:
        self.show(f"[{time.monotonic() - self.started:5.1f} s] {text}")


def run_walkthrough(where: DemoWorkspace, show: Callable[[str], None]) -> None:
    progress = Progress(show)
    with exclusive_lock(where), open_instance(where, progress) as instance:
        fail_dead_runs(instance, progress)
        missing = missing_days(instance, progress)
        if missing:
            start_spark(progress)
        for number, day in enumerate(missing, 1):
            load_day(instance, day, f"{number}/{len(missing)}", progress)
    show("")
    for line in history_lines():
        show(line)
    show("")
    for line in next_steps(where, changed=bool(missing)):
        show(line)


def open_instance(where: DemoWorkspace, progress: Progress) -> dg.DagsterInstance:
    home = prepare_home(where)
    progress(f"opening the Dagster instance in {home}")
    return dg.DagsterInstance.from_config(str(home))


def fail_dead_runs(instance: dg.DagsterInstance, progress: Progress) -> None:
    """Runs of a demo that was killed: no demo but this one is running here, so they will never end by themselves."""
    ours = dg.RunsFilter(tags={DEMO_TAG: "true"}, statuses=UNFINISHED_STATUSES)
    for run in instance.get_runs(ours):
        progress(f"run {run.run_id[:8]} of an earlier demo was cut short; marking it as failed")
        instance.report_run_failed(run, "The demo that ran this was stopped before the run ended.")
    for run in instance.get_runs(dg.RunsFilter(tags={DEMO_TAG: "true"})):
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def missing_days(instance: dg.DagsterInstance, progress: Progress) -> list[str]:
    """Days that are not in the table, or not on Dagster's record: a demo may have been killed in between."""
    landed = {info.properties.get(PARTITION): info for info in versions() if _is_ours(info)}
    epoch = incarnation_of(instance, orders.ledger, Table.open(orders.uri).id) if landed else 1
    keys = {info.version: partition_key(info.version, epoch) for info in landed.values()}
    on_ledger = recorded_data_versions(instance, orders.ledger, list(keys.values()))
    finished = instance.get_materialized_partitions(orders.write_key("orders_append"))
    missing = []
    for day in days.get_partition_keys():
        info = landed.get(day)
        if info and keys[info.version] in on_ledger and day in finished:
            progress(f"{day}: landed before, as version {info.version}")
        else:
            missing.append(day)
    return missing


def start_spark(progress: Progress) -> None:
    progress("starting Spark")
    session = spark.spark_session
    progress(f"Spark {session.version} is up on {session.sparkContext.master}")


def load_day(instance: dg.DagsterInstance, day: str, number: str, progress: Progress) -> None:
    progress(f"{day}: run {number} of the job {load_orders.name}")
    result = defs.resolve_job_def(load_orders.name).execute_in_process(
        instance=instance,
        partition_key=day,
        run_config=_QUIET,
        tags={DEMO_TAG: "true", "dagster/code_location": LOCATION},
        raise_on_error=False,
    )
    if not result.success:
        if _was_interrupted(result):
            raise KeyboardInterrupt
        raise DemoFailed(f"{day}: run {result.run_id} failed. {_reason(result)}")
    made = result.asset_materializations_for_node("orders_append")[-1].metadata
    rows, version = made["lance/rows_added"].value, made["lance/version"].value
    how = "had landed before, recorded now" if made["lance/landed_before"].value else "appended"
    progress(f"{day}: version {version}, {rows:,} rows {how}, run {result.run_id[:8]}")


def history_lines() -> list[str]:
    lines = [f"{'version':>7}  {'operation':<10}{'rows':>9}  {'Dagster run':<37} {'when'}"]
    for info in versions():
        run, when = info.properties.get(RUN_ID, "-"), f"{info.timestamp:%Y-%m-%d %H:%M:%S} UTC"
        lines.append(f"{info.version:>7}  {info.operation:<10}{info.rows:>9,}  {run:<37} {when}")
    return [f"The history of {orders.ledger.shown_uri}, read back from the table:", *lines]


def next_steps(where: DemoWorkspace, *, changed: bool) -> list[str]:
    inside = where.root.is_relative_to(Path.cwd())
    afresh = f"rm -r {shlex.quote(os.path.relpath(where.root) if inside else str(where.root))}"
    said = [] if changed else ["Nothing was left to do: every day had landed, and the table is unchanged.", ""]
    return [
        *said,
        "What next:",
        "  make ui      the same runs, assets and versions in Dagster's web UI",
        "  make demo    run it again: nothing is appended twice",
        f"  {afresh:<12} start afresh",
    ]


def versions() -> list[VersionInfo]:
    return Table.open(orders.uri).versions() if Table.exists(orders.uri) else []


def _is_ours(info: VersionInfo) -> bool:
    return info.properties.get(ASSET_KEY) == orders.write_key("orders_append").to_user_string()


def _was_interrupted(result: dg.ExecuteInProcessResult) -> bool:
    """Dagster takes Ctrl-C for a failure of whatever it was doing."""
    name = dg.DagsterExecutionInterruptedError.__name__
    return any(name in str(event.event_specific_data) for event in result.all_events)


def _reason(result: dg.ExecuteInProcessResult) -> str:
    failures = [event for event in result.all_events if event.is_step_failure]
    data = failures[0].step_failure_data if failures else None
    if data is None:
        return "Look at it with make ui."
    if data.user_failure_data and data.user_failure_data.description:
        return data.user_failure_data.description
    return data.error_display_string.strip().splitlines()[0] if data.error else "Look at it with make ui."
