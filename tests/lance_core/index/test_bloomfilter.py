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

INDEX_TYPE = BLOOMFILTER
FILE = "bloomfilter.lance"
ITEMS_PER_ZONE = 3
SUPPORTED_TYPES = [arrow for arrow in POOLS if INDEX_TYPE.supports(pa.field("v", arrow))]
INTS = {0: pa.array([1, 2, 3, 4, 5, 6, None]), 2: pa.array([7, None, 9])}


def read_table(built: BuiltSegment) -> pa.Table:
    return read_all_rows(built.segment.files.open(FILE))


def replace_column(built: BuiltSegment, name: str, column: pa.Array) -> None:
    table = read_table(built)
    position = table.schema.names.index(name)
    metadata = {key: value for key, value in built.segment.files.open(FILE).metadata.items() if key == "null_bitmap"}
    buffer = built.segment.files.open(FILE).read_buffer(1)
    replace_file(built, FILE, table.set_column(position, pa.field(name, column.type), column), metadata, buffer)


@pytest.mark.parametrize("arrow", SUPPORTED_TYPES, ids=str)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_search_includes_every_match(arrow: pa.DataType, data: st.DataObject) -> None:
    fragments = data.draw(columns(arrow))
    deleted = data.draw(deletions())
    built = build_segment(INDEX_TYPE, arrow, fragments, deleted=deleted, number_of_items=ITEMS_PER_ZONE)
    for condition in data.draw(st.lists(leaves(arrow, (Op.EQ,)), min_size=1, max_size=8)):
        check_search(INDEX_TYPE, built, fragments, condition)
    examined = INDEX_TYPE.examine(built.segment, built.column)
    assert live_rows(built, fragments) <= set(examined.rows)
    assert (examined.lists_every_row, examined.problems) == (True, ())


@settings(max_examples=40, deadline=None)
@given(columns(pa.string()), columns(pa.string()), st.data())
def test_a_merged_segment_covers_its_inputs_and_new_rows(
    first: Fragments, second: Fragments, data: st.DataObject
) -> None:
    """A merge keeps the zones of surviving fragments, with filters of the size that they have."""
    second = {id + 1: values for id, values in second.items()}
    surviving = data.draw(st.sets(st.sampled_from(sorted(first))))
    rows = {id: len(array) for id, array in {**first, **second}.items()}
    first_segment = build_segment(INDEX_TYPE, pa.string(), first, number_of_items=ITEMS_PER_ZONE, row_counts=rows)
    merged = build_segment(
        INDEX_TYPE,
        pa.string(),
        second,
        merge_inputs=[first_segment.merge_input(*surviving)],
        merged_ids=surviving,
        location=first_segment.location,
        row_counts=rows,
        number_of_items=500,
    )
    kept = {id: first[id] for id in surviving} | dict(second)
    for condition in data.draw(st.lists(leaves(pa.string(), (Op.EQ,)), min_size=1, max_size=8)):
        check_search(INDEX_TYPE, merged, kept, condition)


def test_zones_without_a_match_are_excluded() -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, number_of_items=ITEMS_PER_ZONE)
    for sql, expected in {
        "v = 5": {3, 4, 5},
        "v = 1000": set(),
        "v IN (2, 9)": {0, 1, 2, 2 << 32, 2 << 32 | 1, 2 << 32 | 2},
        "v IS NULL": {6, 2 << 32 | 1},
    }.items():
        found = search_segment(INDEX_TYPE, built, parse_condition(sql, pa.int64()))
        assert found is not None
        assert set(found.rows) == expected, sql
        assert (found.certainty is Certainty.EXACT) is (sql == "v IS NULL")
    for sql in ("v > 5", "v <= 5"):
        condition = parse_condition(sql, pa.int64())
        assert (
            search_segment(INDEX_TYPE, built, condition)
            is None
            is INDEX_TYPE.answers(condition, built.segment.metadata)
        )


def test_the_false_positive_rate_is_as_configured() -> None:
    values = np.random.default_rng(7).permutation(200_000)
    built = build_segment(INDEX_TYPE, pa.int64(), {0: pa.array(values)}, batch_rows=65_536)
    searcher = INDEX_TYPE.open(built.segment, built.column)
    zones = 0
    for absent in range(200_000, 201_000):
        found = searcher.search(Comparison(("v",), Op.EQ, pa.scalar(absent)))
        assert found is not None
        zones += -(-len(found.rows) // 8192)
    assert zones / (25 * 1_000) < 0.00057


def test_long_value_lists_are_unsupported() -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), {0: pa.array(range(100))})
    searcher = INDEX_TYPE.open(built.segment, built.column)
    for count, answers in ((1000, True), (1001, False)):
        condition = In(("v",), tuple(map(pa.scalar, range(count))))
        assert (INDEX_TYPE.answers(condition, built.segment.metadata) is not None) is answers
        assert (searcher.search(condition) is not None) is answers


def test_options_and_details_are_recorded() -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, number_of_items=ITEMS_PER_ZONE, probability=0.25)
    assert built.segment.details == b""
    assert INDEX_TYPE.options_of(built.segment) == BloomFilterOptions(ITEMS_PER_ZONE, 0.25)
    metadata = built.segment.files.open(FILE).metadata
    assert (metadata["bloomfilter_item"], metadata["bloomfilter_probability"]) == (str(ITEMS_PER_ZONE), "0.25")
    assert registry.by_type_url(built.segment.metadata) is INDEX_TYPE
    replace_file(built, FILE, read_table(built), {"bloomfilter_item": "many"})
    assert INDEX_TYPE.options_of(built.segment) == BloomFilterOptions()


@pytest.mark.parametrize(
    ("items", "probability", "size"), [(8192, 0.00057, 32_768), (100, 0.01, 256), (100, 0.5, 64), (1, 0.00057, 32)]
)
def test_filters_are_as_large_as_those_of_the_reference_writer(items: int, probability: float, size: int) -> None:
    assert BloomFilterOptions(items, probability).block_count * 32 == size


def test_zeros_of_both_signs_are_found() -> None:
    for arrow in (pa.float32(), pa.float64()):
        built = build_segment(INDEX_TYPE, arrow, {0: pa.array([1.0, -0.0], arrow), 1: pa.array([0.0], arrow)})
        for zero in (0.0, -0.0):
            found = search_segment(INDEX_TYPE, built, Comparison(("v",), Op.EQ, pa.scalar(zero, arrow)))
            assert found is not None
            assert set(found.rows) == {0, 1, 1 << 32}
        found = search_segment(INDEX_TYPE, built, Comparison(("v",), Op.EQ, pa.scalar(math.nan, arrow)))
        assert found is not None
        assert len(found.rows) == 3


def test_filters_beyond_the_cache_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bloomfilter, "CACHE_BYTES_MAX", 100)
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, number_of_items=1)
    searcher = INDEX_TYPE.open(built.segment, built.column)
    for _ in range(3):
        found = searcher.search(parse_condition("v IN (5, 9)", pa.int64()))
        assert found is not None
        assert set(found.rows) == {4, 2 << 32 | 2}


def test_is_null_is_inexact_without_a_null_bitmap() -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, number_of_items=ITEMS_PER_ZONE)
    replace_file(built, FILE, read_table(built))
    found = search_segment(INDEX_TYPE, built, parse_condition("v IS NULL", pa.int64()))
    assert found is not None
    assert (set(found.rows), found.certainty) == ({6, 2 << 32, 2 << 32 | 1, 2 << 32 | 2}, Certainty.AT_MOST)
    merged = build_segment(
        INDEX_TYPE,
        pa.int64(),
        {},
        merge_inputs=[built.merge_input(0, 2)],
        merged_ids=[0, 2],
        location=built.location,
        row_counts={0: 7, 2: 3},
    )
    found = search_segment(INDEX_TYPE, merged, parse_condition("v IS NULL", pa.int64()))
    assert found is not None
    assert found.certainty is Certainty.AT_MOST


def test_all_rows_of_a_fragment_without_zones_are_candidates() -> None:
    built = build_segment(
        INDEX_TYPE, pa.int64(), INTS, merged_ids=[9], row_counts={0: 7, 2: 3, 9: 2}, number_of_items=ITEMS_PER_ZONE
    )
    for sql in ("v = 100", "v IS NULL"):
        found = search_segment(INDEX_TYPE, built, parse_condition(sql, pa.int64()))
        assert found is not None
        assert {9 << 32, 9 << 32 | 1} <= set(found.rows)
        assert found.certainty is Certainty.AT_MOST


def store_odd_filter(built: BuiltSegment) -> None:
    replace_column(built, "bloom_filter_data", pa.array([b"x" * 32, b"x" * 33, b"x" * 32, b"x" * 32], pa.binary()))


def store_empty_filter(built: BuiltSegment) -> None:
    replace_column(built, "bloom_filter_data", pa.array([b"x" * 32, b"", b"x" * 32, b"x" * 32], pa.binary()))


def store_null_filter(built: BuiltSegment) -> None:
    replace_column(built, "bloom_filter_data", pa.array([b"x" * 32, None, b"x" * 32, b"x" * 32], pa.binary()))


DAMAGE: dict[str, tuple[Callable[[BuiltSegment], None], str]] = {
    "gone": (lambda built: built.location.store.delete(f"{built.path}/{FILE}"), "does not exist|no such|not found"),
    "odd": (store_odd_filter, "zone 1 has 33 bytes, which is not a multiple of 32"),
    "empty": (store_empty_filter, "zone 1 has 0 bytes"),
    "missing": (store_null_filter, "zone 1 has 0 bytes"),
    "text": (
        lambda built: replace_column(built, "bloom_filter_data", pa.array(["x" * 32] * 4)),
        "has type string instead of binary",
    ),
    "buffer": (
        lambda built: replace_file(built, FILE, read_table(built), {"null_bitmap": "5"}),
        "the file has no buffer 5",
    ),
    "no column": (
        lambda built: replace_file(built, FILE, read_table(built).drop_columns(["has_null"])),
        "the column is missing",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_files_raise_typed_errors(case: str) -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, number_of_items=ITEMS_PER_ZONE)
    damage, error = DAMAGE[case]
    damage(built)
    with pytest.raises(LanceError, match=error):
        search_segment(INDEX_TYPE, built, parse_condition("v = 3", pa.int64()))


def test_filters_of_another_size_are_read() -> None:
    """A filter in which every bit is set contains every value, whatever its number of blocks."""
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, number_of_items=ITEMS_PER_ZONE)
    full = [b"\xff" * size for size in (32, 96, 2048, 32)]
    replace_column(built, "bloom_filter_data", pa.array([full[0], full[1], full[2], bytes(32)], pa.binary()))
    found = search_segment(INDEX_TYPE, built, parse_condition("v = 777", pa.int64()))
    assert found is not None
    assert set(found.rows) == {0, 1, 2, 3, 4, 5, 6}


def test_examine_reports_contradictions() -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, number_of_items=ITEMS_PER_ZONE)
    store_odd_filter(built)
    assert "zone 1 has 33 bytes" in INDEX_TYPE.examine(built.segment, built.column).problems[0]
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, number_of_items=ITEMS_PER_ZONE)
    replace_file(built, FILE, read_table(built), {"null_bitmap": "1"}, RowSet({0: BitMap([1, 2])}).encode())
    assert INDEX_TYPE.examine(built.segment, built.column).problems == (
        "its zones do not record 2 NULLs that it lists",
    )
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, number_of_items=ITEMS_PER_ZONE)
    replace_column(built, "zone_start", pa.array([0, 2, 6, 0], pa.uint64()))
    assert "two zones share row 2 of fragment 0" in INDEX_TYPE.examine(built.segment, built.column).problems
    replace_column(built, "zone_start", pa.array([0, None, 6, 0], pa.uint64()))
    assert INDEX_TYPE.examine(built.segment, built.column).problems[0] == "1 of its zones have no zone_start"
    with pytest.raises(Corrupt):
        search_segment(INDEX_TYPE, built, parse_condition("v = 3", pa.int64()))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"number_of_items": 0}, "from 1 to"),
        ({"number_of_items": True}, "whole number"),
        ({"probability": 1}, "the false-positive probability"),
        ({"probability": 0.9}, "the false-positive probability"),
        ({"probability": math.nan}, "the false-positive probability"),
        ({"rows_per_zone": 8}, "it has number_of_items and probability"),
    ],
)
def test_options(given: dict[str, object], error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        INDEX_TYPE.parse_options(given)


def test_supported_types() -> None:
    for arrow in (pa.bool_(), HALF, pa.decimal128(5, 2), pa.binary(3), pa.duration("s"), pa.list_(pa.int64())):
        assert not INDEX_TYPE.supports(pa.field("v", arrow))
    assert pa.string() in SUPPORTED_TYPES
    assert pa.date64() in SUPPORTED_TYPES
    assert not INDEX_TYPE.supports(pa.field("v", pa.large_binary(), metadata={"ARROW:extension:name": "lance.json"}))


def test_many_zones_are_searched_in_less_than_a_millisecond() -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), {0: pa.array(range(1_221 * 8))}, number_of_items=8)
    searcher = INDEX_TYPE.open(built.segment, built.column)
    condition = parse_condition("v = 5000", pa.int64())
    searcher.search(condition)
    durations = []
    for _ in range(20):
        started = time.perf_counter()
        searcher.search(condition)
        durations.append(time.perf_counter() - started)
    assert min(durations) < 0.001


def test_details_are_ignored() -> None:
    """The details message has no fields, so that a reader ignores bytes that another writer stores there."""
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, number_of_items=ITEMS_PER_ZONE)

    def change(message: table_pb2.IndexMetadata) -> None:
        message.index_details.value = b"\xff"

    check_search(INDEX_TYPE, built.with_metadata(change), INTS, parse_condition("v = 3", pa.int64()))
