"""Windows over fragments with deleted rows, and columns in any order: every window against slicing the whole."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import Corrupt, InvalidInput, NotFound, StorageError, Table
from lance_core.scan.plan import plan_scan


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three fragments of four rows: some deleted in the first, all but one in the second, none in the third."""
    place = str(tmp_path_factory.mktemp("scan") / "t")
    table = pa.table({"a": range(12), "b": [str(value) for value in range(12)]})
    lance.write_dataset(table, place, max_rows_per_file=4)
    lance.dataset(place).delete("a in (0, 2, 4, 5, 7)")
    return place


LIVE = [1, 3, 6, 8, 9, 10, 11]


@pytest.mark.parametrize("offset", [None, 0, 1, 2, 3, 6, 7, 100])
@pytest.mark.parametrize("limit", [None, 0, 1, 2, 4, 7, 100])
def test_every_window(uri: str, limit: int | None, offset: int | None) -> None:
    start = offset or 0
    expected = LIVE[start : None if limit is None else start + limit]
    table = Table.open(uri)
    assert table.to_table(limit=limit, offset=offset)["a"].to_pylist() == expected
    assert [row for batch in table.to_batches(limit=limit, offset=offset) for row in batch["a"].to_pylist()] == expected


def test_fragments_outside_the_window_are_not_opened(uri: str) -> None:
    manifest = Table.open(uri).manifest
    assert [task.fragment.id for task in plan_scan(manifest, columns=None, limit=2, offset=2).tasks] == [1, 2]
    assert [task.fragment.id for task in plan_scan(manifest, columns=None, limit=0).tasks] == []
    assert [task.fragment.id for task in plan_scan(manifest, columns=None, offset=3).tasks] == [2]


def test_columns_come_as_they_are_asked_for(uri: str) -> None:
    table = Table.open(uri)
    assert table.to_table(columns=["b", "a"]).column_names == ["b", "a"]
    assert table.to_table(columns=["b"])["b"].to_pylist() == [str(value) for value in LIVE]


def test_no_columns_still_have_rows(uri: str) -> None:
    assert Table.open(uri).to_table(columns=[]).num_rows == len(LIVE)
    assert Table.open(uri).to_table(columns=[], limit=3, offset=1).num_rows == 3


@pytest.mark.parametrize(
    ("columns", "message"),
    [(["A"], "no column 'A'; "), (["bb"], "no column 'bb'; did you mean 'b'"), (["a", "a"], "named twice")],
)
def test_columns_that_are_not_there(uri: str, columns: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Table.open(uri).to_table(columns=columns)


@pytest.mark.parametrize(("limit", "offset"), [(-1, None), (None, -1)])
def test_windows_count_from_the_start(uri: str, limit: int | None, offset: int | None) -> None:
    with pytest.raises(InvalidInput, match="neither may be negative"):
        Table.open(uri).to_table(limit=limit, offset=offset)


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"a": range(6)}), max_rows_per_file=2)
    batches = table.to_batches()
    for path in (tmp_path / "t" / "data").iterdir():
        path.unlink()
    with pytest.raises(NotFound, match=r"data file .*\.lance does not exist"):
        next(batches)


def test_damaged_data_files_are_named(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"a": range(6)}))
    (path,) = (tmp_path / "t" / "data").iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:50], bytes(len(whole)), b"\xff" * len(whole)):
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=path.name):
            table.to_table()


def test_a_file_of_other_rows_is_corrupt(tmp_path: Path) -> None:
    """Swapped by hand, or by a restore gone wrong."""
    short = Table.create(str(tmp_path / "short"), pa.table({"a": range(2)}))
    table = Table.create(str(tmp_path / "t"), pa.table({"a": range(6)}))
    (source,) = (tmp_path / "short" / "data").iterdir()
    (target,) = (tmp_path / "t" / "data").iterdir()
    target.write_bytes(source.read_bytes())
    assert short.count_rows() == 2
    with pytest.raises(Corrupt, match="has 2 rows, its fragment 0 6"):
        table.to_table()


@pytest.mark.parametrize("damage", ["missing", "empty", "other count"])
def test_damaged_deletions_are_named(damage: str, tmp_path: Path) -> None:
    """Rows that were deleted do not come back because their list is gone."""
    uri = str(tmp_path / "t")
    for place, where in ((uri, "a < 3"), (str(tmp_path / "other"), "a < 2")):
        lance.write_dataset(pa.table({"a": range(6)}), place)
        lance.dataset(place).delete(where)
    (path,) = (tmp_path / "t" / "_deletions").iterdir()
    (other,) = (tmp_path / "other" / "_deletions").iterdir()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else other.read_bytes())
    with pytest.raises((Corrupt, NotFound), match=path.name):
        Table.open(uri).to_table()


@pytest.mark.parametrize(
    ("filter", "expected"),
    [("a % 2 = 0", [6, 8, 10]), ("b >= '9'", [9]), ("a = 0", []), ("A > 9 and b != '11'", [10]), ("b = '4'", [])],
)
def test_rows_that_match(uri: str, filter: str, expected: list[int]) -> None:
    table = Table.open(uri)
    assert table.to_table(filter=filter)["a"].to_pylist() == expected
    assert table.to_table(["a"], filter)["a"].to_pylist() == expected
    assert table.to_table(["b"], filter).column_names == ["b"]
    assert table.count_rows(filter) == len(expected)
    theirs = lance.dataset(uri).to_table(columns=["a"], filter=filter.replace("A", "a"))
    assert theirs["a"].to_pylist() == expected


@pytest.mark.parametrize("offset", [None, 0, 1, 3, 9])
@pytest.mark.parametrize("limit", [None, 0, 1, 3, 9])
def test_windows_count_the_rows_that_match(uri: str, limit: int | None, offset: int | None) -> None:
    matching = [value for value in LIVE if value % 2]
    start = offset or 0
    found = Table.open(uri).to_table(["b"], "a % 2 = 1", limit=limit, offset=offset)["b"].to_pylist()
    assert found == [str(value) for value in matching[start : None if limit is None else start + limit]]


def test_a_condition_that_makes_no_sense(uri: str) -> None:
    with pytest.raises(InvalidInput, match="there is no column 'bb' at character 1; did you mean 'b'"):
        Table.open(uri).to_table(filter="bb = 1")
