"""XXH64: hashes of many values compared with single hashes and with published ones."""

import time

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from lance_core.format.xxh64 import xxh64, xxh64_of_each

KNOWN = {
    b"": 0xEF46DB3751D8E999,
    b"a": 0xD24EC4F1A98C6E5B,
    b"abc": 0x44BC2CF5AD770999,
    b"Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1,
}
TYPES = [pa.binary(), pa.large_binary()]


def hash_alone(value: bytes) -> int:
    return int(xxh64(np.frombuffer(value, np.uint8).reshape(1, len(value)))[0])


@pytest.mark.parametrize("arrow", TYPES, ids=str)
def test_published_hashes(arrow: pa.DataType) -> None:
    assert xxh64_of_each(pa.array(list(KNOWN), arrow)).tolist() == list(KNOWN.values())
    assert [hash_alone(value) for value in KNOWN] == list(KNOWN.values())


@given(st.lists(st.one_of(st.none(), st.binary(max_size=140)), max_size=30), st.sampled_from(TYPES), st.integers(0, 9))
def test_many_hashes_equal_single_ones(values: list[bytes | None], arrow: pa.DataType, skipped: int) -> None:
    expected = [hash_alone(value or b"") for value in values[skipped:]]
    assert xxh64_of_each(pa.array(values, arrow).slice(skipped)).tolist() == expected


@given(st.lists(st.text(max_size=40), max_size=10))
def test_text_is_its_bytes(values: list[str]) -> None:
    for arrow in (pa.string(), pa.large_string()):
        assert xxh64_of_each(pa.array(values, arrow)).tolist() == [hash_alone(value.encode()) for value in values]


def test_bytes_of_a_null_are_ignored() -> None:
    validity = pa.py_buffer(b"\x02")
    offsets = pa.py_buffer(np.array([0, 3, 6], np.int32).tobytes())
    array = pa.Array.from_buffers(pa.binary(), 2, [validity, offsets, pa.py_buffer(b"abcxyz")])
    assert array.to_pylist() == [None, b"xyz"]
    assert xxh64_of_each(array).tolist() == [hash_alone(b""), hash_alone(b"xyz")]


@pytest.mark.parametrize("width", range(70))
def test_rows_have_the_hashes_of_the_library(width: int) -> None:
    rows = np.random.default_rng(width).integers(0, 256, (50, width + 3), np.uint8)[:, 2 : 2 + width]
    assert xxh64(rows).tolist() == [xxhash.xxh64_intdigest(row.tobytes()) for row in rows]


def test_short_rows_are_hashed_together() -> None:
    rows = np.arange(200_000, dtype=np.int64).view(np.uint8).reshape(-1, 8)
    data = rows.tobytes()

    def hash_each() -> list[int]:
        return [xxhash.xxh64_intdigest(data[start : start + 8]) for start in range(0, len(data), 8)]

    together: list[float] = []
    alone: list[float] = []
    for _ in range(5):
        for durations, run in ((together, lambda: xxh64(rows)), (alone, hash_each)):
            start = time.process_time()
            run()
            durations.append(time.process_time() - start)
    assert min(together) < min(alone) / 2
