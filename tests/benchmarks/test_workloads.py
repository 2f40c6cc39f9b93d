"""Tests of the real workloads at their smallest scale: each runs, and all systems do the same work.

`make test` runs `commit` and `group`, `make bench-smoke` every workload.
"""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks import cli, inputs, workloads
from benchmarks.workloads import commit


def test_every_file_is_a_workload_under_its_own_name() -> None:
    named = {
        "commit",
        "group",
        "large_write",
        "object_store",
        "object_store_azure",
        "object_store_gcs",
        "proxy",
        "read",
        "rebase",
        "spark_append",
        "spark_changes",
        "versions",
        "writers",
    }
    assert named <= set(workloads.names())
    for name in workloads.names():
        assert workloads.load(name).summary


def run_smoke(name: str, tmp_path: Path) -> dict[str, dict]:
    """Run a workload at its smallest scale and return its cases by name."""
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "numbers.json"
    arguments = [name, "--scale", "smoke", "--json", str(path), "--directory", str(tmp_path / "work")]
    assert cli.main(arguments) == 0
    (report,) = json.loads(path.read_text())["reports"]
    cases = {case["case"]: case for case in report["cases"]}
    assert {each["status"] for case in cases.values() for each in case["systems"]} == {"measured"}
    return cases


def systems(case: dict) -> list[str]:
    return [each["system"] for each in case["systems"]]


def test_groups_run_from_the_command(tmp_path: Path) -> None:
    cases = run_smoke("group", tmp_path)
    assert list(cases) == ["2 threads, 6 appends", "2 threads, 6 appends, no fsync"]
    assert systems(cases["2 threads, 6 appends"]) == ["ours", "one thread", "pylance"]
    assert {json.dumps(case["facts"]) for case in cases.values()} == {'{"rows": 6, "distinct": 6}'}


def test_commit_runs_from_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "numbers.json"
    arguments = ["commit", "--scale", "smoke", "--json", str(path), "--directory", str(tmp_path / "work")]
    assert cli.main(arguments) == 0
    (report,) = json.loads(path.read_text())["reports"]
    cases = {case["case"]: case for case in report["cases"]}
    assert list(cases) == ["open, 1 fragments", "append, 1 fragments", "open, 20 fragments", "append, 20 fragments"]
    appended = cases["append, 20 fragments"]
    assert [each["system"] for each in appended["systems"]] == ["ours", "ours, no fsync", "pylance", "deltalake"]
    assert {each["status"] for each in appended["systems"]} == {"measured"}
    # one warm-up and five calls in addition to the twenty
    assert appended["facts"] == {"rows": 26}
    assert "x pylance" in capsys.readouterr().out


def _child_processes() -> list[str]:
    """Return the ids of the live child processes of this process."""
    lines = [path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")]
    return [fields[0] for fields in lines if fields[1] == str(os.getpid()) and fields[0] != "Z"]


def test_an_unknown_workload_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["comit"])
    assert "unknown workload 'comit'; choose one of checksums, " in capsys.readouterr().err


def test_the_list_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--list"]) == 0
    assert commit.WORKLOAD.summary in capsys.readouterr().out


def test_rows_are_the_same_each_time_and_kept(tmp_path: Path) -> None:
    first = pq.read_table(inputs.lineitem_files(tmp_path / "a", 1_000))
    again = pq.read_table(inputs.lineitem_files(tmp_path / "b", 1_000))
    assert first.equals(again)
    assert (first.num_rows, first.num_columns) == (1_000, 16)
    vectors = inputs.vector_files(tmp_path / "a", 10)
    made = {path.name: path.stat().st_mtime_ns for path in vectors.iterdir()}
    assert made == {path.name: path.stat().st_mtime_ns for path in inputs.vector_files(tmp_path / "a", 10).iterdir()}
    assert pq.read_schema(next(vectors.iterdir())).field("vector").type.list_size == inputs.DIMENSIONS


if os.environ.get("BENCHMARKS") == "all":

    def test_what_the_ledger_costs_is_measured(tmp_path: Path) -> None:
        (recorded,) = run_smoke("dagster_recording", tmp_path).values()
        assert systems(recorded) == ["ours", "event log alone"]
        assert recorded["facts"] == {"partitions": 3, "recorded": 3}
        busy, idle = run_smoke("dagster_discovery", tmp_path / "ticks").values()
        assert (busy["facts"], idle["facts"]) == ({"found": 20}, {"found": 0})

    def test_writers_race_from_the_command(tmp_path: Path) -> None:
        cases = run_smoke("writers", tmp_path)
        assert list(cases) == ["2 writers, 4 commits", "2 writers, 4 commits: slowest append"]
        whole = cases["2 writers, 4 commits"]
        assert systems(whole) == ["ours", "ours, no fsync", "pylance", "deltalake"]
        assert whole["facts"] == {"distinct rows": 4}
        assert [each["counts"]["lost"] for each in whole["systems"]] == [0] * 4

    def test_the_proxy_runs_from_the_command(tmp_path: Path) -> None:
        cases = run_smoke("proxy", tmp_path)
        whole = cases["2 writers, 2 appends, 5 % faults"]
        assert systems(whole) == ["ours", "pylance", "deltalake"]
        assert set(whole["systems"][0]["counts"]) == {"failed", "given up", "lost", "doubled"}
        assert "2 writers, 2 appends, 5 % faults: slowest append" in cases

    def test_new_rows_of_computed_columns_are_filled_by_every_system(tmp_path: Path) -> None:
        (case,) = run_smoke("computed_columns", tmp_path).values()
        assert systems(case) == ["ours", "ours, all rows", "Spark Parquet", "deltalake"]
        assert case["facts"] == {"rows": 2_000, "vectors": 2_000, "wrong": 0}

    def test_columns_are_added_and_replaced(tmp_path: Path) -> None:
        cases = run_smoke("column_values", tmp_path)
        assert systems(cases["add a column to 2000 rows"]) == ["ours", "ours, no fsync", "pylance"]
        assert systems(cases["replace a column of 2000 rows"]) == ["ours", "ours, adding it"]
        assert cases["merge a column into 2000 rows by key"]["facts"] == {"rows": 2_000, "sum": "3998000.0"}

    def test_an_object_store_is_measured(tmp_path: Path) -> None:
        cases = run_smoke("object_store", tmp_path)
        assert next(iter(cases)) == "open, 100 versions"
        for case in cases.values():
            assert all(0 < each["counts"]["in flight"] <= each["counts"]["requests"] for each in case["systems"])
        assert {each["counts"]["errors"] for each in cases["append, throttled"]["systems"]} == {0}
        assert _child_processes() == []

    def test_growth_is_measured(tmp_path: Path) -> None:
        cases = run_smoke("growth", tmp_path)
        assert {len(case["systems"]) for case in cases.values()} == {1, 2}
        assert cases["upsert, 20 columns"]["facts"] == {"rows": 25, "columns": 20}

    def test_rebase_runs_from_the_command(tmp_path: Path) -> None:
        (case,) = run_smoke("rebase", tmp_path).values()
        assert (case["case"], case["facts"]) == ("append, 3 commits behind", {"rows": 4})

    def test_versions_run_from_the_command(tmp_path: Path) -> None:
        cases = run_smoke("versions", tmp_path)
        assert list(cases) == ["open, 1 versions", "open, 20 versions"]
        assert systems(cases["open, 20 versions"]) == ["ours", "pylance", "ours, 1 version"]

    def test_read_runs_from_the_command(tmp_path: Path) -> None:
        cases = run_smoke("read", tmp_path)
        assert cases["full scan, 16 columns"]["facts"]["rows"] == 2_000
        assert cases["take 1000 random rows of 5000"]["facts"]["rows"] == 1_000
        assert cases["20 small fragments, 1 column"]["facts"] == {
            "rows": 20_000,
            "columns": 1,
            "sum_of_the_first": 199_990_000,
        }

    def test_the_price_of_a_task_is_measured(tmp_path: Path) -> None:
        """Both Spark applications run in processes of their own and have ended afterwards."""
        cases = run_smoke("spark_tasks", tmp_path)
        whole = "a job of 6 tasks"
        assert list(cases) == [whole, f"{whole}: one more task", f"{whole}: a job of one"]
        assert cases[whole]["facts"] == {"rows": 6}
        for case in cases.values():
            assert systems(case) == ["ours", "bare PySpark"]
            if "one more" not in case["case"]:  # a difference, which may have any sign in so small a run
                assert all(seconds > 0 for each in case["systems"] for seconds in each["seconds"])
        assert _child_processes() == []

    def test_a_fleet_is_planned_from_the_command(tmp_path: Path) -> None:
        (case,) = run_smoke("fleet_plan", tmp_path).values()
        assert (case["case"], case["facts"]) == ("plan, 5 tables", {"fragments": 100})
