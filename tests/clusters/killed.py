"""Drivers that are killed at a chosen point of a verb, and what the same again with the same intent makes of it.

Scenes for `driver.py`: the first one does not return. Only the driver's own process is told where it dies, its workers
are others.
"""

import functools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_assets.spark import map_columns
from lance_core.storage.local import LocalStore
from tests.clusters import life
from tests.clusters.blows import Blow, struck
from tests.clusters.faults import VERBS, made

Point = Literal["before the version", "after the version"]
_NO_BLOW = "/"  # is there


def dies(spark: SparkSession, uri: str, verb: str, point: Point) -> None:
    made(spark, uri)
    create = LocalStore.create
    left = int(VERBS[verb].reserves)

    @functools.wraps(create)
    def last(store: LocalStore, path: str, data: bytes) -> object:
        nonlocal left
        if not path.startswith("_versions/"):
            return create(store, path, data)
        if left:
            left -= 1
            return create(store, path, data)
        if point == "after the version":
            create(store, path, data)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    LocalStore.create = last  # type: ignore[assignment, method-assign]
    VERBS[verb].change(spark, uri, Blow("fail", _NO_BLOW))


def again(spark: SparkSession, uri: str, verb: str) -> dict[str, object]:
    committed = VERBS[verb].change(spark, uri, Blow("fail", _NO_BLOW))
    return {"version": int(committed.version), "landed_before": committed.already_committed}


@dataclass(frozen=True, slots=True)
class Recording:
    """`life.twice`, which writes down of which rows it was asked."""

    calls: str

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with Path(self.calls).open("a") as calls:
            calls.write(f"{batch['id'][0]}\n")
        return life.twice(batch)


def dies_in_the_middle(spark: SparkSession, uri: str, calls: str, mark: str, fragment: int) -> None:
    """By the hand of a task that has just done a fragment, and has not yet told."""
    made(spark, uri)
    blow = Blow("kill the driver", mark, "answering", fragment, driver=os.getpid())
    _computed(struck(spark, blow), uri, Recording(calls))


def goes_on(spark: SparkSession, uri: str, calls: str) -> int:
    return _computed(spark, uri, Recording(calls))


def _computed(spark: SparkSession, uri: str, compute: Callable[[pa.RecordBatch], pa.RecordBatch]) -> int:
    return int(map_columns(spark, uri, compute, read_columns=["id"], schema=life.TWICE, resume_key="it").version)
