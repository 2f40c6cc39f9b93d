"""Branches: pylance and this library create, write, read and delete each other's branches. The tests name the traps of
the format that concern branches.
"""

import json
from pathlib import Path

import lance
import pytest

from lance_core import AlreadyExists, Corrupt, InvalidInput, NotFound, Table
from tests.lance_core.versions.test_refs import ids, rows


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    born = Table.create(str(tmp_path / "t"), rows(1, 2), stable_row_ids=request.param)
    return born.append(rows(3)).table


def their_branch(table: Table, name: str) -> lance.LanceDataset:
    return lance.dataset(table.uri).checkout_version((name, None))


def described(theirs: lance.LanceDataset, name: str) -> dict:
    branch = theirs.branches.list()[name]
    return {
        "parent": (branch["parent_branch"], branch["parent_version"]),
        "lineage": [version for version, _uuid in branch["branch_identifier"]],
        "rest": (branch["manifest_size"], branch["metadata"]),
    }


def test_branches_are_described_as_by_pylance(table: Table) -> None:
    theirs = lance.dataset(table.uri)
    theirs.create_branch("their/one", 1)
    their_sub = theirs.checkout_version(("their/one", None)).create_branch("their-sub")
    ours = table.branches.create("our/one", 1)
    our_sub = ours.branches.create("our-sub")
    for one, other in (("our/one", "their/one"), ("our-sub", "their-sub")):
        own, yours = described(theirs, one), described(theirs, other)
        assert own["lineage"] == yours["lineage"]
        if one == "our/one":
            assert own == yours
        else:  # manifest sizes differ because the branch names do
            assert (own["parent"], yours["parent"]) == (("our/one", 1), ("their/one", 1))
    assert our_sub.version == their_sub.version == 1
    assert ids(our_sub) == their_sub.to_table()["id"].to_pylist() == [1, 2]
    assert sorted(table.branches.list()) == sorted(theirs.branches.list())
    assert table.branches.list()["our-sub"].is_below(table.branches.list()["our/one"])


def test_trap_27_a_branch_goes_on_from_its_parents_number(table: Table) -> None:
    trial = table.branches.create("dev/x")
    assert (trial.version, trial.branch, table.branch) == (2, "dev/x", None)
    root = Path(table.uri)
    assert [path.name for path in (root / "_refs/branches").iterdir()] == ["dev%2Fx.json"]
    members = json.loads((root / "_refs/branches/dev%2Fx.json").read_text())
    assert list(members) == ["parentBranch", "identifier", "parentVersion", "createAt", "manifestSize", "metadata"]
    assert [version for version, _uuid in members["identifier"]["version_mapping"]] == [2]
    assert trial.append(rows(4)).version == 3
    assert their_branch(table, "dev/x").version == 3


def test_both_write_to_our_branch(table: Table) -> None:
    trial = table.branches.create("trial").append(rows(10)).table
    theirs = their_branch(table, "trial")
    theirs.delete("id = 1")
    theirs = their_branch(table, "trial")
    assert theirs.to_table()["id"].to_pylist() == ids(trial.refresh()) == [2, 3, 10]
    trial = trial.refresh().delete("id = 3").table
    assert their_branch(table, "trial").to_table()["id"].to_pylist() == ids(trial) == [2, 10]
    assert ids(table.refresh()) == lance.dataset(table.uri).to_table()["id"].to_pylist() == [1, 2, 3]


def test_both_write_to_their_branch(table: Table) -> None:
    lance.dataset(table.uri).create_branch("trial", 1)
    trial = Table.open(table.uri, branch="trial")
    assert (trial.version, trial.branch, ids(trial)) == (1, "trial", [1, 2])
    trial = trial.delete("id = 1").table.append(rows(9)).table
    assert their_branch(table, "trial").to_table()["id"].to_pylist() == ids(trial) == [2, 9]
    reopened = Table.open(trial.uri)  # by its own URI
    assert (reopened.branch, ids(reopened), reopened.id) == ("trial", [2, 9], table.id)
    assert ids(Table.open(table.uri, branch="trial", version=1)) == [1, 2]
    assert [info.operation for info in trial.versions()] == ["Clone", "Delete", "Append"]


def test_from_a_version_a_tag_and_another_branch(table: Table) -> None:
    table.tags.create("first", 1)
    assert ids(table.branches.create("a", 1)) == ids(table.branches.create("b", tag="first")) == [1, 2]
    deep = table.branches.create("c").append(rows(4)).table.branches.create("c/d")
    assert ids(deep.append(rows(5)).table) == [1, 2, 3, 4, 5]
    assert their_branch(table, "c/d").to_table()["id"].to_pylist() == [1, 2, 3, 4, 5]
    assert [base.name for base in deep.manifest.base_paths] == [None, "c"]
    with pytest.raises(InvalidInput, match="pass only one of them"):
        table.branches.create("e", 1, tag="first")


def test_a_branch_in_use_is_not_deleted(table: Table) -> None:
    base = table.branches.create("base")
    base.branches.create("top")
    base.tags.create("good")
    with pytest.raises(InvalidInput, match="'base' is in use by the branch 'top', the tag 'good'"):
        table.branches.delete("base")
    table.branches.delete("top")
    table.tags.delete("good")
    table.branches.delete("base")
    assert table.branches.list() == {}
    assert lance.dataset(table.uri).branches.list() == {}
    with pytest.raises(NotFound, match="has no branch 'base'"):
        Table.open(table.uri, branch="base")


def test_deleting_leaves_branches_of_nested_names_alone(table: Table) -> None:
    table.branches.create("dev")
    table.branches.create("dev/x").append(rows(8))
    table.branches.delete("dev")
    assert ids(Table.open(table.uri, branch="dev/x")) == [1, 2, 3, 8]
    assert sorted(path.name for path in (Path(table.uri) / "tree/dev").iterdir()) == ["x"]
    lance.dataset(table.uri).branches.delete("dev/x")
    assert table.branches.list() == {}
    table.branches.create("dev")
    table.branches.delete("dev")
    assert not (Path(table.uri) / "tree/dev").exists()


def test_names_are_taken_once(table: Table) -> None:
    lance.dataset(table.uri).create_branch("dev", 1)
    with pytest.raises(AlreadyExists, match="already has a branch 'dev'"):
        table.branches.create("dev")
    with pytest.raises(InvalidInput, match="cannot name a branch"):
        table.branches.create("main")
    assert ids(Table.open(table.uri, branch="main")) == [1, 2, 3]


def test_an_interrupted_creation_is_continued(table: Table) -> None:
    table.branches.create("dev")
    reference = Path(table.uri) / "_refs/branches/dev.json"
    reference.unlink()
    assert table.branches.list() == {}
    again = table.branches.create("dev")
    assert (again.version, list(table.branches.list())) == (2, ["dev"])
    reference.unlink()
    with pytest.raises(AlreadyExists, match="is not a branch"):
        table.branches.create("dev", 1)


def test_a_branch_without_its_reference_does_not_exist(table: Table) -> None:
    table.branches.create("dev")
    (Path(table.uri) / "_refs/branches/dev.json").unlink()
    with pytest.raises(NotFound, match="has no branch 'dev'"):
        Table.open(table.uri, branch="dev")


def test_a_branch_moved_without_its_table_has_no_references(table: Table, tmp_path: Path) -> None:
    trial = table.branches.create("dev").append(rows(9)).table
    Path(trial.uri).rename(tmp_path / "moved")
    moved = Table.open(str(tmp_path / "moved"), bases=[table.uri])
    assert ids(moved) == [1, 2, 3, 9]
    with pytest.raises(Corrupt, match="is not located where that branch would be"):
        moved.tags.list()
    with pytest.raises(InvalidInput, match="outside the table"):
        Table.open(str(tmp_path / "moved")).to_table()


def test_restore_and_indices_on_a_branch(table: Table) -> None:
    lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    trial = table.refresh().branches.create("dev")
    assert their_branch(table, "dev").to_table(filter="id = 2")["id"].to_pylist() == [2]
    later = trial.delete("id = 2").table
    assert ids(later.restore(trial.version).table) == [1, 2, 3]
    assert their_branch(table, "dev").to_table(filter="id = 2")["id"].to_pylist() == [2]


def test_a_branch_of_a_table_behind_a_link(table: Table, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(table.uri)
    lance.dataset(str(tmp_path / "link")).create_branch("dev", 1)
    assert ids(Table.open(table.uri, branch="dev")) == ids(Table.open(str(tmp_path / "link"), branch="dev")) == [1, 2]


def test_pylance_stores_a_relative_path_as_it_was_given(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is resolved if it leads into the table and rejected otherwise; the reader never guesses."""
    monkeypatch.chdir(tmp_path)
    lance.dataset("t").create_branch("dev", 1)
    branch = Table.open(table.uri, branch="dev")
    assert [base.path for base in branch.manifest.base_paths] == ["t"]
    assert ids(branch) == [1, 2]
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    with pytest.raises(InvalidInput, match="outside the table"):
        Table.open(table.uri, branch="dev").to_table()
