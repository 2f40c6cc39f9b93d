"""Partition predicates: the condition of each kind of partition, and the rows that it selects."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets.io_manager.partition_predicates import Columns, partition_predicate
from lance_core import InvalidInput, Table

DAILY = dg.DailyPartitionsDefinition(start_date="2026-03-01")
OSLO = dg.HourlyPartitionsDefinition(start_date="2026-03-28-00:00", timezone="Europe/Oslo")
CITIES = dg.StaticPartitionsDefinition(["Oslo", "L'Aquila", "7", "true"])
BOTH = dg.MultiPartitionsDefinition({"day": DAILY, "city": CITIES})
DAYS = [date(2026, 3, 1) + timedelta(days) for days in range(4)]
NOON = [datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(days) for days in range(4)]


@pytest.mark.parametrize(
    ("partitions", "keys", "values", "expected_ids"),
    [
        (DAILY, ["2026-03-02"], pa.array(DAYS), [1]),
        (DAILY, ["2026-03-02", "2026-03-03"], pa.array(DAYS), [1, 2]),
        (DAILY, ["2026-03-01", "2026-03-04"], pa.array(DAYS), [0, 3]),
        (DAILY, ["2026-03-02"], pa.array(["2026-03-02", "2026-03-2", None]), [0]),
        (DAILY, ["2026-03-02"], pa.array(NOON, pa.timestamp("us", "UTC")), [1]),
        (DAILY, ["2026-03-02"], pa.array([each.replace(tzinfo=None) for each in NOON], pa.timestamp("ms")), [1]),
        # The night in which the clocks go forward is one hour shorter.
        (
            OSLO,
            ["2026-03-29-01:00"],
            pa.array([datetime(2026, 3, 29, 0, 59, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            [0],
        ),
        (
            OSLO,
            ["2026-03-29-03:00"],
            pa.array([datetime(2026, 3, 29, 0, 59, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            [],
        ),
        (CITIES, ["L'Aquila"], pa.array(["Oslo", "L'Aquila"], pa.large_string()), [1]),
        (CITIES, ["7"], pa.array([6, 7], pa.uint8()), [1]),
        (CITIES, ["true"], pa.array([False, True]), [1]),
        (CITIES, [], pa.array(["Oslo"]), []),
    ],
)
def test_rows_of_partitions(
    tmp_path_factory: pytest.TempPathFactory,
    partitions: dg.PartitionsDefinition[str],
    keys: Sequence[str],
    values: pa.Array,
    expected_ids: list[int],
) -> None:
    table = Table.create(tmp_path_factory.mktemp("t") / "t", pa.table({"n": range(len(values)), "A b": values}))
    condition = partition_predicate(partitions, keys, "A b", table.schema, subject="x")
    assert table.to_table(filter=condition)["n"].to_pylist() == expected_ids


def test_partitions_of_two_dimensions() -> None:
    schema = pa.schema({"d": pa.date32(), "c": pa.string()})
    keys = ["Oslo|2026-03-01", "7|2026-03-02"]
    assert partition_predicate(BOTH, keys, {"day": "d", "city": "c"}, schema, subject="x") == (
        "(`c` = 'Oslo' and `d` >= date '2026-03-01' and `d` < date '2026-03-02') or "
        "(`c` = '7' and `d` >= date '2026-03-02' and `d` < date '2026-03-03')"
    )


def test_consecutive_windows_are_one_range() -> None:
    keys = DAILY.get_partition_keys(current_time=datetime(2027, 3, 1, tzinfo=ZoneInfo("UTC")))
    condition = partition_predicate(DAILY, keys, "d", pa.schema({"d": pa.date32()}), subject="x")
    assert condition == "`d` >= date '2026-03-01' and `d` < date '2027-03-01'"


@pytest.mark.parametrize(
    ("partitions", "key", "by", "kind", "message"),
    [
        (DAILY, "2026-03-01", "e", pa.date32(), "the asset x is partitioned by 'e', but has no such column; it has d"),
        (DAILY, "2026-03-01", {"day": "d"}, pa.date32(), "partitions of one dimension"),
        (BOTH, "Oslo|2026-03-01", "d", pa.date32(), "partitions of several dimensions"),
        (BOTH, "Oslo|2026-03-01", {"day": "d"}, pa.date32(), "partitions of several dimensions"),
        (OSLO, "2026-03-29-03:00", "d", pa.date32(), "the column 'd' holds dates"),
        (DAILY, "2026-03-01", "d", pa.float64(), "partitions by time need dates, timestamps or text"),
        (CITIES, "Oslo", "d", pa.int32(), "the partition 'Oslo' cannot be converted to int32"),
        (CITIES, "Oslo", "d", pa.bool_(), "the partition 'Oslo' cannot be converted to bool"),
        (
            CITIES,
            "Oslo",
            "d",
            pa.float32(),
            "partition columns must be text, whole numbers, booleans, dates or decimals",
        ),
    ],
)
def test_unsupported_partitions_are_named(
    partitions: dg.PartitionsDefinition[str], key: str, by: Columns, kind: Any, message: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        partition_predicate(partitions, [key], by, pa.schema({"d": kind}), subject="the asset x")
    assert message in str(refused.value)
