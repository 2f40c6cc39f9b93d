"""Tests of `lance_core/tasks/partitioning.py`: errors of workers that no retry can fix reach the driver unchanged."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lance_core import InvalidInput, LanceError, MissingDependency, Table
from lance_core.tasks.partitioning import PartitionTask, VersionHeader, collect_results
from lance_core.tasks.scan.read import VersionRef
from lance_core.versions.snapshot import Snapshot
from tests.lance_core.tasks.in_process_workers import InProcessWorkers


class Failure:
    """Partition function that raises an error of this class."""

    def __init__(self, error: type[LanceError]) -> None:
        self._error = error

    def __call__(self, partition: Snapshot, number: int) -> Iterator[bytes]:
        raise self._error(f"partition {number} failed")


@pytest.mark.parametrize("error", [InvalidInput, MissingDependency])
def test_an_error_of_a_worker_keeps_its_class(error: type[LanceError], tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", {"id": [1]}, durable=False)
    base = VersionRef(table.uri).snapshot()
    workers = InProcessWorkers()
    results = workers.run(PartitionTask(VersionHeader.of(base), ((),), Failure(error)), 1)
    with pytest.raises(error, match="partition 0 failed"):
        collect_results(results, 1, uri=table.uri)
    assert workers.attempts == [0]
