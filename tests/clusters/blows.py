"""What happens to tasks on real clusters, at a chosen point of their work: once, and told nobody.

    Struck(spark, Blow("kill", ...))     a session; whatever runs through it meets the blow in one task

The blow comes when a task has read its first rows, or when it has done its work and is about to answer. A file says
that it has come, so that the attempt after it, in whichever process, goes through.
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
How = Literal["fail", "kill", "straggle", "kill the driver"]
When = Literal["reading", "answering"]
_EXECUTOR = b"org.apache.spark.executor"


@dataclass(frozen=True, slots=True)
class Blow:
    how: How
    mark: str
    """A file that is not there yet."""
    when: When = "reading"
    partition: int = 0
    job: int = 0
    """Of those that the op runs."""
    driver: int = 0
    """Its process."""

    def falls(self) -> None:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != self.partition or not _first(self.mark):
            return
        if self.how == "fail":
            raise OSError("the first attempt is lost")
        if self.how == "kill":
            os.kill(_executor(), signal.SIGKILL)
        if self.how == "kill the driver":
            os.kill(self.driver, signal.SIGKILL)
        while True:
            signal.pause()  # until somebody ends this process


@dataclass(frozen=True, slots=True)
class Struck:
    """As much of a session, or of a DataFrame, as the ops take."""

    of: Any
    blow: Blow
    jobs: list[Task] = field(default_factory=list)
    """Begun so far."""

    def __getattr__(self, name: str) -> object:
        return getattr(self.of, name)

    def range(self, *numbers: int) -> "Struck":
        return Struck(self.of.range(*numbers), self.blow, self.jobs)

    def mapInArrow(self, task: Task, schema: object) -> DataFrame:
        self.jobs.append(task)
        meant = len(self.jobs) == self.blow.job + 1
        return cast(DataFrame, self.of.mapInArrow(Striking(task, self.blow) if meant else task, schema))


def through(df: DataFrame, blow: Blow) -> DataFrame:
    """The same rows, by way of a task that meets it: for ops that do more with a DataFrame than to map it."""
    return df.mapInArrow(Striking(_as_they_come, blow), df.schema)


def _as_they_come(batches: Batches) -> Iterator[pa.RecordBatch]:
    yield from batches


def struck(of: SparkSession | DataFrame, blow: Blow) -> Any:
    return Struck(of, blow)


@dataclass(frozen=True, slots=True)
class Striking:
    task: Task
    blow: Blow

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        if self.blow.when == "reading":
            yield from self.task(self._read(batches))
            return
        answers = list(self.task(batches))
        self.blow.falls()
        yield from answers

    def _read(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number:
                self.blow.falls()
            yield batch


def _first(mark: str) -> bool:
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _executor() -> int:
    """The Java process that this worker works for."""
    process = os.getppid()
    while process > 1:
        if _EXECUTOR in Path(f"/proc/{process}/cmdline").read_bytes():
            return process
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    raise RuntimeError("this worker works for no executor of its own; is it a local master?")
