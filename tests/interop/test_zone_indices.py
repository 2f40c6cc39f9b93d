"""ZONEMAP and BLOOMFILTER: ours used by pylance, and those of pylance read by us."""

import datetime
import decimal
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.indices import IndexConfig

from lance_core.index.kind import Certainty
from lance_core.index.zonemap import ZoneMap
from tests.interop.indexing import by_plan, check_theirs, commit_ours, options_of

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
    commit_ours(uri, "v", ZoneMap(), rows_per_zone=ZONE)
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
    assert options_of(uri, "v") == ZoneMap().options({"rows_per_zone": ZONE})
    deleted(lance.dataset(uri))
    check_theirs(uri, "v", [*sqls, *NULLS])
