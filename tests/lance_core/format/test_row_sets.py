"""Row sets: their algebra compared with sets of Python, and their encoding."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from lance_core.errors import Corrupt
from lance_core.format.row_sets import RowSet

NUMBERS = st.sets(st.builds(lambda high, low: high << 32 | low, st.integers(0, 3), st.integers(0, 40)))
ALL = 1 << 32


def row_set_of(numbers: set[int]) -> RowSet:
    return RowSet.of(np.array(list(numbers), dtype=np.uint64))


@given(NUMBERS, NUMBERS)
def test_the_algebra_equals_that_of_sets(one: set[int], other: set[int]) -> None:
    ours, theirs = row_set_of(one), row_set_of(other)
    assert set(ours) == one
    assert ours.ids().tolist() == sorted(one)
    assert set(ours | theirs) == one | other
    assert set(ours & theirs) == one & other
    assert set(ours - theirs) == one - other
    assert set(ours.in_fragments(BitMap([1, 2]))) == {each for each in one if each >> 32 in (1, 2)}
    assert len(ours) == len(one)
    assert all(each in ours for each in one)


@given(NUMBERS)
def test_row_sets_are_encoded_and_decoded(numbers: set[int]) -> None:
    assert set(RowSet.decode(row_set_of(numbers).encode(), lambda _high: ALL, path="x")) == numbers


def test_an_empty_encoding_means_every_existing_row() -> None:
    data = struct.pack("<III", 1, 7, 0)
    assert set(RowSet.decode(data, {7: 3}.get, path="x")) == {7 << 32, 7 << 32 | 1, 7 << 32 | 2}  # type: ignore[arg-type]


def test_impossible_rows_are_left_out() -> None:
    data = row_set_of({1, 5, 9, 3 << 32}).encode()
    assert set(RowSet.decode(data, lambda high: 6 if high == 0 else 0, path="x")) == {1, 5}


def test_four_billion_rows_in_a_few_bytes_cost_nothing() -> None:
    everything = BitMap(range(ALL - 1))
    everything.run_optimize()
    data = bytes(everything.serialize())
    assert len(RowSet.decode(struct.pack("<III", 1, 0, len(data)) + data, lambda _high: 10, path="x")) == 10


@pytest.mark.parametrize("data", [b"", b"\x01", struct.pack("<III", 1, 0, 9) + b"x", struct.pack("<II", 2, 0)])
def test_truncated_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match="is not a set of rows"):
        RowSet.decode(data, lambda _high: ALL, path="x")
