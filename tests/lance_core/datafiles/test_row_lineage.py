"""Row lineage in external files: the format allows it, although no known writer uses it.

The sequences are read, later versions keep them, and no path outside the table is opened.
"""

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import Corrupt, LanceError, Table, Unsupported
from lance_core.format import manifest_file
from lance_core.format._pb import table_pb2
from lance_core.format.manifest_file import LINEAGE_IN_COLUMNS, LINEAGE_IN_FILES, external_lineage_fields
from lance_core.limits import LINEAGE_BYTES

LINEAGE = ["_row_created_at_version", "_row_last_updated_at_version"]
FILE = "_lineage/all.bin"
Change = Callable[[table_pb2.Manifest], None]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "s": [str(each) for each in ids]})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of fragments with updated and deleted rows."""
    table = Table.create(tmp_path / "t", rows(1, 2, 3, 4), stable_row_ids=True, max_rows_per_file=2, durable=False)
    return table.update({"s": "'new'"}, where="id = 2").table.delete("id = 3").table


def edit_manifest(table: Table, change: Change) -> Table:
    path = Path(table.uri, table.manifest.path)
    message = table_pb2.Manifest.FromString(manifest_file.extract_manifest_message(path.read_bytes(), path=path.name))
    change(message)
    message.ClearField("transaction_section")
    path.write_bytes(manifest_file.frame_manifest(None, None, message.SerializeToString()))
    return Table.open(table.uri, durable=False)


def move_lineage_out(table: Table) -> Table:
    """Move all sequences of all fragments into one external file."""
    data = bytearray(b"before")

    def change(message: table_pb2.Manifest) -> None:
        for fragment in message.fragments:
            for external, inline in LINEAGE_IN_FILES.items():
                sequence = getattr(fragment, inline)
                file = getattr(fragment, external)
                file.path, file.offset, file.size = FILE, len(data), len(sequence)
                data.extend(sequence)

    Path(table.uri, FILE).parent.mkdir()
    changed = edit_manifest(table, lambda _message: None)
    path = Path(table.uri, table.manifest.path)
    message = table_pb2.Manifest.FromString(manifest_file.extract_manifest_message(path.read_bytes(), path=path.name))
    change(message)
    Path(table.uri, FILE).write_bytes(data)
    path.write_bytes(manifest_file.frame_manifest(None, None, message.SerializeToString()))
    return changed.refresh()


def read_lineage(table: Table) -> list[dict]:
    return sorted(table.to_table(["id", "s", *LINEAGE], with_row_id=True).to_pylist(), key=lambda row: row["id"])


def test_external_lineage_is_read(table: Table) -> None:
    before = read_lineage(table)
    external = move_lineage_out(table)
    assert external_lineage_fields(external.manifest.encode(), path="m") == set(LINEAGE_IN_FILES)
    assert read_lineage(external) == before
    assert external.take([before[0]["_rowid"]], ["id"], by="row_id")["id"].to_pylist() == [1]
    assert external.fsck().is_sound


@pytest.mark.parametrize("operation", ["append", "delete", "update", "compact", "add_columns", "restore"])
def test_later_versions_store_the_lineage_inline(operation: str, table: Table, tmp_path: Path) -> None:
    """Each operation keeps the lineage of the other rows, and pylance can read the result."""
    before = {row["id"]: row for row in read_lineage(table)}
    changes: dict[str, Callable[[Table], object]] = {
        "append": lambda t: t.append(rows(9)),
        "delete": lambda t: t.delete("id = 1"),
        "update": lambda t: t.update({"s": "'x'"}, where="id = 1"),
        "compact": lambda t: t.compact(),
        "add_columns": lambda t: t.add_columns(pa.field("n", pa.int8())),
        "restore": lambda t: t.restore(t.version),
    }
    changes[operation](move_lineage_out(table))
    after = Table.open(table.uri, durable=False)
    assert not external_lineage_fields(after.manifest.encode(), path="m")
    for row in read_lineage(after):
        if row["id"] in (2, 4):
            assert row == before[row["id"]]
        elif row["id"] == 1:
            assert (row["_rowid"], row[LINEAGE[0]]) == (before[1]["_rowid"], before[1][LINEAGE[0]])
    theirs = lance.dataset(table.uri)
    theirs.validate()
    columns = ["id", "s", "_rowid", *LINEAGE]
    assert sorted(theirs.to_table(columns).to_pylist(), key=str) == sorted(after.to_table(columns).to_pylist(), key=str)


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "%2e%2e/secret", "..\\secret", "a\0b", "@0/x", ""])
def test_a_path_outside_the_table_is_rejected(path: str, table: Table) -> None:
    Path(table.uri).with_name("secret").write_bytes(b"\x0a\x04\x0a\x02\x10\x02")

    def change(message: table_pb2.Manifest) -> None:
        message.fragments[0].external_row_ids.path = path
        message.fragments[0].external_row_ids.size = 6

    with pytest.raises(Corrupt, match="is outside the table"):
        edit_manifest(table, change)


@pytest.mark.parametrize(
    ("offset", "size", "error", "message"),
    [
        (0, 5000, Corrupt, "has only 4 of the 5000"),
        (100, 4, Corrupt, "has only 0 of the 4"),
        (2**64 - 1, 4, Corrupt, "cannot have a byte 18446744073709551615"),
        (0, 2**63, Unsupported, "and no more than 67,108,864 are read"),
        (0, LINEAGE_BYTES.maximum + 1, Unsupported, "LANCE_ASSETS_LINEAGE_BYTES_MAX"),
    ],
)
def test_a_short_file_or_an_excessive_size_is_rejected(
    offset: int, size: int, error: type[LanceError], message: str, table: Table
) -> None:
    Path(table.uri, "short.bin").write_bytes(b"\x0a\x04\x0a\x02")

    def change(manifest: table_pb2.Manifest) -> None:
        file = manifest.fragments[0].external_created_at_versions
        file.path, file.offset, file.size = "short.bin", offset, size

    with pytest.raises(error, match=message):
        edit_manifest(table, change)


def test_a_missing_file_is_named(table: Table) -> None:
    external = move_lineage_out(table)
    Path(table.uri, FILE).unlink()
    with pytest.raises(LanceError, match=FILE):
        external.refresh()


@pytest.mark.parametrize("field", LINEAGE_IN_COLUMNS)
def test_hidden_columns_are_refused(field: str, table: Table) -> None:
    """A hidden column is not treated as absent, which would date every row back to version 1."""

    def change(message: table_pb2.Manifest) -> None:
        getattr(message.fragments[1], field).SetInParent()

    with pytest.raises(Unsupported, match="as hidden columns of data files") as refused:
        edit_manifest(table, change)
    assert table.uri in str(refused.value)
