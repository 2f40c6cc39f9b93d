"""Field paths: a path means the same field for every operation, for readers and for pylance."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.format.field_paths import FieldPath, find_field, format_path
from lance_core.format.schema import Field, TableSchema

STRUCT = pa.struct(
    [
        ("a", pa.struct([("b", pa.int64()), ("c", pa.int64())])),
        ("a.b", pa.string()),
        ("x y", pa.int64()),
        ("q`r", pa.int64()),
    ]
)
VALUE = {"a": {"b": 1, "c": 2}, "a.b": "z", "x y": 5, "q`r": 6}
ROWS = pa.table({"id": [1], "s": pa.array([VALUE], STRUCT), "l": pa.array([[{"x.y": 1}]])})
NAMES = {
    "s.a.b": ("s", "a", "b"),
    "`s`.a.b": ("s", "a", "b"),
    "s.a.`b`": ("s", "a", "b"),
    "s.`a.b`": ("s", "a.b"),
    "s.x y": ("s", "x y"),
    "s.`x y`": ("s", "x y"),
    "s.`q``r`": ("s", "q`r"),
    "`s`": ("s",),
}


@pytest.fixture
def schema() -> TableSchema:
    return TableSchema.from_arrow(ROWS.schema)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return Table.create(str(tmp_path / "t"), ROWS).uri


@pytest.mark.parametrize(("path", "names"), [*NAMES.items(), ("l.item.x.y", ("l", "item", "x.y"))])
def test_a_path_means_one_field(schema: TableSchema, path: str, names: tuple[str, ...]) -> None:
    assert tuple(field.name for field in find_field(schema, path)) == names


def test_formatted_paths_lead_back_to_their_fields(schema: TableSchema) -> None:
    def chains(field: Field, above: FieldPath = ()) -> Iterator[FieldPath]:
        yield (*above, field)
        for child in field.children:
            yield from chains(child, (*above, field))

    chains_by_path = {format_path(chain): chain for top in schema.fields for chain in chains(top)}
    assert {"s.a.b", "s.`a.b`", "s.x y", "s.`q``r`", "l.item.`x.y`"} <= set(chains_by_path)
    assert {path: find_field(schema, path) for path in chains_by_path} == chains_by_path


@pytest.mark.parametrize(("path", "meant"), [("s.`a.bb`", "s.`a.b`"), ("s.xy", "s.x y"), ("idd", "id")])
def test_suggestions_are_valid_paths(schema: TableSchema, path: str, meant: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(f"did you mean {meant!r}?")):
        find_field(schema, path)


@pytest.mark.parametrize("path", ["s.`a`b", "s.``", "s.", ".s", "s..a", "`s", "s.`a.b", ""])
def test_unknown_paths(schema: TableSchema, path: str) -> None:
    with pytest.raises(InvalidInput, match="there is no column"):
        find_field(schema, path)


def test_an_ambiguous_path_is_rejected() -> None:
    children = pa.struct([("a.b", pa.struct([("c", pa.int8())])), ("a", pa.struct([("b.c", pa.int8())]))])
    schema = TableSchema.from_arrow(pa.schema([("s", children)]))
    with pytest.raises(InvalidInput, match=r"is ambiguous; write 's.`a.b`.c' or 's.a.`b.c`'"):
        find_field(schema, "s.a.b.c")


@pytest.mark.parametrize("path", NAMES)
def test_a_path_drops_the_field_that_it_reads(place: str, tmp_path: Path, path: str) -> None:
    theirs = str(tmp_path / "theirs")
    Table.open(place).clone(theirs, shallow=False)
    assert Table.open(place).to_table([path]) == lance.dataset(theirs).to_table(columns=[path])
    lance.dataset(theirs).drop_columns([path])
    assert Table.open(place).drop_columns([path]).table.to_table() == lance.dataset(theirs).to_table()


@pytest.mark.parametrize("path", [path for path, names in NAMES.items() if len(names) > 1])
def test_a_path_alters_the_field_that_it_reads(place: str, path: str) -> None:
    def innermost(schema: pa.Schema) -> pa.Field:
        field = schema.field("s")
        for name in NAMES[path][1:]:
            field = field.type.field(name)
        return field

    table = Table.open(place).set_field_metadata({path: {"k": "v"}}).table
    assert innermost(table.schema).metadata == {b"k": b"v"}
    before = table.to_table([path]).column(0).to_pylist()
    table = table.alter_column(path, rename="new").table
    assert table.to_table([".".join(["s", *NAMES[path][1:-1], "new"])]).column(0).to_pylist() == before


# Invalid names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.alter_column("id", rename="a`b"), "'a`b': a top-level name may not contain a back-tick"),
        (lambda t: t.add_columns({"a`b": "id"}), "may not contain a back-tick"),
        (lambda t: t.add_columns(pa.field("`a`", pa.int8())), "may not contain a back-tick"),
        (lambda t: t.add_columns(pa.field("n", pa.struct([("", pa.int8())]))), "a child of the struct 'n' has no name"),
    ],
)
def test_unreadable_names_are_rejected(place: str, change: Callable[[Table], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        change(Table.open(place))
    assert Table.open(place).version == 1


@pytest.mark.parametrize(
    "rows",
    [pa.table({"a`b": [1]}), pa.table({"s": pa.array([[{"": 1}]])}), pa.table({"s": pa.array([{"a": {"": 1}}])})],
)
def test_no_table_is_created_with_unreadable_names(tmp_path: Path, rows: pa.Table) -> None:
    with pytest.raises(InvalidInput, match=r"back-tick|has no name; give it one"):
        Table.create(str(tmp_path / "t"), rows)
    assert not (tmp_path / "t" / "_versions").exists()


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_a_child_without_a_name_in_a_table_of_pylance_is_read(tmp_path: Path, version: Literal["2.0", "2.1"]) -> None:
    rows = pa.table({"id": [1], "s": pa.array([{"": 1, "k": 2}])})
    lance.write_dataset(rows, tmp_path / "t", data_storage_version=version)
    table = Table.open(str(tmp_path / "t")).append(rows).table
    assert table.to_table() == pa.concat_tables([rows, rows]).combine_chunks()
    assert table.to_table(["s.``", "s.k"]).to_pydict() == {"s.``": [1, 1], "s.k": [2, 2]}
    assert table.alter_column("s.``", rename="n").table.to_table(["s.n"]).to_pydict() == {"s.n": [1, 1]}
