"""Blobs read by row, written by us and by pylance, in every storage version that has them."""

import io
from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
import pytest
from lance.blob import Blob, blob_array, blob_field

from lance_core import Corrupt, InvalidInput, Table, Unsupported
from lance_core.data import blob_writing

VERSIONS = ["2.0", "2.1", "2.2"]
BLOBS = [b"small", None, b"", b"m" * 70_000, b"n" * 80_000, b"L" * 5_000_000, b"again"]
COLUMN = pa.field("film", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
SCHEMA = pa.schema([pa.field("id", pa.int64()), COLUMN, pa.field("title", pa.string()), pa.field("kind", pa.int32())])


def films(start: int = 0) -> pa.Table:
    rows = range(start, start + len(BLOBS))
    return pa.table([rows, BLOBS, [f"film {row}" for row in rows], [row * 2 for row in rows]], schema=SCHEMA)


def contents(found: list) -> list[bytes | None]:
    return [None if blob is None else blob.read() for blob in found]


@pytest.fixture(scope="module", params=[(writer, version) for writer in ("ours", "theirs") for version in VERSIONS])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    writer, version = request.param
    place = str(tmp_path_factory.mktemp(writer) / "t")
    if writer == "ours":
        table = Table.create(place, films(), storage_version=version)
        return table.append(films(len(BLOBS)), max_rows_per_file=4).table
    lance.write_dataset(films(), place, data_storage_version=version)
    lance.write_dataset(films(len(BLOBS)), place, mode="append", max_rows_per_file=4)
    return Table.open(place)


def test_blobs_by_row(table: Table) -> None:
    rows = [5, 0, 1, 2, 3, 4, 6, 12, 0]
    expected = [(BLOBS * 2)[row] for row in rows]
    assert contents(table.blobs("film", rows)) == expected
    addresses = table.take(rows, ["_rowaddr"])["_rowaddr"]
    assert contents(table.blobs("film", addresses, by="row_address")) == expected


def test_pylance_reads_the_same(table: Table) -> None:
    dataset = lance.dataset(table.uri)
    seen = dataset.take_blobs("film", indices=list(range(len(BLOBS) * 2)))
    assert [None if blob is None else blob.readall() for blob in seen] == BLOBS * 2
    assert table.to_table().equals(dataset.to_table())
    assert table.to_table().schema.equals(dataset.to_table().schema, check_metadata=True)


def test_what_comes_after_a_blob_column_is_not_mistaken(table: Table) -> None:
    """The codec alone miscounts the columns of a file with blobs of v2."""
    both = pa.concat_tables([films(), films(len(BLOBS))])
    for columns in (["kind"], ["title"], ["id"], ["kind", "id", "title"]):
        assert table.to_table(columns).equals(both.select(columns))
    assert table.to_table(["title", "film"], "kind >= 24")["title"].to_pylist() == ["film 12", "film 13"]
    assert table.take([9, 3], ["kind"])["kind"].to_pylist() == [18, 6]


def test_only_what_is_read_is_read(table: Table) -> None:
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
    with pytest.raises(InvalidInput, match="no place -1 from 0"):
        blob.seek(-1)
    blob.close()
    with pytest.raises(ValueError, match="closed file"):
        blob.read()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_changed_table(version: str, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), films(), storage_version=version).delete("id IN (0, 3)").table
    assert contents(table.blobs("film", [0, 1, 2])) == [None, b"", BLOBS[4]]
    with pytest.raises(InvalidInput, match="no live row with row address 0"):
        table.blobs("film", [0], by="row_address")


@pytest.mark.parametrize("version", VERSIONS)
def test_both_add_to_the_other(version: Literal["2.0", "2.1", "2.2"], tmp_path: Path) -> None:
    lance.write_dataset(films(), str(tmp_path / "t"), data_storage_version=version)
    lance.write_dataset(films(len(BLOBS)), str(tmp_path / "t"), mode="append")
    table = Table.open(str(tmp_path / "t")).append(films(100)).table
    lance.write_dataset(films(200), table.uri, mode="append")
    table = table.refresh()
    assert contents(table.blobs("film", range(14, 28))) == BLOBS * 2
    seen = lance.dataset(table.uri).take_blobs("film", indices=list(range(14, 28)))
    assert [None if blob is None else blob.readall() for blob in seen] == BLOBS * 2


def test_the_schema_pylance_would_write(tmp_path: Path) -> None:
    metadata = {"lance-encoding:blob": "true", "note": "x", "lance-encoding:blob-inline-size-threshold": "10"}
    schema = pa.schema([pa.field("film", pa.large_binary(), nullable=False, metadata=metadata)])
    rows = pa.table({"film": [b"x" * 10, b"y" * 11]}, schema=schema)
    ours = Table.create(str(tmp_path / "ours"), rows)
    lance.write_dataset(rows, str(tmp_path / "theirs"))
    theirs = Table.open(str(tmp_path / "theirs"))
    assert ours.manifest.schema == theirs.manifest.schema
    for seen in (ours, theirs):
        assert [found["kind"] for found in seen.to_table()["film"].to_pylist()] == [0, 1]


def test_blobs_as_pylance_makes_them(tmp_path: Path) -> None:
    rows = pa.table({"film": blob_array([b"a", None, b"c" * 70_000])}, schema=pa.schema([blob_field("film")]))
    table = Table.create(str(tmp_path / "t"), rows).append(pa.table({"film": [b"plain"]})).table
    assert contents(table.blobs("film", range(4))) == [b"a", None, b"c" * 70_000, b"plain"]
    outside = pa.table({"film": blob_array([Blob.from_uri("file:///film")])}, schema=pa.schema([blob_field("film")]))
    with pytest.raises(Unsupported, match="refers to blobs outside of the table by their uri"):
        table.append(outside)


def test_packs_end_at_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_writing, "_LIMITS", tuple((key, 5) for key, _ in blob_writing._LIMITS))
    limits = {"lance-encoding:blob-inline-size-threshold": "1", "lance-encoding:blob-dedicated-size-threshold": "9"}
    column = pa.field("film", pa.large_binary(), metadata={"lance-encoding:blob": "true", **limits})
    values = [b"abc", b"defg", b"hi", b"j", b"k" * 10]
    table = Table.create(str(tmp_path / "t"), pa.table({"film": values}, schema=pa.schema([column])))
    found = table.to_table()["film"].to_pylist()
    assert [(each["kind"], each["blob_id"], each["position"], each["size"]) for each in found[:3]] == [
        (1, 1, 0, 3),
        (1, 1, 3, 4),
        (1, 2, 0, 2),
    ]
    assert [each["kind"] for each in found[3:]] == [0, 2]
    assert contents(table.blobs("film", range(5))) == values
    seen = lance.dataset(table.uri).take_blobs("film", indices=list(range(5)))
    assert [blob and blob.readall() for blob in seen] == values


def test_external_blobs_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "film").write_bytes(b"outside")
    uri = f"file://{tmp_path}/film"
    rows = pa.table({"film": blob_array([b"in", Blob.from_uri(uri)])}, schema=pa.schema([blob_field("film")]))
    lance.write_dataset(rows, str(tmp_path / "t"), allow_external_blob_outside_bases=True)
    table = Table.open(str(tmp_path / "t"))
    assert contents(table.blobs("film", [0])) == [b"in"]
    with pytest.raises(Unsupported, match=r"has a blob outside of the table, at .*film"):
        table.blobs("film", [1])


def test_a_column_added_since_has_none(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "t"), data_storage_version="2.1")
    dataset.add_columns(pa.schema([COLUMN]))
    table = Table.open(str(tmp_path / "t"))
    assert table.blobs("film", [0]) == [None]
    assert table.to_table()["film"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("id", "column 'id' is no blob column; read it with `take`. Blob columns are film"),
        ("flim", "there is no column 'flim'; did you mean 'film'"),
    ],
)
def test_other_columns(table: Table, column: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        table.blobs(column, [0])


def test_a_filter_reads_other_columns(table: Table) -> None:
    with pytest.raises(InvalidInput, match="the filter reads 'film', a blob column"):
        table.to_table(filter="film IS NULL")


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
        (pa.field("s", pa.struct([blob_field("b")])), "2.2", "column 's' has blobs inside it"),
    ],
    ids=["text", "binary v1", "v2 before its time", "nested"],
)
def test_what_cannot_be_stored(field: pa.Field, version: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidInput, Unsupported), match=message):
        Table.create(str(tmp_path / "t"), pa.schema([field]), storage_version=version)


def test_a_blob_file_cut_short(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), films())
    (path,) = (tmp_path / "t" / "data").glob("*/1000*.blob")
    path.write_bytes(path.read_bytes()[:75_000])
    found = table.blobs("film", [3, 4])
    assert contents(found[:1]) == [BLOBS[3]]
    with pytest.raises(Corrupt, match="ends 75000 bytes before its blob does"):
        contents(found[1:])
