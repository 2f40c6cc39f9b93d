"""ZONEMAP and BLOOMFILTER: ours used by pylance, and those of pylance read by us."""

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
from tests.interop.segment_exchange import by_plan, check_theirs, commit_ours, options_of

ROWS = 600
FRAGMENT = 200
ZONE = 50
EXACT, AT_MOST = Certainty.EXACT, Certainty.AT_MOST
DAY = datetime.date(2020, 1, 1)


def repeated(values: Sequence[object], arrow: pa.DataType) -> pa.Array:
    """In stretches, so that zones differ, with a NULL here and there."""
    found = [values[at * len(values) // ROWS] if at % 7 else None for at in range(ROWS)]
    return pa.array(found, arrow)


TYPES: dict[str, tuple[pa.Array, tuple[str, ...]]] = {
    "int64": (pa.array([each if each % 7 else None for each in range(ROWS)]), ("v = 300", "v < 20", "v IN (3, 500)")),
    "int8": (repeated(range(-100, 100), pa.int8()), ("v = -100", "v > 97", "v IN (1, 5)")),
    "uint64": (repeated([0, 5, 2**63, 2**64 - 1], pa.uint64()), ("v = 5", "v > 5", "v >= 18446744073709551615")),
    "double": (
        repeated([-math.inf, -1.5, -0.0, 0.0, 1.5, math.nan, 7.0, math.inf], pa.float64()),
        ("v = 0.0", "v = -0.0", "v < 0.0", "v >= -0.0", "v > 5", "v = 7", "v <= -1.5", "v IN (0.0, 7.0)"),
    ),
    "float": (repeated([-1.5, -0.0, 0.0, math.nan, 0.1], pa.float32()), ("v = 0.0", "v = 0.1", "v > 0.05", "v < 0")),
    "bool": (repeated([False, True], pa.bool_()), ("v",)),
    "string": (repeated(["", "a", "ab", "b", "é"], pa.string()), ("v = ''", "v LIKE 'a%'", "v > 'b'", "v = 'ab'")),
    "large_string": (repeated(["", "a", "ab", "b", "é"], pa.large_string()), ("v = 'é'", "v LIKE 'é%'")),
    "binary": (repeated([b"", b"\x00", b"a", b"\xff"], pa.binary()), ("v = X'00'", "v > X'61'", "v = X'ff'")),
    "large_binary": (repeated([b"", b"\x00", b"a", b"\xff"], pa.large_binary()), ("v = X'00'", "v = X'ff'")),
    "fixed": (repeated([b"\x00\x00", b"ab", b"\xff\xff"], pa.binary(2)), ("v = X'0000'", "v = X'6162'")),
    "decimal": (
        repeated([decimal.Decimal("-1.5"), decimal.Decimal(0), decimal.Decimal("99.99")], pa.decimal128(10, 2)),
        ("v = 0", "v > 1", "v <= -1"),
    ),
    "date": (
        repeated([DAY + datetime.timedelta(days) for days in range(9)], pa.date32()),
        ("v = date '2020-01-01'", "v > date '2020-01-07'"),
    ),
    "timestamp": (
        repeated([datetime.datetime(2020, month, 1, tzinfo=datetime.UTC) for month in range(1, 9)], pa.timestamp("us")),
        ("v = timestamp '2020-01-01 00:00:00'", "v >= timestamp '2020-07-01 00:00:00'"),
    ),
    "nulls": (pa.nulls(ROWS, pa.int32()), ("v = 3", "v < 5")),
    "no nulls": (pa.array(range(ROWS)), ("v = 3", "v > 590")),
}
NULLS = ("v IS NULL",)
FILTERED = sorted(TYPES.keys() - {"bool", "decimal", "fixed"})


def deleted(dataset: lance.LanceDataset) -> None:
    """At the edges of fragments and of zones, in between, and a whole fragment's beginning."""
    dataset.delete("id in (0, 1, 199, 200, 250, 333) or (id >= 400 and id < 520)")


def untouched(dataset: lance.LanceDataset) -> None:
    """As it was."""


def made(uri: str, values: pa.Array, *, stable: bool, change: Callable[[lance.LanceDataset], None]) -> None:
    table = pa.table({"id": pa.array(range(ROWS)), "v": values})
    dataset = lance.write_dataset(table, uri, max_rows_per_file=FRAGMENT, enable_stable_row_ids=stable)
    change(dataset)


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable ids"])
@pytest.mark.parametrize("change", [untouched, deleted])
@pytest.mark.parametrize("name", TYPES)
def test_pylance_uses_our_zones(name: str, change: Callable[..., None], stable: bool, tmp_path: Path) -> None:
    uri = str(tmp_path)
    values, sqls = TYPES[name]
    made(uri, values, stable=stable, change=change)
    commit_ours(uri, "v", ZONEMAP, rows_per_zone=ZONE)
    for sql in (*sqls, *NULLS, "v IS NOT NULL"):
        answer = by_plan(uri, sql)
        assert answer.used, sql
        assert answer.rows == answer.expected, sql


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable ids"])
@pytest.mark.parametrize("change", [untouched, deleted])
@pytest.mark.parametrize("name", TYPES)
def test_we_read_the_zones_of_pylance(name: str, change: Callable[..., None], stable: bool, tmp_path: Path) -> None:
    uri = str(tmp_path)
    values, sqls = TYPES[name]
    made(uri, values, stable=stable, change=change)
    lance.dataset(uri).create_scalar_index("v", IndexConfig("zonemap", {"rows_per_zone": ZONE}))
    said = check_theirs(uri, "v", [*sqls, *NULLS])
    assert said == {sql: EXACT if sql in NULLS else AT_MOST for sql in said}
    assert options_of(uri, "v") == ZONEMAP.parse_options({"rows_per_zone": ZONE})
    deleted(lance.dataset(uri))
    check_theirs(uri, "v", [*sqls, *NULLS])


def equalities(name: str) -> list[str]:
    """Those conditions on a column that filters can answer, and one more."""
    given = [sql for sql in TYPES[name][1] if " = " in sql or " IN " in sql]
    absent = {"string": "v = 'zzz'", "int64": "v = 100000", "double": "v = 99.5"}
    return [*given, absent.get(name, given[0])]


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable ids"])
@pytest.mark.parametrize("change", [untouched, deleted])
@pytest.mark.parametrize("name", FILTERED)
def test_pylance_uses_our_filters(name: str, change: Callable[..., None], stable: bool, tmp_path: Path) -> None:
    uri = str(tmp_path)
    made(uri, TYPES[name][0], stable=stable, change=change)
    commit_ours(uri, "v", BLOOMFILTER, number_of_items=ZONE)
    for sql in (*equalities(name), *NULLS):
        answer = by_plan(uri, sql)
        assert answer.used, sql
        assert answer.rows == answer.expected, sql


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable ids"])
@pytest.mark.parametrize("change", [untouched, deleted])
@pytest.mark.parametrize("name", FILTERED)
def test_we_read_the_filters_of_pylance(name: str, change: Callable[..., None], stable: bool, tmp_path: Path) -> None:
    uri = str(tmp_path)
    made(uri, TYPES[name][0], stable=stable, change=change)
    config = {"number_of_items": ZONE, "probability": 0.01}
    lance.dataset(uri).create_scalar_index("v", IndexConfig("bloomfilter", config))
    sqls = [*(sql for sql in equalities(name) if "0.0" not in sql), *NULLS]
    said = check_theirs(uri, "v", sqls)
    assert said == {sql: EXACT if sql in NULLS else AT_MOST for sql in said}
    assert options_of(uri, "v") == BLOOMFILTER.parse_options(config)


@pytest.mark.parametrize("name", ["int8", "int64", "string", "timestamp"])
def test_filters_are_the_same_bytes(name: str, tmp_path: Path) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    for uri in (ours, theirs):
        made(uri, TYPES[name][0], stable=False, change=untouched)
    commit_ours(ours, "v", BLOOMFILTER, number_of_items=ZONE)
    config = {"number_of_items": ZONE}
    lance.dataset(theirs).create_scalar_index("v", IndexConfig("bloomfilter", config))
    assert file_of(ours, "bloomfilter.lance") == file_of(theirs, "bloomfilter.lance")


@pytest.mark.parametrize("name", sorted(TYPES.keys() - {"fixed", "double", "float", "nulls"}))
def test_zones_are_the_same(name: str, tmp_path: Path) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    for uri in (ours, theirs):
        made(uri, TYPES[name][0], stable=False, change=deleted)
    commit_ours(ours, "v", ZONEMAP, rows_per_zone=ZONE)
    lance.dataset(theirs).create_scalar_index("v", IndexConfig("zonemap", {"rows_per_zone": ZONE}))
    assert file_of(ours, "zonemap.lance") == file_of(theirs, "zonemap.lance")


def file_of(uri: str, name: str) -> tuple[pa.Table, dict[bytes, bytes], bytes]:
    (path,) = Path(uri).glob(f"_indices/*/{name}")
    reader = LanceFileReader(str(path))
    schema = reader.metadata().schema
    table = reader.read_all().to_table().replace_schema_metadata(None)
    metadata = {key: value for key, value in schema.metadata.items() if key != WRITER_KEY.encode()}
    return table, metadata, reader.read_global_buffer(1)


def test_a_column_of_nothing_but_null_is_scanned(tmp_path: Path) -> None:
    """The reference writer counts no NULL there, and its own reader then finds none."""
    dataset = lance.write_dataset(pa.table({"id": range(9), "v": pa.nulls(9)}), tmp_path / "t", max_rows_per_file=3)
    dataset.create_scalar_index("v", "ZONEMAP")
    table = Table.open(str(tmp_path / "t"))
    assert table.count_rows("v IS NULL") == 9
    assert table.count_rows("v IS NOT NULL") == 0
