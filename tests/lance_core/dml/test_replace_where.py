"""Replace where: the rows removed and added, concurrent writers, and the errors."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_core import Committed, IncompatibleConflict, InvalidInput, RetryableConflict, SchemaMismatch, Table
from lance_core.operations import Update

DAY_B = "day = 'b'"


def rows(day: str | None, *ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "day": pa.array([day] * len(ids), pa.string())})


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    uri = str(tmp_path / "t")
    both = pa.concat_tables([rows("a", 1, 2), rows("b", 3, 4), rows("b", 5, 6), rows(None, 7)])
    return Table.create(uri, both, stable_row_ids=request.param, max_rows_per_file=3, durable=False)


def read_content(table: Table) -> list[tuple[int, str | None]]:
    found = table.to_table(["id", "day"]).to_pydict()
    theirs = lance.dataset(table.uri, version=table.version).to_table(["id", "day"]).to_pydict()
    assert theirs == found
    return sorted(zip(found["id"], found["day"], strict=True))


def ids(table: Table) -> list[int]:
    return [number for number, _ in read_content(table)]


def test_an_overwrite_replaces_the_matching_rows(table: Table) -> None:
    committed = table.overwrite(rows("b", 30, 40, 50), where=DAY_B)
    assert read_content(committed.table) == [(1, "a"), (2, "a"), (7, None), (30, "b"), (40, "b"), (50, "b")]
    assert (committed.version, committed.operation, committed.attempts) == (2, "Update", 1)
    assert (committed.rows_added, committed.rows_removed, committed.files) == (3, 4, 1)
    assert ids(table.at(1)) == [1, 2, 3, 4, 5, 6, 7]
    transaction = committed.table.transaction()
    assert transaction is not None
    assert isinstance(transaction.operation, Update)


def test_an_empty_slice_and_empty_rows(table: Table) -> None:
    filled = table.overwrite(rows("c", 9), where="day = 'c'").table
    assert ids(filled) == [1, 2, 3, 4, 5, 6, 7, 9]
    emptied = filled.overwrite(rows("b"), where=DAY_B)
    assert (ids(emptied.table), emptied.rows_removed) == ([1, 2, 7, 9], 4)
    unchanged = emptied.table.overwrite(
        rows("b").schema, where=DAY_B
    )  # an overwrite declares the content of the slice, which is a version even if no row changes
    assert (ids(unchanged.table), unchanged.version) == ([1, 2, 7, 9], 4)


def test_a_stream_of_rows_is_matched_by_column_name(table: Table) -> None:
    table = table.add_columns(pa.field("note", pa.string())).table
    batches = (batch.select(["day", "id"]) for batch in rows("b", *range(100, 110)).to_batches(max_chunksize=3))
    committed = table.overwrite(batches, where=DAY_B, max_rows_per_file=4)
    assert ids(committed.table) == [1, 2, 7, *range(100, 110)]
    assert committed.files == 3
    assert committed.table.to_table()["note"].null_count == committed.table.count_rows()


def test_indices_and_pylance_see_the_overwrite(table: Table) -> None:
    dataset = lance.dataset(table.uri)
    dataset.create_scalar_index("id", "BTREE")
    committed = table.refresh().overwrite(rows("b", 3, 40), where=DAY_B).table
    after = lance.dataset(table.uri)
    for number, count in ((3, 1), (4, 0), (40, 1), (1, 1)):
        assert after.count_rows(f"id = {number}") == count
    after.optimize.compact_files()
    assert ids(committed.refresh()) == [1, 2, 3, 7, 40]
    after.delete("id = 40")
    assert ids(committed.refresh().overwrite(rows("b", 41), where=DAY_B).table) == [1, 2, 7, 41]


INVALID: list[tuple[pa.Table, str, str]] = [
    (rows("b", 1).slice(0, 1), "day = 'a'", "row 0 of the new rows does not match: day is 'b'. Nothing was written"),
    (pa.concat_tables([rows("b", 1, 2), rows("c", 3)]), DAY_B, "row 2 of the new rows does not match: day is 'c'"),
    (rows(None, 1), DAY_B, "row 0 of the new rows does not match: day is null"),
    (rows("x" * 999, 1), DAY_B, f"day is '{'x' * 58}…. Nothing"),
    (pa.table({"id": [1]}), DAY_B, "day is null"),
    (rows("b", 1), "true", "reads no column"),
    (rows("b", 1), "_rowid > 3", "reads '_rowid', which rows have only once they are in the table"),
    (rows("b", 1), "days = 'b'", "there is no column 'days'"),
    (rows("b", 1), "day =", "it does not parse"),
    (rows("b", 1), "id", "a predicate must be true or false"),
]


@pytest.mark.parametrize(("data", "where", "message"), INVALID, ids=[each[2][:25] for each in INVALID])
def test_unsupported_input_is_rejected(table: Table, data: pa.Table, where: str, message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        table.overwrite(data, where=where)
    assert message in str(raised.value)
    assert table.refresh().version == 1


def test_other_invalid_overwrites_are_rejected(table: Table) -> None:
    with pytest.raises(SchemaMismatch, match="other"):
        table.overwrite(pa.table({"day": ["b"], "other": [1]}), where=DAY_B)
    with pytest.raises(InvalidInput, match="call set_config"):
        table.overwrite(rows("b", 1), where=DAY_B, config={"a": "1"})
    with pytest.raises(InvalidInput, match="where must be a string that UTF-8 can encode, not 3"):
        table.overwrite(rows("b", 1), where=3)
    with_blob = table.add_columns(pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})).table
    with pytest.raises(InvalidInput, match="a blob column"):
        with_blob.overwrite(rows("b", 1), where="blob is null")


SLICES: dict[str, tuple[pa.DataType, Any, Any, str]] = {
    "date": (pa.date32(), dt.date(2026, 1, 1), dt.date(2026, 1, 2), "k = date '2026-01-02'"),
    "timestamp": (pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2026, 1, 2, 5, tzinfo=dt.UTC), "k >= '2026-01-02' and k < '2026-01-03'"),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), "a", "b", "k in ('b', 'c')"),
    "struct": (pa.struct([("x", pa.int32())]), {"x": 1}, {"x": 2}, "k.x = 2"),
    "float": (pa.float32(), 0.5, float("nan"), "isnan(k)"),
    "null": (pa.int8(), 1, None, "k is null"),
    "decimal": (pa.decimal128(10, 2), "1.50", "2.50", "k > 2"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SLICES)
def test_slices_by_columns_of_many_types(tmp_path: Path, kind: str) -> None:
    arrow, unmatched, matched, where = SLICES[kind]
    values = [__import__("decimal").Decimal(each) if kind == "decimal" else each for each in (unmatched, matched)]

    def create_rows(numbers: list[int], value: int) -> pa.Table:
        return pa.table({"id": numbers, "k": pa.array([values[value]] * len(numbers), arrow)})

    table = Table.create(
        str(tmp_path / "t"), pa.concat_tables([create_rows([1], 0), create_rows([2, 3], 1)]), durable=False
    )
    table.append(create_rows([4], 1))  # a second plan finds this row
    table.append(create_rows([5], 0))
    committed = table.overwrite(create_rows([9], 1), where=where)
    assert (sorted(committed.table.to_table()["id"].to_pylist()), committed.attempts) == ([1, 5, 9], 2)
    with pytest.raises(InvalidInput, match="of the new rows does not match"):
        committed.table.overwrite(create_rows([9], 0), where=where)


ConcurrentChange = Callable[[Table], object]
REBASED_OVER: dict[str, ConcurrentChange] = {
    "append": lambda t: t.append(rows("a", 8)),
    "delete": lambda t: t.delete("id = 1"),
    "update": lambda t: t.update({"id": "8"}, "id = 7"),
    "upsert": lambda t: t.upsert(rows("a", 8), on="id"),
    "another slice": lambda t: t.overwrite(rows("a", 8), where="day = 'a'"),
    "config": lambda t: t.set_config({"x": "1"}),
}
CONFLICTING: dict[str, tuple[ConcurrentChange, list[int]]] = {
    "append": (lambda t: t.append(rows("b", 8)), [1, 2, 7, 30]),
    "update that moves in": (lambda t: t.update({"day": "'b'"}, "id = 1"), [2, 7, 30]),
    "update that moves out": (lambda t: t.update({"day": "'a'"}, "id = 3"), [1, 2, 3, 7, 30]),
    "update of all": (lambda t: t.update({"day": "'b'"}), [30]),
    "upsert": (lambda t: t.upsert(rows("b", 8), on="id"), [1, 2, 7, 30]),
    "the same slice": (lambda t: t.overwrite(rows("b", 8), where=DAY_B), [1, 2, 7, 30]),
    "a part of it": (lambda t: t.overwrite(rows("b", 5, 8), where="day = 'b' and id >= 5"), [1, 2, 7, 30]),
    "delete": (lambda t: t.delete("id = 4"), [1, 2, 7, 30]),
    "compaction": (lambda t: t.compact(), [1, 2, 7, 30]),
    "a new column": (lambda t: t.add_columns({"n": "id + 1"}), [1, 2, 7, 30]),
}


@pytest.mark.parametrize("name", REBASED_OVER)
def test_writes_outside_the_slice_are_rebased_over(table: Table, name: str) -> None:
    REBASED_OVER[name](table)
    committed = table.overwrite(rows("b", 30), where=DAY_B, retries=1)
    assert (committed.attempts, committed.rebased_over) == (1, (2,))
    assert [number for number, day in read_content(committed.table) if day == "b"] == [30]
    assert committed.table.count_rows("day = 'a'") == table.at(2).count_rows("day = 'a'")


@pytest.mark.parametrize("name", CONFLICTING)
def test_writes_into_the_slice_are_conflicts(table: Table, name: str) -> None:
    concurrent, expected = CONFLICTING[name]
    concurrent(table)
    data = [*Path(table.uri, "data").iterdir()]
    with pytest.raises(RetryableConflict):
        table.overwrite(rows("b", 30), where=DAY_B, retries=1)
    assert ids(table.refresh()) == ids(table.at(table.refresh().version))
    committed = table.overwrite(rows("b", 30), where=DAY_B)
    assert ids(committed.table) == expected
    assert committed.attempts >= 2
    assert len([*Path(table.uri, "data").iterdir()]) == len(data) + 2, (
        "the new rows of one overwrite are written once, although it was planned twice"
    )


def test_two_concurrent_first_fills_of_a_slice_fill_it_once(table: Table) -> None:
    table.overwrite(rows("c", 8, 9), where="day = 'c'")
    committed = table.overwrite(rows("c", 8, 9), where="day = 'c'")
    assert ids(committed.table) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert committed.rows_removed == 2


def test_values_changed_in_place_are_replaced_too(tmp_path: Path) -> None:
    """An update that rewrites a column brings rows into the slice without moving any."""
    wide = pa.table({"id": range(50), "day": ["a"] * 50, "text": ["x" * 200] * 50})
    table = Table.create(str(tmp_path / "t"), wide, durable=False)
    concurrent = table.update({"day": "'b'"}).table
    assert len(concurrent.fragments) == 1  # in place
    committed = table.overwrite(rows("b", 99), where=DAY_B)
    assert (committed.table.to_table()["id"].to_pylist(), committed.attempts) == ([99], 2)


def test_changes_planned_before_the_overwrite(table: Table) -> None:
    """An append to the slice keeps its rows; an update of replaced rows is planned again."""
    table.overwrite(rows("b", 30), where=DAY_B)
    table.append(rows("b", 8))
    assert ids(table.refresh()) == [1, 2, 7, 8, 30]
    committed = table.update({"id": "id + 100"}, "day = 'b'")
    assert ids(committed.table) == [1, 2, 7, 108, 130]
    assert committed.attempts == 2


def test_concurrently_changed_columns_are_a_conflict_for_a_stream(table: Table) -> None:
    def stream_with_concurrent_drop() -> Any:
        yield rows("b", 30).to_batches()[0]
        table.refresh().drop_columns(["id"])

    reader = pa.RecordBatchReader.from_batches(rows("b").schema, stream_with_concurrent_drop())
    table.append(rows("b", 8))  # forces a second plan
    with pytest.raises(
        IncompatibleConflict, match=r"up to version 3, while a stream of rows.*for the columns of version 1"
    ):
        table.overwrite(reader, where=DAY_B)
    assert table.refresh().count_rows(DAY_B) == 5


def test_rows_in_memory_are_written_again_after_a_schema_change(table: Table) -> None:
    table.alter_column("id", rename="number")
    followed = table.overwrite(rows("b", 20), where=DAY_B)  # files know no names
    assert (followed.attempts, followed.table.count_rows("number = 20")) == (1, 1)
    base = followed.table.alter_column("number", rename="id").table.delete("day is null").table
    base.alter_column("day", nullable=False)
    committed = base.overwrite(rows("b", 30), where=DAY_B)
    assert (ids(committed.table), committed.attempts) == ([1, 2, 30], 2)
    with pytest.raises(SchemaMismatch, match="'day'"):
        base.overwrite(pa.concat_tables([rows("b", 30), rows(None, 31)]), where="day = 'b' or day is null")
    # Field metadata does not affect data files that are written already.
    committed.table.set_field_metadata({"day": {"note": "x"}}).table.append(rows("b", 8).cast(committed.table.schema))
    stream = pa.RecordBatchReader.from_batches(
        committed.table.schema, rows("b", 40).cast(committed.table.schema).to_batches()
    )
    again = committed.table.overwrite(stream, where=DAY_B)
    assert (ids(again.table), again.attempts) == ([1, 2, 40], 2)


def test_an_intent_commits_once(table: Table) -> None:
    def overwrite(**options: Any) -> Committed:
        return table.refresh().overwrite(rows("b", 30), where=DAY_B, intent="fill b", **options)

    first, again = overwrite(properties={"by": "me"}), overwrite()
    assert (again.version, again.already_committed, again.rows_removed) == (first.version, True, 4)
    assert table.refresh().version == 2
    assert first.table.transaction().properties["by"] == "me"  # type: ignore[union-attr]
    with pytest.raises(
        InvalidInput, match="belongs to another change already \\(overwrite of a slice, and this is over"
    ):
        table.overwrite(rows("b", 30), intent="fill b")
