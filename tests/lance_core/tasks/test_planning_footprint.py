"""Planning footprint: a driver keeps only the metadata of fragments in memory, and its tasks are small."""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.spark_driver import build_table
from tests.lance_core.tasks import planning_footprint

PROJECT = Path(__file__).resolve().parents[3]
FRAGMENTS = 10_000
BYTES_PER_FRAGMENT_MAX = 64
BYTES_OF_THE_REST_MAX = 16 * 1024
PEAK_MAX = 400 * 1024**2


def test_planning_takes_little_memory_and_its_tasks_are_small(tmp_path: Path) -> None:
    uri = build_table(tmp_path / "table", FRAGMENTS, rows_per_fragment=100)
    done = subprocess.run(
        [sys.executable, "-m", planning_footprint.__name__, uri],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(done.stdout)
    assert set(report["sizes"]) == {
        "delete",
        "update",
        "map_columns",
        "compact",
        "count",
        "aggregate",
        "read",
        "append",
    }
    for operation, size in report["sizes"].items():
        assert size < FRAGMENTS * BYTES_PER_FRAGMENT_MAX + BYTES_OF_THE_REST_MAX, operation
    assert report["sizes"]["append"] < BYTES_OF_THE_REST_MAX
    assert report["peak"] < PEAK_MAX
