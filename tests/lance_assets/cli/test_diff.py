"""`lance-assets diff`: columns, rows, fragments, indices and settings that differ."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_core import Table
from tests.lance_assets.cli.conftest import Shell, rows

_ALL = """\
- t@1
+ t@8

rows       4 -> 5 (+1)
fragments  + 1 fragment, 2 rows
           ~ 1 fragment with 1 row deleted
           ~ 1 fragment with other files
columns    ~ id -> key
           - city  string
           + n  int32
           + more  bool
indices    + by_id  BTREE on key, covers 1 fragment
settings   + config x  y
"""


@pytest.fixture
def changed(tmp_path: Path) -> Table:
    """Eight versions, each another change."""
    table = Table.create(str(tmp_path / "t"), rows(1, 2, 3, 4), durable=False)
    lance.dataset(table.uri).create_scalar_index("id", "BTREE", name="by_id")
    table = table.refresh().add_columns({"n": "length(city)"}).table.alter_column("id", rename="key").table
    table = table.drop_columns(["city"]).table.add_columns(pa.field("more", pa.bool_())).table
    table = table.append(pa.table({"key": [5, 6]})).table
    table = table.delete("key = 1").table
    return table.set_config({"x": "y"}).table


def test_all_that_can_differ(changed: Table, shell: Shell, tmp_path: Path) -> None:
    answer = shell("diff", f"{changed.uri}@1", f"{changed.uri}@9")
    assert (answer.code, answer.err) == (0, "")
    assert answer.drawn(tmp_path) == _ALL.replace("@8", "@9")
    told = shell("diff", f"{changed.uri}@1", changed.uri, "--json").json
    assert told["differs"] is True
    assert {each["name"]: (each["before"], each["after"], each["renamed_to"]) for each in told["columns"]} == {
        "id": ("int64", "int64", "key"),
        "city": ("string", None, None),
        "n": (None, "int32", None),
        "more": (None, "bool", None),
    }
    assert told["fragments"] == {
        "added": 1, "added_rows": 2, "removed": 0, "removed_rows": 0, "deleted_rows": 1, "with_deletions": 1,
        "other_files": 1, "same": 0,
    }  # fmt: skip
    assert told["after"] == {"uri": changed.uri, "version": 9, "rows": 5}


def test_the_way_back(changed: Table, shell: Shell, tmp_path: Path) -> None:
    lines = shell("diff", changed.uri, "@1").drawn(tmp_path).splitlines()
    assert lines[:4] == ["- t@9", "+ t@1", "", "rows       5 -> 4 (-1)"]
    assert "fragments  - 1 fragment, 2 rows" in lines
    assert "           ~ 1 fragment with 1 row restored" in lines
    assert "settings   - config x  y" in lines


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (("{t}@9",), ("8", "9")),
        (("{t}",), ("8", "9")),
        (("{t}@3", "@5"), ("3", "5")),
        (("{t}@3", "{t}@5"), ("3", "5")),
        (("{t}@v0000000003", "{t}"), ("3", "9")),
    ],
)
def test_which_two(changed: Table, shell: Shell, named: tuple[str, ...], expected: tuple[str, str]) -> None:
    told = shell("diff", *(each.format(t=changed.uri) for each in named), "--json").json
    assert (str(told["before"]["version"]), str(told["after"]["version"])) == expected


def test_what_has_no_parent(changed: Table, shell: Shell, tmp_path: Path) -> None:
    refused = shell("diff", f"{changed.uri}@1")
    assert (refused.code, refused.err) == (2, f"error: {changed.uri}@1 has no parent; name two versions\n")
    changed.clone(str(tmp_path / "copy"))
    assert "has no parent" in shell("diff", tmp_path / "copy").err


def test_nothing_differs(changed: Table, shell: Shell, tmp_path: Path) -> None:
    same = shell("diff", changed.uri, f"{changed.uri}@9", "--exit-code")
    assert (same.code, same.drawn(tmp_path)) == (0, "- t@9\n+ t@9\n\nno difference\n")


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--exit-code",), 1), (("--exit-code", "--json"), 1)])
def test_how_it_ends(changed: Table, shell: Shell, options: tuple[str, ...], code: int) -> None:
    assert shell("diff", changed.uri, *options).code == code


def fragments(shell: Shell, *named: object) -> dict[str, Any]:
    told: dict[str, Any] = shell("diff", *named, "--json").json["fragments"]
    return told


def test_a_clone_has_the_same_fragments(changed: Table, shell: Shell, tmp_path: Path) -> None:
    changed.clone(str(tmp_path / "copy"), shallow=False)
    assert fragments(shell, changed.uri, tmp_path / "copy")["same"] == 2


def test_tables_that_have_nothing_to_do_with_each_other(changed: Table, shell: Shell, tmp_path: Path) -> None:
    """Fragments have the same ids, and are not the same."""
    other = Table.create(str(tmp_path / "other"), rows(7, 8), durable=False)
    told = fragments(shell, f"{changed.uri}@1", other.uri)
    assert (told["added"], told["removed"], told["same"], told["other_files"]) == (1, 1, 0, 0)


def test_a_column_of_another_type_or_nullability(shell: Shell, tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    strict = pa.schema([pa.field("a", pa.int32(), False), pa.field("b", pa.struct({"c": pa.int32()}))])
    table = Table.create(place, pa.table([[1], [{"c": 1}]], schema=strict), durable=False)
    table = table.alter_column("a", nullable=True).table.alter_column("b.c", type=pa.int64()).table
    table.alter_column("a", rename="d")
    assert [line[11:] for line in shell("diff", f"{place}@1", "@4").out.splitlines() if "->" in line] == [
        "1 -> 1",
        "~ a -> d  int32 not null -> int32",
        "~ b  struct<c: int32> -> struct<c: int64>",
    ]


def test_more_than_can_be_listed(shell: Shell, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), rows(1), durable=False)
    table.add_columns({f"c{n}": "id" for n in range(50)})
    lines = shell("diff", table.uri).out.splitlines()
    assert lines[-1].strip() == "… and 30 more, with --json"
    assert len(shell("diff", table.uri, "--json").json["columns"]) == 50
