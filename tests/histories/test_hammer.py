"""Tests with real processes that are killed and restarted with the same intents, on a real directory and on an object
store behind an unreliable network; and proof that the invariants detect violations. `make torture` runs the full size.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lance_core import Table
from tests.histories.hammer import HammerResult, Size, assign_work, run_hammer
from tests.histories.hammer_invariants import find_violations
from tests.histories.hammer_locations import TableLocation, create_local_table, create_s3_table
from tests.histories.hammer_writer import VERBS, WORK_PROPERTY, Job, WorkItem, WorkResult, make_row, run_work

LOCAL = Size(writers=3, works_per_writer=6, kill_count=3)
S3 = Size(writers=2, works_per_writer=4, kill_count=1)
FAULTS_PER_REQUEST = 0.05
ONE_WRITER = Size(writers=1, works_per_writer=25, kill_count=0, seed=0)


def check(location: TableLocation, size: Size) -> HammerResult:
    result = run_hammer(location, size)
    assert find_violations(location, size, result) == []
    return result


def test_killed_writers_commit_once(tmp_path: Path) -> None:
    result = check(create_local_table(tmp_path), LOCAL)
    assert result.kill_count == LOCAL.kill_count
    assert not result.errors


def test_killed_writers_commit_once_over_an_unreliable_network() -> None:
    with create_s3_table(FAULTS_PER_REQUEST) as location:
        assert check(location, S3).kill_count == S3.kill_count


def run_in_this_process(location: TableLocation) -> HammerResult:
    """Run all operations of one writer in this process, one after the other."""
    (work_items,) = assign_work(ONE_WRITER)
    job = Job(location.uri, {}, durable=False, work=work_items)
    return HammerResult(results=[run_work(job, work) for work in work_items])


def test_all_verbs_are_used(tmp_path: Path) -> None:
    assert {work.verb for work in assign_work(ONE_WRITER)[0]} == set(VERBS)
    location = create_local_table(tmp_path)
    assert find_violations(location, ONE_WRITER, run_in_this_process(location)) == []


def _commit_intent_twice(location: TableLocation, result: HammerResult) -> None:
    Table.open(location.uri).append(make_row(0, 0), properties={WORK_PROPERTY: result.results[0].intent})


def _lose_commits(location: TableLocation, result: HammerResult) -> None:
    Table.open(location.uri).restore(len(result.results) // 2)


def _report_two_versions(location: TableLocation, result: HammerResult) -> None:
    result.results.append(replace(result.results[0], version=99))


def _omit_reports(location: TableLocation, result: HammerResult) -> None:
    result.results = [report for report in result.results if report.intent != result.results[0].intent]


def _change_a_value(location: TableLocation, result: HammerResult) -> None:
    Table.open(location.uri).update({"n": "n + 1"}, properties={WORK_PROPERTY: result.results[0].intent})


@pytest.mark.parametrize(
    "violate", [_commit_intent_twice, _lose_commits, _report_two_versions, _omit_reports, _change_a_value]
)
def test_violations_are_detected(violate: Callable[[TableLocation, HammerResult], None], tmp_path: Path) -> None:
    location = create_local_table(tmp_path)
    result = run_in_this_process(location)
    violate(location, result)
    assert find_violations(location, ONE_WRITER, result)


def test_repeated_work_is_already_committed(tmp_path: Path) -> None:
    """A writer that was killed before it could report its result repeats it in this way."""
    location = create_local_table(tmp_path)
    work = WorkItem("once", "append", 1)
    job = Job(location.uri, {}, durable=False, work=(work, work))
    first, second = (run_work(job, each) for each in job.work)
    assert isinstance(first, WorkResult)
    assert (first.version, first.already_committed) == (2, False)
    assert (second.version, second.already_committed) == (2, True)
