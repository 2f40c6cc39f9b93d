"""Tables are found below a place, at any depth, and what is none is told or left out."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table, find_tables

ROW = pa.table({"id": [1]})


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name in ("orders", "sales/eu/items", "sales/us", "staging/a", "_hidden/t", ".trash/t"):
        Table.create(tmp_path / name, ROW, durable=False)
    table = Table.open(tmp_path / "orders", durable=False)
    table.branches.create("dev")  # has versions of its own, and is no table
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    (tmp_path / "berg" / "metadata").mkdir(parents=True)
    (tmp_path / "berg" / "data").mkdir(parents=True)
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("not a directory")
    os.symlink(tmp_path / "orders", tmp_path / "linked")
    return tmp_path


def test_tables_are_found_at_any_depth(lake: Path) -> None:
    found = find_tables(str(lake))
    names = ("orders", "sales/eu/items", "sales/us", "staging/a")
    assert found.tables == tuple(f"{lake}/{name}" for name in names)
    assert {Path(uri).name: why for uri, why in found.skipped.items()} == {
        "delta": "it is a Delta Lake table, not a Lance table",
        "berg": "it is perhaps an Iceberg table, not a Lance table",
    }
    assert find_tables(f"file://{lake}/sales/").tables == found.tables[1:3]
    assert find_tables(str(lake / "sales" / "us")).tables == found.tables[2:3]  # the place itself
    assert find_tables(str(lake / "nothing")).tables == ()


def test_what_is_excluded_is_not_listed(lake: Path) -> None:
    found = find_tables(str(lake), exclude=["staging", "sales/e*", "delta", "berg"])
    assert found.tables == (f"{lake}/orders", f"{lake}/sales/us")
    assert found.skipped == {}


def test_a_part_does_not_look_like_all(lake: Path) -> None:
    with pytest.raises(InvalidInput, match=r"more than 3 tables below .*raise tables_max="):
        find_tables(str(lake), tables_max=3)
    assert len(find_tables(str(lake), tables_max=4).tables) == 4
    with pytest.raises(InvalidInput, match="exclude must be a list of names"):
        find_tables(str(lake), exclude="staging")


def test_what_lies_too_deep_is_told(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 40)
    deep.mkdir(parents=True)
    ((_, why),) = find_tables(str(tmp_path)).skipped.items()
    assert why == f"it is more than 32 directories below {tmp_path}"


def test_what_cannot_be_listed_is_told(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refusing(path: str | os.PathLike[str]) -> object:
        if str(path).endswith("sales"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = find_tables(str(lake), exclude=["delta", "berg"])
    assert found.tables == (f"{lake}/orders", f"{lake}/staging/a")
    assert found.skipped == {f"{lake}/sales": f"could not list {lake}/sales: Permission denied"}
