"""In-process workers: run the partitions of a task in turn from its pickle, without Spark."""

import pickle
from dataclasses import dataclass, field

import pyarrow as pa

from lance_core.tasks.partitioning import RESULT, Task


@dataclass
class InProcessWorkers:
    """Task runner that repeats the partitions in `lost_partitions`.

    As in Spark, a lost attempt has written its files, and its result is ignored. `attempts` lists the partition of each
    attempt.
    """

    slots: int = 2
    lost_partitions: frozenset[int] = frozenset()
    attempts: list[int] = field(default_factory=list)

    def run(self, task: Task, parts: int) -> pa.Table:
        pickled = pickle.dumps(task)
        batches: list[pa.RecordBatch] = []
        for number in reversed(range(parts)):
            for _attempt in range(2 if number in self.lost_partitions else 1):
                worker: Task = pickle.loads(pickled)
                results = list(worker([pa.record_batch({"id": pa.array([number], pa.int64())})]))
                self.attempts.append(number)
            batches += results
        return pa.Table.from_batches(batches, RESULT)
