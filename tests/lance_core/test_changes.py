"""Changes between two versions: compared with a full comparison of both versions."""

from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    path = str(tmp_path_factory.mktemp("changes") / "t")
    rows = pa.table({"id": range(12), "v": [f"v{row}" for row in range(12)]})
    table = Table.create(path, rows, stable_row_ids=True, max_rows_per_file=4)
    table = table.append(pa.table({"id": [12, 13], "v": ["v12", "v13"]})).table
    table = table.delete("id IN (1, 12)").table
    table = table.update({"v": "'new'"}, "id >= 10").table
    table = table.compact().table
    table = table.upsert(pa.table({"id": [2, 77], "v": ["again", "first"]}), on=["id"]).table
    return table.delete("id < 2").table


def _rows(table: Table) -> dict[int, tuple]:
    """Return the rows by row id."""
    actual = table.to_table(columns=["_rowid", "id", "v", "_row_last_updated_at_version"]).to_pylist()
    return {row["_rowid"]: (row["id"], row["v"], row["_row_last_updated_at_version"]) for row in actual}


def test_every_pair_of_versions(table: Table) -> None:
    assert table.version >= 7
    for since in range(1, table.version + 1):
        for until in range(since, table.version + 1):
            before, after = _rows(table.at(since)), _rows(table.at(until))
            expected = {("insert", each, *after[each][:2]) for each in after.keys() - before.keys()}
            expected |= {("delete", each, *before[each][:2]) for each in before.keys() - after.keys()}
            both = before.keys() & after.keys()
            expected |= {("update", each, *after[each][:2]) for each in both if before[each] != after[each]}
            actual = table.changes(since, until).to_pylist()
            assert {(row["_change"], row["_rowid"], row["id"], row["v"]) for row in actual} == expected
            assert len(actual) == len(expected)


def test_moved_rows_are_not_changes(table: Table) -> None:
    compacted = next(each.version for each in table.versions() if each.operation == "Rewrite")
    assert table.changes(compacted - 1, compacted).num_rows == 0


def test_until_is_this_version_unless_named(table: Table) -> None:
    assert table.changes(3).equals(table.changes(3, table.version))
    assert table.at(2).changes(1)["id"].to_pylist() == [12, 13]


def test_columns_are_those_of_the_later_version(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1, 2, 3]}), stable_row_ids=True)
    table = table.add_columns({"twice": "id * 2"}).table.delete("id = 2").table
    actual = table.changes(1)
    assert actual.column_names == [
        "_change",
        "id",
        "twice",
        "_rowid",
        "_row_created_at_version",
        "_row_last_updated_at_version",
    ]
    assert [(row["_change"], row["id"], row["twice"]) for row in actual.to_pylist()] == [
        ("update", 1, 2),
        ("update", 3, 6),
        ("delete", 2, None),
    ]


def test_an_overwrite_changes_all_rows(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1, 2]}), stable_row_ids=True)
    table = table.overwrite(pa.table({"id": [1]})).table
    actual = [(row["_change"], row["_rowid"]) for row in table.changes(1).to_pylist()]
    assert actual == [("insert", 2), ("delete", 0), ("delete", 1)]


def test_changes_need_stable_row_ids(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1]}))
    with pytest.raises(InvalidInput, match="has no stable row ids, by which changes are found; only a table"):
        table.changes(1)


def test_an_earlier_end_version_is_rejected(table: Table) -> None:
    with pytest.raises(InvalidInput, match="since must not be later"):
        table.changes(3, 2)
    with pytest.raises(InvalidInput, match="versions count from 1"):
        table.changes(0)
