"""Plain reads: vectors that are read without the codec equal those that the codec reads, and everything that is not
stored unchanged is left to it."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter

from lance_core.datafiles.codec import FileReader, RowRange
from lance_core.storage.local import LocalStore
from lance_core.versions.location import locate

ROWS, SIZE = 700, 128
UNCHANGED = {"lance-encoding:structural-encoding": "fullzip"}
RNG = np.random.default_rng(3)
TYPES: dict[str, type[np.generic]] = {
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "uint8": np.uint8,
}


def vectors_of(dtype: type[np.generic], size: int = SIZE) -> pa.FixedSizeListArray:
    values = RNG.integers(0, 200, ROWS * size * 2).astype(dtype)
    return pa.FixedSizeListArray.from_arrays(pa.array(values), size * 2 if dtype is np.uint8 else size)[:ROWS]


def open_file(path: Path, columns: dict[str, pa.Array] | pa.Table, version: str) -> FileReader:
    rows = columns if isinstance(columns, pa.Table) else pa.table(columns)
    with LanceFileWriter(str(path), rows.schema, version=version, data_cache_bytes=4096) as writer:
        for batch in rows.to_batches(max_chunksize=100):
            writer.write_batch(batch)
    return locate(str(path.parent)).codec.open(path.name)


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_vectors_equal_those_of_the_codec(tmp_path: Path, version: str) -> None:
    """A struct before the vectors moves their column number, and a file has several pages."""
    columns = {name: vectors_of(dtype) for name, dtype in TYPES.items()}
    structs = pa.array([{"x": row, "y": str(row)} for row in range(ROWS)])
    reader = open_file(tmp_path / "f.lance", {"s": structs, **columns}, version)
    for number, (name, dtype) in enumerate(TYPES.items(), 2):
        for count in (1, 2, 50, 650, ROWS):
            rows = np.sort(RNG.choice(ROWS, count, replace=False))
            taken = reader.take_plain(number, rows)
            assert taken is not None, name
            expected = pa.Table.from_batches(reader.take([name], rows))[name].combine_chunks()
            np.testing.assert_array_equal(taken.view(dtype), expected.flatten().to_numpy().reshape(count, -1))


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_ranges_equal_those_of_the_codec(tmp_path: Path, version: str) -> None:
    """Writers may ask that numbers and short lists are stored unchanged."""
    vectors = vectors_of(np.float32, 3)
    fields = [pa.field("n", pa.uint64(), metadata=UNCHANGED), pa.field("v", vectors.type, metadata=UNCHANGED)]
    numbers = pa.array(RNG.permutation(ROWS), pa.uint64())
    reader = open_file(tmp_path / "f.lance", pa.table([numbers, vectors], pa.schema(fields)), version)
    ranges = [RowRange(0, ROWS), RowRange(5, 1), RowRange(99, 2), RowRange(150, 300), RowRange(699, 1)]
    found = reader.read_plain([1, 0], ranges)
    assert found is not None
    for rows, (lists, values) in zip(ranges, found, strict=True):
        part = slice(rows.start, rows.start + rows.count)
        np.testing.assert_array_equal(values.view(np.uint64)[:, 0], numbers.to_numpy()[part])
        np.testing.assert_array_equal(lists.view(np.float32), vectors.flatten().to_numpy().reshape(-1, 3)[part])
    assert reader.read_plain([0], [RowRange(699, 2)]) is None
    assert reader.read_plain([0], [RowRange(-1, 2)]) is None
    assert reader.read_plain([2], [RowRange(0, 1)]) is None


def null_vectors() -> pa.Array:
    return pa.array([None if row == 650 else [1.5] * SIZE for row in range(ROWS)], pa.list_(pa.float32(), SIZE))


def null_elements() -> pa.Array:
    return pa.array([[None if row == 650 else 1.5] * SIZE for row in range(ROWS)], pa.list_(pa.float32(), SIZE))


def compressed() -> tuple[pa.Array, pa.Field]:
    vectors = vectors_of(np.float32, SIZE * 4)
    return vectors, pa.field("v", vectors.type, metadata={"lance-encoding:compression": "zstd"})


@pytest.mark.parametrize(
    ("vectors", "version"),
    [
        (vectors_of(np.float32), "2.0"),
        (vectors_of(np.float32, 8), "2.2"),
        (null_vectors(), "2.2"),
        (null_elements(), "2.2"),
        (pa.array([b"x" * 600] * ROWS, pa.binary(600)), "2.2"),
    ],
    ids=["version 2.0", "short vectors", "null vectors", "null elements", "bytes"],
)
def test_other_pages_are_left_to_the_codec(tmp_path: Path, vectors: pa.Array, version: str) -> None:
    reader = open_file(tmp_path / "f.lance", {"v": vectors}, version)
    assert reader.take_plain(0, np.array([5, 650])) is None


def test_compressed_vectors_are_left_to_the_codec_or_read_unchanged(tmp_path: Path) -> None:
    vectors, field = compressed()
    rows = pa.table([vectors], pa.schema([field]))
    with LanceFileWriter(str(tmp_path / "f.lance"), rows.schema, version="2.2") as writer:
        writer.write_batch(rows)
    reader = locate(str(tmp_path)).codec.open("f.lance")
    taken = reader.take_plain(0, np.arange(ROWS))
    if taken is not None:
        np.testing.assert_array_equal(taken.view(np.float32), vectors.flatten().to_numpy().reshape(ROWS, -1))


def test_rows_that_do_not_exist_and_replaced_files_are_left_to_the_codec(tmp_path: Path) -> None:
    reader = open_file(tmp_path / "f.lance", {"v": vectors_of(np.float32)}, "2.2")
    assert reader.take_plain(0, np.array([0, ROWS - 1])) is not None
    assert reader.take_plain(0, np.array([0, ROWS])) is None
    assert reader.take_plain(7, np.array([0])) is None
    LocalStore(tmp_path).put("other", (tmp_path / "f.lance").read_bytes())
    os.replace(tmp_path / "other", tmp_path / "f.lance")
    assert reader.take_plain(0, np.array([0])) is None
    (tmp_path / "f.lance").unlink()
    assert reader.take_plain(0, np.array([0])) is None
    assert reader.read_plain([0], [RowRange(0, 1)]) is None
