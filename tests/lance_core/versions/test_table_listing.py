"""Table listing: tables below a directory are found at any depth, and other directories are reported or skipped."""

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
    table.branches.create("dev")  # has versions of its own and is not a table
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    (tmp_path / "berg" / "metadata").mkdir(parents=True)
    (tmp_path / "berg" / "data").mkdir(parents=True)
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("not a directory")
    os.symlink(tmp_path / "orders", tmp_path / "linked")
    return tmp_path


def test_tables_are_found_at_any_depth(lake: Path) -> None:
    listing = find_tables(str(lake))
    names = ("orders", "sales/eu/items", "sales/us", "staging/a")
    assert listing.tables == tuple(f"{lake}/{name}" for name in names)
    assert {Path(uri).name: why for uri, why in listing.skipped.items()} == {
        "delta": "it is a Delta Lake table, not a Lance table",
        "berg": "it is perhaps an Iceberg table, not a Lance table",
    }
    assert find_tables(f"file://{lake}/sales/").tables == listing.tables[1:3]
    assert find_tables(str(lake / "sales" / "us")).tables == listing.tables[2:3]  # the place itself
    assert find_tables(str(lake / "nothing")).tables == ()


def test_excluded_directories_are_not_listed(lake: Path) -> None:
    listing = find_tables(str(lake), exclude=["staging", "sales/e*", "delta", "berg"])
    assert listing.tables == (f"{lake}/orders", f"{lake}/sales/us")
    assert listing.skipped == {}


def test_an_incomplete_listing_is_an_error(lake: Path) -> None:
    with pytest.raises(InvalidInput, match=r"more than 3 tables below .*raise tables_max="):
        find_tables(str(lake), tables_max=3)
    assert len(find_tables(str(lake), tables_max=4).tables) == 4
    with pytest.raises(InvalidInput, match="exclude must be a list of names"):
        find_tables(str(lake), exclude="staging")


def test_a_directory_that_is_too_deep_is_reported(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 40)
    deep.mkdir(parents=True)
    ((_, why),) = find_tables(str(tmp_path)).skipped.items()
    assert why == f"it is more than 32 directories below {tmp_path}"


def test_an_unlistable_directory_is_reported(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refuse_sales(path: str | os.PathLike[str]) -> object:
        if str(path).endswith("sales"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse_sales)
    listing = find_tables(str(lake), exclude=["delta", "berg"])
    assert listing.tables == (f"{lake}/orders", f"{lake}/staging/a")
    assert listing.skipped == {f"{lake}/sales": f"could not list {lake}/sales: Permission denied"}
