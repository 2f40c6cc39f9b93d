"""File checks: sound files of every storage version and type pass, and anything that is not such a file is refused at
once, before the codec sees it."""

import os
import socket
import struct
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pyarrow as pa
import pytest
from lance.file import LanceFileReader, LanceFileWriter

from lance_core import Corrupt, LanceError, StorageError, Table
from lance_core.datafiles.file_checks import check_file
from lance_core.format._pb import columns_pb2
from lance_core.format.file_descriptor import FileDescriptor
from lance_core.format.file_footer import FOOTER
from lance_core.storage.local import LocalStore
from lance_core.versions.location import locate

VERSIONS = ("2.0", "2.1", "2.2")
ROWS = 4_000
COLUMNS = {
    "number": pa.array([None if n % 7 == 0 else n for n in range(ROWS)], pa.int64()),
    "constant": pa.array([5] * ROWS, pa.int32()),
    "null": pa.nulls(ROWS, pa.int64()),
    "flag": pa.array([n % 3 == 0 for n in range(ROWS)]),
    "text": pa.array([None if n % 5 == 0 else f"text {n}" * (n % 4) for n in range(ROWS)]),
    "same": pa.array([f"value {n % 3}" for n in range(ROWS)]),
    "category": pa.array([f"value {n % 3}" for n in range(ROWS)]).dictionary_encode(),
    "list": pa.array([None if n % 6 == 0 else list(range(n % 4)) for n in range(ROWS)], pa.list_(pa.int32())),
    "lists": pa.array([[[n], []] if n % 2 else None for n in range(ROWS)], pa.list_(pa.list_(pa.int16()))),
    "words": pa.array([["a"] * (n % 3) for n in range(ROWS)], pa.large_list(pa.string())),
    "struct": pa.array([{"x": n, "l": [1.5] * (n % 3)} for n in range(ROWS)]),
    "vector": pa.array([[float(n), 1.0] for n in range(ROWS)], pa.list_(pa.float32(), 2)),
    "bytes": pa.array([b"z" * (n % 300) for n in range(ROWS)], pa.large_binary()),
    "decimal": pa.array(range(ROWS), pa.int64()).cast(pa.decimal128(38, 2)),
    "moment": pa.array(range(ROWS), pa.timestamp("us", "UTC")),
}


def write(path: Path, version: str, columns: dict[str, pa.Array] = COLUMNS, *, batches: int = 2) -> Path:
    rows = pa.table(columns)
    with LanceFileWriter(str(path), rows.schema, version=version, max_page_bytes=4096) as writer:
        for _ in range(batches):
            writer.write_batch(rows)
    return path


def check(path: Path, size: int | None = None) -> bool:
    return check_file(LocalStore(path.parent), path.name, size).is_plausible


@pytest.mark.parametrize("version", VERSIONS)
def test_sound_files_pass(version: str, tmp_path: Path) -> None:
    path = write(tmp_path / "f.lance", version)
    checked = check_file(LocalStore(tmp_path), path.name, path.stat().st_size)
    assert checked.is_plausible
    checked.check_offsets(LocalStore(tmp_path), path.name, list(COLUMNS))
    assert check(write(tmp_path / "empty.lance", version, {"a": pa.array([], pa.int64())}))


def replace_by_pipe(path: Path) -> None:
    os.mkfifo(path)


def replace_by_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, chdir(path.parent):  # the name of a socket is short
        listener.bind("s")
    path.with_name("s").rename(path)


@pytest.mark.parametrize(
    "put", [replace_by_pipe, replace_by_socket, Path.mkdir, lambda path: path.symlink_to("/dev/zero")]
)
@pytest.mark.parametrize("kind", ["data", "_deletions", "_indices"])
def test_what_is_no_file_is_refused_at_once(put: Callable[[Path], None], kind: str, tmp_path: Path) -> None:
    """A pipe, a socket, a directory or a device in place of any file neither blocks nor is read."""
    table = Table.create(tmp_path / "t", pa.table({"a": range(100), "s": ["x"] * 100}))
    table = table.create_index("a", "BTREE").table.delete("a = 5").table
    files = [file for file in (tmp_path / "t" / kind).rglob("*") if file.is_file()]
    assert files
    for file in files:
        content = file.read_bytes()
        file.unlink()
        put(file)
        path = str(file.relative_to(tmp_path / "t"))
        with pytest.raises(StorageError, match=r"not a regular file|No such device|link out"):
            locate(table.uri).codec.open(path) if kind == "_indices" else table.to_table()
        file.rmdir() if file.is_dir() else file.unlink()
        file.write_bytes(content)


def test_tables_and_directories_may_be_links(tmp_path: Path) -> None:
    """The root of a table may be a link, and so may its directories and files, as long as they stay inside."""
    Table.create(tmp_path / "real", pa.table({"a": [1, 2]}))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    data = tmp_path / "real" / "data"
    data.rename(tmp_path / "real" / "elsewhere")
    data.symlink_to("elsewhere")
    (file,) = data.iterdir()
    file.rename(file.with_suffix(".moved"))
    file.symlink_to(file.with_suffix(".moved").name)
    assert Table.open(tmp_path / "link").to_table()["a"].to_pylist() == [1, 2]


def test_another_size_than_recorded_is_refused(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.table({"a": [1, 2]}))
    (file,) = (tmp_path / "t" / "data").iterdir()
    file.write_bytes(b"\0" * 64 + file.read_bytes())
    with pytest.raises(Corrupt, match=r"has \d+ bytes, but the table records"):
        table.to_table()


def patch_footer(data: bytes, **changes: int) -> bytes:
    names = ("metadata", "columns_at", "buffers_at", "buffers", "columns", "major", "minor", "magic")
    values = dict(zip(names, FOOTER.unpack(data[-FOOTER.size :]), strict=True))
    return data[: -FOOTER.size] + FOOTER.pack(*(values | changes).values())


def patch_column(data: bytes, change: Callable[[columns_pb2.ColumnMetadata], None]) -> bytes:
    """Append a changed copy of the metadata of column 0, and a footer that refers to it."""
    footer = FOOTER.unpack(data[-FOOTER.size :])
    start, length = struct.unpack_from("<QQ", data, footer[1])
    column = columns_pb2.ColumnMetadata.FromString(data[start : start + length])
    change(column)
    message = column.SerializeToString()
    body = data[: -FOOTER.size]
    at = len(body)
    body += message + struct.pack("<QQ", at, len(message))
    return body + FOOTER.pack(at, at + len(message), *footer[2:4], 1, *footer[5:])


def change_layout(change: Callable[[columns_pb2.PageLayout], None]) -> Callable[[columns_pb2.ColumnMetadata], None]:
    def change_column(column: columns_pb2.ColumnMetadata) -> None:
        direct = column.pages[0].encoding.direct
        typed = columns_pb2.TypedMessage.FromString(direct.encoding)
        kind = columns_pb2.PageLayout if "21" in typed.type_url else columns_pb2.ArrayEncoding
        layout = kind.FromString(typed.value)
        change(layout)  # type: ignore[arg-type]
        typed.value = layout.SerializeToString()
        direct.encoding = typed.SerializeToString()

    return change_column


BAD_FOOTERS = (
    {"metadata": 2**63},
    {"columns_at": 2**40},
    {"buffers_at": 2**64 - 1},
    {"buffers": 0},
    {"buffers": 2**32 - 1},
    {"columns": 2**32 - 1},
    {"columns": 50_000},
    {"major": 0, "minor": 1},
)


@pytest.mark.parametrize("version", VERSIONS)
def test_footers_that_lead_outside_are_refused(version: str, tmp_path: Path) -> None:
    sound = write(tmp_path / "f.lance", version, {"a": COLUMNS["number"]}).read_bytes()
    for number, changes in enumerate(BAD_FOOTERS):
        path = tmp_path / f"{number}.lance"
        path.write_bytes(patch_footer(sound, **changes))
        with pytest.raises(LanceError, match=path.name):
            check(path)


def set_page(**values: object) -> Callable[[columns_pb2.ColumnMetadata], None]:
    def change(column: columns_pb2.ColumnMetadata) -> None:
        page = column.pages[0]
        for name, value in values.items():
            if isinstance(value, list):
                getattr(page, name)[:] = value
            else:
                setattr(page, name, value)

    return change


@pytest.mark.parametrize("version", VERSIONS)
def test_pages_that_lead_outside_are_refused(version: str, tmp_path: Path) -> None:
    """A count that would make the decoder allocate gigabytes is refused or makes the file implausible."""
    sound = write(tmp_path / "f.lance", version, {"a": COLUMNS["number"]}, batches=1).read_bytes()

    def with_count(layout: object) -> None:
        if version == "2.0":
            layout.nullable.some_nulls.values.flat.bits_per_value = 2**40  # type: ignore[attr-defined]
        else:
            layout.mini_block.num_items = 34 * 2**30  # type: ignore[attr-defined]

    refused = {
        "outside": set_page(buffer_offsets=[2**63, 0]),
        "long": set_page(buffer_sizes=[8, 2**62]),
        "unpaired": set_page(buffer_sizes=[8]),
        "count": change_layout(with_count),
    }
    for name, change in refused.items():
        path = tmp_path / f"{name}.lance"
        path.write_bytes(patch_column(sound, change))
        with pytest.raises(Corrupt, match=path.name):
            check(path)
    implausible = {
        "rows": lambda column: column.pages.add().CopyFrom(column.pages[0]),
        "deferred": lambda column: setattr(column.pages[0].encoding.deferred, "position", 1),
        "type": lambda column: setattr(
            column.pages[0].encoding.direct, "encoding", columns_pb2.TypedMessage(type_url="/x").SerializeToString()
        ),
    }
    for name, change in implausible.items():
        path = tmp_path / f"{name}.lance"
        path.write_bytes(patch_column(sound, change))
        assert check(path) == (name == "rows" and version == "2.0"), name


def test_damaged_offsets_of_2_0_are_refused(tmp_path: Path) -> None:
    """Every changed byte of list offsets ends in an error or in other values, in this process. The codec aborts."""
    rows = pa.table({"l": COLUMNS["list"].slice(0, 40), "d": COLUMNS["category"].slice(0, 40)})
    table = Table.create(tmp_path / "t", rows, storage_version="2.0")
    (file,) = (tmp_path / "t" / "data").iterdir()
    sound = file.read_bytes()
    refused = 0
    for position in range(40 * 8):
        file.write_bytes(sound[:position] + bytes([sound[position] ^ 0x40]) + sound[position + 1 :])
        try:
            table.to_table().validate(full=True)
        except LanceError:
            refused += 1
    assert refused > 250


def test_damaged_text_offsets_of_2_0_are_refused(tmp_path: Path) -> None:
    """An offset far beyond the bytes of a page makes the codec allocate memory until it fails."""
    table = Table.create(tmp_path / "t", pa.table({"s": ["a", "bc", "d"]}), storage_version="2.0")
    (file,) = (tmp_path / "t" / "data").iterdir()
    sound = file.read_bytes()
    file.write_bytes(sound[:23] + b"\x55" + sound[24:])
    with pytest.raises(Corrupt, match="offsets that go backwards or beyond"):
        table.to_table()


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_damaged_repetition_indices_are_refused(version: str, tmp_path: Path) -> None:
    """Every damaged count of a repetition index ends in an error or in other values, in this process. The codec
    aborts."""
    lists = pa.table({"n": range(ROWS), "l": pa.array([list(range(n % 9)) for n in range(ROWS)], pa.list_(pa.int32()))})
    table = Table.create(tmp_path / "t", lists, storage_version=version)
    (file,) = (tmp_path / "t" / "data").iterdir()
    span = LanceFileReader(str(file)).metadata().columns[1].pages[0].buffers[-1]
    sound, refused, words = file.read_bytes(), 0, 0
    for position in range(span.position, span.position + span.size, 8):
        for word in (0, 1, 2**63):
            file.write_bytes(sound[:position] + word.to_bytes(8, "little") + sound[position + 8 :])
            words += file.read_bytes() != sound
            try:
                table.to_table().validate(full=True)
            except LanceError:
                refused += 1
    assert refused > 0.7 * words > 0


def test_files_of_a_table_share_one_schema(tmp_path: Path) -> None:
    """The schema is kept once, however many files have it, and an error about it names the file."""
    for name in ("a.lance", "b.lance"):
        write(tmp_path / name, "2.2", {"shared": COLUMNS["number"]})
    first, second = (check_file(LocalStore(tmp_path), name) for name in ("a.lance", "b.lance"))
    assert first.schema_bytes
    assert first.schema_bytes is second.schema_bytes
    for name in ("c.lance", "d.lance"):
        with pytest.raises(Corrupt, match=f"{name}.*does not parse"):
            FileDescriptor.decode(b"\x0a\x02\x0a\x7f", path=name)
