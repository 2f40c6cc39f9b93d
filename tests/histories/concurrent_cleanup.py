"""Concurrent cleanup: threads append to a real table on local disk and read tagged versions, while another thread
cleans the table up continuously with a forced cleanup that keeps one version.

A cleanup leaves versions younger than a minute alone, and commits rely on it (`lance_core/commit/fencing.py`). Here a
minute lasts a third of a second for all threads, so a short run removes many versions, and a thread that waits for the
interpreter counts as suspended.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import lance
import pyarrow as pa
import pytest

from lance_core import AlreadyExists, CommitUndecided, ConflictError, LanceError, NotFound, StorageError, Table
from lance_core.commit import fencing
from lance_core.maintenance import cleanup
from lance_core.versions import version_hint

SHORT_MINUTE = timedelta(milliseconds=300)


@dataclass
class CleanupRunResult:
    """Appended values by their outcome, the work of the other threads, and the problems that were found."""

    acknowledged: list[int] = field(default_factory=list)
    undecided: list[int] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    versions_read: int = 0
    """Number of versions that were tagged and then read."""
    versions_removed: int = 0
    cleanup_count: int = 0
    problems: list[str] = field(default_factory=list)


@contextmanager
def shortened_time_limits() -> Iterator[None]:
    """Shorten the minute that cleanup waits, and the limits of writers that depend on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleanup, "YOUNG_VERSION_AGE", SHORT_MINUTE)
        patch.setattr(version_hint, "HINT_DELAY_MAX", SHORT_MINUTE / 2)
        patch.setattr(fencing, "STALL_NS", SHORT_MINUTE // timedelta(microseconds=1) * 1000 // 3)
        yield


def run_concurrent_cleanup(uri: str, *, seconds: float, writers: int = 4) -> CleanupRunResult:
    result = CleanupRunResult()
    Table.create(uri, pa.schema([("id", pa.int64())]), durable=False)
    end = time.perf_counter() + seconds

    def append_as(writer: int) -> Callable[[int], None]:
        return lambda turn: _append_value(uri, result, turn * writers + writer)

    actions = [append_as(writer) for writer in range(writers)]
    actions += [lambda turn: _clean_up(uri, result), lambda turn: _tag_and_read(uri, result, turn)]

    def repeat_action(action: Callable[[int], None]) -> None:
        turn = 0
        while time.perf_counter() < end and not result.problems:
            try:
                action(turn)
            except Exception as error:  # noqa: BLE001 - every unexpected error is a problem
                result.problems.append(f"{type(error).__name__}: {error}")
            turn += 1

    with shortened_time_limits():
        threads = [threading.Thread(target=repeat_action, args=(action,)) for action in actions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    result.problems += _find_problems(uri, result)
    return result


def _append_value(uri: str, result: CleanupRunResult, value: int) -> None:
    try:
        Table.open(uri, durable=False).append(pa.table({"id": [value]}))
    except CommitUndecided:
        result.undecided.append(value)
    except (ConflictError, NotFound):
        result.rejected.append(value)
    else:
        result.acknowledged.append(value)


def _clean_up(uri: str, result: CleanupRunResult) -> None:
    hour = timedelta(hours=1)
    table = Table.open(uri, durable=False)
    report = table.cleanup(older_than=timedelta(0), keep=1, orphan_grace=hour, force=True)
    result.versions_removed += len(report.versions)
    result.cleanup_count += 1


def _tag_and_read(uri: str, result: CleanupRunResult, turn: int) -> None:
    """Tag the oldest version and read it to its end, however long that takes."""
    name = f"t{turn}"
    try:
        table = Table.open(uri, durable=False)
        table.tags.create(name, table.version_numbers()[0])
    except (AlreadyExists, NotFound, StorageError):
        return
    tagged = Table.open(uri, tag=name)
    rows = tagged.to_table().num_rows
    if rows != tagged.count_rows():
        result.problems.append(f"version {tagged.version} has {rows} rows but counts {tagged.count_rows()}")
    table.tags.delete(name)
    result.versions_read += 1


def _find_problems(uri: str, result: CleanupRunResult) -> list[str]:
    try:
        rows = Counter(Table.open(uri).to_table()["id"].to_pylist())
        count_by_pylance = lance.dataset(uri).count_rows()
    except LanceError as error:
        return [f"the table cannot be read: {error}"]
    problems = []
    if count_by_pylance != rows.total():
        problems.append(f"pylance reads {count_by_pylance} rows, and Table reads {rows.total()}")
    if lost := set(result.acknowledged) - set(rows):
        problems.append(f"{len(lost)} acknowledged rows are lost, such as {min(lost)}")
    if duplicates := {value for value, count in rows.items() if count > 1}:
        problems.append(f"{len(duplicates)} rows exist more than once, such as {min(duplicates)}")
    if unexpected := set(result.rejected) & set(rows):
        problems.append(f"{len(unexpected)} rejected rows exist, such as {min(unexpected)}")
    return problems
