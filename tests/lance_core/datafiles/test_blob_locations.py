"""Blob locations: the locations that a descriptor may declare, and those that are rejected."""

import pyarrow as pa
import pytest

from lance_core import Corrupt, Unsupported
from lance_core.datafiles.blob_locations import BASE_REFERENCE, BlobLocations, BlobRange, ExternalBlob, null_mask
from lance_core.datafiles.blob_view import DESCRIPTOR_V1, DESCRIPTOR_V2
from lance_core.format.fragment import DataFile, StorageVersion

FILE = DataFile.of(path="x.lance", field_ids=[1], column_indices=[0], version=StorageVersion(2, 2), size=1)
FIRST_BLOB = "10000000000000000000000000000000.blob"
SECOND_BLOB = "01000000000000000000000000000000.blob"


def descriptor(kind: int, position: int = 0, size: int = 0, blob_id: int = 0, uri: str = "") -> dict[str, object]:
    return {"kind": kind, "position": position, "size": size, "blob_id": blob_id, "blob_uri": uri}


def locations_of(*rows: dict[str, object] | None, arrow: pa.DataType = DESCRIPTOR_V2) -> BlobLocations:
    return BlobLocations.of(pa.array(rows, arrow), column="film", file=FILE)


def test_kinds_of_blobs() -> None:
    found = locations_of(
        descriptor(0, 5, 6),
        None,
        descriptor(1, 7, 8, 1),
        descriptor(2, 0, 9, 2),
        descriptor(3, uri="file:///a"),
        descriptor(3, 1, 2, 4, "b c/d"),
    )
    assert [found.location_of(row) for row in range(len(found))] == [
        BlobRange("data/x.lance", 5, 6),
        None,
        BlobRange(f"data/x/{FIRST_BLOB}", 7, 8),
        BlobRange(f"data/x/{SECOND_BLOB}", 0, 9),
        ExternalBlob("file:///a", 0, None),
        ExternalBlob("@4/b c/d", 1, 2),
    ]
    assert [path for path, _ in found.rows_by_path()] == [
        "data/x.lance",
        f"data/x/{FIRST_BLOB}",
        f"data/x/{SECOND_BLOB}",
    ]
    assert dict(found.slice(4, 6).external_blobs()) == {
        0: ExternalBlob("file:///a", 0, None),
        1: ExternalBlob("@4/b c/d", 1, 2),
    }


def test_rows_of_a_file_are_ordered_by_position() -> None:
    found = locations_of(
        descriptor(1, 9, 1, 1), descriptor(0, 3, 1), descriptor(1, 2, 1, 1), descriptor(0, 1, 1), descriptor(1, 0, 0, 1)
    )
    assert [(path, rows.tolist()) for path, rows in found.rows_by_path()] == [
        ("data/x.lance", [3, 1]),
        (f"data/x/{FIRST_BLOB}", [2, 0]),
    ]


def test_nulls_of_the_first_generation() -> None:
    rows: list[dict[str, object] | None]
    rows = [{"position": 1, "size": 0}, {"position": 0, "size": 0}, None, {"position": 1, "size": 1}]
    assert null_mask(pa.array(rows, DESCRIPTOR_V1)).tolist() == [True, False, True, False]
    found = locations_of(*rows, arrow=DESCRIPTOR_V1)
    assert [found.location_of(row) for row in range(4)] == [
        None,
        BlobRange("data/x.lance", 0, 0),
        None,
        BlobRange("data/x.lance", 1, 1),
    ]


@pytest.mark.parametrize("uri", ["../x", "a/../../x", "/etc/passwd", "a//b", "./a", "", "a/", "a\0b", "a\\..\\b"])
def test_a_path_outside_its_base_is_rejected(uri: str) -> None:
    with pytest.raises(Corrupt, match="is outside its base path"):
        locations_of(descriptor(3, blob_id=1, uri=uri)).location_of(0)


@pytest.mark.parametrize("uri", ["@1/a", "@", ""])
def test_a_malformed_base_reference_is_rejected(uri: str) -> None:
    with pytest.raises(Corrupt, match="which is not a URI"):
        locations_of(descriptor(3, uri=uri)).location_of(0)


def test_unknown_kinds_are_rejected() -> None:
    with pytest.raises(Unsupported, match=r"x\.lance: column 'film' has a blob that is managed by the table"):
        locations_of(descriptor(0), descriptor(4))
    with pytest.raises(Unsupported, match="of the unknown kind 9"):
        locations_of(descriptor(9))


def test_positions_beyond_all_files() -> None:
    with pytest.raises(Corrupt, match="places a blob at 18446744073709551615"):
        locations_of(descriptor(0, 2**64 - 1, 1))


def test_numbers_of_base_paths() -> None:
    assert [bool(BASE_REFERENCE.fullmatch(text)) for text in ("@1/a", "@12/a/b\n", "@/a", "@x/a", "@1/")] == [
        True,
        True,
        False,
        False,
        False,
    ]
