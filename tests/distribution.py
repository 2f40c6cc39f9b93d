"""Distribution of the tests over workers: the tests of a file run on one worker, and so do all tests that share a Spark
session or servers, so that each of those starts once.

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

_ROOT = Path(__file__).parents[1]
SPARK = "tests/lance_assets with Spark"
_USES_SPARK = re.compile(r"spark: (SparkSession|Any)|usefixtures\(\"spark\"\)")
_SERVERS = ("tests/lance_core/storage/manifest_stores", "tests/lance_core/storage")
_LONGEST = (
    SPARK,
    "tests/histories/test_simulation.py",
    "tests/interop/test_programs.py",
    "tests/clusters/test_clusters.py",
    "tests/lance_assets/test_demo.py",
    "tests/lance_assets/test_demo_crashes.py",
    "tests/lance_assets/test_run_crashes.py",
    "tests/test_readme.py",
    "tests/lance_assets/test_concurrent_recording.py",
    "tests/histories/test_maintenance_simulation.py",
)


@cache
def group_of(file: str) -> str:
    """Return the group of the tests in a file, a path relative to the root of the project."""
    if file.startswith("tests/lance_assets/") and _USES_SPARK.search((_ROOT / file).read_text()):
        return SPARK
    return next((directory for directory in _SERVERS if file.startswith(f"{directory}/")), file)


def rank_of(group: str) -> int:
    """Return the position of a group; all others come after those that take longest, in their order."""
    return _LONGEST.index(group) if group in _LONGEST else len(_LONGEST)


class FileGroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Scheduler that gives each group to one worker, in the order of collection."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False  # by number of tests
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])
