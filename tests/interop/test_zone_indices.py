"""Zone maps and Bloom filters: pylance queries ours, and we read those of pylance."""

import datetime
import decimal
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileReader
from lance.indices import IndexConfig

from lance_core import Table
from lance_core.index.bloomfilter import BLOOMFILTER
from lance_core.index.index_type import Certainty
from lance_core.index.segment_files import WRITER_KEY
from lance_core.index.zonemap import ZONEMAP
from tests.interop.segment_exchange import (
    check_their_segment,
    commit_our_segment,
    query_by_pylance,
    read_index_options,
)
from tests.pairwise import pairwise

ROWS = 600
FRAGMENT = 200
ZONE = 50
EXACT, AT_MOST = Certainty.EXACT, Certainty.AT_MOST
FIRST_DAY = datetime.date(2020, 1, 1)


def in_runs(values: Sequence[object], arrow: pa.DataType) -> pa.Array:
    """Return the values in runs, so that zones differ, with every seventh value null."""
    rows_in_runs = [values[at * len(values) // ROWS] if at % 7 else None for at in range(ROWS)]
    return pa.array(rows_in_runs, arrow)


TYPES: dict[str, tuple[pa.Array, tuple[str, ...]]] = {
    "int64": (pa.array([row if row % 7 else None for row in range(ROWS)]), ("v = 300", "v < 20", "v IN (3, 500)")),
    "int8": (in_runs(range(-100, 100), pa.int8()), ("v = -100", "v > 97", "v IN (1, 5)")),
    "uint64": (in_runs([0, 5, 2**63, 2**64 - 1], pa.uint64()), ("v = 5", "v > 5", "v >= 18446744073709551615")),
    "double": (
        in_runs([-math.inf, -1.5, -0.0, 0.0, 1.5, math.nan, 7.0, math.inf], pa.float64()),
        ("v = 0.0", "v = -0.0", "v < 0.0", "v >= -0.0", "v > 5", "v = 7", "v <= -1.5", "v IN (0.0, 7.0)"),
    ),
    "float": (
        in_runs([-1.5, -0.0, 0.0, math.nan, 0.1], pa.float32()),
        ("v = 0.0", "v = 0.1", "v > 0.05", "v < 0"),
    ),
    "bool": (in_runs([False, True], pa.bool_()), ("v",)),
    "string": (
        in_runs(["", "a", "ab", "b", "é"], pa.string()),
        ("v = ''", "v LIKE 'a%'", "v > 'b'", "v = 'ab'"),
    ),
    "large_string": (in_runs(["", "a", "ab", "b", "é"], pa.large_string()), ("v = 'é'", "v LIKE 'é%'")),
    "binary": (in_runs([b"", b"\x00", b"a", b"\xff"], pa.binary()), ("v = X'00'", "v > X'61'", "v = X'ff'")),
    "large_binary": (in_runs([b"", b"\x00", b"a", b"\xff"], pa.large_binary()), ("v = X'00'", "v = X'ff'")),
    "fixed": (in_runs([b"\x00\x00", b"ab", b"\xff\xff"], pa.binary(2)), ("v = X'0000'", "v = X'6162'")),
    "decimal": (
        in_runs([decimal.Decimal("-1.5"), decimal.Decimal(0), decimal.Decimal("99.99")], pa.decimal128(10, 2)),
        ("v = 0", "v > 1", "v <= -1"),
    ),
    "date": (
        in_runs([FIRST_DAY + datetime.timedelta(days) for days in range(9)], pa.date32()),
        ("v = date '2020-01-01'", "v > date '2020-01-07'"),
    ),
    "timestamp": (
        in_runs([datetime.datetime(2020, month, 1, tzinfo=datetime.UTC) for month in range(1, 9)], pa.timestamp("us")),
        ("v = timestamp '2020-01-01 00:00:00'", "v >= timestamp '2020-07-01 00:00:00'"),
    ),
    "nulls": (pa.nulls(ROWS, pa.int32()), ("v = 3", "v < 5")),
    "no nulls": (pa.array(range(ROWS)), ("v = 3", "v > 590")),
}
NULLS = ("v IS NULL",)
FILTERED_TYPES = sorted(TYPES.keys() - {"bool", "decimal", "fixed"})


def delete_some_rows(dataset: lance.LanceDataset) -> None:
    """Delete rows at the edges of fragments and zones, between them, and the first rows of a fragment."""
    dataset.delete("id in (0, 1, 199, 200, 250, 333) or (id >= 400 and id < 520)")


def leave_unchanged(dataset: lance.LanceDataset) -> None:
    """Change nothing."""


def create_table(uri: str, values: pa.Array, *, stable: bool, change: Callable[[lance.LanceDataset], None]) -> None:
    table = pa.table({"id": pa.array(range(ROWS)), "v": values})
    dataset = lance.write_dataset(table, uri, max_rows_per_file=FRAGMENT, enable_stable_row_ids=stable)
    change(dataset)


@pytest.mark.parametrize(
    ("name", "change", "stable"), pairwise(list(TYPES), (leave_unchanged, delete_some_rows), (False, True))
)
def test_pylance_queries_our_zone_maps(name: str, change: Callable[..., None], stable: bool, tmp_path: Path) -> None:
    uri = str(tmp_path)
    values, conditions = TYPES[name]
    create_table(uri, values, stable=stable, change=change)
    commit_our_segment(uri, "v", ZONEMAP, rows_per_zone=ZONE)
    for condition in (*conditions, *NULLS, "v IS NOT NULL"):
        result = query_by_pylance(uri, condition)
        assert result.used_index, condition
        assert result.rows == result.expected, condition


@pytest.mark.parametrize(
    ("name", "change", "stable"), pairwise(list(TYPES), (leave_unchanged, delete_some_rows), (False, True))
)
def test_we_read_zone_maps_of_pylance(name: str, change: Callable[..., None], stable: bool, tmp_path: Path) -> None:
    uri = str(tmp_path)
    values, conditions = TYPES[name]
    create_table(uri, values, stable=stable, change=change)
    lance.dataset(uri).create_scalar_index("v", IndexConfig("zonemap", {"rows_per_zone": ZONE}))
    certainty = check_their_segment(uri, "v", [*conditions, *NULLS])
    assert certainty == {condition: EXACT if condition in NULLS else AT_MOST for condition in certainty}
    assert read_index_options(uri, "v") == ZONEMAP.parse_options({"rows_per_zone": ZONE})
    delete_some_rows(lance.dataset(uri))
    check_their_segment(uri, "v", [*conditions, *NULLS])


def equality_conditions(name: str) -> list[str]:
    """Return the conditions on a column that Bloom filters can answer, and one that matches no row."""
    conditions = [condition for condition in TYPES[name][1] if " = " in condition or " IN " in condition]
    absent_values = {"string": "v = 'zzz'", "int64": "v = 100000", "double": "v = 99.5"}
    return [*conditions, absent_values.get(name, conditions[0])]


@pytest.mark.parametrize(
    ("name", "change", "stable"), pairwise(FILTERED_TYPES, (leave_unchanged, delete_some_rows), (False, True))
)
def test_pylance_queries_our_bloom_filters(
    name: str, change: Callable[..., None], stable: bool, tmp_path: Path
) -> None:
    uri = str(tmp_path)
    create_table(uri, TYPES[name][0], stable=stable, change=change)
    commit_our_segment(uri, "v", BLOOMFILTER, number_of_items=ZONE)
    for condition in (*equality_conditions(name), *NULLS):
        result = query_by_pylance(uri, condition)
        assert result.used_index, condition
        assert result.rows == result.expected, condition


@pytest.mark.parametrize(
    ("name", "change", "stable"), pairwise(FILTERED_TYPES, (leave_unchanged, delete_some_rows), (False, True))
)
def test_we_read_bloom_filters_of_pylance(name: str, change: Callable[..., None], stable: bool, tmp_path: Path) -> None:
    uri = str(tmp_path)
    create_table(uri, TYPES[name][0], stable=stable, change=change)
    config = {"number_of_items": ZONE, "probability": 0.01}
    lance.dataset(uri).create_scalar_index("v", IndexConfig("bloomfilter", config))
    conditions = [*(condition for condition in equality_conditions(name) if "0.0" not in condition), *NULLS]
    certainty = check_their_segment(uri, "v", conditions)
    assert certainty == {condition: EXACT if condition in NULLS else AT_MOST for condition in certainty}
    assert read_index_options(uri, "v") == BLOOMFILTER.parse_options(config)


@pytest.mark.parametrize("name", ["int8", "int64", "string", "timestamp"])
def test_bloom_filters_are_byte_identical(name: str, tmp_path: Path) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    for uri in (ours, theirs):
        create_table(uri, TYPES[name][0], stable=False, change=leave_unchanged)
    commit_our_segment(ours, "v", BLOOMFILTER, number_of_items=ZONE)
    config = {"number_of_items": ZONE}
    lance.dataset(theirs).create_scalar_index("v", IndexConfig("bloomfilter", config))
    assert read_index_file(ours, "bloomfilter.lance") == read_index_file(theirs, "bloomfilter.lance")


@pytest.mark.parametrize("name", sorted(TYPES.keys() - {"fixed", "double", "float", "nulls"}))
def test_zone_maps_are_identical(name: str, tmp_path: Path) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    for uri in (ours, theirs):
        create_table(uri, TYPES[name][0], stable=False, change=delete_some_rows)
    commit_our_segment(ours, "v", ZONEMAP, rows_per_zone=ZONE)
    lance.dataset(theirs).create_scalar_index("v", IndexConfig("zonemap", {"rows_per_zone": ZONE}))
    assert read_index_file(ours, "zonemap.lance") == read_index_file(theirs, "zonemap.lance")


def read_index_file(uri: str, name: str) -> tuple[pa.Table, dict[bytes, bytes], bytes]:
    (path,) = Path(uri).glob(f"_indices/*/{name}")
    reader = LanceFileReader(str(path))
    schema = reader.metadata().schema
    table = reader.read_all().to_table().replace_schema_metadata(None)
    metadata = {key: value for key, value in schema.metadata.items() if key != WRITER_KEY.encode()}
    return table, metadata, reader.read_global_buffer(1)


def test_columns_of_type_null_are_scanned(tmp_path: Path) -> None:
    """The writer of pylance counts no nulls in it, so its own reader finds none."""
    dataset = lance.write_dataset(pa.table({"id": range(9), "v": pa.nulls(9)}), tmp_path / "t", max_rows_per_file=3)
    dataset.create_scalar_index("v", "ZONEMAP")
    table = Table.open(str(tmp_path / "t"))
    assert table.count_rows("v IS NULL") == 9
    assert table.count_rows("v IS NOT NULL") == 0
