"""Blob values: any order and any chunk size give the right bytes, and only the requested ranges are read."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_core import Corrupt, NotFound, Unsupported
from lance_core.datafiles import blob_values
from lance_core.datafiles.blob_locations import BlobLocations
from lance_core.datafiles.blob_values import BlobValues, read_values, split_by_bytes
from lance_core.datafiles.blob_view import DESCRIPTOR_V2
from lance_core.format.fragment import DataFile, StorageVersion
from lance_core.storage.memory import MemoryStore

FILE = DataFile.of(path="x.lance", field_ids=[1], column_indices=[0], version=StorageVersion(2, 2), size=1)
STORED = pa.struct([("data", pa.large_binary()), ("uri", pa.string())])
BYTES = bytes(range(256)) * 1024
"""Content of the data file and of each blob file."""


@dataclass
class CountingStore(MemoryStore):
    reads: list[tuple[str, int, int | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        MemoryStore.__init__(self)
        for path in ("data/x.lance", *(f"data/x/{f'{number:032b}'[::-1]}.blob" for number in (1, 2))):
            self.put(path, BYTES)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.reads.append((path, start, length))
        return super().read(path, start, length)


def descriptors(*rows: tuple[int, int, int, int] | None) -> pa.Array:
    names = ("kind", "position", "size", "blob_id")
    return pa.array([row and {**dict(zip(names, row, strict=True)), "blob_uri": ""} for row in rows], DESCRIPTOR_V2)


def read_blobs(store: MemoryStore, *rows: tuple[int, int, int, int] | None) -> list[object]:
    locations = BlobLocations.of(descriptors(*rows), column="film", file=FILE)
    found = read_values(store, locations, STORED)
    found.validate(full=True)
    return [row and row["data"] for row in found.to_pylist()]


ROWS = st.one_of(
    st.none(),
    st.tuples(st.sampled_from([0, 1]), st.integers(0, 250_000), st.integers(0, 9000), st.sampled_from([1, 2])),
)


@settings(deadline=None)
@given(st.lists(ROWS, max_size=30), st.integers(1, 40_000))
def test_any_rows_in_any_chunks(rows: list[tuple[int, int, int, int] | None], chunk_bytes: int) -> None:
    expected = [None if row is None else BYTES[row[1] : row[1] + row[2]] for row in rows]
    batch = pa.record_batch([descriptors(*rows), pa.array(range(len(rows)))], names=["film", "id"])
    arrow = pa.schema([("film", STORED), ("id", pa.int64())])
    filled = list(BlobValues(CountingStore(), arrow, {"film": FILE}, chunk_bytes).load_chunks(batch))
    assert [row["film"] and row["film"]["data"] for _, part in filled for row in part.to_pylist()] == expected
    assert [row for _, part in filled for row in part["id"].to_pylist()] == list(range(len(rows)))
    for part, found in filled:
        size = sum(len(row["film"]["data"]) for row in found.to_pylist() if row["film"])
        assert part.stop - part.start == found.num_rows
        assert size <= chunk_bytes or found.num_rows == 1


def test_adjacent_blobs_are_read_in_one_request() -> None:
    store = CountingStore()
    assert read_blobs(store, (0, 200_000, 10, 0), (0, 20, 5, 0), (1, 0, 4, 1), (0, 64, 6, 0), (0, 0, 0, 0), None) == [
        BYTES[200_000:200_010],
        BYTES[20:25],
        BYTES[:4],
        BYTES[64:70],
        b"",
        None,
    ]
    assert store.reads == [
        ("data/x.lance", 20, 50),
        ("data/x.lance", 200_000, 10),
        (f"data/x/{'1'.ljust(32, '0')}.blob", 0, 4),
    ]


def test_the_size_of_a_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_values, "READ_BYTES_MAX", 100)
    store = CountingStore()
    assert read_blobs(store, *((0, row * 40, 40, 0) for row in range(5))) == [
        BYTES[row * 40 :][:40] for row in range(5)
    ]
    assert [read[1:] for read in store.reads] == [(0, 80), (80, 80), (160, 40)]


def test_blobs_beyond_their_file_are_rejected_before_allocation() -> None:
    for rows, message in (([(0, 0, 2**60, 0)], "before its blobs do"), ([(1, 2**61, 2**61, 1)], "before its blobs do")):
        batch = pa.record_batch([descriptors(*rows)], names=["film"])
        with pytest.raises(Corrupt, match=message):
            list(BlobValues(CountingStore(), pa.schema([("film", STORED)]), {"film": FILE}).load_chunks(batch))
    missing = pa.record_batch([descriptors((2, 0, 1, 9))], names=["film"])
    with pytest.raises(NotFound, match="does not exist, but column 'film' has blobs in it"):
        list(BlobValues(CountingStore(), pa.schema([("film", STORED)]), {"film": FILE}).load_chunks(missing))


def test_external_references_are_kept() -> None:
    row: dict[str, object] = {"kind": 3, "position": 0, "size": 0, "blob_id": 2, "blob_uri": "a b"}
    locations = BlobLocations.of(pa.array([row, None], DESCRIPTOR_V2), column="film", file=FILE)
    assert read_values(CountingStore(), locations, STORED).to_pylist() == [{"data": None, "uri": "@2/a b"}, None]
    wide = pa.struct([*STORED, ("position", pa.uint64()), ("size", pa.uint64())])
    part = BlobLocations.of(pa.array([{**row, "size": 7}], DESCRIPTOR_V2), column="film", file=FILE)
    assert read_values(CountingStore(), part, wide).to_pylist() == [
        {"data": None, "uri": "@2/a b", "position": 0, "size": 7}
    ]
    with pytest.raises(Unsupported, match="cannot store such a reference"):
        read_values(CountingStore(), part, STORED)


def test_values_are_split_by_bytes() -> None:
    def split_points(widths: list[int]) -> list[tuple[int, int]]:
        return [(part.start, part.stop) for part in split_by_bytes(np.array(widths, dtype=np.int64), 10)]

    assert split_points([]) == [(0, 0)]
    assert split_points([4, 6, 1, 20, 0, 10, 0]) == [(0, 2), (2, 3), (3, 4), (4, 7)]
