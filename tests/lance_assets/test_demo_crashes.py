"""Crashes of the demo: it is killed with SIGKILL at each step of its write, commit and recording, and run again.

The outcome must equal that of an undisturbed run: every row once, every version on the ledger once.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import lance
import pytest
from py4j.java_gateway import JavaGateway
from pyspark.java_gateway import launch_gateway

from lance_assets.demo.workspace import DemoWorkspace, prepare_home
from lance_assets.spark.java import ensure_java
from tests.lance_assets import demo_fork_server
from tests.lance_assets.demo_fork_server import ROWS_A_DAY

PROJECT = Path(__file__).resolve().parents[2]
Run = Callable[[Path, str | None], int]

# Steps of an undisturbed run in their order, which the test below checks. The demo loads one day.
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
    "event ASSET_MATERIALIZATION orders 1",
    "delete_dynamic_partition 1",
    "add_run_tags 1",
    "event ASSET_MATERIALIZATION orders_append 1",
    "event STEP_SUCCESS 1",
    "event PIPELINE_SUCCESS 1",
]
POINTS = [f"before {step}" for step in STEPS] + [f"after {STEPS[-1]}"]
"""Crash points, which `make dagster-proofs` tries."""


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Function that runs the demo in a new process and returns its exit code. All runs share one Java process."""
    ensure_java()
    gateway: JavaGateway = launch_gateway()
    parameters = gateway.gateway_parameters
    environment = {
        **os.environ,
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }
    fork_server = subprocess.Popen(
        [sys.executable, "-m", demo_fork_server.__name__],
        cwd=PROJECT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run_once(root: Path, kill_at: str | None) -> int:
        assert fork_server.stdin is not None
        assert fork_server.stdout is not None
        fork_server.stdin.write(json.dumps({"root": str(root), "kill_at": kill_at}) + "\n")
        fork_server.stdin.flush()
        code = int(json.loads(fork_server.stdout.readline()))
        # The driver is dead, but its application in the Java process is not.
        gateway.jvm.org.apache.spark.SparkContext.getOrCreate().stop()
        return code

    try:
        yield run_once
    finally:
        assert fork_server.stdin is not None
        fork_server.stdin.close()
        fork_server.wait(timeout=30)
        gateway.shutdown()
        gateway.proc.kill()
        gateway.proc.wait()


def log(root: Path) -> str:
    return (root / "log").read_text()[-4000:]


def check_outcome(root: Path) -> None:
    theirs = lance.dataset(root / "orders.lance")
    assert sorted(theirs.to_table(columns=["order_id"])["order_id"].to_pylist()) == list(range(ROWS_A_DAY))
    assert [version["version"] for version in theirs.versions()] == [1]
    with dg.DagsterInstance.from_config(str(root / "dagster_home")) as instance:
        assert instance.get_dynamic_partitions("lance/orders") == ["v0000000001"]
        assert recorded_partitions(instance, "orders") == ["v0000000001"]
        assert set(recorded_partitions(instance, "orders_append")) == {"2026-01-01"}
        assert all(run.is_finished for run in instance.get_runs())


def recorded_partitions(instance: dg.DagsterInstance, asset: str) -> list[str]:
    records = instance.fetch_materializations(dg.AssetKey(asset), limit=100).records
    return sorted(str(record.partition_key) for record in records)


@pytest.fixture(scope="module")
def fresh_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty Dagster instance to copy: the creation of its databases takes longer than a test."""
    home = tmp_path_factory.mktemp("fresh") / "dagster_home"
    prepare_home(DemoWorkspace(home.parent))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.get_runs(limit=1)
        instance.fetch_materializations(dg.AssetKey("orders"), limit=1)
    return home


@pytest.fixture
def root(fresh_home: Path, tmp_path: Path) -> Path:
    shutil.copytree(fresh_home, tmp_path / "dagster_home")
    return tmp_path


if os.environ.get("PROOFS") == "all":

    def test_steps_of_an_undisturbed_run(run: Run, root: Path) -> None:
        assert run(root, None) == 0, log(root)
        check_outcome(root)
        points = (root / "crash_points").read_text().splitlines()
        assert [point for point in points if point.startswith("before ")] == [f"before {step}" for step in STEPS]

    @pytest.mark.parametrize("point", POINTS)
    def test_rerun_after_a_crash(run: Run, root: Path, point: str) -> None:
        assert run(root, point) == -signal.SIGKILL, log(root)
        assert run(root, None) == 0, log(root)
        check_outcome(root)
