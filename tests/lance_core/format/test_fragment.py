"""Fragments: views over a message, what they return and what they reject."""

import pytest

from lance_core import Corrupt
from lance_core.format._pb import table_pb2
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import DataFile, Fragment, StorageVersion

V22 = StorageVersion(2, 2)


def file(path: str = "a.lance", ids: tuple[int, ...] = (0,), columns: tuple[int, ...] = (0,)) -> DataFile:
    return DataFile.of(path=path, field_ids=ids, column_indices=columns, version=V22, size=5)


def deleted(kind: table_pb2.DeletionFile.DeletionFileType, rows: int) -> Fragment:
    return Fragment(
        table_pb2.DataFragment(
            id=3,
            physical_rows=10,
            deletion_file=table_pb2.DeletionFile(file_type=kind, read_version=7, id=2**64 - 1, num_deleted_rows=rows),
        )
    )


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.2", (2, 2)), ("2.10", (2, 10)), ("0.1", (0, 1)), ("legacy", (0, 1))],
)
def test_storage_versions(text: str, version: tuple[int, int]) -> None:
    assert StorageVersion.parse(text) == StorageVersion(*version)


@pytest.mark.parametrize("text", ["", "2", "two", "2.x", "-1.2", "2.2.2", " 2.2"])
def test_other_text_is_no_storage_version(text: str) -> None:
    with pytest.raises(ValueError, match="is not a storage version"):
        StorageVersion.parse(text)


@pytest.mark.parametrize(
    ("stamp", "expected"), [((0, 0), "0.1"), ((0, 2), "0.1"), ((0, 3), "2.0"), ((2, 0), "2.0"), ((2, 2), "2.2")]
)
def test_stamps_of_early_writers(stamp: tuple[int, int], expected: str) -> None:
    assert str(StorageVersion.of_file(*stamp)) == expected


def test_a_fragment_is_encoded_and_decoded() -> None:
    fragment = Fragment.of(files=[file()], physical_rows=4)
    again = Fragment.decode(fragment.encode())
    assert again == fragment
    assert (again.id, again.physical_rows, again.live_rows, again.file_bytes) == (0, 4, 4, 5)
    assert (again.files[0].path, again.files[0].version, again.files[0].base_id) == ("a.lance", V22, None)
    with pytest.raises(Corrupt):
        Fragment.decode(b"\xff\xff")


def test_paths_of_deletion_files() -> None:
    arrow = deleted(table_pb2.DeletionFile.ARROW_ARRAY, 4)
    bitmap = deleted(table_pb2.DeletionFile.BITMAP, 0)
    assert arrow.deletion_file is not None
    assert bitmap.deletion_file is not None
    assert arrow.deletion_file.path == "_deletions/3-7-18446744073709551615.arrow"
    assert bitmap.deletion_file.path == "_deletions/3-7-18446744073709551615.bin"
    assert (arrow.live_rows, arrow.deletion_file.deleted_rows) == (6, 4)
    assert bitmap.deletion_file.deleted_rows is None


@pytest.mark.parametrize("path", ["../x.lance", "/x.lance", "a/../../x", "%2e%2e/x", ""])
def test_a_name_that_leaves_the_table_is_corrupt(path: str) -> None:
    with pytest.raises(Corrupt, match="leaves its directory"):
        _ = file(path).path


@pytest.mark.parametrize(
    ("fragment", "message"),
    [
        (Fragment(table_pb2.DataFragment(id=2**32)), "does not fit 32 bits"),
        (Fragment.of(files=[file(ids=(0, 1))], physical_rows=1), "lists 2 fields but 1 columns"),
        (Fragment.of(files=[file(ids=(-1,))], physical_rows=1), "file a.lance lists the field id -1"),
        (Fragment.of(files=[file(), file("b.lance")], physical_rows=1), "field 0 is live in two files"),
    ],
)
def test_impossible_values_are_corrupt(fragment: Fragment, message: str) -> None:
    with pytest.raises(Corrupt, match=message):
        fragment.check(path="m")


def test_dead_columns_may_repeat() -> None:
    files = [file(ids=(0, -2), columns=(0, 1)), file("b.lance", ids=(-2, 1), columns=(0, 1))]
    Fragment.of(files=files, physical_rows=1).check(path="m")


def test_checksums_of_all_files_are_added_and_left_out() -> None:
    """Checksums of data files, overlay files and deletion files do not make a fragment another one."""
    message = table_pb2.DataFragment(id=3, physical_rows=10)
    message.files.append(file("a.lance").message)
    message.overlays.add().data_file.CopyFrom(file("b.lance").message)
    message.deletion_file.CopyFrom(deleted(table_pb2.DeletionFile.BITMAP, 4).message.deletion_file)
    plain = Fragment(message)
    assert plain.deletion_file is not None
    paths = ("data/a.lance", "data/b.lance", plain.deletion_file.qualified_path)
    checked = plain.with_checksums({path: FileChecksum(5, 7) for path in paths})
    assert checked is not None
    assert checked.message.overlays[0].data_file.xxh3 == 7
    assert checked.without_checksums() == plain
    assert checked.is_same(plain)
