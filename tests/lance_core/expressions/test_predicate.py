"""Predicates: column names, errors, conjuncts, masks and pickles."""

import concurrent.futures
import json
import pickle
import subprocess
import sys
from collections.abc import Mapping

import pyarrow as pa
import pytest

from lance_core.errors import InvalidInput
from lance_core.expressions import Predicate, with_metadata_columns

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("Name", pa.string()),
        ("odd name", pa.int32()),
        ("s", pa.struct([("x", pa.int32()), ("Deep One", pa.struct([("y", pa.float32())]))])),
        ("js", pa.json_(pa.string())),
        ("tags", pa.list_(pa.string())),
    ]
)


def rows(*values: Mapping[str, object]) -> pa.RecordBatch:
    schema = pa.schema([field for field in SCHEMA if field.name != "js"])
    return pa.RecordBatch.from_pylist(list(values), schema=schema)


def matches(sql: str, batch: pa.RecordBatch) -> list[bool]:
    return list(Predicate.parse(sql, batch.schema).mask(batch).to_pylist())


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("id = 1", ("id",)),
        ("ID = 1 AND name = 'a'", ("Name", "id")),
        ("`odd name` = 1", ("odd name",)),
        ("s.x = 1 OR s.`Deep One`.y > 0", ("s",)),
        ("lower(NAME) = 'id'", ("Name",)),
        ("Name = 'id'", ("Name",)),
        ("1 = 1", ()),
        ("id = 1 OR true", ()),
    ],
)
def test_columns_are_top_level_names_as_spelled_in_the_table(sql: str, columns: tuple[str, ...]) -> None:
    assert Predicate.parse(sql, SCHEMA).columns == columns


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("nme = 'a'", "there is no column 'nme' at character 1; did you mean 'Name'?"),
        ("id = 1 AND zzzz = 2", "there is no column 'zzzz' at character 12; available: id, Name"),
        ("s.z = 1", "there is no field 'z' in that struct at character 3"),
        ("id = 1 AND nope(id) = 2", "there is no function 'nope' at character 12"),
        ("is_valid(id)", "write `x IS NOT NULL`"),
        ("id + 1", "it is of type int64, but a predicate must be true or false"),
        ("id = 'x'", "'x' is not a number, but the column holds int64"),
        ("id > 2.5", "2.5 is not an integer"),
        ("Name = 5", "5 is not a string"),
        ("js = '{}'", "a JSON column cannot be compared or cast"),
        ("json_get(js, 'a') IS NULL", "there is no function 'json_get' at character 1; there are json_extract"),
        ("id =", "it does not parse: expected: an expression, found: EOF"),
        ("id = 1)", "found: ) at Line: 1, Column: 7. Supported are"),
        ("", "predicate is empty"),
        ("count(*) > 1", "an aggregate cannot be evaluated row by row"),
        ("sum(id) over () > 1", "a window function cannot"),
        ("id IN (select 1)", "a subquery cannot"),
        ("EXISTS (select 1)", "a subquery cannot"),
        ("id = $1", "a parameter cannot"),
        ("random() < 2", "random() is not deterministic"),
        ("id = 1 AND " + "(" * 200 + "id = 1" + ")" * 200, "nested too deeply"),
        (" OR ".join(f"id = {each}" for each in range(5_000)), "write long lists as `x IN (...)`"),
        ("id" + " + 1" * 5_000 + " > 1", "at most 2,000 are supported"),
        ("_rowid = 3", "there is no column '_rowid'"),
    ],
)
def test_errors_state_the_reason_and_the_position(sql: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Predicate.parse(sql, SCHEMA)
    assert message in str(refused.value)


def test_system_columns_are_optional() -> None:
    assert Predicate.parse("_rowid = 3 AND id > 0", with_metadata_columns(SCHEMA)).columns == ("_rowid", "id")


def test_conjuncts_can_be_evaluated_where_their_columns_are() -> None:
    parts = Predicate.parse("ID > 0 AND (Name = 'a' OR s.x = 1) AND NOT `odd name` = 2", SCHEMA).conjuncts()
    assert [part.columns for part in parts] == [("id",), ("Name", "s"), ("odd name",)]
    only_id = pa.RecordBatch.from_pydict({"id": [0, 1]})
    assert parts[0].mask(only_id).to_pylist() == [False, True]


def test_null_does_not_match() -> None:
    batch = rows({"id": 1}, {"id": None}, {"id": 2})
    assert matches("id = 1", batch) == [True, False, False]
    assert matches("NOT id = 1", batch) == [False, False, True]
    assert matches("NULL OR id = 1", batch) == [True, False, False]


def test_a_field_of_a_null_struct_is_null_whatever_lies_below() -> None:
    children = pa.array([7, 7, None], pa.int32())
    struct = pa.StructArray.from_arrays([children], names=["x"], mask=pa.array([False, True, False]))
    nested = pa.StructArray.from_arrays([struct], names=["s"], mask=pa.array([False, False, False]))
    listed = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), struct)
    batch = pa.record_batch({"s": struct, "n": nested, "l": listed})
    for part in (batch, batch.slice(1)):
        expected = [True, False, False][3 - part.num_rows :]
        for path in ("s.x", "n.s.x", "l[1]['x']"):
            assert matches(f"{path} = 7", part) == expected, path
            assert matches(f"{path} IS NULL", part) == [not each for each in expected], path


def test_slices_and_empty_batches() -> None:
    batch = rows(*({"id": each, "Name": str(each), "tags": ["a"] * (each % 3)} for each in range(100)))
    predicate = Predicate.parse("id % 10 = 3 AND Name LIKE '%3' AND array_has(tags, 'a')", batch.schema)
    whole = predicate.mask(batch)
    assert whole.true_count == 6
    assert predicate.mask(batch.slice(17, 40)).equals(whole.slice(17, 40))
    assert predicate.mask(batch.slice(0, 0)).to_pylist() == []
    assert matches("true", batch.slice(3, 2)) == [True, True]


def test_filter_leaves_out_batches_without_matches() -> None:
    predicate = Predicate.parse("id >= 3", SCHEMA)
    found = list(predicate.filter([rows({"id": 1}), rows({"id": 2}, {"id": 3}), rows({"id": 4})]))
    assert [batch["id"].to_pylist() for batch in found] == [[3], [4]]


def test_json_columns_answer_is_null() -> None:
    stored = pa.array([json.dumps({"a": 1}), None])
    batch = pa.record_batch({"js": pa.ExtensionArray.from_storage(pa.json_(pa.string()), stored)})
    assert matches("js IS NULL", batch) == [False, True]


def test_a_value_that_cannot_be_computed_is_an_error_of_the_input() -> None:
    predicate = Predicate.parse("1 / id > 0", SCHEMA)
    with pytest.raises(InvalidInput, match=r"failed on a row: Divide by zero error"):
        predicate.mask(rows({"id": 0}))


def test_a_batch_without_the_column_is_refused() -> None:
    with pytest.raises(InvalidInput, match="reads column 'id', which the batch does not have"):
        Predicate.parse("id = 1", SCHEMA).mask(pa.record_batch({"other": [1]}))


def test_a_pickled_predicate_is_small_and_the_same() -> None:
    wide = pa.schema([("id", pa.int64()), *((f"column_{each}", pa.string()) for each in range(500))])
    predicate = Predicate.parse("ID = 3 AND column_7 IN ('a', 'b')", wide)
    pickled = pickle.dumps(predicate)
    assert len(pickled) < 1_000
    assert pickle.loads(pickled) == predicate
    assert pickle.loads(pickled).tree == predicate.tree


def test_now_is_the_time_of_the_parse() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    predicate = Predicate.parse("at < now()", schema)
    assert "now" not in str(predicate.tree)
    assert pickle.loads(pickle.dumps(predicate)).tree == predicate.tree
    assert str(Predicate.parse("at < now()", schema).tree) != str(predicate.tree), "each parse takes the current time"


def test_threads_share_a_predicate() -> None:
    batch = rows(*({"id": each} for each in range(1_000)))
    predicate = Predicate.parse("id % 7 = 0", batch.schema)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        counts = set(pool.map(lambda _: predicate.mask(batch).true_count, range(64)))
    assert counts == {143}


def test_long_lists_of_values() -> None:
    sql = f"id IN ({', '.join(map(str, range(-5_000, 5_000)))})"
    assert matches(sql, rows({"id": -5_000}, {"id": 4_999}, {"id": 5_000})) == [True, True, False]


def test_the_package_loads_without_datafusion() -> None:
    script = "import sys, lance_core.expressions; print('datafusion' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "False"


@pytest.mark.parametrize("negated", ["", "NOT "])
@pytest.mark.parametrize(
    ("column", "listed"),
    [
        ("id", [str(each) for each in range(0, 6_000, 3)]),
        ("NAME", [f"'{each}'" for each in range(0, 6_000, 3)]),
        ("f", [f"{each}.5" for each in range(0, 3_000, 3)]),
        ("d", [f"date '{1970 + each}-01-01'" for each in range(2_000)]),
    ],
)
def test_long_lists_answer_as_short_ones(column: str, listed: list[str], negated: str) -> None:
    values = [0, 1, 3, 999, 1_001, None, 20_001]
    batch = pa.record_batch(
        {
            "id": pa.array(values, pa.int64()),
            "Name": pa.array([None if each is None else str(each) for each in values]),
            "f": pa.array([None if each is None else each + 0.5 for each in values], pa.float32()),
            "d": pa.array(values, pa.int32()).cast(pa.date32()),
        }
    )
    long = matches(f"{column} {negated}IN ({', '.join(listed)}) AND (id < 20000 OR id IS NULL)", batch)
    halves = [
        matches(f"{column} {negated}IN ({', '.join(part)}) AND (id < 20000 OR id IS NULL)", batch)
        for part in (listed[each : each + 100] for each in range(0, len(listed), 100))
    ]
    join = all if negated else any
    assert long == [join(answers) for answers in zip(*halves, strict=True)]
