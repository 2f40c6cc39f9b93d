"""Manifests: a real manifest is encoded and decoded unchanged, and every corruption is reported."""

from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Corrupt, CorruptHead, LanceError, Table, Unsupported
from lance_core.format._pb import table_pb2
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.manifest_file import frame_manifest
from lance_core.format.transaction import Transaction

BITS = [1 << bit for bit in range(8)]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """A manifest as small as possible with every type of section and field."""
    path = str(tmp_path_factory.mktemp("manifest") / "t")
    schema = pa.schema(
        [pa.field("a", pa.int64()), pa.field("s", pa.struct([pa.field("x", pa.string())]))], {"who": "me"}
    )
    table = pa.Table.from_pylist([{"a": 1, "s": {"x": "y"}}], schema)
    return Table.create(path, table, properties={"why": "test"}, stable_row_ids=True).manifest


def test_bytes_give_back_the_manifest(real: Manifest) -> None:
    again = Manifest.decode(real.encode(), path=real.path, version=Version(1))
    assert again.message == real.message
    assert again.encode() == real.encode()
    assert (again.version, again.row_count(), len(again.fragments), again.max_fragment_id) == (1, 1, 1, 0)
    assert str(again.storage_version) == "2.2"
    assert again.has_stable_row_ids
    assert again.next_row_id == 1
    assert again.timestamp.tzinfo is not None
    assert again.inline_transaction is not None
    assert Transaction.decode(again.inline_transaction, path="").properties == {"why": "test"}


def test_an_edit_is_a_copy(real: Manifest) -> None:
    copy = real.copy_header()
    copy.version = 99
    copy.config["a"] = "b"
    assert (real.version, "a" in real.config) == (1, False)


def complete_message(manifest: Manifest) -> table_pb2.Manifest:
    """Return a separate message with the fragments."""
    copy = table_pb2.Manifest()
    copy.CopyFrom(manifest.message)
    return copy


def test_sections_are_found(real: Manifest) -> None:
    framed = Manifest.from_header(real.copy_header(), index_section=b"", transaction=b"txn", path="m")
    again = Manifest.decode(framed.encode(), path="m")
    assert (again.index_section, again.inline_transaction) == (b"", b"txn")
    bare = Manifest.decode(
        Manifest.from_header(real.copy_header(), index_section=None, transaction=None, path="m").encode(), path="m"
    )
    assert (bare.index_section, bare.inline_transaction) == (None, None)


def test_every_prefix_is_corrupt(real: Manifest) -> None:
    data = real.encode()
    for end in range(len(data)):
        with pytest.raises(Corrupt):
            Manifest.decode(data[:end], path="m")


def test_every_tail_of_zeroes_is_corrupt(real: Manifest) -> None:
    """A power loss leaves such a tail in a file that was never synced."""
    data = real.encode()
    for start in range(len(data)):
        with pytest.raises(Corrupt):
            Manifest.decode(data[:start] + bytes(len(data) - start), path="m")
    with pytest.raises(Corrupt):
        Manifest.decode(data + bytes(512), path="m")


def test_every_flipped_bit_is_read_or_rejected(real: Manifest) -> None:
    """No other exception is raised, even if a corrupted part is read later."""
    data = real.encode()
    refused = 0
    for position in range(len(data)):
        for bit in BITS:
            damaged = data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :]
            try:
                read_all_fields(Manifest.decode(damaged, path="m", version=Version(1)))
            except LanceError:
                refused += 1
    assert refused > len(data)


def read_all_fields(manifest: Manifest) -> None:
    _ = (manifest.schema.arrow, manifest.timestamp, manifest.config, manifest.table_metadata, manifest.branch)
    _ = (manifest.storage_version, manifest.index_section, manifest.max_fragment_id, manifest.transaction_file)
    manifest.row_count()
    for fragment in manifest.fragments:
        fragment.check(path="m")
        _ = [file.path for file in fragment.files]
    if manifest.inline_transaction is not None:
        Transaction.decode(manifest.inline_transaction, path="m")


@pytest.mark.parametrize(("expected", "stored"), [(2, 1), (None, 0)])
def test_another_version_than_its_name_is_corrupt(real: Manifest, expected: int | None, stored: int) -> None:
    message = complete_message(real)
    message.version = stored
    data = frame_manifest(None, None, message.SerializeToString())
    with pytest.raises(Corrupt, match=f"contains version {stored}"):
        Manifest.decode(data, path="m", version=None if expected is None else Version(expected))


def test_features_are_checked_before_anything_else(real: Manifest) -> None:
    message = complete_message(real)
    message.reader_feature_flags |= 512
    with pytest.raises(Unsupported, match=r"m needs reader features 512 \(FRAGMENT_REUSE_WITH_ROW_IDS\)"):
        Manifest.decode(frame_manifest(None, None, message.SerializeToString()), path="m")


@pytest.mark.parametrize(
    ("file_format", "is_read"), [("lance", True), ("", True), ("parquet", False), ("LANCE", False)]
)
def test_data_files_of_another_format_are_refused(real: Manifest, file_format: str, is_read: bool) -> None:
    message = complete_message(real)
    message.data_format.file_format = file_format
    data = frame_manifest(None, None, message.SerializeToString())
    if is_read:
        assert Manifest.decode(data, path="m").version == 1
    else:
        with pytest.raises(Unsupported, match=f"m stores its data files in the format '{file_format}'"):
            Manifest.decode(data, path="m")


@pytest.mark.parametrize(
    ("prerelease", "build", "expected"),
    [
        (None, None, "lance 14.0.2"),
        ("rc.1", None, "lance 14.0.2-rc.1"),
        (None, "build.123", "lance 14.0.2+build.123"),
        ("rc.1", "build.123", "lance 14.0.2-rc.1+build.123"),
    ],
)
def test_the_writer_has_its_whole_semantic_version(
    real: Manifest, prerelease: str | None, build: str | None, expected: str
) -> None:
    message = complete_message(real)
    message.writer_version.CopyFrom(
        table_pb2.Manifest.WriterVersion(library="lance", version="14.0.2", prerelease=prerelease, build_metadata=build)
    )
    assert Manifest.decode(frame_manifest(None, None, message.SerializeToString()), path="m").writer == expected


@pytest.mark.parametrize("field", ["index_section", "transaction_section", "legacy_transaction_section"])
def test_a_section_outside_the_file_is_corrupt(field: str, real: Manifest) -> None:
    """There is no fallback: offsets copied from another file by mistake must not be used."""
    message = complete_message(real)
    message.ClearField("transaction_section")
    setattr(message, field, 10**6)
    manifest = Manifest.decode(frame_manifest(None, None, message.SerializeToString()), path="m")
    with pytest.raises(Corrupt, match="at byte 1000000 of"):
        _ = (manifest.index_section, manifest.inline_transaction)


def test_unrecorded_row_counts_are_not_guessed(real: Manifest) -> None:
    message = complete_message(real)
    message.fragments[0].physical_rows = 0
    with pytest.raises(Unsupported, match="fragment 0 does not record its number of rows"):
        Manifest.decode(frame_manifest(None, None, message.SerializeToString()), path="m").row_count()


@pytest.mark.parametrize(
    ("format_version", "flags", "stamp", "expected"),
    [
        ("2.1", 0, (2, 2), "2.1"),
        ("", 0, (2, 0), "2.0"),
        ("", 0, (0, 3), "2.0"),
        ("", 0, None, "0.1"),
        ("", 4, None, "2.0"),
    ],
)
def test_the_storage_version_of_old_tables_is_inferred(
    real: Manifest, format_version: str, flags: int, stamp: tuple[int, int] | None, expected: str
) -> None:
    message = complete_message(real)
    message.data_format.version = format_version
    message.reader_feature_flags = message.writer_feature_flags = flags
    if stamp is None:
        message.ClearField("fragments")
    else:
        message.fragments[0].files[0].file_major_version, message.fragments[0].files[0].file_minor_version = stamp
    assert (
        str(Manifest.decode(frame_manifest(None, None, message.SerializeToString()), path="m").storage_version)
        == expected
    )


@pytest.mark.parametrize("damage", ["empty", "zeroes", "cut", "text"])
def test_a_damaged_newest_version_is_reported_and_never_skipped(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = Table.create(str(path), pa.table({"a": [1]})).append(pa.table({"a": [2]})).table
    head = path / table.manifest.path
    more = pa.table({"a": [3]})
    complete_message = head.read_bytes()
    head.write_bytes(
        {"empty": b"", "zeroes": bytes(len(complete_message)), "cut": complete_message[:-1], "text": b"oops" * 9}[
            damage
        ]
    )
    with pytest.raises(CorruptHead, match="the newest version 2 of this table is damaged") as caught:
        Table.open(str(path))
    assert caught.value.path == str(head)
    for load in (lambda: Table.open(str(path), version=2), lambda: Table.open(str(path), version=1).append(more)):
        with pytest.raises(Corrupt) as caught_at:
            load()
        assert caught_at.value.path == str(head)
    assert Table.open(str(path), version=1).count_rows() == 1
    head.write_bytes(complete_message)
    assert Table.open(str(path)).count_rows() == 2
