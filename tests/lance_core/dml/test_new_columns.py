"""New columns compared with pylance: fields, field ids, files, lineage and rows; and the errors."""

import itertools
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader

from lance_core import InvalidInput, SchemaMismatch, Table, Unsupported
from lance_core.dml.integer_keys import IntegerKeys, SlotTable
from lance_core.dml.key_join import SourceKeys
from tests.lance_core.dml.schema_change_pair import SchemaChangePair, create_pair, file_layouts


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> SchemaChangePair:
    return create_pair(tmp_path, stable=request.param, deleted="id in (0, 2, 7, 8, 9)", indexed="a")


def double_ids(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([pa.array(batch["id"].to_numpy() * 2)], names=["u"])


@pytest.mark.parametrize(
    "expressions",
    [
        {"b": "id * 2", "c": "nullif(id, 3)"},
        {"one": "1", "word": "'x'", "yes": "true"},  # constants are not nullable
        {"copy": "id", "both": "s", "x": "s.x + 1"},
        {"b": "a + id"},
    ],
    ids=str,
)
def test_sql_expressions(tables: SchemaChangePair, expressions: dict[str, str]) -> None:
    tables.change(lambda table: table.add_columns(expressions), lambda dataset: dataset.add_columns(expressions))


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_sql_expressions_in_every_storage_version(tmp_path: Path, version: str) -> None:
    tables = create_pair(tmp_path, version=version)
    tables.change(
        lambda table: table.add_columns({"t": "s", "n": "id"}), lambda it: it.add_columns({"t": "s", "n": "id"})
    )


@pytest.mark.parametrize(
    "fields",
    [
        pa.field("n", pa.int32(), metadata={"unit": "mm"}),
        [pa.field("n", pa.struct([("k", pa.int32()), ("m", pa.list_(pa.string()))])), pa.field("o", pa.float64())],
        pa.schema([pa.field("n", pa.int32())], {"about": "this"}),
        pa.field("s", pa.struct([("z", pa.int64())])),
        pa.field("l", pa.list_(pa.struct([("z", pa.list_(pa.int64()))]))),
    ],
    ids=["field", "fields", "schema", "child", "child in a list"],
)
def test_all_null_columns_take_no_file(tables: SchemaChangePair, fields: pa.Field | list[pa.Field] | pa.Schema) -> None:
    before = file_layouts(tables.ours)
    tables.change(lambda table: table.add_columns(fields), lambda dataset: dataset.add_columns(fields))
    assert file_layouts(tables.ours) == before


def test_a_function_from_batches_to_batches(tables: SchemaChangePair) -> None:
    tables.change(
        lambda table: table.add_columns(double_ids, read_columns=["id"]),
        lambda dataset: dataset.add_columns(double_ids, read_columns=["id"]),
    )


def test_a_function_gets_its_columns_and_declares_its_types(tables: SchemaChangePair) -> None:
    batches: list[pa.RecordBatch] = []

    def compute(batch: pa.RecordBatch) -> pa.Table:
        batches.append(batch)
        return pa.table({"v": batch["a"], "u": batch["_rowaddr"]})

    schema = pa.schema([("u", pa.uint64()), pa.field("v", pa.int32(), metadata={"unit": "mm"})])
    after = tables.table.add_columns(compute, read_columns=["a", "_rowaddr"], schema=schema).table
    assert [batch.schema.names for batch in batches] == [["a", "_rowaddr"]] * 2
    assert after.schema.names[-2:] == ["u", "v"]
    assert after.schema.field("v").metadata == {b"unit": b"mm"}
    assert after.to_table(["u"])["u"] == after.to_table(["_rowaddr"])["_rowaddr"]


def test_a_table_without_rows(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64())]), durable=False)
    table = table.add_columns({"b": "id + 1"}).table.add_columns(double_ids).table
    assert (
        table.schema
        == lance.dataset(table.uri).schema
        == pa.schema([("id", pa.int64())]).append(pa.field("b", pa.int64())).append(pa.field("u", pa.int64()))
    )


def test_new_files_have_values_for_deleted_rows(tables: SchemaChangePair) -> None:
    """A file has a value for each deleted row: NULL, or that of a neighbour if the column is not nullable."""
    table = tables.table.add_columns({"b": "id", "one": "id * 0 + 1", "k": "7"}).table
    for fragment in table.fragments:
        read = LanceFileReader(f"{table.uri}/data/{fragment.files[-1].path}").read_all().to_table()
        assert read.num_rows == fragment.physical_rows
        assert read["k"].to_pylist() == [7] * 5
    assert read["b"].to_pylist() == [5, 6, None, None, None]


def test_an_intent_adds_columns_once(tables: SchemaChangePair) -> None:
    first = tables.table.add_columns({"b": "id"}, intent="b", properties={"why": "asked"})
    again = tables.table.add_columns({"b": "id"}, intent="b")
    assert (again.version, again.already_committed, first.rows_added, first.rows_removed, first.files) == (
        first.version, True, 0, 0, 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": "id"}, r"has a column 'a' already"),
        ({"b": "idd + 1"}, r"there is no column 'idd' at character 1; did you mean 'id'\?"),
        ({"b": "id +"}, r"the SQL of column 'b', 'id \+': it does not parse"),
        ({"b": "100 / (id - 5)"}, r"failed on a row"),
        ({"b.c": "id"}, r"may not be empty or contain '\.'"),
        ({"_rowid": "id"}, r"a name that Lance reserves"),
        ({}, r"no expression is given"),
        ([], r"no column is given"),
        (pa.field("n", pa.int32(), nullable=False), r"would be null in every row"),
        (pa.field("s", pa.struct([pa.field("z", pa.int32(), False)])), r"'s.z' would be null in every row"),
        (pa.field("s", pa.struct([("x", pa.int64())])), r"column 's.x' .*exists already"),
        (pa.field("a", pa.int32()), r"column 'a' .*exists already"),
        (lambda batch: batch.slice(1), r"was given 3 rows and returned 2"),
        (lambda batch: "rows", r"returned <class 'str'>; return a record batch"),
        (lambda batch: batch, r"has a column 'id' already"),
    ],
)
def test_invalid_arguments_are_rejected(tmp_path: Path, columns: object, message: str) -> None:
    table = create_pair(tmp_path, deleted="id in (0, 2, 7, 8, 9)").table
    with pytest.raises(InvalidInput, match=message):
        table.add_columns(columns)
    assert table.refresh().version == table.version


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda batch: pa.record_batch([batch["id"].cast(pa.string())], names=["u"]), "'u' is stored as int64"),
        (
            lambda batch: pa.record_batch([batch["id"]], names=["v"]),
            "returned the columns v; the expected columns are u",
        ),
        (lambda batch: pa.record_batch([pa.nulls(len(batch), pa.int64())], names=["u"]), "'u' is not nullable"),
    ],
)
def test_results_of_other_types_than_declared_are_rejected(tmp_path: Path, result: object, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        create_pair(tmp_path).table.add_columns(result, schema=pa.schema([pa.field("u", pa.int64(), False)]))


def test_children_are_added_since_storage_version_2_2(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"needs storage version 2\.2 or newer; this table has 2\.1"):
        create_pair(tmp_path, version="2.1").table.add_columns(pa.field("s", pa.struct([("z", pa.int64())])))


def test_types_beyond_the_storage_version_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"a map that storage version 2\.1 cannot store"):
        create_pair(tmp_path, version="2.1").table.add_columns(pa.field("m", pa.map_(pa.string(), pa.int64())))


# Merge by key


def test_a_merge_equals_that_of_pylance(tables: SchemaChangePair) -> None:
    rows = pa.table(
        {"id": pa.array([6, 5, 1, 100, 0], pa.int64()), "z": list("efthx"), "y": pa.array([{"k": n} for n in range(5)])}
    )
    tables.change(lambda table: table.merge_columns(rows, "id"), lambda dataset: dataset.merge(rows, "id"))
    assert tables.table.to_table(["z"])["z"].to_pylist() == ["t", None, None, "f", "e"]


@pytest.mark.parametrize(
    ("keys", "on"),
    [
        ({"id": pa.array([4, 1], pa.int16())}, "id"),  # a narrower type
        ({"id": pa.array([4 << 40, 4, 1])}, "id"),  # far apart
        ({"a": pa.array([None, 4, 1], pa.int32())}, "a"),  # a null equals nothing
        ({"id": [4, 1], "a": pa.array([4, 1], pa.int32())}, ["a", "id"]),
        ({"id": pa.array([4.0, 1.0])}, ["id"]),
    ],
    ids=["narrow", "far apart", "a null", "two", "doubles"],
)
def test_merge_keys(tables: SchemaChangePair, keys: dict[str, pa.Array], on: str | list[str]) -> None:
    rows = pa.table(keys)
    rows = rows.append_column("w", pa.array([f"w{n}" for n in range(rows.num_rows)]))
    found = tables.table.merge_columns(rows, on).table.to_table(["id", "w"]).to_pylist()
    assert {row["id"]: row["w"] for row in found} == {
        1: f"w{rows.num_rows - 1}", 3: None, 4: f"w{rows.num_rows - 2}", 5: None, 6: None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "on", "error", "message"),
    [
        ({"id": [1, 1], "w": [1, 2]}, "id", InvalidInput, "more than once.*: id = 1"),
        ({"id": [1], "a": [1]}, "id", InvalidInput, "has a column 'a' already"),
        ({"id": [1]}, "id", InvalidInput, "at least one other column in the data"),
        ({"id": [1], "w": [1]}, [], InvalidInput, "needs a key"),
        ({"id": [1], "w": [1]}, "idd", InvalidInput, "in the table, there is no column 'idd'; did you mean 'id'"),
        ({"i": [1], "w": [1]}, "id", InvalidInput, "in the data, there is no column 'id'"),
        ({"id": ["x"], "w": [1]}, "id", SchemaMismatch, "key 'id' has type int64 in the table and string in the data"),
        ({"s": [{"x": 1, "y": ""}], "w": [1]}, "s", InvalidInput, "cannot be matched by column 's'"),
    ],
)
def test_invalid_merges_are_rejected(
    tmp_path: Path, rows: dict[str, list[object]], on: str, error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        create_pair(tmp_path).table.merge_columns(pa.table(rows), on)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("key", ["id", "name"])
@pytest.mark.parametrize(
    ("values", "stored"),
    [
        (pa.array(["p", "q"], pa.string_view()), pa.string()),
        (pa.array([b"p", b"q"], pa.binary_view()), pa.binary()),
        (pa.array([["p"], None], pa.list_(pa.string_view())), pa.list_(pa.string())),
        (pa.array([{"a": "p"}, {"a": None}], pa.struct({"a": pa.string_view()})), pa.struct({"a": pa.string()})),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_views_are_merged_as_plain_values(
    tmp_path: Path, values: pa.Array, stored: pa.DataType, key: str, replace: bool
) -> None:
    table = Table.create(tmp_path / "t", pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}), durable=False)
    keys = pa.array([3, 1]) if key == "id" else pa.array(["c", "a"], pa.string_view())
    merged = table.merge_columns(pa.table({key: keys, "new": values}), key, replace=replace).table
    first, second = values.to_pylist()
    assert merged.to_table(["new"])["new"].combine_chunks() == pa.array([second, None, first], stored)


def test_a_merge_of_a_mandatory_column_needs_a_value_for_every_row(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("w", pa.int64(), False)])
    table = create_pair(tmp_path).table
    with pytest.raises(SchemaMismatch, match="'w' is not nullable, but the data has 5 nulls"):
        table.merge_columns(pa.table({"id": range(5), "w": range(5)}, schema), "id")
    after = table.merge_columns(pa.table({"id": range(10), "w": range(10)}, schema), "id").table
    assert not after.schema.field("w").nullable


@pytest.mark.parametrize("factor", [1, 1000, 10**9], ids=["close", "apart", "far apart"])
def test_both_join_strategies_agree(factor: int) -> None:
    random = np.random.default_rng(7)
    keys = random.permutation(5000)[:2000] * factor
    table_keys = pa.chunked_array(
        [pa.array(random.integers(-100, 5100, 3000) * factor, mask=random.random(3000) < 0.1)]
    )
    rows = pa.table({"k": pa.array(keys, mask=random.random(2000) < 0.1)})
    integer_keys = IntegerKeys.of(rows["k"])
    assert integer_keys is not None
    as_text = rows.set_column(0, "k", rows["k"].cast(pa.string()))
    expected = SourceKeys(as_text, ["k"], what="t").find_rows([table_keys.cast(pa.string())])
    assert (expected >= 0).any()
    assert (integer_keys.find_rows(table_keys) == expected).all()
    assert (SourceKeys(rows, ["k"], what="t").find_rows([table_keys]) == expected).all()


def random_chunks(random: np.random.Generator, column: pa.Array) -> pa.ChunkedArray:
    cuts = sorted(random.integers(0, len(column) + 1, 5).tolist())
    return pa.chunked_array([column[a:b] for a, b in itertools.pairwise([0, *cuts, len(column)])], column.type)


@pytest.mark.parametrize("arrow", [pa.int64(), pa.int16(), pa.timestamp("us", "UTC")], ids=str)
@pytest.mark.parametrize("seed", range(40))
def test_keys_are_found_in_any_order_of_the_table(seed: int, arrow: pa.DataType) -> None:
    """The column is sorted or not, has gaps, duplicates and nulls, and any chunks; the reference joins texts."""
    random = np.random.default_rng(seed)
    span = int(random.choice([30, 3000, 30_000]))
    table = random.integers(-span, span, int(random.choice([1, 50, 2000])))
    match seed % 4:
        case 0:
            table = np.unique(table)
        case 1:
            table = np.sort(table)
        case 2:
            table = np.concatenate([np.unique(table), np.unique(table)[::-1], np.unique(table) + 1])
    nulls = random.random(len(table)) < (0.01 if seed % 3 == 0 else 0)
    table_keys = random_chunks(random, pa.array(table, mask=nulls).cast(arrow))
    keys = random.permutation(np.unique(random.integers(-span - 9, span + 9, int(random.choice([1, 5, 500])))))
    rows = pa.table({"k": pa.array(keys, mask=random.random(len(keys)) < 0.05).cast(arrow)})
    as_text = pa.table({"k": rows["k"].cast(pa.string())})
    expected = SourceKeys(as_text, ["k"], what="t").find_rows([table_keys.cast(pa.string())])
    positions, found = SourceKeys(rows, ["k"], what="t").find_matches([table_keys])
    assert positions.tolist() == np.flatnonzero(expected >= 0).tolist()
    assert found.tolist() == expected[expected >= 0].tolist()
    assert [
        each.tolist() for each in SourceKeys(as_text, ["k"], what="t").find_matches([table_keys.cast(pa.string())])
    ] == [
        positions.tolist(),
        found.tolist(),
    ]


def test_keys_that_share_a_slot_are_found() -> None:
    random = np.random.default_rng(3)
    keys = np.unique(random.integers(-(2**63), 2**63 - 1, 60_000))
    table = SlotTable.of(keys, np.arange(len(keys)))
    assert np.count_nonzero(table.has_key) < len(keys) - 500  # many keys share a slot
    values = random.permutation(np.concatenate([keys, keys + 1, random.integers(-(2**63), 2**63 - 1, 100_000)]))
    positions, rows = table.match(values)
    assert positions.tolist() == np.flatnonzero(np.isin(values, keys)).tolist()
    assert (keys[rows] == values[positions]).all()


def test_extreme_integers_are_valid_keys() -> None:
    extremes = IntegerKeys.of(pa.chunked_array([[2**63 - 1, -(2**63), None]]))
    assert extremes is not None
    ascending = pa.chunked_array([[-(2**63), *range(20), 2**63 - 1], [None], [2**63 - 1], []], pa.int64())
    assert [each.tolist() for each in extremes.find_matches(ascending)] == [[0, 21, 23], [1, 0, 0]]


@pytest.mark.parametrize("other_key", [7, 10**12], ids=["close", "far apart"])
def test_duplicate_integer_keys_are_reported(other_key: int) -> None:
    duplicates = pa.chunked_array([[5, other_key], [None, 5]])
    assert IntegerKeys.of(duplicates) is None
    with pytest.raises(InvalidInput, match=r"more than once \(1 of them\): k = 5"):
        SourceKeys(pa.table({"k": duplicates}), ["k"], what="t")
    extremes = IntegerKeys.of(pa.chunked_array([[2**63 - 1, -(2**63), None]]))
    assert extremes is not None
    assert extremes.find_rows(pa.chunked_array([[0, -(2**63), None, 2**63 - 1]])).tolist() == [-1, 1, -1, 0]


# Encodings


def test_encodings_in_field_metadata_take_effect(tmp_path: Path) -> None:
    """The requested compression applies to a column of the table and to an added one."""
    words = pa.array(["the same words again and again " * 20 + str(n) for n in range(5000)])

    def sizes(compression: str) -> list[int]:
        metadata = {"lance-encoding:compression": compression}
        field = pa.field("w", pa.string(), metadata=metadata)
        table = Table.create(str(tmp_path / compression), pa.table([words], pa.schema([field])), durable=False)
        more = pa.schema([field.with_name("v")])
        table = table.add_columns(lambda batch: pa.record_batch([batch["w"]], schema=more)).table
        assert table.to_table()["v"] == table.to_table()["w"]
        return [file.size or 0 for file in table.fragments[0].files]

    plain, packed = sizes("none"), sizes("zstd")
    assert all(small * 4 < large for small, large in zip(packed, plain, strict=True))


def test_changed_encodings_apply_to_later_files(tmp_path: Path) -> None:
    rows = pa.table({"w": ["the same words again and again " * 20 + str(n) for n in range(5000)]})
    table = Table.create(str(tmp_path / "t"), rows, durable=False)
    table = table.set_field_metadata({"w": {"lance-encoding:compression": "none"}}).table.append(rows).table
    table = table.set_field_metadata({"w": {"lance-encoding:compression": "zstd"}}).table.append(rows).table
    _, plain, packed = (fragment.files[0].size or 0 for fragment in table.fragments)
    assert packed * 4 < plain


def test_an_exception_in_a_function_names_its_fragment(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1, 2]}), durable=False)
    table = table.append(pa.table({"id": [3, 0]})).table

    def inverse(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([pa.array([1 / each for each in rows["id"].to_pylist()])], names=["inverse"])

    with pytest.raises(ZeroDivisionError) as raised:
        table.add_columns(inverse)
    assert raised.value.__notes__ == [
        f"{table.uri}: the function for new columns raised this on fragment 1, 2 rows of version 2"
    ]
    assert table.refresh().version == table.version
