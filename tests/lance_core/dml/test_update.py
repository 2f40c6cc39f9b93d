"""Update compared with pylance on an equal table."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.errors import SchemaMismatch
from lance_core.format.operations import Update, UpdateMode
from tests.lance_core.dml.paired_tables import PairedTables, create_paired_tables

ROWS = pa.table({"id": range(10), "v": [10 * n for n in range(10)], "w": [f"w{n}" for n in range(9)] + [None]})
MOVES, IN_PLACE = UpdateMode.REWRITE_ROWS, UpdateMode.REWRITE_COLUMNS
BOTH_ROW_ID_MODES = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])


def operation_of(table: Table) -> Update:
    transaction = table.transaction()
    assert transaction is not None
    assert isinstance(transaction.operation, Update)
    return transaction.operation


def check(pair: PairedTables, values: dict[str, str], where: str | None) -> Update:
    pair.dataset.update(values, where=where)
    committed = pair.table.update(values, where)
    assert (committed.rows_added, committed.rows_removed) == (0, 0)
    pair.check()
    return operation_of(committed.table)


@BOTH_ROW_ID_MODES
@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"v": "v + 1"}, "id in (1, 2, 5)"),
        ({"v": "v + 1"}, None),  # all rows
        ({"w": "'x'"}, "id = 4"),
        ({"w": "NULL", "v": "7"}, "w is not null"),
        ({"id": "id + 100", "v": "0", "w": "upper(w)"}, "id % 2 = 0"),
        ({"v": "'7'"}, None),  # cast to the stored type
        ({"v": "1.9"}, "id = 1"),
        ({"v": "0"}, "id > 99"),  # no match, yet a version
    ],
)
@pytest.mark.parametrize("indexed", [(), ("v", "w", "id")], ids=["plain", "indexed"])
@pytest.mark.parametrize("deleted", ["", "id in (0, 5, 6, 8, 9)"], ids=["whole", "with deletions"])
def test_the_same_rows_as_pylance(
    tmp_path: Path, stable: bool, values: dict[str, str], where: str | None, indexed: tuple[str, ...], deleted: str
) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=stable, indexed=indexed, deleted=deleted)
    check(pair, values, where)
    assert pair.table.version == pair.dataset.version


@BOTH_ROW_ID_MODES
def test_updates_follow_updates_of_both_writers(tmp_path: Path, stable: bool) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=stable, indexed=("v", "w"))
    for where in ("id in (1, 5)", None, "id = 1", "v > 30"):
        check(pair, {"v": "v + 1"}, where)
        check(pair, {"w": "concat(w, 'x')"}, where)
        lance.dataset(pair.ours).update({"v": "v * 2"}, where="id = 3")
        pair.dataset.update({"v": "v * 2"}, where="id = 3")
        pair.check()


@BOTH_ROW_ID_MODES
def test_moved_rows_equal_those_of_pylance(tmp_path: Path, stable: bool) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=stable, indexed=("w",))
    ours = check(pair, {"w": "'x'"}, "id in (1, 5, 8, 9)")
    theirs = operation_of(Table.open(pair.theirs))
    assert ours.mode is theirs.mode is MOVES
    assert ours.fields_assigned == theirs.fields_assigned == (2,)
    assert ours.fields_modified == ()
    assert ours.removed_ids == theirs.removed_ids == (2,)
    for mine, other in zip(ours.updated, sorted(theirs.updated, key=lambda each: each.id), strict=True):
        assert (mine.id, mine.physical_rows, mine.live_rows) == (other.id, other.physical_rows, other.live_rows)
        assert mine.files == other.files or mine.message.files == other.message.files
    assert [each.physical_rows for each in ours.new] == [each.physical_rows for each in theirs.new]


@BOTH_ROW_ID_MODES
def test_columns_are_rewritten_in_place(tmp_path: Path, stable: bool) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=stable, deleted="id = 0")
    addresses = pair.table.to_table(["id", "_rowaddr"])
    ours = check(pair, {"v": "-v"}, "id < 9")
    assert ours.mode is IN_PLACE
    assert ours.fields_modified == (1,)
    assert [[file.field_ids for file in each.files] for each in ours.updated] == [[(0, -2, 2), (1,)]] * 3
    assert set(ours.updated_offsets) == ({0, 1, 2} if stable else set())
    assert pair.table.to_table(["id", "_rowaddr"]) == addresses
    again = check(pair, {"v": "-v"}, None)
    assert [[file.field_ids for file in each.files] for each in again.updated] == [[(0, -2, 2), (1,)]] * 3


def test_expressions_read_the_old_values(tmp_path: Path) -> None:
    """Pylance computes the columns one after the other in an order that varies, so there is no comparison here."""
    table = Table.create(str(tmp_path / "t"), ROWS, durable=False)
    after = table.update({"v": "id", "id": "v"}, "id in (3, 4)").table
    assert after.to_table(["id", "v"], "v < 5 and id > 0").to_pylist() == [{"id": 30, "v": 3}, {"id": 40, "v": 4}]


def test_few_changed_rows_are_moved(tmp_path: Path) -> None:
    Table.create(str(tmp_path / "t"), pa.table({"id": range(1000), "v": range(1000)}), durable=False)
    table = Table.open(str(tmp_path / "t"), durable=False)
    assert operation_of(table.update({"v": "0"}, "id < 400").table).mode is MOVES
    assert operation_of(table.refresh().update({"v": "0"}, "id >= 400").table).mode is IN_PLACE


def test_file_limits_split_moved_rows(tmp_path: Path) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=True, indexed=("w",))
    pair.dataset.update({"w": "'x'"}, where="id in (1, 5, 9)")
    after = pair.table.update({"w": "'x'"}, "id in (1, 5, 9)", max_rows_per_file=2)
    assert [each.physical_rows for each in operation_of(after.table).new] == [2, 1]
    pair.check()


@pytest.mark.parametrize(
    ("values", "where", "message"),
    [
        ({}, None, "values= is empty"),
        ({"vv": "1"}, None, "names 'vv', but there is no such column; did you mean 'v'"),
        ({"s.x": "1"}, None, "a field inside column 's'; name the whole column 's'"),
        ({"v": "zz + 1"}, None, "the SQL of column 'v', .*there is no column 'zz'"),
        ({"v": "w"}, None, "the SQL of v, .*w0"),
        ({"v": "1"}, "nope = 1", "there is no column 'nope'"),
        ({"id": "NULL"}, "id = 3", "column 'id' is not nullable, but the data has 1 nulls"),
        ({"v": "[1]"}, None, "the SQL of column 'v'"),
    ],
)
def test_invalid_arguments_change_nothing(
    tmp_path: Path, values: dict[str, str], where: str | None, message: str
) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), False),
            ("v", pa.int64()),
            ("w", pa.string()),
            ("s", pa.struct([("x", pa.int64())])),
        ]
    )
    rows = pa.table([*ROWS.columns, pa.array([{"x": n} for n in range(10)], schema.field("s").type)], schema=schema)
    table = Table.create(str(tmp_path / "t"), rows, durable=False)
    with pytest.raises(InvalidInput, match=message):
        table.update(values, where)
    assert table.refresh().version == 1


def test_a_null_in_a_mandatory_column_is_reported(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False)])
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1, 2]}, schema=schema), durable=False)
    with pytest.raises(SchemaMismatch) as caught:
        table.update({"id": "NULL"})
    assert caught.value.column == "id"


def test_an_intent_updates_once(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), ROWS, durable=False)
    first = table.update({"v": "v + 1"}, intent="raise", properties={"why": "prices"})
    again = first.table.update({"v": "v + 1"}, intent="raise")
    assert (again.version, again.already_committed) == (first.version, True)
    assert again.table.to_table(["v"])["v"].to_pylist()[:2] == [1, 11]
