"""Schemas: field ids, metadata and declared keys after the same change by pylance and by us.

The fields of both manifests must be equal, message by message.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.format._pb import file_pb2
from lance_core.format.field_ids import FIELD_ID_MAX_KEY
from lance_core.format.schema import TableSchema
from tests.lance_core.dml.schema_change_pair import alter_column

KEY = "lance-schema:unenforced-primary-key"
POSITION = KEY + ":position"
CLUSTERING = "lance-schema:unenforced-clustering-key:position"
NESTED = pa.schema(
    [
        pa.field("a", pa.int32(), metadata={"unit": "kg", "größe": "ü"}),
        pa.field("s", pa.struct([pa.field("x", pa.int8(), metadata={"x": ""}), pa.field("l", pa.list_(pa.int16()))])),
        pa.field("m", pa.map_(pa.string(), pa.struct([pa.field("v", pa.float64())]))),
        pa.field("f", pa.list_(pa.struct([pa.field("y", pa.string())]), 2)),
        pa.field("z", pa.large_list(pa.large_list(pa.dictionary(pa.int8(), pa.string())))),
    ],
    metadata={"who": "we", "": "an empty key", "é": "è"},
)


def read_fields(uri: str) -> list[file_pb2.Field]:
    field_ids_by_path = [
        file_pb2.Field.FromString(field.SerializeToString()) for field in Table.open(uri).manifest.message.fields
    ]
    for field in field_ids_by_path:
        field.ClearField("dictionary")
    return field_ids_by_path


def read_field_ids(uri: str) -> dict[str, int]:
    """Return the id of every field by its path."""
    field_ids_by_path: dict[str, int] = {}
    paths = {-1: ""}
    for field in read_fields(uri):
        paths[field.id] = f"{paths[field.parent_id]}.{field.name}".removeprefix(".")
        field_ids_by_path[paths[field.id]] = field.id
    return field_ids_by_path


def create_in_both(folder: Path, schema: pa.Schema, version: str = "2.2") -> tuple[str, str]:
    ours, theirs = str(folder / "ours"), str(folder / "theirs")
    empty = schema.empty_table()
    Table.create(ours, empty, storage_version=version, durable=False)
    lance.write_dataset(empty, theirs, data_storage_version=version)  # type: ignore[arg-type]
    return ours, theirs


def test_ids_are_assigned_depth_first_and_metadata_is_stored(tmp_path: Path) -> None:
    ours, theirs = create_in_both(tmp_path, NESTED)
    assert read_fields(ours) == read_fields(theirs)
    assert list(read_field_ids(ours).values()) == list(range(len(read_field_ids(ours))))
    for uri in (ours, theirs):
        assert Table.open(uri).schema.equals(lance.dataset(uri).schema, check_metadata=True)
        assert Table.open(uri).schema.metadata == NESTED.metadata


def test_new_ids_follow_the_highest_id_of_any_file(tmp_path: Path) -> None:
    """New fields get the next ids depth first, after those of dropped fields that a file still has; a rename keeps the
    id."""
    uris = create_in_both(tmp_path, NESTED)
    more = pa.schema([pa.field("n", pa.struct([pa.field("p", pa.int8()), pa.field("q", pa.list_(pa.int8()))]))])
    for uri, apply in zip(uris, (evolve_ours, evolve_theirs), strict=True):
        apply(uri, more)
    assert read_fields(uris[0]) == read_fields(uris[1])
    field_ids_by_path = read_field_ids(uris[0])
    highest = len(read_field_ids(uris[0])) - 4
    assert [field_ids_by_path[path] for path in ("n", "n.p", "n.q", "n.q.item")] == list(range(highest, highest + 4))
    assert field_ids_by_path["b"] == 0


def evolve_ours(uri: str, more: pa.Schema) -> None:
    table = Table.open(uri, durable=False).add_columns(list(more)).table
    table.alter_column("a", rename="b")


def evolve_theirs(uri: str, more: pa.Schema) -> None:
    dataset = lance.dataset(uri)
    dataset.add_columns(more)
    alter_column(dataset, "a", name="b")


def test_schema_field_and_table_metadata(tmp_path: Path) -> None:
    uris = create_in_both(tmp_path, NESTED)
    table = Table.open(uris[0], durable=False)
    table = table.set_schema_metadata({"who": None, "new": "1"}).table
    table = table.set_field_metadata({"s.x": {"x": "y"}, "a": {"unit": None}}).table
    table.set_metadata({"owner": "team"})
    dataset = lance.dataset(uris[1])
    dataset.update_schema_metadata({"who": None, "new": "1"})
    dataset.update_field_metadata({"s.x": {"x": "y"}, "a": {"unit": None}})
    dataset.update_metadata({"owner": "team"})
    assert read_fields(uris[0]) == read_fields(uris[1])
    for uri in uris:
        table = Table.open(uri)
        assert table.schema.metadata == {b"new": b"1", b"": b"an empty key", "é".encode(): "è".encode()}
        assert dict(table.metadata) == lance.dataset(uri).metadata == {"owner": "team"}


# Declared keys; no writer enforces them.


@pytest.mark.parametrize("flag", ["true", "TRUE", "1", "on", "Yes", "y", "false", "0", "t", " true", "enabled", ""])
def test_primary_key_flags(flag: str, tmp_path: Path) -> None:
    check_same_declaration({KEY: flag}, tmp_path)


@pytest.mark.parametrize(
    "position", ["1", "0", "+2", "007", "4294967295", "4294967296", "-1", "x", " 2", "", "1_0", "9" * 5000]
)
def test_positions_in_keys(position: str, tmp_path: Path) -> None:
    check_same_declaration({POSITION: position}, tmp_path / "alone")
    check_same_declaration({POSITION: position, KEY: "true"}, tmp_path / "marked")
    check_same_declaration({POSITION: position, KEY: "false"}, tmp_path / "marked otherwise")
    check_same_declaration({CLUSTERING: position}, tmp_path / "clustered")


def check_same_declaration(metadata: dict[str, str], folder: Path) -> None:
    ours, theirs = create_in_both(
        folder, pa.schema([pa.field("k", pa.int64(), False, metadata), pa.field("v", pa.int8())])
    )
    assert read_fields(ours) == read_fields(theirs)


POINT = pa.struct([pa.field("x", pa.int8(), False, {KEY: "true"})])
INVALID_KEYS: list[tuple[pa.Field, str]] = [
    (pa.field("k", pa.int64(), True, {KEY: "true"}), "field 'k' is declared as primary key, but it .* is nullable"),
    (pa.field("k", pa.int64(), True, {POSITION: "1"}), "'k' .* is nullable"),
    (pa.field("k", POINT, True), r"'k\.x' .* a parent of it is nullable"),
    (pa.field("k", pa.list_(pa.int8()), False, {KEY: "true"}), "'k' .* has children"),
    (pa.field("k", pa.struct([pa.field("x", pa.int8())]), False, {KEY: "true"}), "'k' .* has children"),
]


@pytest.mark.parametrize(("field", "message"), INVALID_KEYS)
def test_invalid_primary_keys(field: pa.Field, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        Table.create(tmp_path / "ours", pa.schema([field]), durable=False)
    assert not (tmp_path / "ours").exists() or not Table.exists(tmp_path / "ours")
    with pytest.raises(OSError, match="Primary key column"):
        lance.write_dataset(pa.schema([field]).empty_table(), str(tmp_path / "theirs"))


def test_required_field_of_a_struct_is_a_primary_key(tmp_path: Path) -> None:
    ours, theirs = create_in_both(tmp_path, pa.schema([pa.field("k", POINT, False)]))
    assert read_fields(ours) == read_fields(theirs)
    assert [field.unenforced_primary_key for field in read_fields(ours)] == [False, True]


Entries = dict[str, Any]
CHANGES: dict[str, tuple[list[Entries], str]] = {
    "set": ([{"k": {KEY: "true"}}], ""),
    "two at once": ([{"k": {POSITION: "1"}, "v": {POSITION: "2"}}], ""),
    "other metadata later": ([{"k": {KEY: "true"}}, {"k": {"a": "b"}}, {"v": {"a": "b"}}], ""),
    "to no key": ([{"k": {KEY: "false"}}], "declares no primary key"),
    "to nothing": ([{"k": {KEY: ""}}], "declares no primary key"),
    "to no place": ([{"k": {POSITION: "x"}}], "declares no primary key"),
    "again": ([{"k": {KEY: "true"}}, {"k": {KEY: "1"}}], "cannot be changed once set"),
    "again the same": ([{"k": {POSITION: "1"}}, {"k": {POSITION: "1"}}], "cannot be changed once set"),
    "a second column": ([{"k": {KEY: "true"}}, {"v": {KEY: "true"}}], "cannot be changed once set"),
    "removed": ([{"k": {KEY: "true"}}, {"k": {KEY: None}}], "cannot be changed once set"),
    "of a column with nulls": ([{"n": {KEY: "true"}}], "nullable"),
    "clustered": ([{"k": {CLUSTERING: "1"}}], ""),
    "clustered nowhere": ([{"k": {CLUSTERING: "x"}}], "declares no clustering key"),
    "clustered anew": ([{"k": {CLUSTERING: "1"}}, {"k": {CLUSTERING: "2"}}], "cannot be changed once set"),
    "clustered no more": ([{"k": {CLUSTERING: "1"}}, {"k": {CLUSTERING: None}}], "cannot be changed once set"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_keys_cannot_be_changed(name: str, tmp_path: Path) -> None:
    steps, refusal = CHANGES[name]
    columns = [pa.field("k", pa.int64(), False), pa.field("v", pa.int64(), False), pa.field("n", pa.int64())]
    ours, theirs = create_in_both(tmp_path, pa.schema(columns))
    last: list[Callable[[], object]] = [
        lambda: Table.open(ours, durable=False).set_field_metadata(steps[-1]),
        lambda: lance.dataset(theirs).update_field_metadata(steps[-1]),
    ]
    for step in steps[:-1]:
        Table.open(ours, durable=False).set_field_metadata(step)
        lance.dataset(theirs).update_field_metadata(step)
    if refusal:
        with pytest.raises(InvalidInput, match=refusal):
            last[0]()
        with pytest.raises(OSError, match=r"cannot be|must not be nullable"):
            last[1]()
    else:
        for change in last:
            change()
    assert read_fields(ours) == read_fields(theirs)
    assert Table.open(ours).version == Table.open(theirs).version


def test_primary_keys_stay_required(tmp_path: Path) -> None:
    ours, theirs = create_in_both(
        tmp_path, pa.schema([pa.field("k", pa.int64(), False, {KEY: "true"}), ("v", pa.int8())])
    )
    with pytest.raises(InvalidInput, match="'k' is declared as primary key, but it or a parent of it is nullable"):
        Table.open(ours, durable=False).alter_column("k", nullable=True)
    with pytest.raises(OSError, match="must not be nullable"):
        alter_column(lance.dataset(theirs), "k", nullable=True)
    added = pa.field("n", pa.int8(), metadata={KEY: "true"})
    with pytest.raises(InvalidInput, match="'n' is declared as primary key"):
        Table.open(ours, durable=False).add_columns(added)
    with pytest.raises(OSError, match="must not be nullable"):
        lance.dataset(theirs).add_columns(added)
    assert Table.open(ours, durable=False).drop_columns(["k"]).table.schema.names == ["v"]


@pytest.mark.parametrize("recorded_id", ["2147483646", "9999999999"])
def test_exhausted_field_ids(recorded_id: str, tmp_path: Path) -> None:
    table = Table.open(_create_with_recorded_id(recorded_id, tmp_path / "t"), durable=False)
    with pytest.raises(InvalidInput, match="'n' cannot be added: the table has used all field ids"):
        table.add_columns(pa.field("n", pa.int8()))
    with pytest.raises(InvalidInput, match="'n' would need an id of more than 31 bits"):
        table.add_columns({"n": "a + 1"})
    beyond = Table.open(_create_with_recorded_id("9" * 5000, tmp_path / "u"), durable=False)
    assert beyond.add_columns({"n": "1"}).table.manifest.schema.field("n").id == 1


def _create_with_recorded_id(recorded_id: str, folder: Path) -> Path:
    """Return a table whose entry of the highest field id was written by another library."""
    lance.write_dataset(pa.table({"a": [1]}), folder)
    lance.dataset(folder).update_config({FIELD_ID_MAX_KEY: recorded_id})
    return folder


def test_metadata_that_is_not_utf_8_is_preserved() -> None:
    """The format does not guarantee that the bytes of a metadata value are UTF-8."""
    message = file_pb2.Field(name="a", parent_id=-1, logical_type="int8", metadata={"ARROW:extension:name": b"\xff"})
    schema = TableSchema.decode([message], {})
    assert schema.encode()[0].metadata == message.metadata
    assert schema.arrow.field("a").type == pa.int8()
