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
    """Table of eight versions, each with a different change."""
    table = Table.create(str(tmp_path / "t"), rows(1, 2, 3, 4), durable=False)
    lance.dataset(table.uri).create_scalar_index("id", "BTREE", name="by_id")
    table = table.refresh().add_columns({"n": "length(city)"}).table.alter_column("id", rename="key").table
    table = table.drop_columns(["city"]).table.add_columns(pa.field("more", pa.bool_())).table
    table = table.append(pa.table({"key": [5, 6]})).table
    table = table.delete("key = 1").table
    return table.set_config({"x": "y"}).table


def test_every_kind_of_difference(changed: Table, shell: Shell, tmp_path: Path) -> None:
    answer = shell("diff", f"{changed.uri}@1", f"{changed.uri}@9")
    assert (answer.code, answer.err) == (0, "")
    assert answer.drawn(tmp_path) == _ALL.replace("@8", "@9")
    output = shell("diff", f"{changed.uri}@1", changed.uri, "--json").json
    assert output["differs"] is True
    assert {each["name"]: (each["before"], each["after"], each["renamed_to"]) for each in output["columns"]} == {
        "id": ("int64", "int64", "key"),
        "city": ("string", None, None),
        "n": (None, "int32", None),
        "more": (None, "bool", None),
    }
    assert output["fragments"] == {
        "added": 1, "added_rows": 2, "removed": 0, "removed_rows": 0, "deleted_rows": 1, "with_deletions": 1,
        "other_files": 1, "same": 0,
    }  # fmt: skip
    assert output["after"] == {"uri": changed.uri, "version": 9, "rows": 5}


def test_reversed_order(changed: Table, shell: Shell, tmp_path: Path) -> None:
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
def test_selection_of_versions(changed: Table, shell: Shell, named: tuple[str, ...], expected: tuple[str, str]) -> None:
    output = shell("diff", *(each.format(t=changed.uri) for each in named), "--json").json
    assert (str(output["before"]["version"]), str(output["after"]["version"])) == expected


def test_version_without_parent(changed: Table, shell: Shell, tmp_path: Path) -> None:
    refused = shell("diff", f"{changed.uri}@1")
    assert (refused.code, refused.err) == (2, f"error: {changed.uri}@1 has no parent; name two versions\n")
    changed.clone(str(tmp_path / "copy"))
    assert "has no parent" in shell("diff", tmp_path / "copy").err


def test_equal_versions(changed: Table, shell: Shell, tmp_path: Path) -> None:
    same = shell("diff", changed.uri, f"{changed.uri}@9", "--exit-code")
    assert (same.code, same.drawn(tmp_path)) == (0, "- t@9\n+ t@9\n\nno difference\n")


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--exit-code",), 1), (("--exit-code", "--json"), 1)])
def test_exit_codes(changed: Table, shell: Shell, options: tuple[str, ...], code: int) -> None:
    assert shell("diff", changed.uri, *options).code == code


def fragments(shell: Shell, *named: object) -> dict[str, Any]:
    output: dict[str, Any] = shell("diff", *named, "--json").json["fragments"]
    return output


def test_clones_share_fragments(changed: Table, shell: Shell, tmp_path: Path) -> None:
    changed.clone(str(tmp_path / "copy"), shallow=False)
    assert fragments(shell, changed.uri, tmp_path / "copy")["same"] == 2


def test_unrelated_tables(changed: Table, shell: Shell, tmp_path: Path) -> None:
    """Their fragments have equal ids but are different."""
    other = Table.create(str(tmp_path / "other"), rows(7, 8), durable=False)
    output = fragments(shell, f"{changed.uri}@1", other.uri)
    assert (output["added"], output["removed"], output["same"], output["other_files"]) == (1, 1, 0, 0)


def test_changed_type_or_nullability(shell: Shell, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    strict = pa.schema([pa.field("a", pa.int32(), False), pa.field("b", pa.struct({"c": pa.int32()}))])
    table = Table.create(uri, pa.table([[1], [{"c": 1}]], schema=strict), durable=False)
    table = table.alter_column("a", nullable=True).table.alter_column("b.c", type=pa.int64()).table
    table.alter_column("a", rename="d")
    assert [line[11:] for line in shell("diff", f"{uri}@1", "@4").out.splitlines() if "->" in line] == [
        "1 -> 1",
        "~ a -> d  int32 not null -> int32",
        "~ b  struct<c: int32> -> struct<c: int64>",
    ]


def test_long_lists_are_truncated(shell: Shell, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), rows(1), durable=False)
    table.add_columns({f"c{n}": "id" for n in range(50)})
    lines = shell("diff", table.uri).out.splitlines()
    assert lines[-1].strip() == "… and 30 more, with --json"
    assert len(shell("diff", table.uri, "--json").json["columns"]) == 50
