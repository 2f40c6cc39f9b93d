"""Web server of the demo: `make ui` shows the runs of the demo and stops on a signal. It needs no browser."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import dagster as dg
import pytest

from lance_assets.demo.workspace import PROJECT, DemoWorkspace
from tests.ui.conftest import Demo, environment

pytestmark = pytest.mark.timeout(600)


def test_workspace_loads(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"]
    done = subprocess.run(
        command,
        cwd=PROJECT,
        env={**environment(tmp_path / "demo"), "DAGSTER_HOME": str(home)},
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


def test_ui_shows_the_runs_and_stops_on_a_signal(demo: Demo) -> None:
    command = [sys.executable, "-m", "lance_assets.demo", "ui"]
    with subprocess.Popen(
        command,
        cwd=PROJECT,
        env=environment(demo.root),
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
    with dg.DagsterInstance.from_config(str(DemoWorkspace(demo.root).dagster_home)) as instance:
        runs = instance.get_runs(dg.RunsFilter(tags={"lance/orders": newest["partition"]}))
    assert newest["runId"] in [run.run_id for run in runs]
    labels = {entry["label"] for entry in newest["metadataEntries"]}
    assert {"lance/version", "lance/parent", "lance/run", "dagster/row_count", "dagster/column_schema"} <= labels
