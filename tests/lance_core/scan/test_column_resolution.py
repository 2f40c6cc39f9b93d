"""Column resolution compared with pylance: paths into structs, and the system columns of every table."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.datafiles.codec import FileToRead
from lance_core.datafiles.lance_codec import LanceCodec
from lance_core.datafiles.staged_reader import JoinedReader
from lance_core.scan.plan import plan_scan
from lance_core.versions.location import locate
from lance_core.versions.snapshot import load_latest

POINT = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string()), ("w", pa.float64())]))])
ROWS = pa.table(
    {
        "id": [1, 2, 3, 4],
        "s": pa.array(
            [{"x": 1, "y": {"z": "a", "w": 1.5}}, None, {"x": None, "y": None}, {"x": 4, "y": {"z": "d"}}], POINT
        ),
        "l": pa.array([[{"q": 1}], None, [], [{"q": 2}]], pa.list_(pa.struct([("q", pa.int64())]))),
    }
)


@pytest.fixture(scope="module", params=["2.1", "2.2"])
def uri(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    version: Literal["2.1", "2.2"] = request.param
    location = str(tmp_path_factory.mktemp("columns") / "t")
    lance.write_dataset(ROWS, location, max_rows_per_file=3, data_storage_version=version)
    return location


@pytest.mark.parametrize(
    "columns",
    [
        ["s.x"],
        ["s.y.z", "id"],
        ["s.y"],
        ["s.x", "s.y.z"],
        ["s.x", "s"],
        ["s", "s.y.w"],
        ["id", "_rowid"],
        ["_rowaddr", "s.x"],
    ],
    ids=str,
)
@pytest.mark.parametrize("filter", [None, "id > 1", "s.x = 4", "s.y.z = 'a'"])
def test_paths_equal_those_of_pylance(uri: str, columns: list[str], filter: str | None) -> None:
    theirs = lance.dataset(uri).to_table(columns=columns, filter=filter)
    ours = Table.open(uri).to_table(columns, filter)
    assert ours.equals(theirs)
    assert ours.schema == theirs.schema


@pytest.mark.parametrize("filter", [None, "id % 2 = 0"])
def test_system_columns_come_last(uri: str, filter: str | None) -> None:
    ours = Table.open(uri).to_table(["id"], filter, with_row_id=True, with_row_address=True)
    theirs = lance.dataset(uri).to_table(["id"], filter, with_row_id=True, with_row_address=True)
    assert ours.equals(theirs)
    assert Table.open(uri).to_table(["_rowid", "id"], with_row_id=True).column_names == ["_rowid", "id"]
    everything = Table.open(uri).to_table(with_row_address=True)
    assert everything.column_names == ["id", "s", "l", "_rowaddr"]
    (batch, *_) = Table.open(uri).to_batches([], with_row_id=True)
    assert batch.schema.names == ["_rowid"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["s.nope"], "no column 's.nope'; available: s.x, s.y, s.y.z, s.y.w"),
        (["s.y.ww"], "no column 's.y.ww'; did you mean 's.y.w'"),
        (["l.q"], "no column 'l.q'"),
        (["t.x"], "no column 't.x'"),
        (["s."], r"no column 's\.'"),
        (["s.x", "s.x"], "names a column twice"),
    ],
    ids=str,
)
def test_unknown_paths_are_rejected(uri: str, columns: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Table.open(uri).to_table(columns)


def test_only_the_requested_children_are_read(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read_columns: list[str] = []
    joined_bytes: list[int] = []
    join = LanceCodec.join

    def record_join(self: LanceCodec, files: Sequence[FileToRead], columns: Sequence[str]) -> JoinedReader | None:
        read_columns.extend(columns)
        joined = join(self, files, columns)
        assert joined is not None
        joined_bytes.append(joined.byte_count)
        return joined

    monkeypatch.setattr(LanceCodec, "join", record_join)
    Table.open(uri).to_table(["s.y.z", "s.x"])
    assert set(read_columns) == {"s.x", "s.y.z"}
    Table.open(uri).to_table(["s"])
    assert joined_bytes[0] < joined_bytes[1]


def test_children_with_dots_in_their_names(tmp_path: Path) -> None:
    """As in pylance, a dot outside back-ticks separates two names. If no field has that path, a child whose name
    contains the dot is meant."""
    rows = pa.table({"s": pa.array([{"a.b": 1, "a": {"b": 2, "c.d": 3, "e.f.g": 4}, "x.y": {"z": 5}}]), "t u": [6]})
    table = Table.create(str(tmp_path / "t"), rows)
    theirs = lance.dataset(table.uri)
    for column, value in (("s.a.b", 2), ("s.`a.b`", 1), ("`s`.a.b", 2), ("s.`x.y`.z", 5), ("`t u`", 6), ("t u", 6)):
        found = table.to_table([column])
        assert found.to_pylist() == [{column: value}]
        assert found.equals(theirs.to_table(columns=[column]))
    assert table.to_table(["s.a.c.d"]).to_pylist() == [{"s.a.c.d": 3}]
    assert table.to_table(["s.x.y.z"]).to_pylist() == [{"s.x.y.z": 5}]


def test_ambiguous_names_are_rejected(tmp_path: Path) -> None:
    rows = pa.table({"s": pa.array([{"a.b": {"c": 1}, "a": {"b.c": 2}}])})
    table = Table.create(str(tmp_path / "t"), rows)
    with pytest.raises(InvalidInput, match=r"is ambiguous; write 's.`a.b`.c' or 's.a.`b.c`'"):
        table.to_table(["s.a.b.c"])
    assert table.to_table(["s.`a.b`.c", "s.a.`b.c`"]).to_pylist() == [{"s.`a.b`.c": 1, "s.a.`b.c`": 2}]


def test_paths_after_renaming(tmp_path: Path) -> None:
    """The file keeps the names with which it was written; swapped columns are distinguished by their field ids."""
    rows = pa.table({"s": pa.array([{"x": 1, "y": 2}]), "a": [3], "b": [4]})
    table = Table.create(str(tmp_path / "t"), rows)
    table = table.alter_column("a", rename="c").table.alter_column("b", rename="a").table
    table = table.alter_column("c", rename="b").table
    assert table.to_table(["a"]).to_pylist() == [{"a": 4}]
    assert table.to_table(["b", "s.y"], "a = 4").to_pylist() == [{"b": 3, "s.y": 2}]
    table = table.alter_column("s.x", rename="u").table
    assert table.to_table(["s.u"]).to_pylist() == [{"s.u": 1}]


def test_the_time_to_plan_grows_linearly_with_the_columns(tmp_path: Path) -> None:
    """Sixteen times as many columns take about sixteen times as long; a search of all names for each would take 256."""

    def seconds(count: int) -> float:
        table = Table.create(tmp_path / str(count), pa.table({f"c{n}": pa.nulls(0, pa.int64()) for n in range(count)}))
        manifest, times = load_latest(locate(table.uri)).manifest, []
        for _ in range(5):
            begin = time.thread_time()
            plan = plan_scan(manifest, columns=None, filter="c1 > 1")
            assert len(plan.schema) == len(plan.early_and_late.arrow) == count
            times.append(time.thread_time() - begin)
        return min(times)

    assert seconds(4096) < 48 * seconds(256)


def test_threads_share_a_reader(tmp_path: Path) -> None:
    """The codec refuses a question to a reader in which another thread begins a read at that moment."""
    table = Table.create(tmp_path / "t", pa.table({"id": range(100)}))
    snapshot = load_latest(locate(table.uri))
    (file,) = snapshot.manifest.fragments[0].files
    reader = snapshot.location.codec.open(file.qualified_path, ["id"], size=file.size)

    def read(_: int) -> int:
        return sum(batch.num_rows for _ in range(40) for batch in reader.read(["id"], 0, reader.row_count))

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(8))) == {4000}
