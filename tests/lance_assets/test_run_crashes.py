"""Crashes of runs: processes are killed with SIGKILL at each step of a write, its commit and its recording.

Either the process of the step dies alone, or the run worker as well. Afterwards a re-execution of the run, or the
sensor, must leave one version and one event. The suite runs two of the cases, `make dagster-proofs` runs all.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from lance_assets import lance_table
from lance_assets.discovery.sensor import discovery_sensor
from lance_core import Table
from tests.forked_programs import ForkedPrograms
from tests.lance_assets import run_worker
from tests.lance_assets.instances import events, partitions, tags, tick
from tests.lance_assets.project import ROOT, ROWS

ALL = os.environ.get("PROOFS") == "all"

# Steps of an undisturbed run in their order, which the test below checks.
STEPS = [
    "create _lance_assets/intents 1",
    "spark job 1",
    "put _lance_assets/intents 1",
    "put _transactions 1",
    "create _versions 1",
    "put _lance_assets/intents 2",
    "add_dynamic_partitions 1",  # identity of the table
    "add_dynamic_partitions 2",  # the version
    "add_dynamic_partitions 3",  # claim of the recorder
    "event ASSET_MATERIALIZATION lake/orders 1",
    "delete_dynamic_partition 1",
    "add_run_tags 1",
    "event ASSET_MATERIALIZATION lake/orders_append 1",
    "event STEP_SUCCESS 1",
]
COMMITTED = "create _versions 1"
RECORDED = "event ASSET_MATERIALIZATION lake/orders 1"
POINTS = [f"before {step}" for step in STEPS] + [f"after {STEPS[-1]}"]
CASES = [
    (point, killed_process, recoverer)
    for point in POINTS
    for killed_process in ("step", "run")
    for recoverer in ("run", "sensor")
]
SLICE = [
    (f"after {COMMITTED}", "step", "sensor"),
    ("before event ASSET_MATERIALIZATION lake/orders 1", "run", "run"),
]
Run = Callable[..., int]


@pytest.fixture
def run(programs: ForkedPrograms) -> Run:
    """Function that runs the worker in a process of its own, whose step has another one."""

    def once(root: Path, *arguments: str) -> int:
        environment = {**os.environ, "PROOFS_SECRET": "x", ROOT: str(root), "DAGSTER_HOME": str(root / "home")}
        done = programs.run(run_worker.__name__, *arguments, environment=environment)
        with (root / "log").open("a") as file:
            file.write(done.stdout + done.stderr)
        return done.returncode

    return once


@pytest.fixture(scope="module")
def fresh_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("fresh") / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.get_runs(limit=1)
        instance.fetch_materializations(dg.AssetKey("orders"), limit=1)
    return home


@pytest.fixture
def root(fresh_home: Path, tmp_path: Path) -> Path:
    shutil.copytree(fresh_home, tmp_path / "home")
    return tmp_path


def test_steps_of_an_undisturbed_run(run: Run, root: Path) -> None:
    assert run(root) == 0, log(root)
    points = (root / "crash_points").read_text().splitlines()
    assert [point for point in points if point.startswith("before ")] == [f"before {step}" for step in STEPS]


@pytest.mark.parametrize(("point", "killed_process", "recoverer"), CASES if ALL else SLICE)
def test_recovery_after_a_crash(run: Run, root: Path, point: str, killed_process: str, recoverer: str) -> None:
    table = lance_table("orders", uri=str(root / "orders.lance"), key_prefix="lake")
    (root / "kill.json").write_text(f'{{"at": "{point}", "process": "{killed_process}"}}')
    assert run(root) == (-9 if killed_process == "run" else 3), log(root)
    has_landed = Table.exists(table.uri)
    with dg.DagsterInstance.from_config(str(root / "home")) as instance:
        (killed,) = instance.get_runs()
        if killed_process == "run":  # as Dagster's run monitoring does
            instance.report_run_failed(killed, "its worker is gone")
        assert instance.get_run_by_id(killed.run_id).status is dg.DagsterRunStatus.FAILURE  # type: ignore[union-attr]
        if recoverer == "sensor":
            tick(discovery_sensor("s", [table.ledger]), instance)
            assert len(events(instance, table.key)) == has_landed
    assert run(root, killed.run_id) == 0, log(root)
    with dg.DagsterInstance.from_config(str(root / "home")) as instance:
        cursor, _ = tick(discovery_sensor("s", [table.ledger]), instance)
        tick(discovery_sensor("s", [table.ledger]), instance, cursor)
        ((run_id, event),) = events(instance, table.key)
        assert partitions(instance, table) == [event.partition] == ["v0000000001"]
        (retry,) = [each.run_id for each in instance.get_runs() if each.run_id != killed.run_id]
        assert run_id == {"killed": killed.run_id, "sensor": "", "retry": retry}[recorder(point, recoverer)]
        assert tags(event)["lance/run_id"] == (killed.run_id if has_landed else retry)
        assert tags(event)["lance/origin"] == "run"
    theirs = Table.open(table.uri)
    assert (theirs.version, sorted(theirs.to_table()["id"].to_pylist())) == (1, list(range(ROWS)))


def recorder(point: str, recoverer: str) -> str:
    """Return the recorder of the version: the run itself if it was killed after its event, otherwise the next one."""
    when, _, step = point.partition(" ")
    done = STEPS.index(step) + (when == "after")
    if done > STEPS.index(RECORDED):
        return "killed"
    return "sensor" if done > STEPS.index(COMMITTED) and recoverer == "sensor" else "retry"


def log(root: Path) -> str:
    return (root / "log").read_text()[-4000:]
