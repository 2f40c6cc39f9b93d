"""BLOOMFILTER compared with the evaluator of predicates: no zone that holds a value is left out."""

import math
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from lance_core.errors import Corrupt, InvalidInput, LanceError
from lance_core.expressions.tree import Comparison, In, Op
from lance_core.format._pb import table_pb2
from lance_core.format.row_sets import RowSet
from lance_core.index import bloomfilter, registry
from lance_core.index.bloomfilter import BLOOMFILTER, BloomFilterOptions
from lance_core.index.index_type import Certainty
from lance_core.index.segment_files import read_all_rows
from tests.lance_core.index.segment_builder import (
    BuiltSegment,
    Fragments,
    build_segment,
    check_search,
    live_rows,
    parse_condition,
    replace_file,
    search_segment,
)
from tests.lance_core.index.segment_strategies import HALF, POOLS, columns, deletions, leaves

KIND = BLOOMFILTER
FILE = "bloomfilter.lance"
FEW = 3
FITTING = [arrow for arrow in POOLS if KIND.supports(pa.field("v", arrow))]
INTS = {0: pa.array([1, 2, 3, 4, 5, 6, None]), 2: pa.array([7, None, 9])}


def table_of(it: BuiltSegment) -> pa.Table:
    return read_all_rows(it.segment.files.open(FILE))


def changed(it: BuiltSegment, name: str, column: pa.Array) -> None:
    table = table_of(it)
    at = table.schema.names.index(name)
    notes = {key: value for key, value in it.segment.files.open(FILE).metadata.items() if key == "null_bitmap"}
    attached = it.segment.files.open(FILE).read_buffer(1)
    replace_file(it, FILE, table.set_column(at, pa.field(name, column.type), column), notes, attached)


@pytest.mark.parametrize("arrow", FITTING, ids=str)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_search_includes_every_match(arrow: pa.DataType, data: st.DataObject) -> None:
    fragments = data.draw(columns(arrow))
    deleted = data.draw(deletions())
    it = build_segment(KIND, arrow, fragments, deleted=deleted, number_of_items=FEW)
    for leaf in data.draw(st.lists(leaves(arrow, (Op.EQ,)), min_size=1, max_size=8)):
        check_search(KIND, it, fragments, leaf)
    examined = KIND.examine(it.segment, it.column)
    assert live_rows(it, fragments) <= set(examined.rows)
    assert (examined.lists_every_row, examined.problems) == (True, ())


@settings(max_examples=40, deadline=None)
@given(columns(pa.string()), columns(pa.string()), st.data())
def test_a_merged_segment_covers_its_inputs_and_new_rows(
    first: Fragments, second: Fragments, data: st.DataObject
) -> None:
    """A merge keeps the zones of surviving fragments, with filters of the size that they have."""
    second = {id + 1: values for id, values in second.items()}
    staying = data.draw(st.sets(st.sampled_from(sorted(first))))
    rows = {id: len(array) for id, array in {**first, **second}.items()}
    one = build_segment(KIND, pa.string(), first, number_of_items=FEW, row_counts=rows)
    both = build_segment(
        KIND,
        pa.string(),
        second,
        merge_inputs=[one.merge_input(*staying)],
        merged_ids=staying,
        location=one.location,
        row_counts=rows,
        number_of_items=500,
    )
    kept = {id: first[id] for id in staying} | dict(second)
    for leaf in data.draw(st.lists(leaves(pa.string(), (Op.EQ,)), min_size=1, max_size=8)):
        check_search(KIND, both, kept, leaf)


def test_zones_without_a_match_are_excluded() -> None:
    it = build_segment(KIND, pa.int64(), INTS, number_of_items=FEW)
    for sql, expected in {
        "v = 5": {3, 4, 5},
        "v = 1000": set(),
        "v IN (2, 9)": {0, 1, 2, 2 << 32, 2 << 32 | 1, 2 << 32 | 2},
        "v IS NULL": {6, 2 << 32 | 1},
    }.items():
        found = search_segment(KIND, it, parse_condition(sql, pa.int64()))
        assert found is not None
        assert set(found.rows) == expected, sql
        assert (found.certainty is Certainty.EXACT) is (sql == "v IS NULL")
    for sql in ("v > 5", "v <= 5"):
        leaf = parse_condition(sql, pa.int64())
        assert search_segment(KIND, it, leaf) is None is KIND.answers(leaf, it.segment.metadata)


def test_the_false_positive_rate_is_as_configured() -> None:
    values = np.random.default_rng(7).permutation(200_000)
    it = build_segment(KIND, pa.int64(), {0: pa.array(values)}, batch_rows=65_536)
    searcher = KIND.open(it.segment, it.column)
    zones = 0
    for absent in range(200_000, 201_000):
        found = searcher.search(Comparison(("v",), Op.EQ, pa.scalar(absent)))
        assert found is not None
        zones += -(-len(found.rows) // 8192)
    assert zones / (25 * 1_000) < 0.00057


def test_long_value_lists_are_unsupported() -> None:
    it = build_segment(KIND, pa.int64(), {0: pa.array(range(100))})
    searcher = KIND.open(it.segment, it.column)
    for count, answers in ((1000, True), (1001, False)):
        leaf = In(("v",), tuple(map(pa.scalar, range(count))))
        assert (KIND.answers(leaf, it.segment.metadata) is not None) is answers
        assert (searcher.search(leaf) is not None) is answers


def test_options_and_details_are_recorded() -> None:
    it = build_segment(KIND, pa.int64(), INTS, number_of_items=FEW, probability=0.25)
    assert it.segment.details == b""
    assert KIND.options_of(it.segment) == BloomFilterOptions(FEW, 0.25)
    notes = it.segment.files.open(FILE).metadata
    assert (notes["bloomfilter_item"], notes["bloomfilter_probability"]) == (str(FEW), "0.25")
    assert registry.by_type_url(it.segment.metadata) is KIND
    replace_file(it, FILE, table_of(it), {"bloomfilter_item": "many"})
    assert KIND.options_of(it.segment) == BloomFilterOptions()


@pytest.mark.parametrize(
    ("items", "probability", "size"), [(8192, 0.00057, 32_768), (100, 0.01, 256), (100, 0.5, 64), (1, 0.00057, 32)]
)
def test_filters_are_as_large_as_those_of_the_reference_writer(items: int, probability: float, size: int) -> None:
    assert BloomFilterOptions(items, probability).block_count * 32 == size


def test_zeros_of_both_signs_are_found() -> None:
    for arrow in (pa.float32(), pa.float64()):
        it = build_segment(KIND, arrow, {0: pa.array([1.0, -0.0], arrow), 1: pa.array([0.0], arrow)})
        for zero in (0.0, -0.0):
            found = search_segment(KIND, it, Comparison(("v",), Op.EQ, pa.scalar(zero, arrow)))
            assert found is not None
            assert set(found.rows) == {0, 1, 1 << 32}
        found = search_segment(KIND, it, Comparison(("v",), Op.EQ, pa.scalar(math.nan, arrow)))
        assert found is not None
        assert len(found.rows) == 3


def test_filters_beyond_the_cache_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bloomfilter, "CACHE_BYTES_MAX", 100)
    it = build_segment(KIND, pa.int64(), INTS, number_of_items=1)
    searcher = KIND.open(it.segment, it.column)
    for _ in range(3):
        found = searcher.search(parse_condition("v IN (5, 9)", pa.int64()))
        assert found is not None
        assert set(found.rows) == {4, 2 << 32 | 2}


def test_is_null_is_inexact_without_a_null_bitmap() -> None:
    it = build_segment(KIND, pa.int64(), INTS, number_of_items=FEW)
    replace_file(it, FILE, table_of(it))
    found = search_segment(KIND, it, parse_condition("v IS NULL", pa.int64()))
    assert found is not None
    assert (set(found.rows), found.certainty) == ({6, 2 << 32, 2 << 32 | 1, 2 << 32 | 2}, Certainty.AT_MOST)
    merged = build_segment(
        KIND,
        pa.int64(),
        {},
        merge_inputs=[it.merge_input(0, 2)],
        merged_ids=[0, 2],
        location=it.location,
        row_counts={0: 7, 2: 3},
    )
    found = search_segment(KIND, merged, parse_condition("v IS NULL", pa.int64()))
    assert found is not None
    assert found.certainty is Certainty.AT_MOST


def test_all_rows_of_a_fragment_without_zones_are_candidates() -> None:
    it = build_segment(KIND, pa.int64(), INTS, merged_ids=[9], row_counts={0: 7, 2: 3, 9: 2}, number_of_items=FEW)
    for sql in ("v = 100", "v IS NULL"):
        found = search_segment(KIND, it, parse_condition(sql, pa.int64()))
        assert found is not None
        assert {9 << 32, 9 << 32 | 1} <= set(found.rows)
        assert found.certainty is Certainty.AT_MOST


def odd(it: BuiltSegment) -> None:
    changed(it, "bloom_filter_data", pa.array([b"x" * 32, b"x" * 33, b"x" * 32, b"x" * 32], pa.binary()))


def no_filter(it: BuiltSegment) -> None:
    changed(it, "bloom_filter_data", pa.array([b"x" * 32, b"", b"x" * 32, b"x" * 32], pa.binary()))


def missing_filter(it: BuiltSegment) -> None:
    changed(it, "bloom_filter_data", pa.array([b"x" * 32, None, b"x" * 32, b"x" * 32], pa.binary()))


DAMAGE: dict[str, tuple[Callable[[BuiltSegment], None], str]] = {
    "gone": (lambda it: it.location.store.delete(f"{it.path}/{FILE}"), "does not exist|no such|not found"),
    "odd": (odd, "zone 1 has 33 bytes, which is not a multiple of 32"),
    "empty": (no_filter, "zone 1 has 0 bytes"),
    "missing": (missing_filter, "zone 1 has 0 bytes"),
    "text": (
        lambda it: changed(it, "bloom_filter_data", pa.array(["x" * 32] * 4)),
        "has type string instead of binary",
    ),
    "buffer": (lambda it: replace_file(it, FILE, table_of(it), {"null_bitmap": "5"}), "the file has no buffer 5"),
    "no column": (lambda it: replace_file(it, FILE, table_of(it).drop_columns(["has_null"])), "the column is missing"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_files_raise_typed_errors(what: str) -> None:
    it = build_segment(KIND, pa.int64(), INTS, number_of_items=FEW)
    damage, said = DAMAGE[what]
    damage(it)
    with pytest.raises(LanceError, match=said):
        search_segment(KIND, it, parse_condition("v = 3", pa.int64()))


def test_filters_of_another_size_are_read() -> None:
    """A filter in which every bit is set contains every value, whatever its number of blocks."""
    it = build_segment(KIND, pa.int64(), INTS, number_of_items=FEW)
    full = [b"\xff" * size for size in (32, 96, 2048, 32)]
    changed(it, "bloom_filter_data", pa.array([full[0], full[1], full[2], bytes(32)], pa.binary()))
    found = search_segment(KIND, it, parse_condition("v = 777", pa.int64()))
    assert found is not None
    assert set(found.rows) == {0, 1, 2, 3, 4, 5, 6}


def test_examine_reports_contradictions() -> None:
    it = build_segment(KIND, pa.int64(), INTS, number_of_items=FEW)
    odd(it)
    assert "zone 1 has 33 bytes" in KIND.examine(it.segment, it.column).problems[0]
    it = build_segment(KIND, pa.int64(), INTS, number_of_items=FEW)
    replace_file(it, FILE, table_of(it), {"null_bitmap": "1"}, RowSet({0: BitMap([1, 2])}).encode())
    assert KIND.examine(it.segment, it.column).problems == ("its zones do not record 2 NULLs that it lists",)
    it = build_segment(KIND, pa.int64(), INTS, number_of_items=FEW)
    changed(it, "zone_start", pa.array([0, 2, 6, 0], pa.uint64()))
    assert "two zones share row 2 of fragment 0" in KIND.examine(it.segment, it.column).problems
    changed(it, "zone_start", pa.array([0, None, 6, 0], pa.uint64()))
    assert KIND.examine(it.segment, it.column).problems[0] == "1 of its zones have no zone_start"
    with pytest.raises(Corrupt):
        search_segment(KIND, it, parse_condition("v = 3", pa.int64()))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"number_of_items": 0}, "from 1 to"),
        ({"number_of_items": True}, "whole number"),
        ({"probability": 1}, "the false-positive probability"),
        ({"probability": 0.9}, "the false-positive probability"),
        ({"probability": math.nan}, "the false-positive probability"),
        ({"rows_per_zone": 8}, "it has number_of_items and probability"),
    ],
)
def test_options(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        KIND.parse_options(given)


def test_supported_types() -> None:
    for arrow in (pa.bool_(), HALF, pa.decimal128(5, 2), pa.binary(3), pa.duration("s"), pa.list_(pa.int64())):
        assert not KIND.supports(pa.field("v", arrow))
    assert pa.string() in FITTING
    assert pa.date64() in FITTING
    assert not KIND.supports(pa.field("v", pa.large_binary(), metadata={"ARROW:extension:name": "lance.json"}))


def test_many_zones_are_searched_in_less_than_a_millisecond() -> None:
    it = build_segment(KIND, pa.int64(), {0: pa.array(range(1_221 * 8))}, number_of_items=8)
    searcher = KIND.open(it.segment, it.column)
    leaf = parse_condition("v = 5000", pa.int64())
    searcher.search(leaf)
    took = []
    for _ in range(20):
        started = time.perf_counter()
        searcher.search(leaf)
        took.append(time.perf_counter() - started)
    assert min(took) < 0.001


def test_details_are_ignored() -> None:
    """The details message has no fields, so that a reader ignores bytes that another writer stores there."""
    it = build_segment(KIND, pa.int64(), INTS, number_of_items=FEW)

    def change(message: table_pb2.IndexMetadata) -> None:
        message.index_details.value = b"\xff"

    check_search(KIND, it.with_metadata(change), INTS, parse_condition("v = 3", pa.int64()))
