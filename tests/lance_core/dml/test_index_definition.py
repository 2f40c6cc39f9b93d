"""Index definition: creating and dropping indices, and the effect of other operations on them.

Pylance must find the same rows with the indices as without them.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import Committed, InvalidInput, Table
from lance_core.commit import write_protocol
from lance_core.errors import IncompatibleConflict, NotFound, StorageError
from lance_core.format.operations import CreateIndex, Update
from lance_core.maintenance.retention_guards import files_in_progress
from lance_core.tasks.compaction import compact
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.partitioning import LocalRunner
from lance_core.versions.location import locate
from tests.lance_core.index.index_differential import FILTER_BY_COLUMN, check_answers, covered_fragments, is_used, rows

COLUMNS_AND_TYPES = [("id", "BTREE"), ("word", "BITMAP"), ("at.x", "BTREE"), ("tags", "LABEL_LIST"), ("id", "ZONEMAP")]


def create_table(directory: Path, *, stable: bool = False, count: int = 130) -> Table:
    return Table.create(directory / "t", rows(0, count), max_rows_per_file=30, stable_row_ids=stable, durable=False)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_both_libraries_use_a_created_index(tmp_path: Path, stable: bool) -> None:
    table = create_table(tmp_path, stable=stable).delete("id % 10 = 4").table
    for column, index_type in COLUMNS_AND_TYPES:
        committed = table.create_index(column, index_type.lower() if index_type == "BITMAP" else index_type)
        table = committed.table
        index = table.indices[-1]
        assert (committed.operation, committed.rows_added, committed.rows_removed) == ("CreateIndex", 0, 0)
        assert (committed.files, committed.bytes) == (len(index.files), sum(file.size for file in index.files))
        assert committed.files >= 1
        assert covered_fragments(table, index.name) == [[0, 1, 2, 3, 4]]
        assert index.dataset_version == committed.version - 1
        assert is_used(table, FILTER_BY_COLUMN[column])
    assert [index.name for index in table.indices] == ["id_idx", "word_idx", "at.x_idx", "tags_idx", "id_idx_2"]
    check_answers(table)
    described = {each.name: each.field_names for each in lance.dataset(table.uri).describe_indices()}
    assert described["at.x_idx"] == ["at.x"]


def test_default_index_names_follow_pylance(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    dataset = lance.dataset(table.uri)
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("id", "BITMAP")
    table = table.refresh().create_index("id", "ZONEMAP").table
    assert [index.name for index in table.indices] == ["id_idx", "id_idx_2", "id_idx_3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("idd", "BTREE"), r"there is no column 'idd'; did you mean 'id'\?"),
        (("at.z", "BTREE"), r"there is no column 'at.z'; available: at.x, at.y|did you mean 'at\.[xy]'"),
        (("id", "HASH"), "kind='HASH'"),
        (("at", "BTREE"), "BTREE index cannot be built on column 'at'"),
        (("tags", "BTREE"), "index types for this column are LABEL_LIST"),
        (("tags.item", "BTREE"), "lies within 'tags'"),
        (("word", "LABEL_LIST"), "index types for this column are BTREE"),
    ],
)
def test_invalid_columns_and_types_are_rejected(tmp_path: Path, arguments: tuple[str, str], message: str) -> None:
    table = create_table(tmp_path)
    with pytest.raises(InvalidInput, match=message):
        table.create_index(*arguments)
    assert table.refresh().version == table.version
    assert not (Path(table.uri) / "_indices").exists()


def test_other_invalid_arguments_are_rejected(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    for arguments, message in (
        ({"name": ""}, "the name of an index is not empty"),
        ({"name": "__lance_frag_reuse"}, "belongs to the library"),
        ({"fragments": [1, 9]}, "no fragment 9"),
        ({"fragments": "1"}, "fragments must be"),
        ({"fragments": [-1]}, "where a fragment id is expected"),
        ({"color": "red"}, "color"),
        ({"replace": "yes"}, "replace"),
    ):
        with pytest.raises(InvalidInput, match=message):
            table.create_index("id", "BTREE", **arguments)
    with pytest.raises(InvalidInput, match=r"there is no index 'x'; this version has none"):
        table.drop_index("x")
    table = table.create_index("id", "BTREE").table
    with pytest.raises(InvalidInput, match=r"there is no index 'id_ix'; did you mean 'id_idx'"):
        table.drop_index("id_ix")


def test_a_duplicate_index_name_is_rejected(tmp_path: Path) -> None:
    table = create_table(tmp_path).create_index("id", "BTREE", name="mine").table
    with pytest.raises(InvalidInput, match=r"an index 'mine' exists already, a BTREE on column 'id'.*replace=True"):
        table.create_index("id", "BTREE", name="mine")
    with pytest.raises(InvalidInput, match=r"'mine' is a BTREE on column 'id', not on 'word'"):
        table.create_index("word", "BTREE", name="mine", replace=True)
    table = table.append(rows(130, 10)).table
    before = table.indices[0]
    table = table.create_index("id", "ZONEMAP", name="mine", replace=True).table
    assert [index.name for index in table.indices] == ["mine"]
    assert table.indices[0].uuid != before.uuid
    assert covered_fragments(table, "mine") == [[0, 1, 2, 3, 4, 5]]
    check_answers(table)
    table = table.create_index("id", "BTREE").table
    with pytest.raises(InvalidInput, match="'id_idx' exists already"):
        table.create_index("id", "BTREE")


def test_uncovered_fragments_are_scanned(tmp_path: Path) -> None:
    table = create_table(tmp_path).create_index("id", "BTREE", fragments=[3, 1, 1]).table
    assert covered_fragments(table, "id_idx") == [[1, 3]]
    check_answers(table)


def test_an_index_is_dropped(tmp_path: Path) -> None:
    table = create_table(tmp_path).create_index("id", "BTREE").table.create_index("word", "BITMAP").table
    directory = Path(table.uri) / table.indices[0].qualified_path
    after = table.drop_index("id_idx").table
    assert [index.name for index in after.indices] == ["word_idx"]
    assert directory.exists()
    assert not is_used(after, "id = 37")
    check_answers(after)
    check_answers(after.restore(table.version).table)


def test_an_empty_table_can_have_an_index(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 1).schema, durable=False)
    for column, index_type in COLUMNS_AND_TYPES:
        table = table.create_index(column, index_type).table
    assert {tuple(index.covers or ()) for index in table.indices} == {()}
    check_answers(table)
    table = table.append(rows(0, 50)).table
    check_answers(table)
    table = table.optimize_indices().table
    assert {tuple(index.covers or ()) for index in table.indices} == {(0,)}
    check_answers(table)


# Concurrent changes


def test_rows_added_concurrently_are_not_covered(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    table.append(rows(130, 10))
    table.delete("id < 35")
    table.update({"word": "'new'"}, where="id = 77")
    committed = table.create_index("id", "BTREE")
    assert covered_fragments(committed.table, "id_idx") == [[0, 1, 2, 3, 4]]
    assert len(committed.rebased_over) == 3
    check_answers(committed.table)


def test_columns_rewritten_concurrently_are_not_covered(tmp_path: Path) -> None:
    """Pylance rewrites the column in place while the index is built on the earlier values."""
    table = create_table(tmp_path).create_index("id", "BTREE").table
    dataset = lance.dataset(table.uri)
    change = dataset.to_table(columns=["id"], filter="id in (3, 4)").append_column("word", pa.array(["a", "b"]))
    dataset.merge_insert("id").when_matched_update_all().execute(change)
    theirs = table.transaction(table.version + 1)
    assert theirs is not None
    assert isinstance(theirs.operation, Update)
    assert theirs.operation.fields_modified
    committed = table.create_index("word", "BITMAP")
    assert covered_fragments(committed.table, "word_idx") == [[1, 2, 3, 4]]
    check_answers(committed.table, ["word = 'a'", "word = 'w3'", "word is null"])


@pytest.mark.parametrize("remap", ["now", "reuse", "none"])
def test_a_concurrent_compaction_causes_a_second_build(tmp_path: Path, remap: str) -> None:
    table = create_table(tmp_path)
    table.compact(remap=remap)  # type: ignore[arg-type]
    committed = table.create_index("id", "BTREE")
    assert [len(each) for each in covered_fragments(committed.table, "id_idx")] == [1]
    assert committed.attempts == 2
    check_answers(committed.table)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_a_concurrent_index_causes_a_second_compaction(tmp_path: Path, stable: bool) -> None:
    table = create_table(tmp_path, stable=stable)
    table.create_index("id", "BTREE").table.create_index("word", "BITMAP")
    committed = table.compact()
    assert [len(each) for name in ("id_idx", "word_idx") for each in covered_fragments(committed.table, name)] == [1, 1]
    assert committed.attempts == 2
    assert is_used(committed.table, "id = 37")
    check_answers(committed.table)


def test_two_indices_of_one_name(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    table.create_index("id", "BTREE", name="it")
    with pytest.raises(InvalidInput, match="an index 'it' exists already"):
        table.create_index("id", "BTREE", name="it")
    committed = table.create_index("id", "BITMAP", name="it", replace=True)
    assert [index.kind for index in committed.table.indices] == ["BitmapIndexDetails"]
    dropped = committed.table.drop_index("it")
    assert dropped.table.indices == committed.table.drop_index("it").table.indices == (), (
        "both drops have removed the index"
    )
    with pytest.raises(InvalidInput, match="no index 'it'"):
        dropped.table.drop_index("it")


def test_a_drop_removes_an_index_that_was_rewritten_concurrently(tmp_path: Path) -> None:
    """The drop was planned before a compaction gave the segment another uuid."""
    table = create_table(tmp_path).create_index("id", "BTREE").table
    table.compact()
    assert table.drop_index("id_idx").table.indices == ()


def test_a_concurrent_overwrite_is_a_conflict(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    table.overwrite(rows(0, 5))
    with pytest.raises(IncompatibleConflict):
        table.create_index("id", "BTREE")


def test_an_intent_commits_once(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    committed = table.create_index("id", "BTREE", intent="index of id")
    again = table.create_index("id", "BTREE", intent="index of id")
    assert again.already_committed
    assert (again.version, again.files, again.bytes) == (committed.version, committed.files, committed.bytes)
    assert len(again.table.indices) == 1


# Other operations on an indexed table


def test_a_rename_keeps_the_index_and_a_cast_is_rejected(tmp_path: Path) -> None:
    table = create_table(tmp_path).create_index("id", "BTREE").table.create_index("tags", "LABEL_LIST").table
    for column, type in (("id", pa.int32()), ("tags.item", pa.large_string())):
        with pytest.raises(InvalidInput, match="cannot be cast while it has an index"):
            table.alter_column(column, type=type)
    table = table.alter_column("id", rename="number").table
    assert [each.column for each in table.index_statistics()] == ["number", "tags"]
    assert is_used(table, "number = 37")
    assert table.drop_columns(["number"]).table.indices[0].name == "tags_idx"
    assert table.overwrite(rows(0, 5)).table.indices == ()


def test_a_clone_reads_the_index_of_its_source(tmp_path: Path) -> None:
    table = create_table(tmp_path).create_index("id", "BTREE").table
    clone = table.clone(tmp_path / "clone")
    assert clone.indices[0].base_id is not None
    assert is_used(clone, "id = 37")
    check_answers(clone)
    clone = clone.append(rows(130, 20)).table.compact().table.optimize_indices().table
    assert [index.base_id for index in clone.indices] == [None]
    check_answers(clone)
    assert table.refresh().version == table.version


def update_word(table: Table) -> Table:
    return table.update({"word": "'new'"}, where="id % 30 = 5").table


def upsert_rows(table: Table) -> Table:
    return table.upsert(rows(120, 20, group=3), on="id").table


def replace_slice(table: Table) -> Table:
    return table.overwrite(rows(0, 4), where="id < 20").table


@pytest.mark.parametrize("change", [update_word, upsert_rows, replace_slice])
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_moved_rows_are_found(tmp_path: Path, stable: bool, change: Callable[[Table], Table]) -> None:
    table = create_table(tmp_path, stable=stable)
    for column, index_type in (("id", "BITMAP"), ("word", "BITMAP"), ("at.x", "BTREE"), ("tags", "LABEL_LIST")):
        table = table.create_index(column, index_type).table
    check_answers(
        change(change(table)), [*FILTER_BY_COLUMN.values(), "word = 'new'", "word is null", "word != 'w1'", "id = 125"]
    )


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_an_index_by_row_ids_covers_moved_rows_with_unchanged_values(tmp_path: Path, stable: bool) -> None:
    """As in pylance, the index covers moved rows if it covered all of them before and its column did not change."""
    table = create_table(tmp_path, stable=stable)
    for column, index_type in (("id", "BITMAP"), ("word", "BITMAP"), ("at.x", "BTREE"), ("id", "ZONEMAP")):
        table = table.create_index(column, index_type).table
    pylance_copy = tmp_path / "twin"
    lance.dataset(table.uri).deep_clone(str(pylance_copy), table.version)
    lance.dataset(pylance_copy).update({"word": "'new'"}, where="id = 5")
    table = table.update({"word": "'new'"}, where="id = 5").table
    extended_coverage = [[0, 1, 2, 3, 4, 5]] if stable else [[0, 1, 2, 3, 4]]
    assert covered_fragments(table, "id_idx") == extended_coverage
    assert {index.name: index.covers for index in table.indices} == {
        index.name: index.covers for index in Table.open(pylance_copy).indices
    }
    assert is_used(table, "id = 5")
    check_answers(table, [*FILTER_BY_COLUMN.values(), "id = 5", "word = 'new'", "at.x = 5"])
    table = table.update({"id": "id + 1000"}, where="id in (5, 40)").table
    assert covered_fragments(table, "id_idx") == extended_coverage
    check_answers(table, ["id = 5", "id = 1005", "id = 1040", "id = 40", "word = 'new'"])
    table = table.update({"word": "'newer'"}, where="id in (1005, 70)").table
    assert covered_fragments(table, "id_idx") == extended_coverage, (
        "some of the rows come from a fragment that the index does not cover"
    )
    check_answers(table, ["id = 1005", "id = 70", "word = 'newer'"])


def test_values_changed_in_place_after_a_deferred_remap(tmp_path: Path) -> None:
    """The changed fragment replaced fragments that the segment covers, so the segment is no longer valid for it."""
    table = create_table(tmp_path).create_index("word", "BITMAP").table
    table = table.compact(remap="reuse").table
    dataset = lance.dataset(table.uri)
    dataset.create_scalar_index("id", "BTREE")
    change = dataset.to_table(columns=["id"]).append_column("word", pa.array(["a"] * 130))
    table = table.refresh()
    table = table.update({"word": "'a'"}).table
    assert change.num_rows == 130
    check_answers(table, ["word = 'a'", "word = 'w3'"])
    assert all(not each or each != [0, 1, 2, 3, 4] for each in covered_fragments(table, "word_idx"))


# Checks by the commit


def test_missing_or_truncated_index_files_are_not_committed(tmp_path: Path) -> None:
    table = create_table(tmp_path).create_index("id", "BTREE").table
    index = table.indices[0]
    table = table.drop_index("id_idx").table
    file = Path(table.uri) / index.qualified_path / index.files[0].path
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(StorageError, match=r"has \d+ bytes, not the \d+"):
        table.commit(CreateIndex((index,)))
    file.unlink()
    with pytest.raises(NotFound, match=r"the file .* of index 'id_idx' of this commit does not exist"):
        table.commit(CreateIndex((index,)))
    file.write_bytes(content)
    check_answers(table.commit(CreateIndex((index,))).table)


def test_files_of_an_uncommitted_intent_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cleanup keeps the files of a failed build if it has an intent; without an intent they are orphan files."""
    table = create_table(tmp_path)

    def fail_commit(*_: object, **__: object) -> None:
        raise StorageError("the power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(write_protocol, "commit", fail_commit)
        for intent in ("index of id", None):
            with pytest.raises(StorageError, match="the power is gone"):
                table.create_index("id", "BTREE", intent=intent)
    directories = {f"_indices/{path.name}" for path in (Path(table.uri) / "_indices").iterdir()}
    assert len(directories) == 2
    now, retention = datetime.now(UTC), timedelta(days=7)
    protected = files_in_progress(locate(table.uri).own_store, now=now, patience=retention)
    assert len(protected & directories) == 1
    assert {each.path.rpartition("/")[0] for each in table.fsck().findings if each.rule == "orphan"} >= directories
    committed = table.create_index("id", "BTREE", intent="index of id")
    assert not committed.already_committed
    check_answers(committed.table)


def test_a_distributed_compaction_remaps_indices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver remaps indices for each batch of groups; it skips large indices, unless `remap` requests them."""
    table = create_table(tmp_path)
    for column, index_type in (("id", "BTREE"), ("word", "BITMAP")):
        table = table.create_index(column, index_type).table
    monkeypatch.setattr(compact, "REMAP_BYTES_MAX", table.indices[1].files[0].size)
    assert table.indices[0].files[0].size + table.indices[0].files[1].size > table.indices[1].files[0].size

    def run_compaction(remap: str | None, rows: int) -> Committed:
        return compact.compact(
            TableRef(table.uri),
            target_rows=rows,
            materialize_deletions=True,
            remap=remap,
            batch=1,
            options=WriteOptions(),
            runner=LocalRunner(),
        )

    committed = run_compaction(None, 60)
    assert committed.uncovered == ("id_idx",)
    assert sum(map(len, covered_fragments(committed.table, "word_idx"))) == len(committed.table.fragments)
    check_answers(committed.table)
    table = committed.table.optimize_indices().table
    committed = run_compaction("now", 1_000)
    assert committed.uncovered == ()
    assert (
        covered_fragments(committed.table, "id_idx")
        == covered_fragments(committed.table, "word_idx")
        == [[committed.table.fragments[0].id]]
    )
    check_answers(committed.table)
