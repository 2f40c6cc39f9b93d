"""Configuration of all tests: temporary files in memory, a cheap Java, and the distribution over workers."""

import gc
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests import cheap_java, memory_files
from tests.distribution import FileGroupScheduling, group_of, rank_of

if TYPE_CHECKING:
    from xdist.remote import Producer

    from tests.forked_programs import ForkedPrograms

memory_files.use_for_temporary_files()
cheap_java.use_for_spark()

# Every process that a test starts would compile the project again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

PROOFS = ["lance_assets/test_deployment.py", "lance_assets/components/test_dg_checks.py"]
collect_ignore = [
    *([] if os.environ.get("UI_TESTS") else ["ui"]),
    *([] if os.environ.get("TORCH_TESTS") else ["torch"]),
    *([] if os.environ.get("PLATFORM_TESTS") else ["platforms"]),
    *([] if os.environ.get("PROOFS") == "all" else PROOFS),
]
"""The UI tests need a browser and run with `make test-ui`, those of PyTorch its package with `make torch`,
those of the platforms their client libraries with `make platforms`; the proofs run with
`make dagster-proofs`."""


@pytest.fixture(scope="session")
def programs() -> "Iterator[ForkedPrograms]":
    """Runner of programs in processes of their own, started when the first test needs it."""
    from tests.forked_programs import forked_programs  # imports PySpark, which most tests do without

    with forked_programs() as started:
        yield started


def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> FileGroupScheduling | None:
    return FileGroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests that take longest to the front."""
    items.sort(key=lambda item: rank_of(group_of(item.nodeid.partition("::")[0])))


def pytest_collection_finish() -> None:
    """Exclude the modules and the collected tests from garbage collection."""
    gc.collect()
    gc.freeze()
