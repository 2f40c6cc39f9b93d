"""Treemaps: row sets as 64-bit Roaring bitmaps, compared with the library that defines them."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from lance_core.errors import Corrupt
from lance_core.format import treemap
from lance_core.format.row_sets import RowSet

ALL = 1 << 32
LOW = st.one_of(st.integers(0, 50), st.integers(65_530, 65_550), st.integers(0, ALL - 1), st.sampled_from([0, ALL - 1]))
STRETCHES = st.lists(st.tuples(st.integers(0, 3), LOW, st.integers(1, 9_000)), max_size=8)


def rows_of(stretches: list[tuple[int, int, int]]) -> RowSet:
    return RowSet.union(RowSet({high: BitMap(range(low, min(low + count, ALL)))}) for high, low, count in stretches)


@settings(max_examples=50, deadline=None)
@given(STRETCHES, st.booleans())
def test_bytes_are_those_of_the_library(stretches: list[tuple[int, int, int]], as_runs: bool) -> None:
    rows = rows_of(stretches)
    theirs = BitMap64(rows)
    if as_runs:
        theirs.run_optimize()
    for data in (bytes(theirs.serialize()), treemap.encode(rows)):
        assert treemap.decode(data, lambda _high: ALL, path="x").parts == rows.parts
    assert BitMap64.deserialize(treemap.encode(rows)) == theirs


def test_every_buffer_of_bytes_is_read() -> None:
    rows = RowSet({0: BitMap([1, 5, 9]), 3: BitMap([0])})
    data = treemap.encode(rows)
    for buffer in (data, memoryview(data), pa.py_buffer(data), pa.array([data])[0].as_buffer()):
        assert treemap.decode(buffer, lambda _high: ALL, path="x").parts == rows.parts


def test_impossible_rows() -> None:
    data = treemap.encode(RowSet({0: BitMap([1, 5, 9]), 3: BitMap([0])}))
    assert set(treemap.decode(data, lambda high: 0 if high else 6, path="x")) == {1, 5}
    assert len(treemap.decode(data, lambda _high: 0, path="x", keep_impossible_rows=True)) == 4


@pytest.mark.parametrize("halves", [(3, 1), (2, 2)])
def test_upper_halves_must_ascend(halves: tuple[int, int]) -> None:
    part = bytes(BitMap([1, 70_000]).serialize())
    data = struct.pack("<Q", 2) + b"".join(struct.pack("<I", high) + part for high in halves)
    with pytest.raises(Corrupt, match="is not a set of rows"):
        treemap.decode(data, lambda _high: ALL, path="x")


def test_four_billion_rows_in_a_few_bytes_cost_nothing() -> None:
    data = treemap.encode(RowSet({0: BitMap(range(ALL - 1))}))
    assert len(treemap.decode(data, lambda _high: 10, path="x")) == 10


def test_truncated_bytes_are_corrupt() -> None:
    rows = RowSet({0: BitMap([*range(5_000), 70_000, *range(200_000, 200_009)]), 9: BitMap(np.arange(0, 30_000, 3))})
    for data in (treemap.encode(rows), bytes(BitMap64(rows).serialize())):
        for length in {*range(60), *range(60, len(data), 997), len(data) - 1}:
            with pytest.raises(Corrupt, match="is not a set of rows"):
                treemap.decode(data[:length], lambda _high: ALL, path="x")


@pytest.mark.parametrize("data", [struct.pack("<Q", 1 << 60), struct.pack("<QIII", 1, 0, 77, 0), b"\xff" * 40, b""])
def test_invalid_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        treemap.decode(data, lambda _high: ALL, path="x")
