"""ZONEMAP compared with the evaluator of predicates: no zone with a match is left out."""

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from lance_core.errors import Corrupt, InvalidInput, LanceError
from lance_core.expressions.tree import Call, Comparison, Like, Op
from lance_core.format._pb import table_pb2
from lance_core.format.row_sets import RowSet
from lance_core.index import registry, zonemap
from lance_core.index.index_type import Certainty
from lance_core.index.segment_files import read_all_rows
from lance_core.index.zonemap import ZONEMAP
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
from tests.lance_core.index.segment_strategies import HALF, POOLS, array_of, columns, deletions, leaves

INDEX_TYPE = ZONEMAP
ROWS_PER_ZONE = 3
INTS = {0: pa.array([1, 2, 3, 4, 5, 6, None]), 2: pa.array([7, None, 9])}


def read_zones(built: BuiltSegment) -> list[dict[str, object]]:
    found: list[dict[str, object]] = read_all_rows(built.segment.files.open("zonemap.lance")).to_pylist()
    return found


@pytest.mark.parametrize("arrow", POOLS, ids=str)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_search_includes_every_match(arrow: pa.DataType, data: st.DataObject) -> None:
    fragments = data.draw(columns(arrow))
    deleted = data.draw(deletions())
    built = build_segment(INDEX_TYPE, arrow, fragments, deleted=deleted, rows_per_zone=ROWS_PER_ZONE)
    for condition in data.draw(st.lists(leaves(arrow), min_size=1, max_size=8)):
        check_search(INDEX_TYPE, built, fragments, condition)
    examined = INDEX_TYPE.examine(built.segment, built.column)
    assert live_rows(built, fragments) <= set(examined.rows)
    assert (examined.lists_every_row, examined.problems) == (True, ())


@settings(max_examples=40, deadline=None)
@given(columns(pa.string()), st.sampled_from(["a%", "ab%", "é%", "z%", "a_%", "%", "%b", "\U0010ffff%", "a\\%%"]))
def test_prefixes_of_text(fragments: Fragments, pattern: str) -> None:
    built = build_segment(INDEX_TYPE, pa.string(), fragments, rows_per_zone=ROWS_PER_ZONE)
    condition = Like(("v",), pattern)
    if condition.prefix:
        check_search(INDEX_TYPE, built, fragments, condition)
    else:
        assert (
            search_segment(INDEX_TYPE, built, condition)
            is None
            is INDEX_TYPE.answers(condition, built.segment.metadata)
        )


@settings(max_examples=40, deadline=None)
@given(columns(pa.float64()), deletions())
def test_nan_is_found(fragments: Fragments, deleted: Mapping[int, Sequence[int]]) -> None:
    built = build_segment(INDEX_TYPE, pa.float64(), fragments, deleted=deleted, rows_per_zone=ROWS_PER_ZONE)
    check_search(INDEX_TYPE, built, fragments, Call("isnan", ("v",), ()))


def test_zones_end_with_their_fragment_and_count_live_rows() -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, deleted={0: [0, 2]}, rows_per_zone=ROWS_PER_ZONE)
    assert [tuple(zone.values()) for zone in read_zones(built)] == [
        (2, 5, 0, 0, 0, 1, 4),
        (6, 6, 1, 0, 0, 5, 2),
        (7, 9, 1, 0, 2, 0, 3),
    ]
    assert read_zones(built)[0].keys() == {
        "min", "max", "null_count", "nan_count", "fragment_id", "zone_start", "zone_length",
    }  # fmt: skip


def test_options_and_details_are_recorded() -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, rows_per_zone=ROWS_PER_ZONE)
    details = table_pb2.ZoneMapIndexDetails.FromString(built.segment.details)
    assert (details.rows_per_zone, details.HasField("use_seeds"), details.use_seeds) == (ROWS_PER_ZONE, True, False)
    assert details.has_null_bitmap
    assert INDEX_TYPE.options_of(built.segment) == INDEX_TYPE.parse_options({"rows_per_zone": ROWS_PER_ZONE})
    assert built.segment.files.open("zonemap.lance").metadata["rows_per_zone"] == str(ROWS_PER_ZONE)
    assert registry.by_type_url(built.segment.metadata).name == "ZONEMAP"  # type: ignore[union-attr]


def test_zones_without_a_match_are_excluded() -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, rows_per_zone=ROWS_PER_ZONE)
    for sql, expected in {
        "v = 5": {3, 4, 5},
        "v > 6": {2 << 32, 2 << 32 | 1, 2 << 32 | 2},
        "v < 1": set(),
        "v IN (2, 8)": {0, 1, 2, 2 << 32, 2 << 32 | 1, 2 << 32 | 2},
        "v IS NULL": {6, 2 << 32 | 1},
    }.items():
        found = search_segment(INDEX_TYPE, built, parse_condition(sql, pa.int64()))
        assert found is not None
        assert set(found.rows) == expected, sql
        assert (found.certainty is Certainty.EXACT) is (sql == "v IS NULL")


def test_bounds_of_floats_include_nan_and_both_zeros() -> None:
    """NaN of either sign is the maximum, and bounds of zero include both signs, which some writers distinguish."""
    floats = pa.array([1.0, math.nan, None, math.nan, None, None, 0.0, 0.0, 0.0, -0.0, -0.0, -2.0])
    found = read_zones(build_segment(INDEX_TYPE, pa.float64(), {0: floats}, rows_per_zone=ROWS_PER_ZONE))
    assert [str((zone["min"], zone["max"], zone["null_count"], zone["nan_count"])) for zone in found] == [
        "(1.0, nan, 1, 1)",
        "(nan, nan, 2, 1)",
        "(-0.0, 0.0, 0, 0)",
        "(-2.0, 0.0, 0, 0)",
    ]


def test_half_floats_are_described() -> None:
    found = read_zones(
        build_segment(INDEX_TYPE, HALF, {0: array_of([1.0, None, math.nan, 2.0], HALF)}, rows_per_zone=ROWS_PER_ZONE)
    )
    assert [str((zone["min"], zone["max"])) for zone in found] == ["(1.0, nan)", "(2.0, 2.0)"]


def test_not_equal_is_unsupported() -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), INTS)
    assert search_segment(INDEX_TYPE, built, Comparison(("v",), Op.NE, pa.scalar(1))) is None


@settings(max_examples=40, deadline=None)
@given(columns(pa.int64()), columns(pa.int64()), st.data())
def test_a_merged_segment_covers_its_inputs_and_new_rows(
    first: Fragments, second: Fragments, data: st.DataObject
) -> None:
    """A merge keeps the zones of surviving fragments and adds the rows of new fragments, as after a compaction."""
    second = {id + 1: values for id, values in second.items()}
    surviving = data.draw(st.sets(st.sampled_from(sorted(first))))
    rows = {id: len(array) for id, array in {**first, **second}.items()}
    first_segment = build_segment(INDEX_TYPE, pa.int64(), first, rows_per_zone=ROWS_PER_ZONE, row_counts=rows)
    parts = [first_segment.merge_input(*surviving)]
    merged_segment = build_segment(
        INDEX_TYPE,
        pa.int64(),
        second,
        merge_inputs=parts,
        merged_ids=surviving,
        location=first_segment.location,
        row_counts=rows,
        rows_per_zone=5,
    )
    kept = {id: first[id] for id in surviving} | dict(second)
    for condition in data.draw(st.lists(leaves(pa.int64()), min_size=1, max_size=8)):
        found = check_search(INDEX_TYPE, merged_segment, kept, condition)
        assert found.certainty is Certainty.AT_MOST or condition == parse_condition("v IS NULL", pa.int64())


def test_is_null_is_inexact_without_a_null_bitmap() -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, rows_per_zone=ROWS_PER_ZONE)
    older = remove_null_bitmap(built)
    assert INDEX_TYPE.answers(parse_condition("v IS NULL", pa.int64()), older.segment.metadata) is Certainty.AT_MOST
    found = search_segment(INDEX_TYPE, older, parse_condition("v IS NULL", pa.int64()))
    assert found is not None
    assert (set(found.rows), found.certainty) == ({6, 2 << 32, 2 << 32 | 1, 2 << 32 | 2}, Certainty.AT_MOST)
    merged = build_segment(
        INDEX_TYPE, pa.int64(), {}, merge_inputs=[older.merge_input(0, 2)], merged_ids=[0, 2], location=built.location
    )
    assert not table_pb2.ZoneMapIndexDetails.FromString(merged.segment.details).has_null_bitmap
    without_any = build_segment(INDEX_TYPE, pa.int64(), {0: pa.array([1, 2])}, location=built.location)
    merged = build_segment(
        INDEX_TYPE,
        pa.int64(),
        {},
        merge_inputs=[remove_null_bitmap(without_any).merge_input(0)],
        merged_ids=[0],
        location=built.location,
    )
    assert table_pb2.ZoneMapIndexDetails.FromString(merged.segment.details).has_null_bitmap


def remove_null_bitmap(built: BuiltSegment) -> BuiltSegment:
    """Rewrite the segment as older writers do, without its bitmap of NULLs."""

    def change(message: table_pb2.IndexMetadata) -> None:
        message.index_details.value = b""

    replace_file(built, "zonemap.lance", read_all_rows(built.segment.files.open("zonemap.lance")), {})
    return built.with_metadata(change)


def test_all_rows_of_a_fragment_without_zones_are_candidates() -> None:
    """Some writers extend the coverage of an index over fragments that its file has no zones for."""
    built = build_segment(
        INDEX_TYPE, pa.int64(), INTS, merged_ids=[9], row_counts={0: 7, 2: 3, 9: 2}, rows_per_zone=ROWS_PER_ZONE
    )
    for sql in ("v = 100", "v IS NULL"):
        found = search_segment(INDEX_TYPE, built, parse_condition(sql, pa.int64()))
        assert found is not None
        assert {9 << 32, 9 << 32 | 1} <= set(found.rows)
        assert found.certainty is Certainty.AT_MOST


@pytest.mark.parametrize("arrow", [pa.binary(3), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_zones_without_bounds_match_every_value(arrow: pa.DataType) -> None:
    value = pa.scalar("abc") if pa.types.is_dictionary(arrow) else pa.scalar(b"abc", arrow)
    built = build_segment(INDEX_TYPE, pa.binary(3), {0: pa.array([b"abc", None], pa.binary(3))})
    zone_columns = {"min": pa.nulls(2, arrow), "max": pa.nulls(2, arrow)} | {
        "null_count": pa.array([1, 2], pa.uint32()),
        "nan_count": pa.array([0, 0], pa.uint32()),
        "fragment_id": pa.array([0, 1], pa.uint64()),
        "zone_start": pa.array([0, 0], pa.uint64()),
        "zone_length": pa.array([2, 2], pa.uint64()),
    }
    replace_file(built, "zonemap.lance", pa.table(zone_columns), {})
    found = INDEX_TYPE.open(built.segment, pa.field("v", arrow)).search(Comparison(("v",), Op.EQ, value))
    assert found is not None
    assert set(found.rows) == {0, 1}


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ("gone", "does not exist|no such|not found"),
        ("another type", "has type int64 instead of int32"),
        ("no lengths", "zone_length: the column is missing|the column is missing"),
        ("short lengths", "has type uint32 instead of uint64"),
        ("no buffer", "the file has no buffer 7"),
        ("the schema's buffer", "is not the number of a buffer"),
        ("a word", "is not the number of a buffer"),
        ("no set", "is not a set of rows"),
        ("no details", "does not parse"),
        ("missing number", "a value is missing"),
    ],
)
def test_damaged_files_raise_typed_errors(damage: str, error: str) -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, rows_per_zone=ROWS_PER_ZONE)
    table = read_all_rows(built.segment.files.open("zonemap.lance"))
    column = built.column
    match damage:
        case "gone":
            built.location.store.delete(f"{built.path}/zonemap.lance")
        case "another type":
            column = pa.field("v", pa.int32())
        case "no lengths":
            replace_file(built, "zonemap.lance", table.drop_columns(["zone_length"]), {})
        case "short lengths":
            position = table.schema.names.index("zone_length")
            replace_file(
                built,
                "zonemap.lance",
                table.set_column(position, "zone_length", table["zone_length"].cast(pa.uint32())),
                {},
            )
        case "no buffer":
            replace_file(built, "zonemap.lance", table, {"null_bitmap": "7"})
        case "the schema's buffer":
            replace_file(built, "zonemap.lance", table, {"null_bitmap": "0"})
        case "a word":
            replace_file(built, "zonemap.lance", table, {"null_bitmap": "¹"})
        case "no set":
            replace_file(built, "zonemap.lance", table, {"null_bitmap": "1"}, b"\x09\x00\x00\x00")
        case "no details":
            built = built.with_metadata(lambda message: setattr(message.index_details, "value", b"\xff"))
        case "missing number":
            position = table.schema.names.index("zone_start")
            holes = pa.field("zone_start", pa.uint64())
            replace_file(
                built, "zonemap.lance", table.set_column(position, holes, pa.nulls(len(table), pa.uint64())), {}
            )
    with pytest.raises(LanceError, match=error):
        search_damaged(built, column)


def search_damaged(built: BuiltSegment, column: pa.Field) -> None:
    INDEX_TYPE.answers(parse_condition("v IS NULL", pa.int64()), built.segment.metadata)
    INDEX_TYPE.open(built.segment, column).search(parse_condition("v = 3", pa.int64()))


def test_zones_beyond_their_fragment_are_rejected() -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, rows_per_zone=ROWS_PER_ZONE)
    uint64_max = 2**64 - 1
    table = pa.table(
        {
            "min": [3, 3, 3, 3],
            "max": [3, 3, 3, 3],
            "null_count": pa.array([0] * 4, pa.uint32()),
            "nan_count": pa.array([0] * 4, pa.uint32()),
            "fragment_id": pa.array([0, 77, uint64_max, 2], pa.uint64()),
            "zone_start": pa.array([5, 0, uint64_max, uint64_max], pa.uint64()),
            "zone_length": pa.array([uint64_max, uint64_max, uint64_max, uint64_max], pa.uint64()),
        }
    )
    replace_file(built, "zonemap.lance", table, {})
    found = search_segment(INDEX_TYPE, built, parse_condition("v = 3", pa.int64()))
    assert found is not None
    assert set(found.rows) == {5, 6}
    with pytest.raises(Corrupt, match="begins at an address that no row can have"):
        build_segment(INDEX_TYPE, pa.int64(), {}, merge_inputs=[built.merge_input(0)], location=built.location)
    examined = INDEX_TYPE.examine(built.segment, built.column)
    assert not examined.rows.parts
    assert [problem.partition(" rows ")[0] for problem in examined.problems] == [
        f"zone {number} has {uint64_max:,}" for number in (0, 1, 2)
    ]


def test_examine_reports_contradictions() -> None:
    built = build_segment(INDEX_TYPE, pa.int64(), INTS, rows_per_zone=ROWS_PER_ZONE)
    table = pa.table(
        {
            "min": [9, 3],
            "max": [1, 3],
            "null_count": pa.array([0, 1], pa.uint32()),
            "nan_count": pa.array([0, 9], pa.uint32()),
            "fragment_id": pa.array([0, 0], pa.uint64()),
            "zone_start": pa.array([0, 2], pa.uint64()),
            "zone_length": pa.array([3, 4], pa.uint64()),
        }
    )
    replace_file(built, "zonemap.lance", table, {"null_bitmap": "1"}, RowSet({0: BitMap([1, 2])}).encode())
    examined = INDEX_TYPE.examine(built.segment, built.column)
    assert set(examined.rows) == set(range(6))
    assert examined.problems == (
        "two zones share row 2 of fragment 0",
        "its zones record 1 NULLs, and it lists 2",
        "zone 1 has more NULLs and NaNs than rows",
        "zone 0 has a maximum below its minimum",
    )
    replace_file(built, "zonemap.lance", table, {"null_bitmap": "1"}, RowSet({5: BitMap([9])}).encode())
    assert "row 9 of fragment 5 is NULL and in no zone" in INDEX_TYPE.examine(built.segment, built.column).problems


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"rows_per_zone": 0}, "from 1 to"),
        ({"rows_per_zone": True}, "whole number"),
        ({"rows_per_zone": "8"}, "whole number"),
        ({"zone_rows": 8}, "it has rows_per_zone"),
    ],
)
def test_options(given: dict[str, object], error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        INDEX_TYPE.parse_options(given)


def test_supported_types() -> None:
    assert all(INDEX_TYPE.supports(pa.field("v", arrow)) for arrow in (*POOLS, HALF))
    for arrow in (pa.list_(pa.int64()), pa.struct([("x", pa.int64())]), pa.dictionary(pa.int32(), pa.string())):
        assert not INDEX_TYPE.supports(pa.field("v", arrow))
    assert not INDEX_TYPE.supports(pa.field("v", pa.large_binary(), metadata={"ARROW:extension:name": "lance.json"}))


def test_many_zones_are_searched_in_less_than_a_millisecond() -> None:
    """The number of zones is that of ten million rows; the values are ordered or shuffled."""
    ordered = np.arange(1_221 * 8, dtype=np.int64)
    for values in (ordered, np.random.default_rng(7).permutation(ordered)):
        built = build_segment(INDEX_TYPE, pa.int64(), {0: pa.array(values)}, rows_per_zone=8)
        searcher = INDEX_TYPE.open(built.segment, built.column)
        condition = parse_condition("v = 5000", pa.int64())
        searcher.search(condition)
        durations = []
        for _ in range(20):
            started = time.perf_counter()
            searcher.search(condition)
            durations.append(time.perf_counter() - started)
        assert min(durations) < 0.001


def test_a_zone_without_a_maximum_matches_any_prefix_above_its_minimum() -> None:
    bounds_table = {"min": ["a", "a", "c"], "max": [None, "abc", None], "null_count": [0, 0, 0], "nan_count": [0, 0, 0]}
    bounds = zonemap._Bounds.of(pa.table({**bounds_table, "zone_length": [9, 9, 9]}))
    assert bounds.contains_prefix("b").tolist() == [True, False, False]
