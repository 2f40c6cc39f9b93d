"""Upsert compared with pylance's merge_insert on an equal table."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core import Committed, InvalidInput, Table
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.datafiles.inputs import as_input
from lance_core.dml.upsert import JoinCache, UpsertRules, upsert
from lance_core.errors import SchemaMismatch
from lance_core.format.operations import Update, UpdateMode
from lance_core.format.row_lineage import RowVersions
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.versions.location import locate
from lance_core.versions.snapshot import load_latest
from tests.lance_core.dml.paired_tables import PairedTables, create_paired_tables

ROWS = pa.table({"id": range(10), "v": [10 * n for n in range(10)], "w": [f"w{n}" for n in range(9)] + [None]})
WHOLE = pa.table({"w": ["n", "a", "b", None], "id": [19, 2, 5, 1], "v": [900, 200, 500, 100]})  # another order
PARTIAL = pa.table({"id": [2, 5, 1, 19], "v": [200, 500, 100, None]})
KEYS = pa.table({"id": [1, 77, 5, 4]})
ALL = pa.table({"id": range(10), "v": [1] * 10, "w": ["z"] * 10})
Options = Mapping[str, Any]
UPDATE_AND_INSERT: Options = {}
UPDATE: Options = {"insert": False}
INSERT: Options = {"matched": "ignore"}
DELETE: Options = {"matched": "delete", "insert": False}
BOTH_ROW_ID_MODES = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])


def merge_by_pylance(
    dataset: lance.LanceDataset, data: pa.Table, on: str | list[str], options: Options
) -> dict[str, int]:
    builder = dataset.merge_insert(on)
    match options.get("matched", "update"):
        case "update":
            builder = builder.when_matched_update_all(options.get("matched_if"))
        case "delete":
            builder = builder.when_matched_delete()
        case "fail":
            builder = builder.when_matched_fail()
    if options.get("insert", True):
        builder = builder.when_not_matched_insert_all()
    if delete_unmatched := options.get("delete_unmatched"):
        builder = builder.when_not_matched_by_source_delete(
            delete_unmatched if isinstance(delete_unmatched, str) else None
        )
    return builder.execute(data)


def operation_of(committed: Committed) -> Update:
    transaction = committed.table.transaction()
    assert transaction is not None
    assert isinstance(transaction.operation, Update)
    return transaction.operation


def check(pair: PairedTables, data: pa.Table, options: Options, on: str | list[str] = "id") -> Committed:
    before = pair.table.count_rows()
    counts = merge_by_pylance(pair.dataset, data, on, options)
    committed = pair.table.upsert(data, on, **options)
    pair.check()
    assert committed.version == pair.dataset.version
    assert committed.rows_added - committed.rows_removed == committed.table.count_rows() - before
    if not counts["num_deleted_rows"]:
        assert committed.rows_added == counts["num_inserted_rows"]
    return committed


@BOTH_ROW_ID_MODES
@pytest.mark.parametrize("indexed", [(), ("v", "w", "id")], ids=["plain", "indexed"])
@pytest.mark.parametrize("deleted", ["", "id in (0, 5, 6, 8, 9)"], ids=["whole", "with deletions"])
@pytest.mark.parametrize(
    ("data", "options"),
    [
        (WHOLE, UPDATE_AND_INSERT),
        (WHOLE, UPDATE),
        (WHOLE, INSERT),
        (WHOLE, {"matched": "delete"}),
        (WHOLE, {"delete_unmatched": True}),
        (WHOLE, {"delete_unmatched": "v >= 60"}),
        (WHOLE, {"matched_if": "target.v >= 20 and source.w <> 'q'"}),
        (WHOLE, {"matched_if": "target.v >= 20", "delete_unmatched": True}),  # a match that `matched_if` rejects stays
        (WHOLE.slice(0, 1), {"matched": "fail"}),
        (WHOLE.slice(0, 0), UPDATE_AND_INSERT),
        (WHOLE.slice(0, 0), {"delete_unmatched": True}),
        (WHOLE.slice(0, 1), UPDATE),  # nothing matches
        (PARTIAL, UPDATE_AND_INSERT),
        (PARTIAL, UPDATE),
        (PARTIAL, INSERT),
        (PARTIAL, {"matched_if": "source.v > 150", "insert": False}),
        (WHOLE, {"matched_if": "target.w = 'w1' or target.v > 40", "insert": False}),
        (PARTIAL, {"delete_unmatched": "w is null"}),
        (KEYS, DELETE),
        (KEYS, {"matched": "ignore", "insert": False, "delete_unmatched": True}),
        (ALL, UPDATE_AND_INSERT),
        (ALL.select(["id", "v"]), UPDATE_AND_INSERT),
    ],
)
def test_the_same_rows_as_pylance(
    tmp_path: Path, stable: bool, indexed: tuple[str, ...], deleted: str, data: pa.Table, options: Options
) -> None:
    check(create_paired_tables(tmp_path, ROWS, stable=stable, indexed=indexed, deleted=deleted), data, options)


@BOTH_ROW_ID_MODES
def test_upserts_follow_upserts_of_both_writers(tmp_path: Path, stable: bool) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=stable, indexed=("id", "v"))
    for step in range(3):
        check(pair, PARTIAL, UPDATE_AND_INSERT)
        check(pair, pa.table({"id": [3, 30 + step], "v": [step, step], "w": ["t", "t"]}), UPDATE_AND_INSERT)
        check(pair, pa.table({"id": [6 + step]}), DELETE)
        merge_by_pylance(lance.dataset(pair.ours), WHOLE, "id", UPDATE_AND_INSERT)
        merge_by_pylance(pair.dataset, WHOLE, "id", UPDATE_AND_INSERT)
        pair.check()


@BOTH_ROW_ID_MODES
def test_moved_rows_equal_those_of_pylance(tmp_path: Path, stable: bool) -> None:
    pair = create_paired_tables(tmp_path, ROWS, stable=stable)
    ours = operation_of(check(pair, WHOLE, UPDATE_AND_INSERT))
    transaction = Table.open(pair.theirs).transaction()
    assert transaction is not None
    theirs = transaction.operation
    assert isinstance(theirs, Update)
    assert ours.mode is theirs.mode is UpdateMode.REWRITE_ROWS
    assert ours.fields_assigned == theirs.fields_assigned == (0, 1, 2)
    assert ours.removed_ids == theirs.removed_ids == ()
    assert [(each.id, each.live_rows) for each in ours.updated] == [(0, 2), (1, 3)]
    assert sorted((each.id, each.live_rows) for each in theirs.updated) == [(0, 2), (1, 3)]
    assert [each.physical_rows for each in ours.new] == [each.physical_rows for each in theirs.new] == [4]
    assert [each.row_ids is not None for each in ours.new] == [each.row_ids is not None for each in theirs.new]


@BOTH_ROW_ID_MODES
def test_rewritten_columns_equal_those_of_pylance(tmp_path: Path, stable: bool) -> None:
    """With an index on the key pylance rewrites columns in place, as lance_core does whenever that costs less."""
    pair = create_paired_tables(tmp_path, ROWS, stable=stable, indexed=("id",))
    ours = operation_of(check(pair, PARTIAL, UPDATE_AND_INSERT))
    transaction = Table.open(pair.theirs).transaction()
    assert transaction is not None
    theirs = transaction.operation
    assert isinstance(theirs, Update)
    assert ours.mode is theirs.mode is UpdateMode.REWRITE_COLUMNS
    assert ours.fields_modified == theirs.fields_modified == (1,)
    assert ours.fields_assigned == theirs.fields_assigned == ()
    for mine, other in zip(ours.updated, sorted(theirs.updated, key=lambda each: each.id), strict=True):
        assert [file.field_ids for file in mine.files] == [file.field_ids for file in other.files]
    assert [[file.field_ids for file in each.files] for each in ours.new] == [[(0, 1)]]
    assert decode_offsets(ours) == decode_offsets(theirs) == ({0: [1, 2], 1: [1]} if stable else {})
    if stable:
        fragment = pair.table.fragments[0]
        versions = RowVersions.decode(fragment.last_updated_at, rows=4, path="", field="")
        assert versions.to_numpy().tolist() == [1, 3, 3, 1]


def decode_offsets(operation: Update) -> dict[int, list[int]]:
    return {number: list(BitMap.deserialize(bitmap)) for number, bitmap in operation.updated_offsets.items()}


@pytest.mark.parametrize(
    ("arrow", "table", "data"),
    [
        (pa.int64(), [1, None, 2, None], [None, 2, None]),
        (pa.float64(), [1.0, float("nan"), 0.0, None], [float("nan"), -0.0, 1.0]),
        (pa.float32(), [1.0, float("nan"), 0.0, None], [float("nan"), -0.0, 1.0]),
        (pa.string(), ["a", None, "", "b"], ["", "c", "b"]),
        (pa.large_string(), ["a", None, "", "b"], ["", "c", "b"]),
        (pa.binary(), [b"a", None, b"", b"b"], [b"", b"c", b"b"]),
        (pa.binary(2), [b"aa", None, b"bb"], [b"bb", b"cc"]),
        (pa.bool_(), [True, None, True], [True, False]),
        (pa.uint64(), [2**64 - 1, 0, None], [2**64 - 1, 5]),
        (pa.int8(), [-1, 0, None], [-1, 5]),
        (pa.date32(), [1, 2, None], [2, 5]),
        (pa.timestamp("us", "UTC"), [1, 2, None], [2, 5]),
        (pa.decimal128(10, 2), [1, 2, None], [2, 5]),
    ],
    ids=str,
)
def test_equality_of_keys(tmp_path: Path, arrow: pa.DataType, table: list, data: list) -> None:
    """A null matches no key, all NaNs are one key, and so are both zeros."""
    rows = pa.table({"k": pa.array(table, arrow), "id": range(len(table))})
    source = pa.table({"k": pa.array(data, arrow), "id": range(100, 100 + len(data))})
    check(create_paired_tables(tmp_path, rows, stable=False), source, UPDATE_AND_INSERT, "k")


def test_more_types_of_keys(tmp_path: Path) -> None:
    """Pylance supports these key types in some plans only."""
    for number, arrow in enumerate([pa.float16(), pa.dictionary(pa.int8(), pa.string()), pa.uuid()]):
        values = {0: np.array([1.5, 2.5], np.float16), 1: ["a", "b"], 2: [b"a" * 16, b"b" * 16]}[number]
        storage = pa.array(values, arrow.storage_type if number == 2 else arrow)
        keys = pa.ExtensionArray.from_storage(arrow, storage) if number == 2 else storage
        table = Table.create(str(tmp_path / str(number)), pa.table({"k": keys, "v": [1, 2]}), durable=False)
        after = table.upsert(pa.table({"k": keys.slice(1), "v": [3]}), "k").table
        assert after.to_table(["v"])["v"].to_pylist() == [1, 3]


@pytest.mark.parametrize("on", [["a", "b"], ["b", "a"], ["a", "b", "c"]])
def test_several_key_columns(tmp_path: Path, on: list[str]) -> None:
    rows = pa.table(
        {"a": [1, 1, None, None, 2], "b": ["x", None, "x", None, "y"], "c": [0, 0, 0, 0, 0], "id": range(5)}
    )
    data = pa.table(
        {
            "a": pa.array([1, 1, None, None, 2, 2, 3], pa.int64()),
            "b": ["x", None, "x", None, "x", "y", "x"],
            "c": [0, 0, 0, 0, 0, 1, 0],
            "id": range(10, 17),
        }
    )
    check(create_paired_tables(tmp_path, rows, stable=True), data, UPDATE_AND_INSERT, on)


def test_a_source_row_updates_several_table_rows(tmp_path: Path) -> None:
    rows = pa.table({"k": [1, 1, 2, 1, 1], "id": range(5), "v": range(5)})
    check(create_paired_tables(tmp_path, rows, stable=True), pa.table({"k": [1, 3], "v": [9, 9]}), UPDATE, "k")


def test_many_fragments_and_a_large_source(tmp_path: Path) -> None:
    count = 3000
    rows = pa.table({"id": range(count), "v": [0] * count, "w": ["w"] * count})
    uri = str(tmp_path / "t")
    Table.create(uri, rows, max_rows_per_file=100, stable_row_ids=True, durable=False)
    shuffled = np.random.default_rng(5).permutation(np.arange(0, 2 * count, 3))
    table = Table.open(uri, durable=False).upsert(pa.table({"id": shuffled, "v": shuffled}), "id").table
    after = table.to_table(["id", "v", "_rowid"]).sort_by("id")
    expected = {**dict.fromkeys(range(count), 0), **{int(key): int(key) for key in shuffled}}
    assert dict(zip(after["id"].to_pylist(), after["v"].to_pylist(), strict=True)) == expected
    assert after["_rowid"].to_pylist()[:count] == list(range(count))
    few = table.upsert(pa.table({"id": [4, 150], "v": [7, 8], "w": ["few", "few"]}), "id").table
    assert few.to_table(["id", "v", "_rowid"], "w = 'few'").to_pylist() == [
        {"id": 4, "v": 7, "_rowid": 4},
        {"id": 150, "v": 8, "_rowid": 150},
    ]


KEY = {"lance-schema:unenforced-primary-key": "true"}
FIRST, SECOND = ({"lance-schema:unenforced-primary-key:position": str(n)} for n in (1, 2))
KEYED: list[tuple[list[pa.Field], list[str], list[dict]]] = [
    ([pa.field("id", pa.int64(), False, KEY)], ["id"], [{"id": n} for n in (-7, 9, 2**40)]),
    ([pa.field("id", pa.uint32(), False, KEY)], ["id"], [{"id": n} for n in (7, 2**32 - 1)]),
    ([pa.field("id", pa.string(), False, KEY)], ["id"], [{"id": "é" * n} for n in (0, 1, 3, 16, 17, 50)]),
    ([pa.field("id", pa.large_binary(), False, KEY)], ["id"], [{"id": b"x" * n} for n in (0, 4, 31, 32, 67)]),
    (
        [pa.field("id", pa.int64(), False, FIRST), pa.field("b", pa.string(), False, SECOND)],
        ["id", "b"],
        [{"id": 5, "b": "five"}, {"id": 6, "b": ""}],
    ),
]


@pytest.mark.parametrize(("fields", "on", "data"), KEYED)
def test_inserted_keys_are_recorded_as_by_pylance(
    tmp_path: Path, fields: list[pa.Field], on: list[str], data: list[dict]
) -> None:
    schema = pa.schema([*fields, ("v", pa.int64())])
    rows = pa.Table.from_pylist([{**data[0], "v": 1}], schema)
    source = pa.Table.from_pylist([{**each, "v": 2} for each in data], schema)
    pair = create_paired_tables(tmp_path, rows, stable=False)
    for options in (INSERT, UPDATE_AND_INSERT):
        ours = operation_of(check(pair, source, options, on)).inserted_keys
        transaction = Table.open(pair.theirs).transaction()
        assert transaction is not None
        assert isinstance(transaction.operation, Update)
        assert ours == transaction.operation.inserted_keys
        assert ours is not None


def test_undeclared_keys_are_recorded_too(tmp_path: Path) -> None:
    """Undeclared keys are recorded too; pylance records only a declared primary key and can insert others twice."""
    table = Table.create(str(tmp_path / "t"), ROWS, durable=False)
    assert operation_of(table.upsert(WHOLE, "id")).inserted_keys is not None
    assert operation_of(table.refresh().upsert(WHOLE, "id", insert=False)).inserted_keys is None
    keyed = pa.schema([pa.field("id", pa.int64(), False, FIRST), pa.field("v", pa.int64(), False, SECOND)])
    table = Table.create(str(tmp_path / "keyed"), pa.table({"id": [1], "v": [1]}, schema=keyed), durable=False)
    for on in (["id"], ["v", "id"]):
        committed = table.refresh().upsert(pa.table({"id": [7], "v": [len(on)]}), on)
        assert operation_of(committed).inserted_keys is not None


def test_matched_if_reads_columns_that_the_source_lacks(tmp_path: Path) -> None:
    """Pylance supports this if it moves rows; if it rewrites columns, it does not find them."""
    table = Table.create(str(tmp_path / "t"), ROWS, durable=False)
    after = table.upsert(PARTIAL, "id", matched_if="target.w in ('w1', 'w5') and source.v > 100").table
    assert after.to_table(["v"], "id in (1, 2, 5)")["v"].to_pylist() == [10, 20, 500]
    after = after.upsert(PARTIAL, "id", matched_if="target._rowaddr = 1").table
    assert sorted(after.to_table(["v"], "id in (1, 2, 5)")["v"].to_pylist()) == [20, 100, 500]


def test_keys_alone_update_nothing(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), ROWS, durable=False)
    after = table.upsert(pa.table({"id": [1, 50]}), "id").table
    assert after.to_table(["id", "v"], "id in (1, 50)").to_pylist() == [{"id": 1, "v": 10}, {"id": 50, "v": None}]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (
            pa.table({"id": [3, 3, 4, 5, 5, 6, 6, 4], "v": [1] * 8}),
            {},
            r"more than once \(4 of them\): id = 3; id = 4; id = 5; …",
        ),
        (pa.table({"id": [90, 90], "v": [1] * 2}), INSERT, "more than once .*id = 90"),
        (pa.table({"id": [1, 1], "v": [1, 1]}), {"on": ["id", "v"]}, "id = 1 and v = 1"),
        (WHOLE, {"matched": "fail"}, r"the table has keys of the data already \(3 of them\): id = 2; id = 5; id = 1"),
        (WHOLE, {"on": ["idd"]}, "on= names 'idd', but there is no such column; did you mean 'id'"),
        (WHOLE, {"on": []}, "name at least one key column"),
        (WHOLE, {"on": ["id", "id"]}, "each only once"),
        (WHOLE.select(["id", "v"]), {"on": "w"}, "on= names 'w', which the data does not have"),
        (pa.table({"id": [1], "x": [1]}), {}, "the data names 'x', but there is no such column"),
        (
            pa.table({"id": [1], "s": [{"x": 1}]}),
            {"on": "s"},
            "cannot be matched by column 's'.*choose a scalar column",
        ),
        (pa.table({"id": ["1"], "v": [1]}), {}, "column 'id' is stored as int64, but the data has string"),
        (WHOLE, {"matched": "replace"}, "must be one of update, delete, fail, ignore"),
        (WHOLE, {"matched": "ignore", "matched_if": "source.v > 1"}, "does neither"),
        (WHOLE, {"matched_if": "v > 1"}, "matched_if: .*Write its columns as source.x and target.x"),
        (WHOLE, {"matched_if": "source.z > 1"}, "matched_if: .*no field 'z'"),
        (PARTIAL, {"matched_if": "source.w = 'x'"}, "matched_if: .*no field 'w'"),
        (WHOLE, {"delete_unmatched": "nope"}, "there is no column 'nope'"),
        ([1, 2], {}, "rows must be a pyarrow Table"),
    ],
)
def test_invalid_arguments_change_nothing(tmp_path: Path, data: Any, options: Options, message: str) -> None:
    rows = ROWS.append_column("s", pa.array([{"x": n} for n in range(10)]))
    table = Table.create(str(tmp_path / "t"), rows, durable=False)
    if data is WHOLE:
        data = WHOLE.append_column("s", pa.array([{"x": 1}] * 4))
    with pytest.raises(InvalidInput, match=message):
        table.upsert(data, **{"on": "id", **options})
    assert table.refresh().version == 1


def test_new_rows_need_all_mandatory_columns(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("v", pa.int64(), False)])
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1, 2], "v": [1, 2]}, schema=schema), durable=False)
    with pytest.raises(SchemaMismatch, match="column 'v' is not nullable, but the data does not contain it"):
        table.upsert(pa.table({"id": [1]}), "id", matched="delete")
    with pytest.raises(SchemaMismatch, match="column 'v' is not nullable, but the data has 1 nulls"):
        table.upsert(pa.table({"id": [1], "v": pa.array([None], pa.int64())}), "id")
    after = table.upsert(pa.table({"id": [1]}), "id", matched="delete", insert=False).table
    assert after.to_table().to_pylist() == [{"id": 2, "v": 2}]


def test_an_intent_upserts_once(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), ROWS, durable=False)
    first = table.upsert(WHOLE, "id", intent="today")
    later = first.table.upsert(WHOLE, "id", intent="today", matched="fail")
    assert (later.version, later.already_committed, later.rows_added) == (first.version, True, 1)


def test_delete_unmatched_none_deletes_nothing(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"a": [1, 2], "b": ["x", "y"]}), durable=False)
    after = table.upsert(pa.table({"a": [1], "b": ["q"]}), "a", delete_unmatched=None).table
    assert sorted(after.to_table().to_pylist(), key=lambda row: row["a"]) == [{"a": 1, "b": "q"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize("options", [{}, {"delete_unmatched": None}])
def test_an_upsert_that_changes_nothing_makes_no_version(tmp_path: Path, options: dict[str, Any]) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"a": [1, 2], "b": ["x", "y"]}), durable=False)
    data = pa.table({"a": [1, 7], "b": ["q", "q"]})
    committed = table.upsert(data, "a", matched="ignore", insert=False, **options)
    assert (committed.version, committed.operation, committed.attempts) == (1, "Update", 0)
    assert (committed.rows_added, committed.rows_removed, committed.files) == (0, 0, 0)
    assert table.refresh().version == 1


def test_a_second_plan_reads_only_new_fragments(tmp_path: Path) -> None:
    """The first data file is absent during the second plan, which uses the cached matches of that file."""
    cache, limits = JoinCache(), FileLimits()
    rules = UpsertRules.of("id", matched="update", matched_if=None, insert=True, delete_unmatched=False)
    source = pa.table({"id": [3, 11, 12], "v": [1, 2, 3], "w": ["a", "b", "c"]})
    table = Table.create(tmp_path / "t", ROWS)

    def plan_upsert() -> Update:
        base = load_latest(locate(str(tmp_path / "t")))
        update = upsert(
            base, as_input(source).materialized(), rules, limits=limits, runtime=SYSTEM_RUNTIME, cache=cache
        )
        assert update is not None
        return update

    first = plan_upsert()
    assert [(each.id, each.deletion_file.deleted_rows) for each in first.updated if each.deletion_file] == [(0, 1)]
    table.append(pa.table({"id": [11], "v": [0], "w": ["x"]}))
    (tmp_path / "t" / "data" / table.fragments[0].files[0].path).rename(tmp_path / "away")
    again = plan_upsert()
    assert [each.id for each in again.updated] == [0]
    assert again.removed_ids == (1,)
    assert sum(each.physical_rows for each in again.new) == 3


def test_a_second_plan_reads_changed_fragments(tmp_path: Path) -> None:
    cache = JoinCache()
    rules = UpsertRules.of("id", matched="update", matched_if=None, insert=True, delete_unmatched=False)
    table = Table.create(tmp_path / "t", ROWS)

    def count_changed_rows() -> int:
        base = load_latest(locate(str(tmp_path / "t")))
        update = upsert(
            base, as_input(ALL).materialized(), rules, limits=FileLimits(), runtime=SYSTEM_RUNTIME, cache=cache
        )
        assert update is not None
        return sum(len(BitMap.deserialize(rows)) for rows in (update.affected or {}).values())

    assert count_changed_rows() == 10
    table.delete("id < 4")
    assert count_changed_rows() == 6


def test_concurrent_delete_unmatched_upserts_are_serialized(tmp_path: Path) -> None:
    """Neither was planned with the rows of the other, so the second is planned again and removes them."""
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1, 2], "v": [1, 2]}), durable=False)
    table.upsert(pa.table({"id": [2, 3], "v": [0, 0]}), on="id", delete_unmatched=True)
    second = table.upsert(pa.table({"id": [4], "v": [0]}), on="id", delete_unmatched=True)
    assert second.table.to_table()["id"].to_pylist() == [4]
    assert second.attempts == 2


def test_the_time_of_an_upsert_grows_linearly_with_the_columns(tmp_path: Path) -> None:
    """Eight times as many columns take about eight times as long; a search of all names for each column would take 64
    times as long, and takes 30 times as long together with the rest."""

    def seconds(count: int) -> float:
        rows = pa.table({"id": range(20)} | {f"c{number}": range(20) for number in range(count)})
        table = Table.create(tmp_path / str(count), rows.slice(0, 15), durable=False)
        times = []
        for start in (14, 10):
            begin = time.thread_time()
            table = table.upsert(rows.slice(start, 6), "id").table
            times.append(time.thread_time() - begin)
            assert table.count_rows() == 20
        return min(times)

    seconds(8)
    assert seconds(2048) < 16 * seconds(256)
