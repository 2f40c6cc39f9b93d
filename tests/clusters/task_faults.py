"""Fault injection for Spark tasks on real clusters: one task, at a chosen point of its work, fails, is killed or
hangs, once.

    with_fault(spark, TaskFault("kill", ...))     a session whose operations meet the fault in one task

The fault strikes after a task has read its first rows, or when it has finished its work and is about to return it. A
marker file records that it struck, so that the next attempt, in any process, succeeds.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

Batches = Iterable[pa.RecordBatch]
Task = Callable[[Batches], Iterator[pa.RecordBatch]]
FaultKind = Literal["fail", "kill", "straggle", "kill the driver"]
FaultPoint = Literal["reading", "answering"]
_EXECUTOR = b"org.apache.spark.executor"


@dataclass(frozen=True, slots=True)
class TaskFault:
    kind: FaultKind
    marker: str
    """Path of the marker file, which must not exist yet."""
    point: FaultPoint = "reading"
    partition: int = 0
    job: int = 0
    """Ordinal of the affected job among those of the operation."""
    driver: int = 0
    """Process id of the driver."""

    def strike_once(self) -> None:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != self.partition or not _create_marker(self.marker):
            return
        if self.kind == "fail":
            raise OSError("injected failure of the first attempt")
        if self.kind == "kill":
            os.kill(_executor_pid(), signal.SIGKILL)
        if self.kind == "kill the driver":
            os.kill(self.driver, signal.SIGKILL)
        while True:
            signal.pause()  # until the process is killed


@dataclass(frozen=True, slots=True)
class FaultyFrame:
    """Wrapper of a session or a DataFrame with the methods that the operations use."""

    wrapped: Any
    fault: TaskFault
    jobs: list[Task] = field(default_factory=list)
    """Jobs started so far."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Class of the wrapped object, which argument checks see."""
        return type(self.wrapped)

    def __getattr__(self, name: str) -> object:
        return getattr(self.wrapped, name)

    def range(self, *numbers: int) -> "FaultyFrame":
        return FaultyFrame(self.wrapped.range(*numbers), self.fault, self.jobs)

    def mapInArrow(self, task: Task, schema: object) -> DataFrame:
        self.jobs.append(task)
        is_affected = len(self.jobs) == self.fault.job + 1
        return cast(DataFrame, self.wrapped.mapInArrow(FaultyTask(task, self.fault) if is_affected else task, schema))


def through_faulty_task(df: DataFrame, fault: TaskFault) -> DataFrame:
    """Return the same rows through a faulty task, for operations that do more with a DataFrame than to map it."""
    return df.mapInArrow(FaultyTask(_pass_through, fault), df.schema)


def _pass_through(batches: Batches) -> Iterator[pa.RecordBatch]:
    yield from batches


def with_fault(wrapped: SparkSession | DataFrame, fault: TaskFault) -> Any:
    return FaultyFrame(wrapped, fault)


@dataclass(frozen=True, slots=True)
class FaultyTask:
    task: Task
    fault: TaskFault

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        if self.fault.point == "reading":
            yield from self.task(self._read(batches))
            return
        batches_written = list(self.task(batches))
        self.fault.strike_once()
        yield from batches_written

    def _read(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number:
                self.fault.strike_once()
            yield batch


def _create_marker(path: str) -> bool:
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _executor_pid() -> int:
    """Return the process id of the Java executor of this worker."""
    process = os.getppid()
    while process > 1:
        if _EXECUTOR in Path(f"/proc/{process}/cmdline").read_bytes():
            return process
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    raise RuntimeError("this worker has no executor process of its own; faults need a cluster, not a local master")
