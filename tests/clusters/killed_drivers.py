"""Killed drivers: the driver dies at a chosen point of an operation, and repeating the operation with the same intent
completes it.

`driver.py` calls these functions; the first one does not return. Only the driver's own process dies at that point,
because its workers are separate processes.
"""

import functools
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_assets.spark import map_columns
from lance_core.storage.local import LocalStore
from tests.clusters import lifecycle
from tests.clusters.faults import VERBS, create_table
from tests.clusters.task_faults import TaskFault, with_fault

Point = Literal["before the version", "after the version"]
_EXISTING_MARKER = "/"  # always exists, so that the fault never strikes


def die_while_committing(spark: SparkSession, uri: str, verb: str, point: Point) -> None:
    create_table(spark, uri)
    create = LocalStore.create_after
    versions_left = int(VERBS[verb].reserves)

    @functools.wraps(create)
    def create_or_die(store: LocalStore, path: str, data: bytes, unsynced: Sequence[str]) -> object:
        nonlocal versions_left
        if not path.startswith("_versions/"):
            return create(store, path, data, unsynced)
        if versions_left:
            versions_left -= 1
            return create(store, path, data, unsynced)
        if point == "after the version":
            create(store, path, data, unsynced)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    LocalStore.create_after = create_or_die  # type: ignore[assignment, method-assign]
    VERBS[verb].change(spark, uri, TaskFault("fail", _EXISTING_MARKER))


def repeat_verb(spark: SparkSession, uri: str, verb: str) -> dict[str, object]:
    committed = VERBS[verb].change(spark, uri, TaskFault("fail", _EXISTING_MARKER))
    return {"version": int(committed.version), "landed_before": committed.already_committed}


@dataclass(frozen=True, slots=True)
class RecordingFunction:
    """Function `lifecycle.twice` that also records the first id of each batch it computed."""

    calls: str

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with Path(self.calls).open("a") as calls:
            calls.write(f"{batch['id'][0]}\n")
        return lifecycle.twice(batch)


def die_while_mapping(spark: SparkSession, uri: str, calls: str, marker: str, fragment: int) -> None:
    """Map a column in a driver that is killed by a task which has just finished a fragment and has not reported it."""
    create_table(spark, uri)
    fault = TaskFault("kill the driver", marker, "answering", fragment, driver=os.getpid())
    _map_twice(with_fault(spark, fault), uri, RecordingFunction(calls))


def resume_mapping(spark: SparkSession, uri: str, calls: str) -> int:
    return _map_twice(spark, uri, RecordingFunction(calls))


def _map_twice(spark: SparkSession, uri: str, compute: Callable[[pa.RecordBatch], pa.RecordBatch]) -> int:
    return int(map_columns(spark, uri, compute, read_columns=["id"], schema=lifecycle.TWICE, resume_key="it").version)
