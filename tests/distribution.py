"""Distribution of the tests over workers: the tests of a file run on one worker, and so do all tests that share a
server of programs or servers of a store, so that each of those starts once. The tests with Spark share the session of
the first worker.

The groups that take longest start first, so that the workers end at the same time. The scheduler takes the place of
pytest-xdist's for `--dist loadgroup`, which ignores groups with pytest 9.2 (pytest-dev/pytest-xdist#1386). Start at
`FileGroupScheduling`.
"""

import re
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_ROOT = Path(__file__).parents[1]
SPARK = "tests/lance_assets with Spark"
_USES_SPARK = re.compile(r"spark: (SparkSession|Any)|usefixtures\(\"spark\"\)")
PROGRAMS = "tests with forked programs"
_USES_PROGRAMS = re.compile(r"programs: ForkedPrograms")
_SERVERS = ("tests/lance_core/storage/manifest_stores", "tests/lance_core/storage")
_LONGEST = (
    SPARK,
    "tests/histories/test_simulation.py",
    "tests/interop/test_programs.py",
    PROGRAMS,
    "tests/lance_assets/test_concurrent_recording.py",
    "tests/histories/test_maintenance_simulation.py",
)


@cache
def group_of(file: str) -> str:
    """Return the group of the tests in a file, a path relative to the root of the project."""
    text = (_ROOT / file).read_text() if (_ROOT / file).is_file() else ""
    if file.startswith("tests/lance_assets/") and _USES_SPARK.search(text):
        return SPARK
    if _USES_PROGRAMS.search(text):
        return PROGRAMS
    return next((directory for directory in _SERVERS if file.startswith(f"{directory}/")), file)


def rank_of(group: str) -> int:
    """Return the position of a group; all others come after those that take longest, in their order."""
    return _LONGEST.index(group) if group in _LONGEST else len(_LONGEST)


class FileGroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Scheduler that gives each group to one worker, in the order of collection.

    The files with Spark run on the first worker. Another worker takes one of them when no other group is left, and
    starts a session of its own: that costs less than to wait for the first worker.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False  # by number of tests
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        group = group_of(file)
        return file if group == SPARK else group

    def _assign_work_unit(self, node: WorkerController) -> None:
        runs_spark = node is self.nodes[0]
        suitable = (scope for scope in self.workqueue if (group_of(scope) == SPARK) == runs_spark)
        if scope := next(suitable, None):
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)
