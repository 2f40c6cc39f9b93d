"""Schemas: depth-first ids, the flat list of fields, properties derived from metadata, and rejected schemas."""

import functools

import pyarrow as pa
import pytest

from lance_core import Corrupt, InvalidInput, Unsupported
from lance_core.format._pb import file_pb2
from lance_core.format.schema import TableSchema

NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"unit": "m"}),
        pa.field(
            "points",
            pa.list_(pa.field("element", pa.struct([pa.field("x", pa.float32()), pa.field("y", pa.string())]))),
        ),
        pa.field("tags", pa.map_(pa.string(), pa.int8())),
        pa.field("vector", pa.list_(pa.float32(), 8)),
    ],
    metadata={"who": "ann", "more": "\x00"},
)


def field(name: str, id: int, parent: int = -1, logical: str = "int8") -> file_pb2.Field:
    return file_pb2.Field(name=name, id=id, parent_id=parent, logical_type=logical)


def test_ids_are_given_depth_first() -> None:
    schema = TableSchema.from_arrow(NESTED)
    actual = [(node.id, node.name, node.logical_type) for top in schema.fields for node in top.walk()]
    assert actual == [
        (0, "id", "int64"),
        (1, "points", "list.struct"),
        (2, "element", "struct"),
        (3, "x", "float"),
        (4, "y", "string"),
        (5, "tags", "map"),
        (6, "entries", "struct"),
        (7, "key", "string"),
        (8, "value", "int8"),
        (9, "vector", "fixed_size_list:float:8"),
    ]
    assert schema.field_id_max == 9
    later = TableSchema.from_arrow(NESTED, first_id=20)
    assert [top.id for top in later.fields] == [20, 21, 25, 29]


def test_a_schema_is_decoded_from_fields_and_from_arrow() -> None:
    schema = TableSchema.from_arrow(NESTED)
    messages = schema.encode()
    assert [message.parent_id for message in messages] == [-1, -1, 1, 2, 2, -1, 5, 6, 6, -1]
    again = TableSchema.decode(messages, {key.decode(): value for key, value in schema.metadata.items()})
    assert again == schema
    assert again.arrow.equals(NESTED, check_metadata=True)


@pytest.mark.parametrize(
    ("metadata", "is_key", "position", "clustering"),
    [
        ({}, False, 0, 0),
        ({"lance-schema:unenforced-primary-key": "true"}, True, 0, 0),
        ({"lance-schema:unenforced-primary-key": "false"}, False, 0, 0),
        ({"lance-schema:unenforced-primary-key:position": "2"}, True, 2, 0),
        ({"lance-schema:unenforced-clustering-key:position": "3"}, False, 0, 3),
    ],
)
def test_keys_are_derived_from_metadata(metadata: dict[str, str], is_key: bool, position: int, clustering: int) -> None:
    (message,) = TableSchema.from_arrow(pa.schema([pa.field("k", pa.int64(), False, metadata)])).encode()
    assert message.unenforced_primary_key is is_key
    assert message.unenforced_primary_key_position == position
    assert message.unenforced_clustering_key_position == clustering
    assert {key: value.decode() for key, value in message.metadata.items()} == metadata


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "column 'a' appears twice"),
        (pa.schema([("_rowid", pa.int8())]), "'_rowid' has a name that Lance reserves"),
        (pa.schema([("a.b", pa.int8())]), r"'a\.b': a top-level name may not be empty or contain"),
        (pa.schema([("", pa.int8())]), "may not be empty"),
        (
            pa.schema([("s", pa.struct([("x", pa.int8()), ("x", pa.int8())]))]),
            "'s' is a struct with two children of the same name",
        ),
        (pa.schema([("l", pa.list_(pa.list_view(pa.int8())))]), r"'l\.item' has the Arrow type list_view"),
        (pa.schema([("ok", pa.int8()), ("a", pa.decimal64(5, 2)), ("b.c", pa.int8())]), "'a' has the .*; column 'b.c'"),
    ],
)
def test_unstorable_columns_are_all_named(schema: pa.Schema, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        TableSchema.from_arrow(schema)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([field("a", 1), field("b", 1)], "two fields have the id 1"),
        ([field("a", -1)], "field 'a' has the id -1, and no field of a schema has a negative id"),
        ([field("a", -2)], "field 'a' has the id -2"),
        ([field("a", 1, parent=2), field("b", 2)], "'a' has the parent 2, which does not precede it"),
        ([field("a", 1, parent=1)], "has the parent 1"),
        (
            [field("f", 0, logical="struct"), *(field("f", n, n - 1, "struct") for n in range(1, 150))],
            "nested more than 100",
        ),
    ],
)
def test_a_damaged_list_of_fields_is_corrupt(messages: list[file_pb2.Field], message: str) -> None:
    with pytest.raises(Corrupt, match=message):
        TableSchema.decode(messages, {})


@pytest.mark.parametrize(
    "messages",
    [
        [field("a", 0, logical="tensor")],
        [field("a", 0, logical="list")],
        [field("a", 0, logical="list"), field("x", 1, 0), field("y", 2, 0)],
        [field("a", 0, logical="map"), field("e", 1, 0, "struct"), field("k", 2, 1)],
        [field("a", 0, logical="fixed_size_list:struct:x"), field("i", 1, 0, "struct")],
        [field("a", 0, logical="fixed_size_list:struct:-1"), field("i", 1, 0, "struct")],
    ],
)
def test_a_type_of_the_future_is_unsupported_by_name(messages: list[file_pb2.Field]) -> None:
    with pytest.raises(Unsupported, match="field 'a'"):
        _ = TableSchema.decode(messages, {}).arrow


def nested(levels: int) -> pa.DataType:
    return functools.reduce(lambda inner, _: pa.struct([("a", inner)]), range(levels), pa.int64())


def test_the_deepest_schema_of_arrow_can_be_stored() -> None:
    schema = pa.schema([("x", nested(62))])
    assert TableSchema.from_arrow(schema).arrow == schema


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.field("x", nested(63)), "column 'x' is nested more than 63 deep"),
        (pa.field("x", nested(5000)), "column 'x' is nested more than 63 deep"),
        (pa.field("x", functools.reduce(lambda inner, _: pa.list_(inner, 2), range(63), pa.int8())), "63 deep"),
        (pa.field("x", pa.int64(), metadata={"ARROW:extension:name": "arrow.uuid"}), "extension type 'arrow.uuid'"),
        (pa.field("x", pa.int64(), metadata={b"\xff": "v"}), "field 'x' has metadata that is not UTF-8"),
        (pa.field("x", pa.int64(), metadata={"k": b"\xff"}), "field 'x' has metadata that is not UTF-8"),
    ],
)
def test_unreadable_schemas_are_rejected(column: pa.Field, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        TableSchema.from_arrow(pa.schema([column]))


def test_metadata_is_text() -> None:
    with pytest.raises(InvalidInput, match="the schema's own metadata is not UTF-8"):
        TableSchema.from_arrow(pa.schema([("x", pa.int8())], metadata={b"\xff": "v"}))


class WidenedType(pa.ExtensionType):  # type: ignore[misc]
    """Extension type that always has two children, whatever a table declares, like that of pylance 11 for blobs."""

    def __init__(self) -> None:
        super().__init__(pa.struct([("data", pa.binary()), ("size", pa.int64())]), "test.widened")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> "WidenedType":
        return cls()


def test_a_registered_extension_type_does_not_change_what_a_table_declares() -> None:
    declared = pa.struct([("data", pa.binary())])
    column = pa.field("x", declared, metadata={"ARROW:extension:name": "test.widened"})
    pa.register_extension_type(WidenedType())
    try:
        schema = TableSchema.from_arrow(pa.schema([column, ("id", pa.int8())])).arrow
        assert schema.types == [declared, pa.int8()]
        whole = pa.schema([pa.field("x", WidenedType())])
        assert TableSchema.from_arrow(whole).arrow == whole
    finally:
        pa.unregister_extension_type("test.widened")


def test_a_projection_equals_a_schema_of_its_columns() -> None:
    arrow = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata={"k": "v"}),
            ("js", pa.json_(pa.string())),
            ("at", pa.struct([("x", pa.list_(pa.float16()))])),
        ],
        metadata={"owner": "ada"},
    )
    original = TableSchema.from_arrow(arrow)
    for names in ([], ["js"], ["at", "id"]):
        some = original.select(names)
        alone = TableSchema(some.fields, some.metadata)
        assert some == alone
        assert some.arrow.equals(alone.arrow, check_metadata=True)
