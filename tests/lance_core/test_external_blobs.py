"""External blobs: references to objects outside the table are written and read by both libraries, and opened only if
allowed.
"""

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import DatasetBasePath
from lance.blob import Blob, blob_array, blob_field

from lance_core import InvalidInput, LanceError, NotFound, Table, Unsupported

SCHEMA = pa.schema([pa.field("id", pa.int64()), blob_field("film")])
FILM = bytes(range(100))


def films(*blobs: Blob | bytes | None) -> pa.Table:
    return pa.table([range(len(blobs)), blob_array(list(blobs))], schema=SCHEMA)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A directory of files outside the table."""
    path = tmp_path / "archive"
    (path / "old").mkdir(parents=True)
    (path / "a film.bin").write_bytes(FILM)
    (path / "old" / "b.bin").write_bytes(FILM[::-1])
    (tmp_path / "secret").write_bytes(b"secret")
    return path


def blobs(table: Table, rows: int) -> list[bytes | None]:
    return [None if blob is None else blob.read() for blob in table.blobs("film", range(rows))]


def theirs(table: Table, rows: int) -> list[bytes | None]:
    actual = lance.dataset(table.uri).take_blobs("film", indices=list(range(rows)))
    return [None if blob is None else blob.readall() for blob in actual]


def given(archive: Path) -> tuple[pa.Table, list[bytes | None]]:
    first, second = f"file://{archive}/a%20film.bin", f"file://{archive}/old/b.bin"
    rows = films(Blob.from_uri(first), None, Blob.from_uri(second, 10, 5), b"own", Blob.from_uri(second), b"")
    return rows, [FILM, None, FILM[::-1][10:15], b"own", FILM[::-1], b""]


@pytest.mark.parametrize("writer", ["ours", "theirs", "theirs below a base path"])
def test_references(writer: str, archive: Path, tmp_path: Path) -> None:
    rows, expected = given(archive)
    path = str(tmp_path / "t")
    if writer == "ours":
        Table.create(path, rows)
    elif writer == "theirs":
        lance.write_dataset(rows, path, allow_external_blob_outside_bases=True)
    else:
        lance.write_dataset(rows, path, initial_bases=[DatasetBasePath(f"file://{archive}", "archive")])
    with pytest.raises(
        InvalidInput, match=r"If you trust that location, open the table with bases=\['file://.*archive"
    ):
        Table.open(path).blobs("film", [0])
    assert [blob and blob.read() for blob in Table.open(path).blobs("film", [3, 1, 5])] == [b"own", None, b""]
    table = Table.open(path, bases=[str(archive)])
    assert blobs(table, 6) == theirs(table, 6) == expected
    described = table.to_table()
    assert described.equals(lance.dataset(path).to_table())

    moved = table.append(rows.slice(3, 1)).table.update({"id": "id + 10"}, "id >= 0").table
    again = moved.compact(target_rows=100).table
    assert blobs(again, 7) == theirs(again, 7) == [*expected, b"own"]
    references = [row["blob_uri"] for row in described["film"].to_pylist() if row and row["kind"] == 3]
    assert references == [row["blob_uri"] for row in again.to_table()["film"].to_pylist() if row and row["kind"] == 3]

    for shallow in (True, False):
        clone = again.clone(str(tmp_path / f"clone {shallow}"), shallow=shallow)
        assert blobs(clone, 7) == [*expected, b"own"]
        assert theirs(clone, 7) == [*expected, b"own"]
    assert again.fsck().findings == again.refresh().fsck().findings
    assert not [finding for finding in again.fsck().findings if finding.rule == "blob_file"]


def test_references_are_lazy(archive: Path, tmp_path: Path) -> None:
    rows = films(Blob.from_uri(f"file://{archive}/gone"), Blob.from_uri(f"file://{archive}/old/b.bin"))
    table = Table.create(str(tmp_path / "t"), rows)
    dangling, readable = Table.open(table.uri, bases=[str(archive)]).blobs("film", [0, 1])
    assert dangling is not None
    assert readable is not None
    with pytest.raises(NotFound, match="gone does not exist, but the table refers to a blob in it"):
        dangling.read()
    assert (readable.size, readable.seek(-2, 2), readable.read(), readable.tell()) == (100, 98, FILM[1::-1], 100)


def test_upsert_of_references(archive: Path, tmp_path: Path) -> None:
    rows, expected = given(archive)
    table = Table.create(str(tmp_path / "t"), films(b"x", b"y"))
    table.upsert(rows, on="id")
    table = Table.open(table.uri, bases=[str(archive)])
    assert sorted(map(str, blobs(table, 6))) == sorted(map(str, expected))


@pytest.mark.parametrize(
    "uri",
    [
        "file://{archive}/../secret",
        "file://{archive}/old/../../secret",
        "file://{archive}/%2e%2e/secret",
        "file://{archive}/link",
        "file://{archive}/up/secret",
        "file://{archive}2/x",
        "file:///etc/hostname",
        "https://example.org/film",
        "file://elsewhere/film",
    ],
)
def test_locations_that_are_not_allowed(uri: str, archive: Path, tmp_path: Path) -> None:
    """pylance stores any of them; `bases` decides which may be opened, however the URI is stored."""
    (archive / "link").symlink_to(tmp_path / "secret")
    (archive / "up").symlink_to(tmp_path)
    (tmp_path / "archive2").mkdir()
    (tmp_path / "archive2" / "x").write_bytes(b"x")
    resolved_uri = uri.format(archive=archive)
    kind = pa.struct([("data", pa.large_binary()), ("uri", pa.string())])
    field = pa.field("film", kind, metadata={"ARROW:extension:name": "lance.blob.v2"})
    if resolved_uri.startswith("file:///"):
        rows = pa.table([pa.array([{"data": None, "uri": resolved_uri}], kind)], schema=pa.schema([field]))
        lance.write_dataset(rows, str(tmp_path / "t"), allow_external_blob_outside_bases=True)
        table = Table.open(str(tmp_path / "t"), bases=[str(archive)])
    else:
        Table.create(
            str(tmp_path / "t"), pa.table([pa.array([{"data": None, "uri": resolved_uri}], kind)], pa.schema([field]))
        )
        table = Table.open(str(tmp_path / "t"), bases=[str(archive)])
    with pytest.raises(LanceError):
        blobs(table, 1)


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        ({"uri": "film"}, "refers to 'film'; a blob outside the table needs the absolute URI"),
        ({"uri": "/data/film"}, "needs the absolute URI"),
        ({"uri": "file:///data/../film"}, "without '..'"),
        ({"uri": "file:///data/%2e%2e/film"}, "without '..'"),
        ({"uri": "file:///data/..%2ffilm"}, "without '..'"),
        ({"uri": "@1/../film"}, "without '..'"),
        ({"uri": "file:///data/"}, "URI of a file"),
        ({}, "has a blob with neither data nor a uri, or with both"),
        ({"uri": "file:///film", "data": b""}, "has a blob with neither data nor a uri, or with both"),
        ({"uri": "file:///film", "size": 1}, "only one of position and size"),
        ({"data": b"x", "size": 1, "position": 0}, "with data and a"),
        ({"uri": "s3://key:word@bucket/../film"}, r"refers to 's3://bucket/\.\./film'"),
    ],
)
def test_invalid_blob_values_are_rejected(blob: dict[str, object], message: str, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA)
    storage = SCHEMA.field("film").type.storage_type
    rows = pa.table([pa.array([1]), pa.array([blob], storage)], names=["id", "film"])
    with pytest.raises(InvalidInput, match=message):
        table.append(rows)
    assert not list((tmp_path / "t").glob("data/*"))


def test_a_reference_to_a_byte_range_needs_its_own_columns(tmp_path: Path) -> None:
    v1 = pa.field("film", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    table = Table.create(str(tmp_path / "t"), pa.schema([v1]))
    with pytest.raises(Unsupported, match="cannot refer to a part of a file; refer to the whole file"):
        table.append(films(Blob.from_uri("file:///film", 1, 2)).select(["film"]))
    assert table.append(films(Blob.from_uri("file:///film")).select(["film"])).rows_added == 1
