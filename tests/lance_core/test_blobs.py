"""Blobs: reading by row, from tables of this library and of pylance, in every storage version with blobs."""

import array
import io
import tarfile
from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
import pytest
from lance.blob import blob_array, blob_field

from lance_core import Corrupt, InvalidInput, Table, Unsupported
from lance_core.datafiles import blob_files
from lance_core.format.fragment import StorageVersion

VERSIONS = ["2.0", "2.1", "2.2"]
BLOBS = [b"small", None, b"", b"m" * 70_000, b"n" * 80_000, b"L" * 5_000_000, b"again"]
COLUMN = pa.field("film", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
SCHEMA = pa.schema([pa.field("id", pa.int64()), COLUMN, pa.field("title", pa.string()), pa.field("kind", pa.int32())])


def films(start: int = 0) -> pa.Table:
    rows = range(start, start + len(BLOBS))
    return pa.table([rows, BLOBS, [f"film {row}" for row in rows], [row * 2 for row in rows]], schema=SCHEMA)


def contents(actual: list) -> list[bytes | None]:
    return [None if blob is None else blob.read() for blob in actual]


@pytest.fixture(scope="module", params=[(writer, version) for writer in ("ours", "theirs") for version in VERSIONS])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    writer, version = request.param
    path = str(tmp_path_factory.mktemp(writer) / "t")
    if writer == "ours":
        table = Table.create(path, films(), storage_version=version)
        return table.append(films(len(BLOBS)), max_rows_per_file=4).table
    lance.write_dataset(films(), path, data_storage_version=version)
    lance.write_dataset(films(len(BLOBS)), path, mode="append", max_rows_per_file=4)
    return Table.open(path)


def test_blobs_by_row(table: Table) -> None:
    rows = [5, 0, 1, 2, 3, 4, 6, 12, 0]
    expected = [(BLOBS * 2)[row] for row in rows]
    assert contents(table.blobs("film", rows)) == expected
    addresses = table.take(rows, ["_rowaddr"])["_rowaddr"]
    assert contents(table.blobs("film", addresses, by="row_address")) == expected


def test_pylance_reads_the_same(table: Table) -> None:
    dataset = lance.dataset(table.uri)
    observed = dataset.take_blobs("film", indices=list(range(len(BLOBS) * 2)))
    assert [None if blob is None else blob.readall() for blob in observed] == BLOBS * 2
    assert table.to_table().equals(dataset.to_table())
    assert table.to_table().schema.equals(dataset.to_table().schema, check_metadata=True)


def test_columns_after_a_blob_column_are_read_correctly(table: Table) -> None:
    """The codec alone miscounts the columns of a file with v2 blobs."""
    both = pa.concat_tables([films(), films(len(BLOBS))])
    for columns in (["kind"], ["title"], ["id"], ["kind", "id", "title"]):
        assert table.to_table(columns).equals(both.select(columns))
    assert table.to_table(["title", "film"], "kind >= 24")["title"].to_pylist() == ["film 12", "film 13"]
    assert table.take([9, 3], ["kind"])["kind"].to_pylist() == [18, 6]


def test_only_the_requested_bytes_are_read(table: Table) -> None:
    (blob,) = table.blobs("film", [5])
    assert blob is not None
    assert (blob.size, blob.readable(), blob.seekable(), blob.tell()) == (5_000_000, True, True, 0)
    assert (blob.read(3), blob.tell(), blob.seek(-2, io.SEEK_END), blob.read(), blob.read()) == (
        b"LLL",
        3,
        4_999_998,
        b"LL",
        b"",
    )
    assert (blob.seek(10), blob.seek(5, io.SEEK_CUR), blob.seek(6_000_000), blob.read()) == (10, 15, 6_000_000, b"")
    (small,) = table.blobs("film", [0])
    assert small is not None
    assert io.BufferedReader(small).read(3) == b"sma"
    with pytest.raises(InvalidInput, match="no position -1 from 0"):
        blob.seek(-1)
    blob.close()
    with pytest.raises(ValueError, match="closed file"):
        blob.read()


def test_as_a_file(table: Table) -> None:
    """The methods that the standard library calls on a file opened for reading."""
    (blob,) = table.blobs("film", [3])
    assert blob is not None
    with blob:
        assert isinstance(blob, io.RawIOBase)
        assert not blob.writable()
        numbers = array.array("I", [0] * 4)
        assert (blob.readinto(memoryview(numbers)), numbers.tobytes(), blob.tell()) == (16, b"m" * 16, 16)
        into = bytearray(80_000)
        assert (blob.readinto(into), blob.readinto(into), blob.readall()) == (69_984, 0, b"")
        assert (blob.seek(0), len(blob.readall()), blob.read(None)) == (0, 70_000, b"")
        with pytest.raises(io.UnsupportedOperation):
            blob.write(b"x")
        with pytest.raises(io.UnsupportedOperation):
            blob.truncate()
        with pytest.raises(InvalidInput, match="no position 0 from 9"):
            blob.seek(0, 9)
    assert blob.closed
    for closed in (blob.read, blob.tell, lambda: blob.seek(0), blob.readall):
        with pytest.raises(ValueError, match="closed file"):
            closed()
    one, other = (actual for actual in table.blobs("film", [3, 3]) if actual)
    assert (one.read(5), other.tell(), other.read(2)) == (b"mmmmm", 0, b"mm")


def test_another_library_reads_one(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as out:
        out.addfile(tarfile.TarInfo("film"))
    rows = pa.table({"film": [archive.getvalue()]}, schema=pa.schema([COLUMN]))
    (stored,) = Table.create(str(tmp_path / "t"), rows).blobs("film", [0])
    assert stored is not None
    with tarfile.open(fileobj=io.BufferedReader(stored)) as actual:
        assert actual.getnames() == ["film"]


@pytest.mark.parametrize("version", VERSIONS)
def test_by_row_id(version: str, tmp_path: Path) -> None:
    for stable in (True, False):
        table = Table.create(str(tmp_path / f"{stable}"), films(), storage_version=version, stable_row_ids=stable)
        table = table.append(films(len(BLOBS))).table.delete("id IN (0, 3)").table
        ids = table.to_table(["_rowid", "id"])
        wanted = ids.take([11, 2, 2, 0])
        expected = [(BLOBS * 2)[row] for row in wanted["id"].to_pylist()]
        assert contents(table.blobs("film", wanted["_rowid"], by="row_id")) == expected
        if stable:
            table = table.compact(target_rows=100).table
            assert contents(table.blobs("film", wanted["_rowid"], by="row_id")) == expected
        with pytest.raises(InvalidInput, match="no live row with row id 0, 3"):
            table.blobs("film", [4, 0, 3], by="row_id")
        with pytest.raises(InvalidInput, match="no live row with offset 12"):
            table.blobs("film", [12])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_whole_blob_column_is_never_read(version: str, tmp_path: Path) -> None:
    """The measure is the bytes that the process reads in total, including the threads of the codec."""
    values = [bytes([number]) * 400_000 for number in range(100)]
    rows = pa.table([range(100), values], schema=pa.schema([SCHEMA.field("id"), COLUMN]))
    table = Table.create(str(tmp_path / "t"), rows, storage_version=version)
    warm = table.blobs("film", [0, 1])
    before = bytes_read()
    actual = table.blobs("film", range(100))
    assert bytes_read() - before < 200_000
    assert [blob.size for blob in actual if blob] == [400_000] * 100
    before = bytes_read()
    assert actual[42] is not None
    assert (actual[42].seek(300_000), actual[42].read(1000)) == (300_000, b"*" * 1000)
    assert bytes_read() - before < 20_000
    before = bytes_read()
    assert table.to_table(["film", "id"], "id > 50").num_rows == 49
    assert table.take([7, 3]).num_rows == 2
    assert table.drop_columns(["id"]).table.alter_column("film", nullable=False).table.count_rows() == 100
    assert bytes_read() - before < 2_000_000
    assert all(warm)


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_blobs_inside_a_column(tmp_path: Path) -> None:
    """pylance stores them; this library reads the columns next to them."""
    inside = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.large_binary(), metadata=COLUMN.metadata)])
    rows = pa.table({"id": [1], "s": pa.array([{"a": 3, "b": b"x"}], inside), "n": [2]})
    lance.write_dataset(rows, str(tmp_path / "t"))
    table = Table.open(str(tmp_path / "t"))
    for columns in (None, ["s.a"], ["s"]):
        with pytest.raises(Unsupported, match="column 's' contains blobs, which can only be read from a"):
            table.to_table(columns)
    with pytest.raises(InvalidInput, match="column 's' is not a blob column"):
        table.blobs("s", [0])
    assert table.to_table(["id", "n"]).to_pylist() == [{"id": 1, "n": 2}]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_changed_table(version: str, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), films(), storage_version=version).delete("id IN (0, 3)").table
    assert contents(table.blobs("film", [0, 1, 2])) == [None, b"", BLOBS[4]]
    with pytest.raises(InvalidInput, match="no live row with row address 0"):
        table.blobs("film", [0], by="row_address")


@pytest.mark.parametrize("version", VERSIONS)
def test_both_append_to_tables_of_the_other(version: Literal["2.0", "2.1", "2.2"], tmp_path: Path) -> None:
    lance.write_dataset(films(), str(tmp_path / "t"), data_storage_version=version)
    lance.write_dataset(films(len(BLOBS)), str(tmp_path / "t"), mode="append")
    table = Table.open(str(tmp_path / "t")).append(films(100)).table
    lance.write_dataset(films(200), table.uri, mode="append")
    table = table.refresh()
    assert contents(table.blobs("film", range(14, 28))) == BLOBS * 2
    observed = lance.dataset(table.uri).take_blobs("film", indices=list(range(14, 28)))
    assert [None if blob is None else blob.readall() for blob in observed] == BLOBS * 2


def test_the_schema_pylance_would_write(tmp_path: Path) -> None:
    metadata = {"lance-encoding:blob": "true", "note": "x", "lance-encoding:blob-inline-size-threshold": "10"}
    schema = pa.schema([pa.field("film", pa.large_binary(), nullable=False, metadata=metadata)])
    rows = pa.table({"film": [b"x" * 10, b"y" * 11]}, schema=schema)
    ours = Table.create(str(tmp_path / "ours"), rows)
    lance.write_dataset(rows, str(tmp_path / "theirs"))
    theirs = Table.open(str(tmp_path / "theirs"))
    assert ours.manifest.schema == theirs.manifest.schema
    for observed in (ours, theirs):
        assert [actual["kind"] for actual in observed.to_table()["film"].to_pylist()] == [0, 1]


def test_blobs_of_pylance_arrays(tmp_path: Path) -> None:
    rows = pa.table({"film": blob_array([b"a", None, b"c" * 70_000])}, schema=pa.schema([blob_field("film")]))
    table = Table.create(str(tmp_path / "t"), rows).append(pa.table({"film": [b"plain"]})).table
    assert contents(table.blobs("film", range(4))) == [b"a", None, b"c" * 70_000, b"plain"]


def test_packs_end_at_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_files, "LIMIT_KEYS", tuple((key, 5) for key, _ in blob_files.LIMIT_KEYS))
    limits = {"lance-encoding:blob-inline-size-threshold": "1", "lance-encoding:blob-dedicated-size-threshold": "9"}
    column = pa.field("film", pa.large_binary(), metadata={"lance-encoding:blob": "true", **limits})
    values = [b"abc", b"defg", b"hi", b"j", b"k" * 10]
    table = Table.create(str(tmp_path / "t"), pa.table({"film": values}, schema=pa.schema([column])))
    actual = table.to_table()["film"].to_pylist()
    assert [(each["kind"], each["blob_id"], each["position"], each["size"]) for each in actual[:3]] == [
        (1, 1, 0, 3),
        (1, 1, 3, 4),
        (1, 2, 0, 2),
    ]
    assert [each["kind"] for each in actual[3:]] == [0, 2]
    assert contents(table.blobs("film", range(5))) == values
    observed = lance.dataset(table.uri).take_blobs("film", indices=list(range(5)))
    assert [blob and blob.readall() for blob in observed] == values


def test_a_column_added_later_has_no_blobs(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "t"), data_storage_version="2.1")
    dataset.add_columns(pa.schema([COLUMN]))
    table = Table.open(str(tmp_path / "t"))
    assert table.blobs("film", [0]) == [None]
    assert table.to_table()["film"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("id", "column 'id' is not a blob column; read it with take\\(\\). Blob columns are film"),
        ("flim", "there is no column 'flim'; did you mean 'film'"),
    ],
)
def test_other_columns(table: Table, column: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        table.blobs(column, [0])


def test_filters_on_blob_nulls(table: Table) -> None:
    """pylance reports no null in storage version 2.0."""
    if table.manifest.storage_version == StorageVersion(2, 0):
        with pytest.raises(InvalidInput, match="the filter reads 'film', a blob column, and files of storage version"):
            table.to_table(filter="film IS NULL")
        return
    dataset = lance.dataset(table.uri)
    for condition in ("film IS NULL", "film IS NOT NULL AND id > 9"):
        assert table.to_table(["id"], condition).equals(dataset.to_table(["id"], condition)), condition
    assert table.to_table(["id"], "film.size > 4000000")["id"].to_pylist() == [5, 12]
    assert table.to_table(filter="film.size > 4000000").equals(table.take([5, 12]))


@pytest.mark.parametrize(
    ("field", "version", "message"),
    [
        (
            pa.field("b", pa.string(), metadata={"lance-encoding:blob": "true"}),
            "2.2",
            "is string; make it large_binary",
        ),
        (pa.field("b", pa.binary(), metadata={"lance-encoding:blob": "true"}), "2.1", "a blob column is large_binary"),
        (blob_field("b"), "2.1", "a blob column is large_binary with the metadata"),
        (pa.field("s", pa.struct([blob_field("b")])), "2.2", "column 's' contains blobs"),
    ],
    ids=["text", "binary v1", "v2 before its time", "nested"],
)
def test_invalid_blob_columns_are_rejected(field: pa.Field, version: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidInput, Unsupported), match=message):
        Table.create(str(tmp_path / "t"), pa.schema([field]), storage_version=version)


def test_a_truncated_blob_file(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), films())
    (path,) = (tmp_path / "t" / "data").glob("*/1000*.blob")
    path.write_bytes(path.read_bytes()[:75_000])
    actual = table.blobs("film", [3, 4])
    assert contents(actual[:1]) == [BLOBS[3]]
    with pytest.raises(Corrupt, match="ends 75000 bytes before its blob does"):
        contents(actual[1:])
