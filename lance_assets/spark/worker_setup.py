"""What a Python process of Spark does once, before it works for us: it keeps the process for many tasks.

After each task Spark collects garbage, and so looks at every object that there is: with the libraries that read tables
this takes 15 to 35 ms, more than a small task does. What is there when a task begins are modules, which stay; they are
taken out of its sight. What else a task costs is told in `004-python-task-overhead.md`.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_FREEZES_MAX = 2
"""What is imported on first use is there when the second task begins."""
_freezes = 0


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """A task of ours in a worker of Spark's. Picklable as it is."""

    task: Task

    @property
    def __name__(self) -> str:
        """What a plan of Spark calls it."""
        return str(getattr(self.task, "__name__", type(self.task).__name__))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_up_worker()
        return self.task(batches)


def set_up_worker() -> None:
    """Between two tasks no garbage is left, so that nothing is kept that would go."""
    global _freezes
    if _freezes < _FREEZES_MAX:
        _freezes += 1
        gc.freeze()
