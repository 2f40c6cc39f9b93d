"""Work of a commit: the number of calls that it makes does not depend on the number of fragments of the table."""

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import pytest

from lance_core.commit.write_protocol import Change, commit_with_retry
from lance_core.format.operations import Append, Delete, Operation, Update
from lance_core.storage import memory
from tests.lance_core.in_memory_table import InMemoryTable, deterministic_runtime

SMALL, LARGE = 300, 3_000
DIFFERENCE_MAX = 40
"""Calls for each additional megabyte of a manifest, which is hashed and compared in blocks."""


def append(table: InMemoryTable) -> Operation:
    return Append(table.fragments("appended"))


def delete(table: InMemoryTable) -> Operation:
    touched, removed = (table.at(1).manifest.fragments[number] for number in (200, 7))
    return Delete((touched.with_counts(5, 0),), (removed.id,), predicate="id = 1")


def update(table: InMemoryTable) -> Operation:
    return Update(removed_ids=(table.at(1).manifest.fragments[200].id,), new=table.fragments("updated"))


def commit(table: InMemoryTable, operation: Operation) -> None:
    """Commit it like `Table.commit`, which does not know the age of its files."""
    change = Change("test", plan=lambda _base: operation, operation=operation.name, files_exist=True)
    commit_with_retry(
        change,
        table.location(),
        table.at(),
        intent=None,
        properties={},
        retries=1,
        runtime=deterministic_runtime(2),
    )


def count_calls(action: Callable[[], object]) -> int:
    """Count calls of functions, except those of the store in memory, which looks at all of its files to list some."""
    calls = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call") and frame.f_code.co_filename != memory.__file__

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(("plan", "added"), [(append, 1), (delete, -1), (update, 0)])
def test_work_follows_the_change(plan: Callable[[InMemoryTable], Operation], added: int) -> None:
    calls = []
    for fragments in (SMALL, SMALL, LARGE):  # the first commit of a process loads modules
        table = InMemoryTable()
        table.create(*(f"old-{number}" for number in range(fragments)))
        operation = plan(table)
        calls.append(count_calls(partial(commit, table, operation)))
        assert len(table.at().manifest.fragments) == fragments + added
    _first, small, large = calls
    assert large <= small + DIFFERENCE_MAX, f"{small} calls with {SMALL} fragments, {large} with {LARGE}"
