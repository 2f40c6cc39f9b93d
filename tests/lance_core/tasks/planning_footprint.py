"""Planning footprint: measures the memory and the task sizes of a driver that plans operations on many fragments.

The test `test_planning_footprint.py` runs this program in a process of its own, so that the peak of its memory is that
of the planning. The tasks are pickled and measured but not run.
"""

import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lance_core.tasks.columns.map_columns import Computation, map_columns
from lance_core.tasks.compaction.compact import GROUPS_PER_COMMIT, compact
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.partitioning import Task
from lance_core.tasks.rows.delete import delete
from lance_core.tasks.rows.update import update
from lance_core.tasks.rows.write import ROWS_PER_FILE_MAX, FileLimits, PlannedWrite, WriteTask, begin_append
from lance_core.tasks.scan.aggregate import aggregate
from lance_core.tasks.scan.read import ReadTask, VersionRef, count_rows, plan_read

SLOTS = 64


class TaskMeasured(Exception):
    """Raised instead of running a task; carries the size of its pickle."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


@dataclass(frozen=True, slots=True)
class MeasuringRunner:
    slots: int = SLOTS

    def run(self, task: Task, parts: int) -> pa.Table:
        raise TaskMeasured(len(pickle.dumps(task)))


def return_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def measure_task_sizes(uri: str) -> dict[str, int]:
    where, how, runner = TableRef(uri, durable=False), WriteOptions(), MeasuringRunner()
    limits = FileLimits(ROWS_PER_FILE_MAX, 2**30)
    computation = Computation(return_batch, ["id"], pa.schema([pa.field("other", pa.int64())]))
    operations: dict[str, Callable[[], object]] = {
        "delete": lambda: delete(where, "k = 3", options=how, runner=runner),
        "update": lambda: update(where, {"k": "k + 1"}, "k = 3", limits=limits, options=how, runner=runner),
        "map_columns": lambda: map_columns(
            where, computation, resume_key="k", progress=None, options=how, runner=runner
        ),
        "compact": lambda: compact(
            where,
            target_rows=10_000,
            materialize_deletions=True,
            remap=None,
            batch=GROUPS_PER_COMMIT,
            options=how,
            runner=runner,
        ),
        "count": lambda: count_rows(VersionRef(uri).snapshot(), "k = 3", runner=lambda: runner),
        "aggregate": lambda: aggregate(VersionRef(uri).snapshot(), "select sum(k) from dataset", runner=lambda: runner),
    }
    sizes = {}
    for name, operation in operations.items():
        try:
            operation()
        except TaskMeasured as planned:
            sizes[name] = planned.size
    plan = plan_read(VersionRef(uri).snapshot(), transport=lambda schema: schema, slots=SLOTS)
    sizes["read"] = len(pickle.dumps(ReadTask(plan)))
    write = begin_append(uri, plan.arrow, create=False, intent=None, limits=limits, durable=False)
    assert isinstance(write, PlannedWrite)
    sizes["append"] = len(pickle.dumps(WriteTask(write.plan)))
    return sizes


if __name__ == "__main__":
    task_sizes = measure_task_sizes(sys.argv[1])
    # VmHWM is the peak of this program alone; the peak in `getrusage` includes the process that forked it.
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    print(json.dumps({"sizes": task_sizes, "peak": peak}))
