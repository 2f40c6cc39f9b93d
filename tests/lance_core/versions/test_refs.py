"""Tags: this library and pylance use each other's tags."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import AlreadyExists, Corrupt, InvalidInput, NotFound, StorageError, Table
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.versions.refs import create_reference
from tests.lance_core.in_memory_table import Fault, FaultyStore, on_call


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def ids(table: Table) -> list[int]:
    return table.to_table()["id"].to_pylist()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with two versions: one row, then two."""
    return Table.create(str(tmp_path / "t"), rows(1)).append(rows(2)).table


def test_pylance_uses_tags_of_this_library(table: Table) -> None:
    table.tags.create("first", 1)
    table.tags.create("now", metadata={"why": "release"})
    theirs = lance.dataset(table.uri)
    assert {name: tag["version"] for name, tag in theirs.tags.list().items()} == {"first": 1, "now": 2}
    assert theirs.tags.list()["now"]["metadata"] == {"why": "release"}
    assert theirs.checkout_version("first").count_rows() == 1
    theirs.tags.update("first", 2)
    theirs.tags.delete("now")
    assert {name: tag.version for name, tag in table.tags.list().items()} == {"first": 2}


def test_this_library_uses_tags_of_pylance(table: Table) -> None:
    theirs = lance.dataset(table.uri)
    theirs.tags.create("first", 1)
    before = table.tags.list()["first"]
    assert (before.version, before.branch, before.created) == (1, None, before.updated)
    assert before.manifest_bytes == (Path(table.uri) / Table.open(table.uri, tag="first").manifest.path).stat().st_size
    assert ids(table.at(tag="first")) == [1]
    table.tags.update("first", 2)
    after = table.tags.list()["first"]
    assert (after.version, after.created) == (2, before.created)
    assert after.updated_at is not None
    assert before.created_at is not None
    assert after.updated_at > before.created_at
    assert theirs.tags.list()["first"]["version"] == 2
    table.tags.delete("first")
    assert theirs.tags.list() == {}


def test_tag_files_are_equal_except_for_their_time(table: Table) -> None:
    table.tags.create("ours", 1)
    lance.dataset(table.uri).tags.create("theirs", 1)
    texts = [(Path(table.uri) / f"_refs/tags/{name}.json").read_text() for name in ("ours", "theirs")]
    stamps = [json.loads(text)["createdAt"] for text in texts]
    ours, theirs = (text.replace(stamp, "now") for text, stamp in zip(texts, stamps, strict=True))
    assert ours == theirs


def test_tags_of_branches_are_stored_in_the_main_branch(table: Table) -> None:
    trial = table.branches.create("dev/trial", 1).append(rows(7)).table
    trial.tags.create("good")
    assert table.tags.list()["good"].branch == "dev/trial"
    assert ids(table.at(tag="good")) == ids(Table.open(table.uri, tag="good")) == [1, 7]
    table.tags.create("same", branch="dev/trial")
    trial.tags.create("newest-main", branch="main")
    assert ids(trial.at(tag="newest-main")) == [1, 2]
    assert lance.dataset(table.uri).checkout_version("good").to_table()["id"].to_pylist() == [1, 7]


def test_errors_list_existing_tags_and_versions(table: Table) -> None:
    table.tags.create("v1")
    with pytest.raises(AlreadyExists, match="already has a tag 'v1'"):
        table.tags.create("v1")
    with pytest.raises(NotFound, match="has no version 9; it has 1-2"):
        table.tags.create("v9", 9)
    for operation in (table.tags.delete, table.tags.update, lambda name: table.at(tag=name)):
        with pytest.raises(NotFound, match="has no tag 'v2'; it has v1"):
            operation("v2")
    with pytest.raises(NotFound, match="has no branch 'dev'; it has no branches"):
        table.tags.create("v2", branch="dev")


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "%2e%2e", "a/b", ".."])
def test_hostile_names_are_rejected(table: Table, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot name a tag"):
        Table.open(table.uri, tag=name)
    with pytest.raises(InvalidInput, match="cannot name a tag"):
        table.tags.create(name)
    if name != "a/b":
        with pytest.raises(InvalidInput, match="cannot name a branch"):
            Table.open(table.uri, branch=name)


def test_a_tag_that_points_outside_the_table_is_rejected(table: Table, tmp_path: Path) -> None:
    Table.create(str(tmp_path / "secret"), rows(42))
    table.tags.create("v1")
    path = Path(table.uri) / "_refs/tags/v1.json"
    path.write_text(json.dumps({"branch": "../../secret", "version": 1, "manifestSize": 1}))
    with pytest.raises(Corrupt, match=r"has the invalid branch name '\.\./\.\./secret'"):
        table.at(tag="v1")


def test_two_references_to_a_version_are_rejected(table: Table) -> None:
    table.tags.create("v1")
    with pytest.raises(InvalidInput, match="pass only one of them"):
        table.at(1, tag="v1")
    with pytest.raises(InvalidInput, match="pass either tag= or branch="):
        Table.open(table.uri, tag="v1", branch="dev")
    with pytest.raises(InvalidInput, match="pass only one of them"):
        Table.open(table.uri, tag="v1", timestamp=datetime.now(UTC))


def test_a_lost_answer_is_decided_by_reading() -> None:
    for outcome, is_stored in (("lost", True), ("never", False)):
        store = FaultyStore(faults=[Fault(on_call("create"), outcome)])
        if is_stored:
            assert create_reference(store, "_refs/tags/a.json", b"1")
        else:
            with pytest.raises(StorageError, match=r"it is unknown whether .* was written; repeat"):
                create_reference(store, "_refs/tags/a.json", b"1")


def test_creation_times_come_from_the_clock_of_the_writer(table: Table) -> None:
    table.tags.create("v1")
    created = table.tags.list()["v1"].created_at
    assert created is not None
    assert abs(created - datetime.fromtimestamp(SYSTEM_RUNTIME.now_ns() / 1e9, UTC)) < timedelta(minutes=1)
