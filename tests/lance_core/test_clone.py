"""Clones: shallow and deep clones and the bases of their files, compared with pylance. The tests name the traps of the
format that concern clones.
"""

import json
import pickle
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_core import AlreadyExists, Corrupt, InvalidInput, NotFound, StorageError, Table
from lance_core.format._pb import table_pb2
from lance_core.format.base_path import BasePath, add_bases, smallest_free_id
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.format.naming import qualify_path, split_qualified_path
from lance_core.operations import Append
from lance_core.tasks.scan.read import ReadTask, VersionRef, plan_read
from tests.lance_core.versions.test_refs import ids, rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with three versions, deleted rows, an index, config and metadata."""
    path = str(tmp_path / "t")
    Table.create(path, rows(1, 2, 3), config={"team": "red"}).append(rows(4))
    theirs = lance.dataset(path)
    theirs.create_scalar_index("id", "BTREE")
    theirs.delete("id = 2")
    return Table.open(path)


def comparable_manifest(manifest: Manifest) -> dict:
    """Return the manifest without the fields that differ between clones."""
    message = manifest.message
    fragments = [str(fragment) for fragment in message.fragments]
    config = {key: value for key, value in message.config.items() if key != "lance_assets.table_id"}
    return {
        "fragments": fragments,
        "bases": manifest.base_paths,
        "config": config,
        "flags": (message.reader_feature_flags, message.writer_feature_flags),
        "version": message.version,
        "max_fragment_id": message.max_fragment_id,
        "branch": manifest.branch,
        "indices": manifest.index_section,
    }


@pytest.mark.parametrize("shallow", [True, False], ids=["shallow", "deep"])
def test_a_clone_equals_that_of_pylance(table: Table, tmp_path: Path, shallow: bool) -> None:
    source = lance.dataset(table.uri)
    if shallow:
        source.shallow_clone(str(tmp_path / "theirs"), table.version)
    else:
        source.deep_clone(str(tmp_path / "theirs"), table.version)
    ours = table.clone(str(tmp_path / "ours"), shallow)
    theirs = Table.open(str(tmp_path / "theirs"), bases=[table.uri])
    assert comparable_manifest(ours.manifest) == comparable_manifest(theirs.manifest)
    created = [each.transaction() for each in (ours, theirs)]
    assert created[0].operation == created[1].operation  # type: ignore[union-attr]
    assert ids(ours) == ids(theirs) == lance.dataset(ours.uri).to_table()["id"].to_pylist() == [1, 3, 4]
    assert lance.dataset(ours.uri).to_table(filter="id = 3")["id"].to_pylist() == [3]
    files = [
        sorted(str(path.relative_to(root)) for path in root.rglob("*.*") if path.parent.name != "_transactions")
        for root in (tmp_path / "ours", tmp_path / "theirs")
    ]
    assert files[0] == files[1]


def test_a_clone_is_independent(table: Table, tmp_path: Path) -> None:
    assert table.clone(str(tmp_path / "c")).id not in (None, table.id)
    foreign = lance.write_dataset(rows(1), str(tmp_path / "foreign"))
    foreign.shallow_clone(str(tmp_path / "d"), 1)
    assert Table.open(str(tmp_path / "d")).id not in (None, Table.open(foreign.uri).id)


@pytest.mark.parametrize("shallow", [True, False])
def test_an_intent_counts_for_one_table_and_one_branch(table: Table, tmp_path: Path, shallow: bool) -> None:
    """A clone and a branch are other targets: the same intent writes there once more. A copied directory is not one."""
    source = table.append(rows(7), intent="load").table
    clone = source.clone(str(tmp_path / "clone"), shallow=shallow)
    branch = source.branches.create("dev")
    for target in (clone, branch):
        before = target.count_rows()
        assert not (made := target.append(rows(7), intent="load")).already_committed
        assert made.table.append(rows(7), intent="load").already_committed
        assert made.table.refresh().count_rows() == before + rows(7).num_rows
    shutil.copytree(source.uri, tmp_path / "copy")
    assert Table.open(tmp_path / "copy").append(rows(7), intent="load").already_committed


def test_trap_28_base_zero_is_a_base(table: Table, tmp_path: Path) -> None:
    clone = table.clone(str(tmp_path / "c"))
    assert [base.id for base in clone.manifest.base_paths] == [0]
    assert {file.base_id for fragment in clone.fragments for file in fragment.files} == {0}
    assert [(fragment.deletion_file.base_id if fragment.deletion_file else None) for fragment in clone.fragments] == [
        0,
        None,
    ]
    grown = clone.append(rows(5)).table.delete("id = 1").table
    assert [file.base_id for fragment in grown.fragments for file in fragment.files] == [0, 0, None]
    deleted = grown.fragments[0].deletion_file
    assert deleted is not None
    assert (deleted.base_id, deleted.deleted_rows) == (None, 2)
    assert ids(grown) == lance.dataset(grown.uri).to_table()["id"].to_pylist() == [3, 4, 5]
    assert ids(table.refresh()) == [1, 3, 4]


def test_both_write_to_either_clone(table: Table, tmp_path: Path) -> None:
    ours = table.clone(str(tmp_path / "c"))
    lance.write_dataset(rows(10), ours.uri, mode="append").delete("id = 3")
    assert ids(ours.refresh()) == [1, 4, 10]
    lance.dataset(table.uri).shallow_clone(str(tmp_path / "d"), 1)
    theirs = Table.open(str(tmp_path / "d"), bases=[table.uri])
    theirs = theirs.append(rows(11)).table.delete("id = 1").table
    assert lance.dataset(theirs.uri).to_table()["id"].to_pylist() == ids(theirs) == [2, 3, 11]


def test_clones_of_clones(table: Table, tmp_path: Path) -> None:
    middle = table.clone(str(tmp_path / "c")).append(rows(5)).table
    last = middle.clone(str(tmp_path / "d"))
    assert [(base.id, base.path) for base in last.manifest.base_paths] == [(0, table.uri), (1, middle.uri)]
    assert ids(last) == lance.dataset(last.uri).to_table()["id"].to_pylist() == [1, 3, 4, 5]
    with pytest.raises(InvalidInput, match="outside the table") as raised:
        Table.open(last.uri, bases=[middle.uri]).to_table()
    assert str([middle.uri, table.uri]) in str(raised.value)
    alone = last.clone(str(tmp_path / "e"), shallow=False)
    assert (alone.manifest.base_paths, ids(alone)) == ((), [1, 3, 4, 5])
    assert ids(Table.open(alone.uri)) == lance.dataset(alone.uri).to_table()["id"].to_pylist() == [1, 3, 4, 5]


def test_clones_of_branches_and_tags(table: Table, tmp_path: Path) -> None:
    trial = table.branches.create("dev", 1).append(rows(9)).table
    trial.tags.create("good")
    clone = Table.open(table.uri, tag="good").clone(str(tmp_path / "c"))
    assert (clone.branch, clone.version, ids(clone)) == (None, 2, [1, 2, 3, 9])
    assert [(base.id, base.name) for base in clone.manifest.base_paths] == [(0, None), (1, "dev")]
    assert lance.dataset(clone.uri).to_table()["id"].to_pylist() == [1, 2, 3, 9]


@pytest.mark.filterwarnings("ignore::lance_core.IndexIgnored")
def test_files_outside_are_opened_only_if_allowed(table: Table, tmp_path: Path) -> None:
    clone = table.clone(str(tmp_path / "c"))
    outsider = Table.open(clone.uri)
    assert outsider.count_rows() == 3  # a count needs the manifest alone
    for reading in (outsider.to_table, lambda: outsider.delete("id = 1"), lambda: outsider.count_rows("id = 1")):
        with pytest.raises(InvalidInput, match="outside the table") as raised:
            reading()
        assert f"bases=['{table.uri}']" in str(raised.value)
    assert ids(Table.open(clone.uri, bases=[table.uri])) == [1, 3, 4]
    assert ids(Table.open(clone.uri, bases=[str(tmp_path)])) == [1, 3, 4]  # any base below the allowed path
    with pytest.raises(InvalidInput, match="outside the table"):
        Table.open(clone.uri, bases=[f"{table.uri}x", f"{table.uri}/data"]).to_table()


@pytest.mark.parametrize(
    "trick", ["{t}/../secret", "{c}/../secret", "file://{t}/../secret", "file://{t}/%2e%2e/secret"]
)
def test_malicious_base_paths_are_rejected(table: Table, tmp_path: Path, trick: str) -> None:
    clone = table.clone(str(tmp_path / "c"))
    Table.create(str(tmp_path / "secret"), rows(42))
    message = clone.manifest.copy_header()
    message.base_paths[0].path = trick.format(t=table.uri, c=clone.uri)
    forged = Manifest.from_header(message, index_section=None, transaction=None, path=clone.manifest.path)
    (Path(clone.uri) / clone.manifest.path).write_bytes(forged.encode())
    with pytest.raises(InvalidInput, match="outside the table"):
        Table.open(clone.uri, bases=[table.uri]).to_table()


def test_a_link_out_of_the_table_is_not_followed(table: Table, tmp_path: Path) -> None:
    clone = table.clone(str(tmp_path / "c"))
    (Path(clone.uri) / "inside").symlink_to(table.uri)
    message = clone.manifest.copy_header()
    message.base_paths[0].path = f"{clone.uri}/inside"
    forged = Manifest.from_header(message, index_section=None, transaction=None, path=clone.manifest.path)
    (Path(clone.uri) / clone.manifest.path).write_bytes(forged.encode())
    with pytest.raises(InvalidInput, match="outside the table"):
        Table.open(clone.uri).to_table()


def test_a_missing_base_is_corruption(table: Table, tmp_path: Path) -> None:
    clone = table.clone(str(tmp_path / "c"))
    message = clone.manifest.copy_header()
    message.base_paths[0].id = 7
    forged = Manifest.from_header(message, index_section=None, transaction=None, path=clone.manifest.path)
    (Path(clone.uri) / clone.manifest.path).write_bytes(forged.encode())
    with pytest.raises(Corrupt, match="in base path 0, but the manifest has no base path with this id"):
        Table.open(clone.uri, bases=[table.uri]).to_table()


def test_trap_37_a_source_knows_the_clones_we_make(table: Table, tmp_path: Path) -> None:
    """A cleanup spares the files of recorded clones; a cleanup of pylance deletes them."""
    clone = table.clone(str(tmp_path / "c"))
    (record,) = (Path(table.uri) / "_lance_assets/clones").iterdir()
    assert json.loads(record.read_text()) == {"version": table.version, "uri": clone.uri}
    lance.dataset(table.uri).delete("true")
    lance.dataset(table.uri).cleanup_old_versions(timedelta(0), delete_unverified=True)
    with pytest.raises(NotFound):
        clone.to_table()


def test_a_clone_needs_an_empty_directory(table: Table, tmp_path: Path) -> None:
    Table.create(str(tmp_path / "c"), rows(1))
    for shallow in (True, False):
        with pytest.raises(AlreadyExists, match="a table already exists at"):
            table.clone(str(tmp_path / "c"), shallow)
    (Path(table.uri) / "data").rename(tmp_path / "gone")
    with pytest.raises(NotFound, match="does not exist"):
        table.clone(str(tmp_path / "d"), shallow=False)
    assert not Table.exists(str(tmp_path / "d"))


def test_added_base_paths_equal_those_of_pylance(table: Table, tmp_path: Path) -> None:
    ours = table.add_bases([BasePath(str(tmp_path / "b1"), name="one"), BasePath(str(tmp_path / "b2"))]).table
    assert [(base.id, base.name, base.is_dataset_root) for base in ours.manifest.base_paths] == [
        (1, "one", False),
        (2, None, False),
    ]
    theirs = lance.dataset(table.uri)
    assert {number: base.path for number, base in theirs.base_paths().items()} == {
        1: str(tmp_path / "b1"),
        2: str(tmp_path / "b2"),
    }
    theirs.add_bases([lance.DatasetBasePath(str(tmp_path / "b9"), "nine", True, id=9)])
    theirs.add_bases([lance.DatasetBasePath(str(tmp_path / "b3"), "three", True)])
    assert [base.id for base in table.refresh().manifest.base_paths] == [1, 2, 3, 9]
    assert table.refresh().transaction().operation.name == "UpdateBases"  # type: ignore[union-attr]


@pytest.mark.parametrize("is_root", [False, True], ids=["files right in it", "a table's directories"])
def test_files_of_pylance_in_a_base_are_read(tmp_path: Path, is_root: bool) -> None:
    path, other = str(tmp_path / "t"), tmp_path / "other"
    other.mkdir()
    base = lance.DatasetBasePath(str(other), "other", is_root)
    lance.write_dataset(rows(1), path, initial_bases=[base], target_bases=["other"])
    lance.write_dataset(rows(2), path, mode="append")
    table = Table.open(path, bases=[str(other)])
    assert [file.base_id for fragment in table.fragments for file in fragment.files] == [1, None]
    assert ids(table) == ids(table.append(rows(3)).table)[:2] == [1, 2]
    with pytest.raises(InvalidInput, match="outside the table"):
        Table.open(path).to_table()
    data_file = table.fragments[0].files[0].path
    directory = other / "data" if is_root else other
    message = table_pb2.DataFragment()
    message.CopyFrom(table.fragments[0].message)
    message.files[0].path = "copied.lance"
    shutil.copy(directory / data_file, directory / "copied.lance")
    again = table.refresh().commit(Append((Fragment(message),))).table
    assert lance.dataset(path).to_table()["id"].to_pylist() == ids(again) == [1, 2, 3, 1]


def test_names_and_numbers_of_bases() -> None:
    assert smallest_free_id((), first=0) == 0
    assert smallest_free_id([BasePath("a", 0), BasePath("b", 2)], first=0) == 1
    assert [base.id for base in add_bases([BasePath("a", 1)], [BasePath("b"), BasePath("c", 9)])] == [1, 2, 9]
    for new in (BasePath("a"), BasePath("b", name="n")):
        with pytest.raises(InvalidInput, match="needs another name and path"):
            add_bases([BasePath("a", 1, "n")], [new])
    with pytest.raises(InvalidInput, match="the id 1 is already used by base path a"):
        add_bases([BasePath("a", 1)], [BasePath("b", 1)])
    for base_id in (None, 0, 12):
        assert split_qualified_path(qualify_path(base_id, "data/x.lance")) == (base_id, "data/x.lance")


def test_a_clone_of_a_table_with_every_kind_of_column(tmp_path: Path) -> None:
    data = pa.table({"s": [{"x": 1, "y": "a"}], "l": [[1, 2]], "v": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))})
    table = Table.create(str(tmp_path / "t"), data, stable_row_ids=True)
    for shallow in (True, False):
        clone = table.clone(str(tmp_path / str(shallow)), shallow)
        assert clone.to_table().equals(table.to_table())
        assert lance.dataset(clone.uri).to_table().equals(lance.dataset(table.uri).to_table())
        assert clone.append(data).table.count_rows() == 2


def test_workers_have_the_permissions_of_the_driver(table: Table, tmp_path: Path) -> None:
    clone = table.clone(str(tmp_path / "c"))
    for opened in (clone, Table.open(clone.uri), table.branches.create("dev")):
        base = VersionRef(opened.uri, bases=opened.bases).snapshot()
        plan = plan_read(base, transport=lambda schema: schema, slots=1)
        task = pickle.loads(pickle.dumps(ReadTask(plan)))
        numbers = pa.RecordBatch.from_pydict({"id": pa.array([0])})
        if opened.bases or opened.branch:
            assert pa.Table.from_batches(task([numbers]))["id"].to_pylist() == [1, 3, 4]
        else:
            with pytest.raises(InvalidInput, match="outside the table"):
                list(task([numbers]))


@pytest.mark.parametrize("shallow", [True, False], ids=["shallow", "deep"])
@pytest.mark.parametrize("below", ["data/x", "tree/x", "x", "tree/dev/data/x"])
def test_a_clone_within_its_source_is_rejected(table: Table, below: str, shallow: bool) -> None:
    """A cleanup of the source or of its branch would treat the files of the clone as orphans."""
    dev = table.branches.create("dev")
    before = sorted(Path(table.uri).rglob("*"))
    for source in (table, dev):
        with pytest.raises(InvalidInput, match=r"is inside .*; clone to a location outside it"):
            source.clone(f"{table.uri}/{below}", shallow)
    assert sorted(Path(table.uri).rglob("*")) == before


def test_a_clone_next_to_its_source_is_accepted(table: Table) -> None:
    assert ids(table.clone(Path(f"{table.uri}-clone"), shallow=False)) == [1, 3, 4]


@pytest.mark.parametrize("linked", ["data", "_deletions", "_indices"])
def test_a_deep_clone_follows_no_link_out_of_the_table(table: Table, tmp_path: Path, linked: str) -> None:
    """A file that may not be read may not be copied either."""
    file = next(path for path in sorted(Path(table.uri, linked).rglob("*")) if path.is_file())
    secret = tmp_path / f"secret{file.suffix}"
    file.rename(secret)
    file.symlink_to(secret)
    with pytest.raises(StorageError, match="is a link out of"):
        table.clone(str(tmp_path / "copy"), shallow=False)
    assert not Table.exists(str(tmp_path / "copy"))
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.name == file.name]


def test_a_deep_clone_writes_through_no_link_out_of_its_directory(table: Table, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/data").symlink_to(outside)
    with pytest.raises(StorageError, match="is a link out of"):
        table.clone(str(tmp_path / "copy"), shallow=False)
    assert not list(outside.iterdir())


@pytest.mark.parametrize("bases", ["/nothing/else", "/", b"/"])
def test_bases_must_not_be_a_string(table: Table, tmp_path: Path, bases: Any) -> None:
    """The first character of the string would allow the whole disk."""
    clone = str(tmp_path / "clone")
    table.clone(clone)
    for opened in (Table.open, Table.check):
        with pytest.raises(InvalidInput, match=r"bases must be a list of locations \(strings\), not"):
            opened(clone, bases=bases)
    with pytest.raises(InvalidInput, match="outside the table"):
        Table.open(clone, bases=["/nothing/else"]).to_table()
    assert ids(Table.open(clone, bases=(table.uri,))) == [1, 3, 4]
