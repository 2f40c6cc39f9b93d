"""Tests of `lance_assets/spark/stage_progress.py`: the finished tasks of a running stage are reported."""

import os
from pathlib import Path
from typing import IO

import pytest
from pyspark.sql import SparkSession

from lance_assets.spark.stage_progress import report_stages
from lance_core.progress import OperationProgress, reporting

TASKS = 4


def run_tasks(spark: SparkSession, gate: Path) -> int:
    """Run tasks of which the second half waits until someone opens the gate for writing."""
    path = str(gate)

    def task(number: int) -> int:
        if number >= TASKS // 2:
            with open(path):
                pass
        return number

    return sum(spark.sparkContext.parallelize(range(TASKS), TASKS).map(task).collect())


def test_a_stage_is_reported_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    gate, opened, reports = tmp_path / "gate", list[IO[str]](), list[OperationProgress]()
    os.mkfifo(gate)

    def receive(state: OperationProgress) -> None:
        reports.append(state)
        if state.done == TASKS // 2 and not opened:
            opened.append(gate.open("w"))

    with reporting(receive, "compact"), report_stages(spark):
        assert run_tasks(spark, gate) == sum(range(TASKS))
    opened[0].close()
    assert {(each.operation, each.unit, each.total) for each in reports} == {("compact", "tasks", TASKS)}
    assert reports[-1].is_finished
    assert reports[-1].step.startswith("stage ")


def test_an_exception_of_the_receiver_is_raised_when_the_job_ends(spark: SparkSession, tmp_path: Path) -> None:
    gate, opened = tmp_path / "gate", list[IO[str]]()
    os.mkfifo(gate)

    def receive(state: OperationProgress) -> None:
        if state.done == TASKS // 2:
            opened.append(gate.open("w"))
            raise KeyError("receiver")

    with pytest.raises(KeyError, match="receiver"), reporting(receive, "compact"), report_stages(spark):
        run_tasks(spark, gate)
    opened[0].close()
