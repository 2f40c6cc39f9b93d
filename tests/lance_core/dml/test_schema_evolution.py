"""Schema evolution compared with pylance: columns dropped, renamed, reordered and cast, the errors, and the traps of
the format.
"""

import shutil
import uuid
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, RetryableConflict, SchemaMismatch, Table
from lance_core.format import field_ids, naming
from lance_core.format.fragment import TOMBSTONE
from lance_core.format.operations import Merge
from lance_core.format.transaction import Transaction
from tests.lance_core.dml.schema_change_pair import (
    ROWS,
    WITH_NULLS,
    SchemaChangePair,
    alter_column,
    create_pair,
    describe_version,
    file_layouts,
)

ADDED_FIELD = pa.field("s", pa.struct([("z", pa.int64())]))
LIST_OF_POINTS = pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())]))


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> SchemaChangePair:
    return create_pair(tmp_path, WITH_NULLS, stable=request.param, deleted="id in (2, 7, 8, 9)", indexed="a")


@pytest.mark.parametrize(
    "columns",
    [["id"], ["a"], ["s"], ["s.x"], ["s.x", "s.y"], ["s.x", "l.item.y"], ["l"], ["id", "id"], ["id", "s", "l"]],
    ids=",".join,
)
def test_drop(tables: SchemaChangePair, columns: list[str]) -> None:
    tables.change(lambda table: table.drop_columns(columns), lambda dataset: dataset.drop_columns(columns))


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_drop_a_field_of_a_struct_in_older_storage_versions(tmp_path: Path, version: str) -> None:
    tables = create_pair(tmp_path, version=version)
    tables.change(lambda table: table.drop_columns(["s.x"]), lambda dataset: dataset.drop_columns(["s.x"]))


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_drop_a_field_in_lists_in_older_storage_versions(tmp_path: Path, version: str) -> None:
    """Pylance silently drops the whole column there; lance_core drops the field alone, and pylance reads the rest."""
    tables = create_pair(tmp_path, version=version)
    tables.dataset.drop_columns(["l.item.x"])
    assert "l" not in tables.dataset.schema.names
    after = tables.table.drop_columns(["l.item.x"]).table.to_table()
    assert after["l"].to_pylist()[2] == [{"y": "2"}, {"y": "2"}]
    assert lance.dataset(tables.ours).to_table() == after


def test_files_without_live_columns_are_removed(tables: SchemaChangePair) -> None:
    for change in ({"b": "id"}, {"c": "id"}):
        tables.change(lambda table: table.add_columns(change), lambda dataset: dataset.add_columns(change))  # noqa: B023
    tables.change(lambda table: table.drop_columns(["b"]), lambda dataset: dataset.drop_columns(["b"]))
    assert [len(files) for files in file_layouts(tables.ours)] == [2, 2]


@pytest.mark.parametrize(
    ("name", "rename"), [("id", "ident"), ("a", "A"), ("s", "t"), ("s.x", "x.2"), ("l.item.x", "y2"), ("l", "x")]
)
def test_rename(tables: SchemaChangePair, name: str, rename: str) -> None:
    tables.change(
        lambda table: table.alter_column(name, rename=rename),
        lambda dataset: alter_column(dataset, name, name=rename),
    )


def test_swapped_names(tables: SchemaChangePair) -> None:
    """The fields have equal types, so the names in the data files are misleading afterwards."""
    for name, rename in (("s.x", "tmp"), ("s.y", "x"), ("s.tmp", "y")):
        tables.change(
            lambda table: table.alter_column(name, rename=rename),  # noqa: B023
            lambda dataset: alter_column(dataset, name, name=rename),  # noqa: B023
        )
    assert tables.table.to_table(["s"])["s"].to_pylist()[1] == {"y": 1, "x": None}


def test_a_field_added_again_has_a_new_identity(tmp_path: Path) -> None:
    tables = create_pair(tmp_path)
    again = pa.field("s", pa.struct([("x", pa.int64())]))
    tables.change(lambda table: table.drop_columns(["s.x"]), lambda dataset: dataset.drop_columns(["s.x"]))
    tables.change(lambda table: table.add_columns(again), lambda dataset: dataset.add_columns(again))
    assert tables.table.to_table(["s"])["s"].to_pylist()[1] == {"y": "1", "x": None}


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("id", pa.int32()),
        ("a", pa.int64()),
        ("s.x", pa.int16()),
        ("s.y", pa.large_string()),
        ("l.item.x", pa.int32()),
    ],
)
@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_cast(tmp_path: Path, version: str, name: str, to: pa.DataType) -> None:
    tables = create_pair(tmp_path, WITH_NULLS, version=version, deleted="id in (2, 7, 8, 9)", stable=version == "2.2")
    tables.change(
        lambda table: table.alter_column(name, type=to),
        lambda dataset: alter_column(dataset, name, data_type=to),
    )


def test_casts_that_pylance_does_not_offer(tmp_path: Path) -> None:
    table = (
        create_pair(tmp_path)
        .table.alter_column("id", type=pa.string())
        .table.alter_column("a", type=pa.float64())
        .table
    )
    assert table.to_table(["id", "a"]).to_pylist()[:2] == [{"id": "0", "a": None}, {"id": "1", "a": 1.0}]
    assert lance.dataset(table.uri).to_table() == table.to_table()


def test_fields_of_a_struct_in_several_files_are_read_singly(tables: SchemaChangePair) -> None:
    table = tables.table.alter_column("s.x", type=pa.int32()).table.add_columns(ADDED_FIELD).table
    theirs = lance.dataset(table.uri)
    for columns in (["s.x"], ["s.y", "id"], ["s.z"], ["s"]):
        assert table.to_table(columns).num_rows == theirs.count_rows() == 6
    assert table.to_table(["s.x"]).column(0).to_pylist() == theirs.to_table(["s.x"]).column(0).to_pylist()
    assert table.to_table(filter="s.x > 3 and s.z is null") == theirs.to_table(filter="s.x > 3 and s.z is null")


def test_repeated_casts_with_renames(tables: SchemaChangePair) -> None:
    """The file of the first cast stores no live column any more and is removed from the fragment."""
    for name, rename, to in (("id", "ident", pa.int32()), ("ident", "id", pa.int16()), ("s.x", "z", pa.int8())):
        tables.change(
            lambda table: table.alter_column(name, rename=rename, type=to, nullable=True),  # noqa: B023
            lambda dataset: alter_column(dataset, name, name=rename, data_type=to, nullable=True),  # noqa: B023
        )
    assert [len(files) for files in file_layouts(tables.ours)] == [3, 3]


def test_structs_and_lists_are_cast_as_a_whole(tables: SchemaChangePair) -> None:
    table = tables.table.alter_column("l", type=LIST_OF_POINTS).table
    table = table.alter_column("s", rename="t", type=LIST_OF_POINTS.value_type).table
    expected = WITH_NULLS.filter(pa.compute.invert(pa.compute.is_in(WITH_NULLS["id"], pa.array([2, 7, 8, 9]))))
    assert table.to_table(["t", "l"]).to_pydict() == {
        "t": expected["s"].to_pylist(),
        "l": expected["l"].to_pylist(),
    }
    assert lance.dataset(table.uri).to_table() == table.to_table()


def test_a_cast_within_a_struct_of_version_2_0_rewrites_the_struct(tmp_path: Path) -> None:
    """In 2.0 a struct is a column too. Pylance moves the child alone and can then no longer read the table."""
    tables = create_pair(tmp_path, version="2.0")
    alter_column(tables.dataset, "s.x", data_type=pa.int32())
    assert file_layouts(tables.theirs)[0] == [([0, 1, -2, 3, 4, *range(5, 9)], [*range(9)]), ([2, 9], [0, 1])]
    with pytest.raises(pa.ArrowInvalid, match="projection supplied fewer column indices"):
        lance.dataset(tables.theirs).to_table()
    table = tables.table.alter_column("s.x", type=pa.int32()).table
    assert file_layouts(tables.ours)[0] == [([0, 1, -2, 3, -2, *range(5, 9)], [*range(9)]), ([2, 9, 4], [0, 1, 2])]
    assert lance.dataset(table.uri).to_table() == table.to_table() == Table.open(tables.theirs).to_table()
    assert table.to_table(["s"])["s"].to_pylist() == ROWS["s"].to_pylist()


def test_nullability(tables: SchemaChangePair) -> None:
    for name, nullable in (("id", False), ("id", True)):
        tables.change(
            lambda table: table.alter_column(name, nullable=nullable),  # noqa: B023
            lambda dataset: alter_column(dataset, name, nullable=nullable),  # noqa: B023
        )
    for name in ("a", "s", "s.x"):  # the children of a null struct are null
        with pytest.raises(InvalidInput, match=f"column '{name}' contains nulls"):
            tables.table.alter_column(name, nullable=False)
        with pytest.raises(OSError, match="contains NULL values"):
            alter_column(tables.dataset, name, nullable=False)


def test_nulls_of_deleted_rows_do_not_prevent_a_mandatory_column(tables: SchemaChangePair) -> None:
    for uri in (tables.ours, tables.theirs):
        lance.dataset(uri).delete("a is null")
    tables.change(
        lambda table: table.alter_column("a", nullable=False),
        lambda dataset: alter_column(dataset, "a", nullable=False),
    )


def test_a_column_is_cast_and_made_mandatory_at_once(tmp_path: Path) -> None:
    """Pylance needs two steps; here the rows that are checked for nulls are the ones that are cast."""
    table = create_pair(tmp_path).table.alter_column("id", type=pa.int32(), nullable=False).table
    assert table.schema.field("id") == lance.dataset(table.uri).schema.field("id") == pa.field("id", pa.int32(), False)
    assert lance.dataset(table.uri).to_table() == table.to_table()


def test_reorder(tables: SchemaChangePair) -> None:
    table = tables.table.reorder_columns(["l", "s", "a", "id"]).table
    assert table.to_table() == lance.dataset(table.uri).to_table()
    assert table.to_table() == tables.dataset.to_table(columns=["l", "s", "a", "id"])
    assert len(lance.dataset(table.uri).list_indices()) == 1
    lance.write_dataset(ROWS, table.uri, mode="append")
    assert table.refresh().to_table().slice(6) == ROWS.select(["l", "s", "a", "id"])


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda t: t.drop_columns(["s.xx"]), r"there is no column 's.xx'; did you mean 's.x'\?"),
        (lambda t: t.drop_columns(["id", "a", "s", "l"]), r"these are all of its columns"),
        (lambda t: t.drop_columns([]), r"at least one"),
        (lambda t: t.drop_columns("id"), r"columns must be a list of names, not 'id'"),
        (lambda t: t.drop_columns(["l.item"]), r"is the element of the lists in 'l'"),
        (lambda t: t.reorder_columns(["id", "a", "s"]), r"every column once, but 'l' is missing"),
        (lambda t: t.reorder_columns(["id", "a", "s", "ll"]), r"there is no column 'll'; did you mean 'l'\?"),
        (lambda t: t.reorder_columns(["id", "a", "s", "l", "l"]), r"one is named twice"),
        (lambda t: t.alter_column("id"), r"nothing to alter in column 'id'"),
        (lambda t: t.alter_column("idd", rename="x"), r"there is no column 'idd'; did you mean 'id'\?"),
        (lambda t: t.alter_column("id", rename="a"), r"column 'a' .*exists already"),
        (lambda t: t.alter_column("s.x", rename="y"), r"column 'y' .*exists already"),
        (lambda t: t.alter_column("id", rename="i.d"), r"may not be empty or contain '\.'"),
        (lambda t: t.alter_column("id", rename="_rowaddr"), r"a name that Lance reserves"),
        (lambda t: t.alter_column("s.x", rename=""), r"needs a name"),
        (lambda t: t.alter_column("a", type=pa.int64()), r"while it has an index \(a_idx\)"),
        (lambda t: t.alter_column("s", type=pa.int64()), r"column 's' cannot become int64"),
        (lambda t: t.alter_column("id", type=pa.map_(pa.int8(), pa.int8(), True)), r"a map with sorted keys"),
    ],
)
def test_invalid_arguments_are_rejected(tmp_path: Path, operation: object, message: str) -> None:
    table = create_pair(tmp_path, indexed="a").table
    with pytest.raises(InvalidInput, match=message):
        operation(table)  # type: ignore[operator]
    assert table.refresh().version == table.version


def test_a_cast_loses_nothing(tmp_path: Path) -> None:
    table = create_pair(tmp_path).table.add_columns({"big": "id + 1000"}).table
    with pytest.raises(SchemaMismatch, match=r"column 'big' cannot become int8.*1000"):
        table.alter_column("big", type=pa.int8())


@pytest.mark.parametrize("kind", ["m", "p", "f"])
def test_parts_of_maps_packed_structs_and_fixed_lists_cannot_change(tmp_path: Path, kind: str) -> None:
    packed = pa.field("p", pa.struct([("x", pa.int64())]), metadata={"lance-encoding:packed": "true"})
    fields_by_name = {"m": pa.field("m", pa.map_(pa.string(), pa.int64())), "p": packed}
    fields_by_name["f"] = pa.field("f", pa.list_(pa.struct([("x", pa.int64())]), 2))
    table = Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64()), fields_by_name[kind]]), durable=False)
    path = {"m": "m.entries.value", "p": "p.x", "f": "f.item.x"}[kind]
    for operation in (lambda: table.drop_columns([path]), lambda: table.alter_column(path, rename="z")):
        with pytest.raises(InvalidInput, match=f"field '{path}' is part of"):
            operation()


# Traps (the numbers are those of the format notes)


def test_trap_7_only_files_of_2_0_store_parents(tmp_path: Path) -> None:
    fields = {
        version: file_layouts(create_pair(tmp_path / version, version=version).ours)[0][0][0]
        for version in ("2.0", "2.2")
    }
    assert fields == {"2.0": [*range(9)], "2.2": [0, 1, 3, 4, 7, 8]}


def test_trap_8_files_list_fields_in_their_own_order_with_dropped_ones(tmp_path: Path) -> None:
    tables = create_pair(tmp_path)
    rows = ROWS.select(["l", "id"])
    for uri in (tables.ours, tables.theirs):
        lance.write_dataset(rows, uri, mode="append")
    tables.change(lambda table: table.drop_columns(["l.item.y"]), lambda dataset: dataset.drop_columns(["l.item.y"]))
    assert file_layouts(tables.ours)[-1] == [([7, 8, 0], [0, 1, 2])]


def test_trap_9_a_field_id_is_assigned_once(tmp_path: Path) -> None:
    """If a dropped column was alone in its file, the manifest no longer has its id, and pylance assigns it again. An
    append that pylance prepared before the drop then fills the new column with the old values."""
    tables = create_pair(tmp_path)
    for uri in (tables.ours, tables.theirs):
        lance.dataset(uri).add_columns({"b": "id"})
    stale = lance.fragment.write_fragments(
        ROWS.append_column("b", ROWS["id"]), tables.theirs, schema=tables.dataset.schema
    )
    version = tables.dataset.version
    ours = tables.table.drop_columns(["b"]).table.add_columns({"c": "-id"}).table
    tables.dataset.drop_columns(["b"])
    tables.dataset.add_columns({"c": "-id"})
    ids = {uri: Table.open(uri).manifest.schema.field("c").id for uri in (ours.uri, tables.theirs)}
    for file in (file for fragment in stale for file in fragment.files):
        shutil.copy(Path(tables.theirs, "data", file.path), Path(ours.uri, "data", file.path))
    for uri in ids:
        lance.LanceDataset.commit(uri, lance.LanceOperation.Append(stale), read_version=version)
    assert (ids[tables.ours], ids[tables.theirs]) == (10, 9)
    assert Table.open(tables.theirs).to_table(["c"])["c"].to_pylist()[10:] == list(range(10))
    assert Table.open(tables.ours).to_table(["c"])["c"].to_pylist()[10:] == [None] * 10
    assert Table.open(tables.ours).config[field_ids.FIELD_ID_MAX_KEY] == "9"


def test_trap_9_the_highest_field_id_survives_other_writers(tmp_path: Path) -> None:
    table = create_pair(tmp_path).table.add_columns({"b": "id"}).table.drop_columns(["b"]).table
    lance.dataset(table.uri).update_config({"x": "y"})
    lance.dataset(table.uri).optimize.compact_files()
    table = table.refresh().set_config({"z": "1"}, replace=True).table
    assert dict(table.config) == {"z": "1", field_ids.FIELD_ID_MAX_KEY: "9"}
    assert table.add_columns(pa.field("c", pa.int8())).table.manifest.schema.field("c").id == 10


def test_trap_9_a_stale_append_tombstones_dropped_columns(tmp_path: Path) -> None:
    """The append tombstones the dropped column, so that no later column can take its values."""
    table = create_pair(tmp_path).table.add_columns({"b": "id"}).table
    table.drop_columns(["b"])
    after = table.append(ROWS.append_column("b", ROWS["id"])).table
    assert after.fragments[-1].files[0].field_ids[-1] == TOMBSTONE
    dataset = lance.dataset(after.uri)
    dataset.add_columns(pa.schema([pa.field("c", pa.int64())]))
    assert lance.dataset(after.uri).to_table(["c"])["c"].null_count == 20
    assert Table.open(after.uri).to_table(["c"])["c"].null_count == 20


def test_trap_9_a_stale_append_conflicts_with_a_reused_field_id(tmp_path: Path) -> None:
    """Pylance assigns the id of the dropped column to the next one."""
    table = create_pair(tmp_path).table.add_columns({"b": "id"}).table
    dataset = lance.dataset(table.uri)
    dataset.drop_columns(["b"])
    dataset.add_columns({"c": "-id"})
    assert table.refresh().manifest.schema.field("c").id == table.manifest.schema.field("b").id
    with pytest.raises(RetryableConflict, match="by rule reused_field"):
        table.append(ROWS.append_column("b", ROWS["id"]))


def test_trap_19_missing_row_versions_mean_version_1(tmp_path: Path) -> None:
    tables = create_pair(tmp_path, stable=True)
    tables.change(lambda table: table.add_columns({"b": "1"}), lambda dataset: dataset.add_columns({"b": "1"}))
    lineage = ["_row_created_at_version", "_row_last_updated_at_version"]
    assert tables.table.at(1).to_table(lineage).to_pylist() == [dict.fromkeys(lineage, 1)] * 10


def test_trap_20_new_values_change_every_row_and_new_nulls_none(tmp_path: Path) -> None:
    tables = create_pair(tmp_path, stable=True)
    for columns, version in ((pa.field("n", pa.int8()), 1), ({"b": "id"}, 3)):
        tables.change(
            lambda table: table.add_columns(columns),  # noqa: B023
            lambda dataset: dataset.add_columns(columns),  # noqa: B023
        )
        changed = tables.table.to_table(["_row_created_at_version", "_row_last_updated_at_version"])
        assert [set(column.to_pylist()) for column in changed.columns] == [{1}, {version}]


def test_trap_23_appends_are_compatible_with_new_nullable_columns(tmp_path: Path) -> None:
    """Pylance commits an append that it planned before the new column, which is compatible only with a nullable one."""
    for name, sql, is_compatible in (("nullable", "nullif(id, 3)", True), ("mandatory", "1", False)):
        tables = create_pair(tmp_path / name)
        stale = lance.fragment.write_fragments(ROWS, tables.ours)
        version = lance.dataset(tables.ours).version
        table = tables.table.add_columns({"b": sql}).table
        if is_compatible:
            lance.LanceDataset.commit(table.uri, lance.LanceOperation.Append(stale), read_version=version)
            assert table.refresh().to_table(["b"])["b"].to_pylist()[10:] == [None] * 10
        else:
            with pytest.raises(OSError, match="Retryable commit conflict"):
                lance.LanceDataset.commit(table.uri, lance.LanceOperation.Append(stale), read_version=version)


def test_trap_32_zeros_are_omitted_in_protobuf(tmp_path: Path) -> None:
    """A Merge lists fragment 0 and field 0, and both are decoded although protobuf omits zeros."""
    tables = create_pair(tmp_path)
    merge = tables.table.add_columns({"b": "id"}).table.transaction()
    assert merge is not None
    decoded = Transaction.decode(merge.encode(), path="t")
    assert isinstance(decoded.operation, Merge)
    assert [fragment.id for fragment in decoded.operation.fragments] == [0, 1]
    assert [field.id for field in decoded.operation.schema.fields] == [0, 1, 2, 5, 9]


def test_trap_34_schema_metadata_survives_a_merge_without_it(tmp_path: Path) -> None:
    tables = create_pair(tmp_path, ROWS.replace_schema_metadata({"about": "this"}))
    tables.change(lambda table: table.add_columns({"b": "id"}), lambda dataset: dataset.add_columns({"b": "id"}))
    theirs = Table.open(tables.theirs)
    transaction = theirs.transaction()
    assert transaction is not None
    assert isinstance(transaction.operation, Merge)
    assert not transaction.operation.schema.metadata
    assert theirs.schema.metadata == tables.table.schema.metadata == {b"about": b"this"}


def test_trap_35_partial_files_are_not_versions(tmp_path: Path) -> None:
    tables = create_pair(tmp_path)
    directory = Path(tables.ours, "_versions")
    manifest = next(directory.glob("*.manifest"))
    for name in (f"{manifest.name}#1", ".tmpAbCdEf", f"{manifest.name}-{uuid.uuid4()}", "1.manifest.tmp"):
        assert naming.parse_manifest_name(name) is None
        (directory / name).write_bytes(b"half a manif")
    Path(tables.ours, "data", ".tmpAbCdEf").write_bytes(b"half a file")
    tables.change(lambda table: table.add_columns({"b": "id"}), lambda dataset: dataset.add_columns({"b": "id"}))


def test_trap_36_an_index_on_a_dropped_column(tmp_path: Path) -> None:
    """The index was committed after the drop. Its field does not exist; the next schema change removes the index."""
    tables = create_pair(tmp_path)
    for uri in (tables.ours, tables.theirs):
        before, after = lance.dataset(uri), lance.dataset(uri)
        after.drop_columns(["a"])
        before.create_scalar_index("a", "BTREE")
    assert describe_version(tables.ours)["indices"] == describe_version(tables.theirs)["indices"] != []
    assert Table.open(tables.ours).to_table(filter="id > 3").num_rows == 6
    tables.change(lambda table: table.add_columns({"b": "id"}), lambda dataset: dataset.add_columns({"b": "id"}))
    assert describe_version(tables.ours)["indices"] == []
