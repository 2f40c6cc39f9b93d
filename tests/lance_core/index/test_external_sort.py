"""External sort: rows in Arrow's total order with a memory budget that is too small for them, and range splitters."""

import itertools
import os
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from lance_core.index.external_sort import Sorter, choose_splitters, merge_runs
from lance_core.index.index_type import ROW, VALUE
from lance_core.index.ordering import Ordering, argsort, ordering
from tests.lance_core.index import ordered_columns
from tests.lance_core.index.segment_search import row_batches

_FEW = settings(max_examples=8, deadline=None)


def sort_keys(order: Ordering, batches: list[pa.RecordBatch]) -> list[tuple[object, int]]:
    """Return the sort key and the address of each row in the order of the batches; NULL has the key None."""
    keys_and_rows: list[tuple[object, int]] = []
    for batch in batches:
        for value, row in zip(batch.column(VALUE), batch.column(ROW).to_pylist(), strict=True):
            key = order.keys(pa.array([value], value.type))[0] if value.is_valid else None
            keys_and_rows.append((key, row))
    return keys_and_rows


@pytest.mark.parametrize("arrow", ordered_columns.TYPES, ids=ordered_columns.type_name)
def test_the_order_does_not_depend_on_the_memory_budget(arrow: pa.DataType) -> None:
    order = ordering(arrow)

    @_FEW
    @given(ordered_columns.arrays(arrow), st.integers(1, 400))
    def run(values: pa.Array, budget: int) -> None:
        by_budget = []
        for bytes_held in (1 << 30, budget):
            sorter = Sorter(order, bytes_held)
            for batch in row_batches(values, batch=5):
                sorter.add(batch)
            by_budget.append(sort_keys(order, list(sorter.sorted_batches())))
        large, small = by_budget
        keys = [key for key, _ in large]
        assert keys == [key for key, _ in small]
        assert sorted(large, key=repr) == sorted(small, key=repr)
        assert sorted(row for _, row in small) == list(range(len(values)))
        first = next((at for at, key in enumerate(keys) if key is not None), len(keys))
        assert None not in keys[first:]
        assert keys[first:] == sorted(keys[first:])  # type: ignore[type-var]

    run()


def test_floats_are_ordered_by_their_bits() -> None:
    nan, negative_nan = float("nan"), ordered_columns.NEGATIVE_NAN
    values = [nan, 1.0, float("-inf"), 0.0, -0.0, float("inf"), negative_nan, -1.0]
    for arrow in (pa.float16(), pa.float32(), pa.float64()):
        positions = ordering(arrow).argsort(pa.array(np.array(values, arrow.to_pandas_dtype())))
        assert positions.tolist() == [6, 2, 7, 4, 3, 1, 5, 0]


@given(
    numpy_strategies.arrays(
        st.sampled_from([np.int8, np.int64, np.uint64, np.int32]),
        st.integers(0, 200),
        fill=st.nothing(),
    )
)
@settings(deadline=None)
def test_positions_are_those_of_a_stable_sort(numbers: npt.NDArray[np.int64]) -> None:
    assert argsort(numbers).tolist() == np.argsort(numbers, kind="stable").tolist()


@given(st.lists(st.sampled_from([0, 1, 2, 1 << 62, (1 << 62) + 1, -(1 << 63), -1]), max_size=300))
def test_integers_with_equal_high_bits_are_sorted_by_their_low_bits(numbers: list[int]) -> None:
    """The span of the numbers is so wide that a packed sort key has no room for their low bits."""
    array = np.array(numbers, np.int64)
    assert argsort(array).tolist() == np.argsort(array, kind="stable").tolist()


@pytest.mark.parametrize("arrow", [pa.string(), pa.large_binary(), pa.binary(12)], ids=ordered_columns.type_name)
def test_bytes_with_a_common_prefix_are_sorted_by_the_rest(arrow: pa.DataType) -> None:
    @settings(max_examples=40, deadline=None)
    @given(
        st.sampled_from([b"", b"https://", b"a"]),
        st.lists(st.text("\x00ab", max_size=11) | st.sampled_from(["a" * 9, "a" * 8, "a" * 8 + "\x00", "\x00" * 8])),
        st.integers(0, 3),
    )
    def run(beginning: bytes, ends: list[str], skipped: int) -> None:
        texts = [beginning + end.encode() for end in ends]
        if pa.types.is_fixed_size_binary(arrow):
            texts = [text[:12].ljust(12, b"\x00") for text in texts]
        values = pa.array([texts[0] if texts else b"\x00" * 12] * skipped + texts, pa.large_binary()).cast(arrow)
        expected = sorted(range(len(texts)), key=lambda at: (texts[at], at))
        assert ordering(arrow).argsort(values.slice(skipped)).tolist() == expected

    run()


def test_temporary_files_are_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sorter = Sorter(ordering(pa.int64()), budget=1000)
    for batch in row_batches(pa.array([*range(5000, 0, -1), None]), batch=100):
        sorter.add(batch)
    assert os.listdir(tmp_path)
    rows = sorter.sorted_batches()
    assert next(rows).column(VALUE)[0].as_py() is None
    assert sum(batch.num_rows for batch in rows) == 5000
    assert not os.listdir(tmp_path)


def test_runs_grow_with_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    counts = []
    for rows in (20_000, 80_000):
        sorter = Sorter(ordering(pa.int64()), budget=3200)
        for batch in row_batches(pa.array(range(rows, 0, -1)), batch=100):
            sorter.add(batch)
        counts.append(len(list(tmp_path.glob("*/*[0-9].arrow"))))
        values = [batch.column(VALUE).to_numpy() for batch in sorter.sorted_batches()]
        assert np.array_equal(np.concatenate(values), np.arange(1, rows + 1))
    # Four times the rows would make four times as many runs of one size.
    assert 20 < counts[0] < counts[1] < 2 * counts[0]


def test_closing_the_iterator_removes_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sorter = Sorter(ordering(pa.int64()), budget=1000)
    for batch in row_batches(pa.array(range(5000)), batch=100):
        sorter.add(batch)
    rows = sorter.sorted_batches()
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "arrow", [pa.int32(), pa.string(), pa.float64(), pa.decimal128(10, 2)], ids=ordered_columns.type_name
)
def test_splitters_ascend_and_are_values(arrow: pa.DataType) -> None:
    order = ordering(arrow)

    @_FEW
    @given(ordered_columns.arrays(arrow), st.integers(1, 6))
    def run(values: pa.Array, parts: int) -> None:
        splitters = choose_splitters(order, values, parts)
        assert len(splitters) < parts
        keys = order.keys(splitters)
        assert all(a < b for a, b in itertools.pairwise(keys))
        assert set(keys) <= set(order.keys(values.drop_null()))

    run()


def test_ranges_have_similar_sizes() -> None:
    values = np.random.default_rng(5).permutation(10_000)
    splitters = choose_splitters(ordering(pa.int64()), pa.array(values[:1000]), 4)
    sizes = np.bincount(np.searchsorted(splitters.to_numpy(), values, side="right"))
    assert sizes.min() > 2000


def test_sorted_runs_are_merged() -> None:
    order = ordering(pa.string())
    runs = [row_batches(pa.array(sorted(f"{n * step}" for n in range(100))), batch=7) for step in (1, 3, 1)]
    keys_and_rows = [
        value for batch in merge_runs(order, [iter(run) for run in runs]) for value in batch.column(VALUE).to_pylist()
    ]
    assert keys_and_rows == sorted(keys_and_rows)
    assert len(keys_and_rows) == 300
