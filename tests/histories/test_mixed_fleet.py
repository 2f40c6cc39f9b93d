"""Tests of a mixed fleet with kills, and proof that its oracle detects violations and planted defects. `make torture`
runs more processes for minutes. A kill keeps the cache of the operating system, so that missing syncs are for the power
loss harness to find."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lance_core import Table
from tests.histories.hammer_locations import TableLocation, create_local_table
from tests.histories.mixed_fleet import FleetResult, WriterLog, find_violations, run_fleet
from tests.histories.mixed_fleet_writer import Message, RowChange, WriterJob, make_row
from tests.syscalls.planted_defects import DEFECTS, MANIFEST_BEFORE_DATA
from tests.torture.mixed_fleet import PR


def test_killed_writers_of_both_libraries_lose_and_double_nothing(tmp_path: Path) -> None:
    location = create_local_table(tmp_path)
    result = run_fleet(location, PR.local)
    assert find_violations(location, result, versions_checked=30) == []
    assert result.kill_count > 0
    assert {log.job.engine for log in result.logs if log.acknowledged_count} >= {"ours", "pylance"}


def write_log(location: TableLocation) -> tuple[Table, WriterLog]:
    """Append three rows in this process, update one of them, and return the log of that."""
    table = location.open_table()
    log = WriterLog(WriterJob("ours", location.uri, {}, writer=0, seed=0))
    for change in (*(RowChange(row, "append", row, row) for row in range(3)), RowChange(3, "update", 1, 30)):
        log.record(Message("begin", change))
        if change.verb == "append":
            table = table.append(make_row(change.row, change.row)).table
        else:
            table = table.update({"n": str(change.value)}, f"id = {change.row}").table
        log.record(Message("done", change))
    return table, log


def _lose_a_commit(table: Table, log: WriterLog) -> None:
    table.restore(table.version - 1)


def _append_a_row_again(table: Table, log: WriterLog) -> None:
    table.append(make_row(2, 2))


def _append_a_row_of_nobody(table: Table, log: WriterLog) -> None:
    table.append(make_row(77, 2))


def _remove_a_data_file(table: Table, log: WriterLog) -> None:
    min(Path(table.uri, "data").iterdir()).unlink()


def _forget_a_change(table: Table, log: WriterLog) -> None:
    log.record(Message("begin", RowChange(4, "update", 2, 40)))


def _acknowledge_before_the_commit(table: Table, log: WriterLog) -> None:
    log.record(Message("done", RowChange(4, "delete", 2)))


def _put_the_manifest_first_and_die(table: Table, log: WriterLog) -> None:
    process = multiprocessing.get_context("forkserver").Process(target=append_until_killed, args=(table.uri,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def append_until_killed(uri: str) -> None:
    """Append with the planted defect. The process is killed between the manifest and the data file."""
    DEFECTS[MANIFEST_BEFORE_DATA]()
    rename = Path.rename

    def rename_or_die(path: Path, target: Path | str) -> Path:
        if path.suffix == ".late":
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(path, target)

    Path.rename = rename_or_die  # type: ignore[method-assign, assignment]
    Table.open(uri).append(make_row(9, 9))


@pytest.mark.parametrize(
    "violate",
    [
        _lose_a_commit,
        _append_a_row_again,
        _append_a_row_of_nobody,
        _remove_a_data_file,
        _forget_a_change,
        _acknowledge_before_the_commit,
        _put_the_manifest_first_and_die,
    ],
)
def test_violations_are_detected(violate: Callable[[Table, WriterLog], None], tmp_path: Path) -> None:
    location = create_local_table(tmp_path)
    table, log = write_log(location)
    assert find_violations(location, FleetResult([log])) == []
    violate(table, log)
    assert find_violations(location, FleetResult([log])) != []


@pytest.mark.parametrize(("engine", "possible"), [("pylance", {7, None}), ("ours", None)])
def test_a_killed_change_is_undecided_unless_it_is_repeated(engine: str, possible: set[int | None] | None) -> None:
    log = WriterLog(WriterJob(engine, "t", {}, writer=0, seed=0))
    log.record(Message("begin", RowChange(0, "append", 5, 7)))
    log.record_kill()
    assert log.possible.get(5) == possible
    assert (log.next_job().pending is None) is (engine == "pylance")
    assert log.next_job().rows == {}
