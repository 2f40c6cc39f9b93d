"""Tests of the disk model: what a sync covers, and that unsynced changes may be lost."""

import random
from collections.abc import Sequence

import pytest

from tests.syscalls.disk_model import MODELS, PAGE, SECTOR, DiskModel, DiskState
from tests.syscalls.events import FileEvent

CONTENT = bytes(range(1, 251)) * 40


def states_after(model: str, events: Sequence[FileEvent]) -> list[DiskState]:
    disk = DiskModel(model)
    for number, event in enumerate(events):
        disk.apply(number, event)
    return list(disk.sample_states(len(events), random.Random(0), samples=200))


def written(path: str = "d/a", *, file: int = 1) -> list[FileEvent]:
    return [FileEvent("create", path, file=file), FileEvent("write", file=file, data=CONTENT)]


MADE = [FileEvent("make", "d"), FileEvent("sync directory", "", since=1)]


def synced(kind: str, path: str, since: int, *, file: int = 0, has_failed: bool = False) -> FileEvent:
    return FileEvent(kind, path, file=file, since=since, has_failed=has_failed)


@pytest.mark.parametrize("model", MODELS)
def test_a_synced_file_with_a_synced_name_survives(model: str) -> None:
    events = [*MADE, *written(), synced("sync", "d/a", 4, file=1), synced("sync directory", "d", 5)]
    assert [state.files for state in states_after(model, events)] == [{"d/a": CONTENT}] * 200


def test_a_file_without_a_synced_name_may_be_lost() -> None:
    events = [*MADE, *written(), synced("sync", "d/a", 4, file=1)]
    assert {frozenset(state.files) for state in states_after("weak", events)} == {frozenset(), frozenset({"d/a"})}
    assert all(state.files == {"d/a": CONTENT} for state in states_after("ordered", events))


def test_the_name_of_a_directory_is_in_its_parent() -> None:
    events = [FileEvent("make", "d"), *written(), synced("sync", "d/a", 3, file=1), synced("sync directory", "d", 4)]
    assert any(not state.files for state in states_after("weak", events))


def test_contents_without_sync() -> None:
    contents = {
        model: {s.files["d/a"] for s in states_after(model, [*MADE, *written()]) if s.files} for model in MODELS
    }
    assert {len(content) % PAGE for content in contents["ordered"]} == {0, len(CONTENT) % PAGE}
    assert all(CONTENT.startswith(content) for content in contents["ordered"])
    assert bytes(len(CONTENT)) in contents["weak"]
    assert b"" in contents["weak"] & contents["ordered"]
    assert any(0 < content.count(0) < len(CONTENT) for content in contents["weak"])
    assert all(len(content) in (len(CONTENT), *range(0, len(CONTENT), SECTOR)) for content in contents["weak"])


@pytest.mark.parametrize("model", MODELS)
def test_a_failed_sync_is_not_repaired_by_another(model: str) -> None:
    failed = synced("sync", "d/a", 4, file=1, has_failed=True)
    again = synced("sync", "d/a", 5, file=1)
    later = [FileEvent("write", file=1, offset=len(CONTENT), data=b"x"), synced("sync", "d/a", 7, file=1)]
    states = states_after(model, [*MADE, *written(), failed, again, *later, synced("sync directory", "d", 8)])
    assert any(CONTENT not in state.files["d/a"] for state in states)


@pytest.mark.parametrize("model", MODELS)
def test_a_sync_covers_what_ended_before_it_began(model: str) -> None:
    events = [*MADE, *written(), synced("sync", "d/a", 3, file=1), synced("sync directory", "d", 5)]
    assert any(state.files["d/a"] != CONTENT for state in states_after(model, events))


@pytest.mark.parametrize("model", MODELS)
def test_a_rename_is_atomic_for_its_target(model: str) -> None:
    old = [*written("d/a"), synced("sync", "d/a", 4, file=1), synced("sync directory", "d", 5)]
    new = [*written("d/b", file=2), synced("sync", "d/b", 8, file=2), synced("sync directory", "d", 9)]
    states = states_after(model, [*MADE, *old, *new, FileEvent("rename", "d/b", "d/a")])
    assert {frozenset(state.files) for state in states} <= {frozenset({"d/a"}), frozenset({"d/a", "d/b"})}
    assert any("d/b" not in state.files for state in states)


def test_names_are_lost_in_order_where_the_journal_keeps_it() -> None:
    events = [*MADE, *written("d/a", file=1), *written("d/b", file=2)]
    in_order = {frozenset(), frozenset({"d/a"}), frozenset({"d/a", "d/b"})}
    assert {frozenset(state.files) for state in states_after("ordered", events)} == in_order
    assert frozenset({"d/b"}) in {frozenset(state.files) for state in states_after("weak", events)}
