"""Succession: contents decide whether a version stands in a gap. The times of files may be those of a copy, of a clock
that was set, or of a file system that stores whole seconds."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import CommitUndecided, Table
from lance_core.commit.succession import find_unrelated_successor
from lance_core.commit.write_protocol import StartedWrite, begin, finish
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.operations import Append
from lance_core.storage.memory import MemoryStore
from lance_core.versions.location import locate
from lance_core.versions.snapshot import list_versions, load_at
from tests.lance_core.in_memory_table import (
    Fault,
    FaultyStore,
    InMemoryTable,
    deterministic_runtime,
    on_call,
    on_create,
)

ROWS = pa.table({"id": [1, 2, 3], "x": ["a", "b", "c"]})
NOTE = on_call("put", "_lance_assets/intents/")
"""The heartbeat of an intent and, as the second such call, the record of its commit."""


class Died(Exception):
    """The process ends here."""


def die() -> None:
    raise Died


CLOCKS: dict[str, Callable[[int], datetime]] = {
    "a clock that runs": lambda call: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=call),
    "a clock that runs backwards": lambda call: datetime(2026, 1, 1, tzinfo=UTC) - timedelta(seconds=call),
    "a clock that jumps ahead and back": lambda call: datetime(2026, 1, 1 + 27 * (call % 2), tzinfo=UTC),
    "a store of whole days": lambda call: datetime(2026, 1, 1, tzinfo=UTC),
}


@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
def test_an_intent_that_was_committed_is_found_whatever_the_times_are(clock: Callable[[int], datetime]) -> None:
    """The process died between the commit and its record, and others have committed since."""
    calls = iter(range(10**6))
    stored = MemoryStore(now=lambda: clock(next(calls)))
    InMemoryTable(stored).create("a")
    dying = FaultyStore(stored, [Fault(NOTE, "", lambda: None), Fault(NOTE, "", die)])
    with pytest.raises(Died):
        InMemoryTable(dying).append("b", intent="i")
    world = InMemoryTable(stored)
    for writer, name in enumerate("cd", start=10):
        world.append(name, writer=writer)
    assert (made := world.append("b", intent="i", writer=20)).already_committed
    assert made.summary.version == 2
    assert world.file_names() == ["a", "b", "c", "d"]


def test_an_intent_is_found_in_a_copy_of_the_table(tmp_path: Path) -> None:
    """A copy is made in the order of names, the newest version first."""
    table = Table.create(tmp_path / "t", ROWS, durable=False)
    table.append(ROWS, intent="i")
    for _ in range(3):
        table = Table.open(tmp_path / "t").append(ROWS).table
    (record,) = Path(tmp_path, "t", "_lance_assets", "intents").iterdir()
    landed = record.read_text()
    record.write_text(landed[: landed.index('"landing"')] + '"landing": null}')
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "t", copy)
    for place, name in enumerate(sorted(path.name for path in (copy / "_versions").iterdir())):
        os.utime(copy / "_versions" / name, (1_000 + place, 1_000 + place))
    made = Table.open(copy).append(ROWS, intent="i")
    assert (made.already_committed, made.version) == (True, 2)
    assert Table.open(copy).count_rows() == 15


def append(uri: Path) -> None:
    lance.write_dataset(ROWS, uri, mode="append")


def overwrite(uri: Path) -> None:
    lance.write_dataset(ROWS, uri, mode="overwrite")


def delete(uri: Path) -> None:
    lance.dataset(uri).delete("id = 1")


def update(uri: Path) -> None:
    lance.dataset(uri).update({"x": "'z'"}, where="id = 2")


def add_columns(uri: Path) -> None:
    lance.dataset(uri).add_columns({"y": "id + 1"})


def drop_columns(uri: Path) -> None:
    lance.dataset(uri).drop_columns(["x"])


def compact(uri: Path) -> None:
    append(uri)  # so that there are two fragments
    lance.dataset(uri).optimize.compact_files()


def build_index(uri: Path) -> None:
    lance.dataset(uri).create_scalar_index("id", "BTREE")


def change_config(uri: Path) -> None:
    lance.dataset(uri).update_config({"k": "v"})


OURS: dict[str, Callable[[Table], object]] = {
    "append": lambda table: table.append(ROWS),
    "delete": lambda table: table.delete("id = 3"),
    "set_config": lambda table: table.set_config({"mine": "1"}),
}
THEIRS = [append, delete, update, add_columns, drop_columns, compact, build_index, change_config, overwrite]


@pytest.mark.parametrize("theirs", THEIRS)
@pytest.mark.parametrize("ours", OURS)
def test_a_successor_by_another_library(tmp_path: Path, ours: str, theirs: Callable[[Path], None]) -> None:
    """pylance records no parent, so its version is compared. A version in a gap is found unless nothing of any version
    before it would be left."""
    root = tmp_path / "t"
    Table.create(root, ROWS, durable=False)
    shutil.copytree(root, tmp_path / "late")
    made = OURS[ours](Table.open(root))
    assert made is not None
    theirs(root)
    location = locate(root)
    assert find_unrelated_successor(load_at(location, Version(2))) is None
    late = Table.open(tmp_path / "late").append(ROWS.slice(1)).table
    put = Path(late.uri, late.manifest.path)
    shutil.copytree(tmp_path / "late" / "data", root / "data", dirs_exist_ok=True)
    shutil.copytree(tmp_path / "late" / "_transactions", root / "_transactions", dirs_exist_ok=True)
    shutil.copy(put, root / naming.VERSIONS / put.name)
    unrelated = find_unrelated_successor(load_at(location, Version(2)))
    assert unrelated == (None if theirs is overwrite else 3)


def test_a_version_whose_successor_was_removed_is_known_by_its_files(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = Table.create(root, ROWS, durable=False)
    for _ in range(3):
        table = table.append(ROWS).table
    (root / Table.open(root).at(version=3).manifest.path).unlink()
    assert find_unrelated_successor(load_at(locate(root), Version(2))) is None
    table.compact()
    assert find_unrelated_successor(load_at(locate(root), Version(2))) is None  # version 4 has its files
    *_, last = list_versions(locate(root)).numbers
    for version in range(4, last):
        (root / naming.manifest_path(Version(version))).unlink()
    assert find_unrelated_successor(load_at(locate(root), Version(2))) == last


def test_a_removed_version_is_known_by_the_files_of_its_intent() -> None:
    """A cleanup removed the version before the writer could record it; a later version has its files."""
    stored = MemoryStore()
    InMemoryTable(stored).create("a")
    dying = FaultyStore(stored, [Fault(NOTE, "", lambda: None), Fault(NOTE, "", die)])
    with pytest.raises(Died):
        InMemoryTable(dying).append("b", intent="i")
    world = InMemoryTable(stored)
    world.append("c", writer=10)
    stored.delete(naming.manifest_path(Version(2)))
    for writer in (20, 21):
        made = world.append("b", intent="i", writer=writer)
        assert (made.already_committed, made.summary.version, made.summary.rows_added) == (True, 2, 1)
        assert made.snapshot.version == 3
    assert world.file_names() == ["a", "b", "c"]


def test_a_version_that_is_removed_during_the_search_for_files_is_skipped() -> None:
    """Another process cleans up while a repeated write looks for the files of its intent."""
    third = naming.manifest_path(Version(3))
    undisturbed = FaultyStore(store_with_unrecorded_append())
    InMemoryTable(undisturbed).append("b", intent="i", writer=20)
    stored = store_with_unrecorded_append()
    faults = [Fault(on_call("read", third), "") for _ in range(undisturbed.calls.count(("read", third)) - 1)]
    store = FaultyStore(stored, [*faults, Fault(on_call("read", third), "", lambda: stored.delete(third))])
    made = InMemoryTable(store).append("b", intent="i", writer=20)
    assert (made.already_committed, made.summary.version) == (True, 3)
    assert InMemoryTable(stored).file_names() == ["a", "b", "c", "d"]


def store_with_unrecorded_append() -> MemoryStore:
    """Return a table whose second version was put by a process that died then, and removed after two more versions."""
    stored = MemoryStore()
    InMemoryTable(stored).create("a")
    dying = FaultyStore(stored, [Fault(NOTE, "", lambda: None), Fault(NOTE, "", die)])
    with pytest.raises(Died):
        InMemoryTable(dying).append("b", intent="i")
    for writer, name in enumerate("cd", start=10):
        InMemoryTable(stored).append(name, writer=writer)
    stored.delete(naming.manifest_path(Version(2)))
    return stored


def test_an_unanswered_put_is_settled_by_files_if_a_cleanup_removed_its_version() -> None:
    """Its answer was lost, and others committed and cleaned up before the writer could read."""
    stored = MemoryStore()
    world = InMemoryTable(stored)
    world.create("a")

    def commit_and_clean() -> None:
        world.append("c", writer=10)
        stored.delete(naming.manifest_path(Version(2)))

    def is_after_the_put(call: str, path: str) -> bool:
        return call == "list" and ("create", naming.manifest_path(Version(2))) in store.calls

    store = FaultyStore(stored, [Fault(on_create(naming.VERSIONS), "lost")])
    store.faults.append(Fault(is_after_the_put, "", commit_and_clean))
    made = InMemoryTable(store).append("b", intent="i")
    assert (made.already_committed, made.summary.version) == (True, 2)
    assert world.file_names() == ["a", "b", "c"]


def test_a_version_in_a_gap_does_not_settle_itself() -> None:
    """It references its own files, and no later version is based on it."""
    now = [0]
    stored = MemoryStore()
    world = InMemoryTable(stored)
    world.create("a")

    def three_commits_and_a_cleanup() -> None:
        for writer, name in enumerate("cde", start=10):
            world.append(name, writer=writer)
        for version in (1, 2, 3):
            stored.delete(naming.manifest_path(Version(version)))
        now[0] += 120 * 10**9

    store = FaultyStore(stored, [Fault(on_create(naming.VERSIONS), "", three_commits_and_a_cleanup)])
    late = InMemoryTable(store)
    begun = begin(
        late.location(),
        late.at(),
        verb="append",
        intent="i",
        runtime=replace(deterministic_runtime(5), elapsed_ns=lambda: now[0]),
    )
    assert isinstance(begun, StartedWrite)
    for _ in range(2):
        with pytest.raises(CommitUndecided, match="in a gap"):
            finish(begun, Append(late.fragments("late")), properties={}, attempts=3)
    assert world.file_names() == ["a", "c", "d", "e"]


def test_what_cannot_be_known_is_undecided() -> None:
    """The version of the intent is gone, and so is the one that would tell."""
    stored = MemoryStore()
    InMemoryTable(stored).create("a")
    dying = FaultyStore(stored, [Fault(NOTE, "", lambda: None), Fault(NOTE, "", die)])
    with pytest.raises(Died):
        InMemoryTable(dying).append("b", intent="i")
    world = InMemoryTable(stored)
    for writer, name in enumerate("cd", start=10):
        world.append(name, writer=writer)
    world.overwrite("e", writer=12)
    for version in (2, 3, 4):
        stored.delete(naming.manifest_path(Version(version)))
    with pytest.raises(CommitUndecided, match="a cleanup removed version 2"):
        world.append("b", intent="i", writer=20)
