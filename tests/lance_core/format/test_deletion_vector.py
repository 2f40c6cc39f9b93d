"""Deletion vectors: both encodings, strict validation of their content, and the selection mask."""

import io

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core import Corrupt
from lance_core.format.deletion_vector import DeletionVector

SCHEMA = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])


def arrow_file(offsets: list[int], schema: pa.Schema = SCHEMA, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array(offsets, schema.field(0).type)], schema=schema))
    return sink.getvalue()


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_arrow_in_any_order(compression: str | None) -> None:
    vector = DeletionVector.decode_arrow(arrow_file([7, 3, 5], compression=compression), path="d")
    assert vector.offsets.tolist() == [3, 5, 7]


def test_bitmap() -> None:
    runs = BitMap(range(100, 5000))
    runs.run_optimize()
    assert DeletionVector.decode_bitmap(BitMap([5, 70_000]).serialize(), path="d").offsets.tolist() == [5, 70_000]
    assert len(DeletionVector.decode_bitmap(runs.serialize(), path="d")) == 4900
    assert len(DeletionVector.decode_bitmap(BitMap().serialize(), path="d")) == 0


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("row_id", pa.uint32())]),
        pa.schema([pa.field("row_id", pa.int32(), False)]),
        pa.schema([pa.field("rowid", pa.uint32(), False)]),
    ],
)
def test_another_schema_is_corrupt(schema: pa.Schema) -> None:
    with pytest.raises(Corrupt, match="expected row_id: uint32 not null"):
        DeletionVector.decode_arrow(arrow_file([1], schema), path="d")


@pytest.mark.parametrize("end", range(0, len(arrow_file([1, 2])), 7))
def test_a_truncated_arrow_file_is_corrupt(end: int) -> None:
    with pytest.raises(Corrupt, match=r"^d: "):
        DeletionVector.decode_arrow(arrow_file([1, 2])[:end], path="d")


@pytest.mark.parametrize("data", [b"", b"\0" * 40, b"LANC", BitMap(range(10)).serialize()[:-1]])
def test_a_damaged_bitmap_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"^d: "):
        DeletionVector.decode_bitmap(data, path="d")


@pytest.mark.parametrize(
    ("rows", "was_bitmap", "bitmap"),
    [
        (4_999, None, False), (5_000, None, True), (5_001, None, True),
        (5_000, False, False), (5_001, False, True), (1, True, True),
    ],
)  # fmt: skip
def test_the_encoding_by_number_of_rows(rows: int, was_bitmap: bool | None, bitmap: bool) -> None:
    """Lance writes a new file of 5,000 rows as a bitmap, and replaces an array by one above 5,000 rows."""
    assert DeletionVector.of(range(rows)).should_use_bitmap(was_bitmap=was_bitmap) is bitmap


@pytest.mark.parametrize("deleted", [[], [0], [9], [0, 1, 2], [4, 5], list(range(10))])
@pytest.mark.parametrize(("start", "count"), [(0, 10), (0, 0), (3, 4), (9, 1)])
def test_the_mask_of_a_window(deleted: list[int], start: int, count: int) -> None:
    vector = DeletionVector(np.array(deleted, dtype=np.uint32))
    assert vector.live_mask(start, count).tolist() == [row not in deleted for row in range(start, start + count)]
