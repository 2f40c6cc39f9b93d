"""Walkthrough of the demo: a run of the job loads each day, then the history is read back from the table.

It can be killed at any point and started again: committed days stay, missing days are loaded, and no day is loaded
twice. `run_walkthrough` calls the steps in the order in which they are defined.
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
from lance_assets.ledger.dynamic_partitions import incarnation_of
from lance_assets.ledger.ledger import recorded_data_versions
from lance_assets.ledger.partition_keys import partition_key
from lance_assets.ledger.recording_lock import UNFINISHED_STATUSES
from lance_assets.provenance.properties import ASSET_KEY, PARTITION, RUN_ID
from lance_core import LanceError, Table, VersionInfo

DEMO_TAG = "lance_assets/demo"
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class DemoFailed(LanceError):
    """A run of the demo did not succeed. The message says why."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Prints each step with the elapsed time."""

    show: Callable[[str], None]
    started: float = field(default_factory=time.monotonic)

    def __call__(self, text: str) -> None:
        self.show(f"[{time.monotonic() - self.started:5.1f} s] {text}")


def run_walkthrough(workspace: DemoWorkspace, show: Callable[[str], None]) -> None:
    progress = Progress(show)
    with exclusive_lock(workspace), open_instance(workspace, progress) as instance:
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
    for line in next_steps(workspace, changed=bool(missing)):
        show(line)


def open_instance(workspace: DemoWorkspace, progress: Progress) -> dg.DagsterInstance:
    home = prepare_home(workspace)
    progress(f"opening the Dagster instance in {home}")
    return dg.DagsterInstance.from_config(str(home))


def fail_dead_runs(instance: dg.DagsterInstance, progress: Progress) -> None:
    """Mark unfinished runs of earlier demos as failed. Only one demo runs in a folder, so their processes are gone."""
    ours = dg.RunsFilter(tags={DEMO_TAG: "true"}, statuses=UNFINISHED_STATUSES)
    for run in instance.get_runs(ours):
        progress(f"run {run.run_id[:8]} of an earlier demo did not finish; marking it as failed")
        instance.report_run_failed(run, "The demo that ran this was stopped before the run ended.")
    for run in instance.get_runs(dg.RunsFilter(tags={DEMO_TAG: "true"})):
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def missing_days(instance: dg.DagsterInstance, progress: Progress) -> list[str]:
    """Return the days that the table lacks or that Dagster has not recorded. A demo may be killed between its commit
    and the event."""
    committed = {info.properties.get(PARTITION): info for info in versions() if _is_append(info)}
    incarnation = incarnation_of(instance, orders.ledger, Table.open(orders.uri).id) if committed else 1
    keys = {info.version: partition_key(info.version, incarnation) for info in committed.values()}
    on_ledger = recorded_data_versions(instance, orders.ledger, list(keys.values()))
    finished = instance.get_materialized_partitions(orders.write_key("orders_append"))
    missing = []
    for day in days.get_partition_keys():
        info = committed.get(day)
        if info and keys[info.version] in on_ledger and day in finished:
            progress(f"{day}: already committed as version {info.version}")
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
    metadata = result.asset_materializations_for_node("orders_append")[-1].metadata
    rows, version = metadata["lance/rows_added"].value, metadata["lance/version"].value
    outcome = "already committed, recorded now" if metadata["lance/landed_before"].value else "appended"
    progress(f"{day}: version {version}, {rows:,} rows {outcome}, run {result.run_id[:8]}")


def history_lines() -> list[str]:
    lines = [f"{'version':>7}  {'action':<10}{'rows':>9}  {'Dagster run':<37} {'when'}"]
    for info in versions():
        run, when = info.properties.get(RUN_ID, "-"), f"{info.timestamp:%Y-%m-%d %H:%M:%S} UTC"
        lines.append(f"{info.version:>7}  {info.action:<10}{info.rows:>9,}  {run:<37} {when}")
    return [f"The history of {orders.ledger.shown_uri}, read from the table:", *lines]


def next_steps(workspace: DemoWorkspace, *, changed: bool) -> list[str]:
    inside = workspace.root.is_relative_to(Path.cwd())
    remove_command = f"rm -r {shlex.quote(os.path.relpath(workspace.root) if inside else str(workspace.root))}"
    unchanged = [] if changed else ["Nothing to do: every day was already committed, and the table is unchanged.", ""]
    return [
        *unchanged,
        "Next steps:",
        "  make ui      open the same runs, assets and versions in Dagster's web UI",
        "  make demo    run it again: nothing is appended twice",
        f"  {remove_command:<12} start over",
    ]


def versions() -> list[VersionInfo]:
    return Table.open(orders.uri).versions() if Table.exists(orders.uri) else []


def _is_append(info: VersionInfo) -> bool:
    return info.properties.get(ASSET_KEY) == orders.write_key("orders_append").to_user_string()


def _was_interrupted(result: dg.ExecuteInProcessResult) -> bool:
    """Return whether Ctrl-C ended the run. Dagster reports it as a failure of the step that was running."""
    name = dg.DagsterExecutionInterruptedError.__name__
    return any(name in str(event.event_specific_data) for event in result.all_events)


def _reason(result: dg.ExecuteInProcessResult) -> str:
    failures = [event for event in result.all_events if event.is_step_failure]
    data = failures[0].step_failure_data if failures else None
    if data is None:
        return "Open the run with make ui."
    if data.user_failure_data and data.user_failure_data.description:
        return data.user_failure_data.description
    return data.error_display_string.strip().splitlines()[0] if data.error else "Open the run with make ui."
