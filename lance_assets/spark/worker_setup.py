"""Worker setup: prepares a Python worker of Spark once, since Spark keeps the process for many tasks.

After each task Spark collects garbage and visits every object of the process. With the libraries that read tables this
takes 15 to 35 ms, more than a small task takes. The objects that exist when a task begins belong to modules and stay,
so `gc.freeze` excludes them from collection. `004-python-task-overhead.md` lists the other costs of a task. After a
task the worker returns freed memory to the system.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from lance_assets.spark.worker_memory import limit_arenas, return_freed_memory

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_FREEZES_MAX = 2
"""Modules that the first task imports on first use exist when the second task begins."""
_freezes = 0


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """Task of this package in a Python worker of Spark: sets the worker up and runs `task`. Picklable."""

    task: Task

    @property
    def __name__(self) -> str:
        """Name of the task in Spark's query plans."""
        return str(getattr(self.task, "__name__", type(self.task).__name__))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with prepared_worker():
            yield from self.task(batches)


@contextmanager
def prepared_worker() -> Iterator[None]:
    """Prepare the worker for a task, and return the memory that the task freed to the system."""
    _freeze_objects()
    try:
        yield
    finally:
        return_freed_memory()


def prepare_and_read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task in a prepared worker."""
    with prepared_worker():
        yield from batches


def _freeze_objects() -> None:
    """Freeze the objects that exist before a task.

    Spark collects garbage between tasks, so no garbage is frozen.
    """
    global _freezes
    if _freezes < _FREEZES_MAX:
        _freezes += 1
        limit_arenas()
        gc.freeze()
