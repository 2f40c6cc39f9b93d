"""Tests of operations that are stopped at some of their calls, on every storage backend; `crash_points.py` states the
guarantees, and `make torture` stops the operations at all calls.
"""

import pytest

from tests.histories.crash_points import CrashScenario
from tests.histories.planted_defects import planted_defect
from tests.histories.stoppable_operations import STOPPABLE_OPERATIONS
from tests.histories.storage_backends import STORAGE_BACKENDS
from tests.torture import crashes

DEFAULT_OPERATIONS = ("create", "append", "upsert keys 0 and 100", "compact", "delete a branch", "cleanup")
SLOW_OPERATIONS = ("update v of fragment 0", "merge z")
SLOW_BACKENDS = {
    "disk": (17, SLOW_OPERATIONS),
    "bucket of an emulator": (3, SLOW_OPERATIONS),
    "disk with database": (11, SLOW_OPERATIONS[:1]),
}
"""Slow backends run one of this many crash points of these operations."""


@pytest.mark.parametrize("backend", STORAGE_BACKENDS)
def test_operations_recover_from_crashes(backend: str) -> None:
    every, operations = SLOW_BACKENDS.get(backend, (13, DEFAULT_OPERATIONS))
    report = crashes.run(crashes.Size(every=every, backends=(backend,), operations=operations))
    assert not report.failures, "\n".join(report.failures)
    assert report.case_count >= 5


@pytest.mark.parametrize("name", STOPPABLE_OPERATIONS)
def test_every_operation_recovers_in_memory(name: str) -> None:
    scenario = CrashScenario(STORAGE_BACKENDS["memory"](), STOPPABLE_OPERATIONS[name])
    points = list(scenario.crash_points())
    assert len(points) >= 8
    first = len(name) % 8
    problems = [problem for point in points[first::16] if (problem := scenario.find_problem(point))]
    assert not problems, "\n".join(problems)


def test_missing_search_for_earlier_commit_is_detected() -> None:
    with planted_defect("earlier commit not searched for"):
        scenario = CrashScenario(STORAGE_BACKENDS["memory"](), STOPPABLE_OPERATIONS["append"])
        assert any("damaged" in scenario.find_problem(point) for point in scenario.crash_points())


def test_branch_that_is_visible_too_early_is_detected() -> None:
    with planted_defect("branch visible before its first version"):
        scenario = CrashScenario(STORAGE_BACKENDS["memory"](), STOPPABLE_OPERATIONS["branch"])
        problems = map(scenario.find_problem, scenario.crash_points())
        assert any("there is no Lance table" in problem for problem in problems)
