"""Each row is in exactly one partition: time windows near changes of time, and keys as values of every type.

The tests compute the partition of a value from Dagster's windows and from what clocks show minute by minute.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from lance_assets import SparkOverwrite
from lance_assets.io_manager.partition_predicates import NO_ROWS, Columns, partition_predicate
from lance_assets.io_manager.partition_windows import check_windows
from lance_core import InvalidInput, Table
from lance_core.expressions import Predicate

Integers = npt.NDArray[np.int64]

CHANGES = [
    ("UTC", "2026-03-08"),
    ("Asia/Tokyo", "2026-03-08"),
    ("Asia/Kathmandu", "2026-03-08"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2025-11-02"),
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2025-10-26"),
    ("America/Havana", "2026-03-08"),  # At midnight.
    ("America/Havana", "2025-11-02"),
    ("Australia/Lord_Howe", "2026-04-05"),  # By half an hour.
    ("Australia/Lord_Howe", "2025-10-05"),
    ("Pacific/Apia", "2011-12-30"),  # A whole day is skipped.
]
MINUTES, DAYS = "%Y-%m-%d-%H:%M", "%Y-%m-%d"
SCHEDULES = [
    ("0 * * * *", MINUTES, 0.25),
    ("*/30 * * * *", MINUTES, 0.15),
    ("30 * * * *", "%d.%m.%Y %H.%M %z", 0.2),
    ("0 */6 * * *", MINUTES, 1),
    ("0 0 * * *", DAYS, 3),
    ("30 2 * * *", DAYS, 3),
    ("30 1 * * *", DAYS, 3),
    ("0 0 * * 0", "%G-%V-%u", 14),
    ("15 4 * * 1,4", DAYS, 8),
    ("0 0 1 * *", "%Y-%m", 60),
]
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
UNEVEN = ("Australia/Lord_Howe", "Pacific/Apia")
"""Zones in which Dagster lists keys without windows of their own."""


@pytest.mark.parametrize(("cron", "fmt", "reach"), SCHEDULES, ids=[cron for cron, *_ in SCHEDULES])
@pytest.mark.parametrize(("zone", "day"), CHANGES, ids=[f"{zone}-{day}" for zone, day in CHANGES])
def test_every_value_is_in_the_partition_of_its_first_moment(
    zone: str, day: str, cron: str, fmt: str, reach: float
) -> None:
    partitions = windows_around(zone, day, cron, fmt, reach)
    windows = own_windows(partitions, pa.timestamp("s", "UTC"))
    bounds = np.array([bound for _, start, end in windows for bound in (start, end)], np.int64)
    turn = (CHANGES.index((zone, day)) + len(cron)) % 4
    unit, other_unit = list(PER_SECOND)[turn], list(PER_SECOND)[turn - 1]
    clock = Clock(zone, int(bounds.min()) - 3 * 86400, int(bounds.max()) + 3 * 86400)
    samples = np.concatenate([bounds, np.linspace(bounds.min() - 5400, bounds.max() + 5400, 60).astype(np.int64)])
    local = np.concatenate([clock.shown_at(samples), clock.shown_at(samples) + 1800, clock.shown_at(samples) - 3600])

    def around(seconds: Integers, per_second: int) -> Integers:
        exact = np.unique(seconds) * per_second
        return np.unique(np.concatenate([exact - 1, exact, exact + 1]))

    of_zone = pa.timestamp(unit, (zone, "UTC", "America/New_York", "-05:00")[turn])
    moments = around(samples, PER_SECOND[unit])
    check_homes(partitions, windows, of_zone, moments, moments * (10**9 // PER_SECOND[unit]))
    naive = around(local, PER_SECOND[other_unit])
    check_homes(
        partitions,
        windows,
        pa.timestamp(other_unit),
        naive,
        clock.first_moments(naive * (10**9 // PER_SECOND[other_unit])),
    )
    if cron.startswith("0 0 "):
        dates = np.unique(local // 86400)
        check_homes(partitions, windows, pa.date32(), dates, clock.first_moments(dates * 86400 * 10**9))


def windows_around(zone: str, day: str, cron: str, fmt: str, reach: float) -> dg.TimeWindowPartitionsDefinition:
    middle = datetime.fromisoformat(day)
    return dg.TimeWindowPartitionsDefinition(
        cron_schedule=cron,
        start=middle - timedelta(days=reach - 0.1 if reach < 1 else reach),
        end=middle + timedelta(days=reach + 1),
        fmt=fmt,
        timezone=zone,
    )


def own_windows(partitions: dg.TimeWindowPartitionsDefinition, kind: pa.DataType) -> list[tuple[str, int, int]]:
    """Return each key with the start and end of its window, without the keys that are refused."""
    windows, schema = [], pa.schema({"t": kind})
    for key in partitions.get_partition_keys():
        window = partitions.time_window_for_partition_key(key)
        if partitions.get_partition_key_for_timestamp(window.start.timestamp()) != key:
            assert partitions.timezone in UNEVEN
            with pytest.raises(InvalidInput, match="have one time window"):
                partition_predicate(partitions, [key], "t", schema, subject="x")
            continue
        windows.append((key, int(window.start.timestamp()), int(window.end.timestamp())))
    assert len(windows) > 1
    assert all(one[2] <= other[1] for one, other in pairwise(windows))
    return windows


def check_homes(
    partitions: dg.TimeWindowPartitionsDefinition,
    windows: Sequence[tuple[str, int, int]],
    kind: pa.DataType,
    values: Integers,
    moments: Integers,
) -> None:
    """Check which partition has each value. `moments` are those to which they belong, in nanoseconds."""
    schema = pa.schema({"t": kind})
    stored = pa.array(values.astype(np.int32 if kind == pa.date32() else np.int64)).cast(kind)
    batch = pa.record_batch([stored], schema=schema)
    found = np.zeros(len(values), np.int64)
    for key, start, end in windows:
        expected = (moments >= start * 10**9) & (moments < end * 10**9)
        rows = rows_of(partition_predicate(partitions, [key], "t", schema, subject="x"), batch)
        wrong = np.flatnonzero(rows != expected)
        assert not len(wrong), (key, kind, stored[wrong[0]], "found" if rows[wrong[0]] else "missing")
        found += rows
    assert found.max() == 1
    # All of them at once, as for a backfill in one run.
    together = partition_predicate(partitions, [key for key, *_ in windows], "t", schema, subject="x")
    assert (rows_of(together, batch) == found.astype(bool)).all()


def rows_of(predicate: str, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    return Predicate.parse(predicate, batch.schema).mask(batch).to_numpy(zero_copy_only=False)


class Clock:
    """Clocks of a zone, minute by minute."""

    def __init__(self, zone: str, start: int, end: int) -> None:
        info = ZoneInfo(zone)
        self.minutes = np.arange(start // 60 * 60, end, 60)
        # Offsets are read each quarter of an hour, which is when clocks change.
        quarters = self.minutes // 900 * 900
        distinct, position = np.unique(quarters, return_inverse=True)
        offsets = [datetime.fromtimestamp(int(each), info).utcoffset() or timedelta(0) for each in distinct]
        self.shown = self.minutes + np.array([int(each.total_seconds()) for each in offsets])[position]
        self.latest = np.maximum.accumulate(self.shown)

    def shown_at(self, moments: Integers) -> Integers:
        position = np.searchsorted(self.minutes, moments, side="right") - 1
        shown: Integers = self.shown[position] + moments - self.minutes[position]
        return shown

    def first_moments(self, local: Integers) -> Integers:
        """Return when a clock first shows each local time or a later one. Times are in nanoseconds."""
        shown = self.latest * 10**9
        reached = np.searchsorted(shown, local, side="left")
        before = shown[reached - 1]
        first = np.searchsorted(shown, before, side="left")
        within = self.minutes[first] * 10**9 + np.minimum(local - before, 60 * 10**9)
        moments: Integers = np.where(shown[reached] == local, self.minutes[reached] * 10**9, within)
        return moments


def test_pylance_finds_the_same_rows_with_and_without_indices(tmp_path: Path) -> None:
    hourly = windows_around("America/New_York", "2025-11-02", "0 * * * *", MINUTES, 0.25)
    keys = hourly.get_partition_keys()[3:9]
    assert "2025-11-02-01:00-0500" in keys
    first = int(hourly.time_window_for_partition_key(keys[0]).start.timestamp())
    seconds = np.concatenate([first + 1800 * np.arange(14) + nudge for nudge in (-1, 0, 1)])
    kinds = [pa.timestamp(unit, zone) for unit in PER_SECOND for zone in (None, "UTC", "America/New_York", "+05:45")]
    columns = {
        f"t{n}": pa.array((seconds - (0 if kind.tz else 4 * 3600)) * PER_SECOND[kind.unit]).cast(kind)
        for n, kind in enumerate(kinds)
    }
    table = Table.create(tmp_path / "t", pa.table({"n": range(len(seconds)), **columns}))
    predicates = [
        partition_predicate(hourly, [key], name, table.schema, subject="x") for key in keys for name in columns
    ]
    batch = table.to_table().combine_chunks().to_batches()[0]
    expected = [np.flatnonzero(rows_of(predicate, batch)).tolist() for predicate in predicates]
    assert sum(map(len, expected)) > len(columns) * len(keys)
    dataset = lance.dataset(table.uri)
    assert [found_by(dataset, predicate) for predicate in predicates] == expected
    for n, name in enumerate(columns):
        dataset.create_scalar_index(name, ("BTREE", "ZONEMAP", "BITMAP")[n % 3])
    assert [found_by(dataset, predicate) for predicate in predicates] == expected
    table = table.refresh()
    assert [table.to_table(filter=predicate)["n"].to_pylist() for predicate in predicates] == expected


def found_by(dataset: lance.LanceDataset, predicate: str) -> list[Any]:
    rows: list[Any] = dataset.to_table(columns=["n"], filter=predicate)["n"].to_pylist()
    return rows


VALUES: list[tuple[pa.DataType, list[str], list[Any]]] = [
    (pa.string(), ["1", "01", "+1", "", "it's", 'a"b', "a\\'b", "%", "`", "é", "e\u0301", "--", ":x"], []),
    (pa.large_string(), ["a", "A", "a ", " a"], []),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b"], ["a", "b", "c"]),
    (pa.int8(), ["-128", "0", "127"], [-128, -127, 0, 126, 127]),
    (pa.uint64(), ["18446744073709551615", "00", "+7"], [2**64 - 1, 2**63, 0, 7]),
    (pa.bool_(), ["true", "False"], [True, False]),
    (pa.date32(), ["2026-01-01", "20260102"], [date(2026, 1, 1), date(2026, 1, 2), date(2025, 12, 31)]),
    (pa.date64(), ["2026-01-01", "2026-W01-5"], [date(2026, 1, 1), date(2026, 1, 2), date(2025, 12, 31)]),
    (pa.decimal128(10, 2), ["1.5", "-0", "1e2", "99999999.99"], [Decimal(x) for x in ("1.5", "1.51", "0", "100")]),
    (pa.decimal256(50, 0), ["1", "9" * 50], [Decimal(1), Decimal("9" * 50), Decimal("9" * 49 + "8")]),
]


@pytest.mark.parametrize(("kind", "keys", "values"), VALUES, ids=[str(kind) for kind, *_ in VALUES])
def test_every_value_is_in_one_partition(tmp_path: Path, kind: pa.DataType, keys: list[str], values: list[Any]) -> None:
    partitions = dg.StaticPartitionsDefinition(keys)
    column = pa.array([*(values or keys), None], kind)
    table = Table.create(tmp_path / "t", pa.table({"n": range(len(column)), "v": column}))
    dataset, found = lance.dataset(table.uri), []
    for key in keys:
        predicate = partition_predicate(partitions, [key], "v", table.schema, subject="x")
        rows = table.to_table(filter=predicate)["n"].to_pylist()
        assert found_by(dataset, predicate) == rows
        found += rows
    assert len(found) == len(set(found))
    assert len(column) - 1 not in found
    if not values:
        assert sorted(found) == list(range(len(keys)))
    together = partition_predicate(partitions, keys, "v", table.schema, subject="x")
    assert table.to_table(filter=together)["n"].to_pylist() == sorted(found)


ONE_VALUE: list[tuple[pa.DataType, list[str]]] = [
    (pa.int64(), ["1", "01"]),
    (pa.int64(), ["1", "+1"]),
    (pa.int64(), ["0", "-0"]),
    (pa.bool_(), ["true", "True"]),
    (pa.date32(), ["2026-01-01", "20260101"]),
    (pa.date64(), ["2026-01-01", "2026-W01-4"]),
    (pa.decimal128(10, 2), ["1.5", "1.50"]),
    (pa.decimal128(10, 2), ["100", "1e2"]),
]


@pytest.mark.parametrize(("kind", "keys"), ONE_VALUE)
@pytest.mark.parametrize("definition", ["static", "dynamic", "of two dimensions"])
def test_two_keys_of_one_value_are_refused(definition: str, kind: pa.DataType, keys: list[str]) -> None:
    """Whichever of them is materialized; as text they are two."""
    static, name = dg.StaticPartitionsDefinition([*keys, "other"]), "v"
    partitions: dg.PartitionsDefinition[str] = static
    columns: Columns = name
    asked, list_keys = keys, lambda definition: definition.get_partition_keys()
    if definition == "dynamic":
        partitions, list_keys = dg.DynamicPartitionsDefinition(name="d"), lambda _: static.get_partition_keys()
    if definition == "of two dimensions":
        partitions = dg.MultiPartitionsDefinition({"a": static, "b": dg.StaticPartitionsDefinition(["x"])})
        columns, asked = {"a": name, "b": "w"}, [f"{key}|x" for key in keys]
    for key in asked:
        schema = pa.schema({name: kind, "w": pa.string()})
        with pytest.raises(InvalidInput) as refused:
            partition_predicate(partitions, [key], columns, schema, subject="the asset x", list_keys=list_keys)
        assert all(repr(each) in str(refused.value) for each in keys)
        text = pa.schema({name: pa.string(), "w": pa.string()})
        assert partition_predicate(partitions, [key], columns, text, subject="x", list_keys=list_keys)


@pytest.mark.parametrize(
    ("kind", "key", "said"),
    [
        (pa.uint8(), "256", "'256' cannot be converted to uint8"),
        (pa.uint64(), "-1", "'-1' cannot be converted to uint64"),
        (pa.decimal128(10, 2), "1.505", "'1.505' cannot be converted"),
        (pa.decimal128(10, 2), "nan", "'nan' cannot be converted"),
        (pa.decimal128(10, 2), "1e400", "'1e400' cannot be converted"),
        (pa.date32(), "2026-02-30", "'2026-02-30' cannot be converted"),
        (pa.bool_(), "", "'' cannot be converted to bool"),
        (pa.float64(), "nan", "partition columns must be text"),
        (pa.float16(), "-0.0", "partition columns must be text"),
        (pa.timestamp("us"), "2026-01-01", "partition columns must be text"),
    ],
)
def test_keys_that_are_no_value_of_the_column_are_refused(kind: pa.DataType, key: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        partition_predicate(dg.StaticPartitionsDefinition([key]), [key], "v", pa.schema({"v": kind}), subject="x")
    assert said in str(refused.value)


def test_windows_that_dagster_gives_to_two_keys_are_refused() -> None:
    apia = dg.DailyPartitionsDefinition("2011-12-28", end_date="2012-01-03", timezone="Pacific/Apia")
    assert {"2011-12-30", "2011-12-31"} <= set(apia.get_partition_keys())
    schema = pa.schema({"t": pa.timestamp("us", "UTC")})
    with pytest.raises(InvalidInput, match="'2011-12-30' and '2011-12-31' have one time window"):
        partition_predicate(apia, ["2011-12-30"], "t", schema, subject="x")
    coarse = dg.HourlyPartitionsDefinition("2026-01-01", end_date="2026-01-03", fmt="%Y-%m-%d")
    with pytest.raises(InvalidInput, match="'2026-01-01' has several time windows, because fmt='%Y-%m-%d'"):
        partition_predicate(coarse, ["2026-01-01"], "t", schema, subject="x")
    excluding = dg.TimeWindowPartitionsDefinition(
        cron_schedule="0 0 * * *", start="2026-01-01", fmt=DAYS, exclusions=["0 0 * * 6", "0 0 * * 0"]
    )
    with pytest.raises(InvalidInput, match="'2026-01-03' and '2026-01-05' have one time window"):
        partition_predicate(excluding, ["2026-01-03"], "t", schema, subject="x")
    assert "01-02T00" in partition_predicate(excluding, ["2026-01-02"], "t", schema, subject="x")


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        (dg.DailyPartitionsDefinition("2001-12-28", timezone="Pacific/Apia"), "'2011-12-30' and '2011-12-31' have one"),
        (dg.HourlyPartitionsDefinition("2026-01-01-10:00", fmt="%Y-%m-%d-%I:%M"), "'2026-01-01-10:00' has several"),
        (dg.HourlyPartitionsDefinition("2026-01-01", fmt="%Y-%m-%d"), "'2026-01-01' has several time windows"),
        (dg.DailyPartitionsDefinition("02", fmt="%d"), "'02' has several time windows"),
    ],
)
@pytest.mark.parametrize("is_dimension", [False, True])
def test_equal_keys_are_refused_when_the_definition_is_loaded(
    partitions: dg.PartitionsDefinition[str], message: str, is_dimension: bool
) -> None:
    if is_dimension:
        cities = dg.StaticPartitionsDefinition(["Oslo"])
        partitions = dg.MultiPartitionsDefinition({"at": partitions, "city": cities})
    with pytest.raises(InvalidInput, match=message):
        SparkOverwrite("o", lambda *_: None, partitions=partitions, partition_expr="t")  # type: ignore[arg-type]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "America/Havana"])
def test_sound_definitions_are_loaded(zone: str) -> None:
    for partitions in (
        dg.HourlyPartitionsDefinition("2012-01-05-00:00", timezone=zone),
        dg.DailyPartitionsDefinition("2012-01-05", timezone=zone, hour_offset=2, minute_offset=30),
        dg.WeeklyPartitionsDefinition("2012-01-05", timezone=zone),
        dg.MonthlyPartitionsDefinition("2012-01-05", timezone=zone),
        dg.DailyPartitionsDefinition("2999-01-01", timezone=zone),
        dg.TimeWindowPartitionsDefinition(
            cron_schedule="0 0 * * *", start="2020-01-01", timezone=zone, fmt=DAYS, exclusions=["0 0 * * 6"]
        ),
        dg.DailyPartitionsDefinition("2011-12-28", timezone=zone, exclusions=[datetime(2011, 12, 30)]),  # noqa: DTZ001
        dg.DynamicPartitionsDefinition(name="any"),
    ):
        check_windows(partitions, "x")


def test_the_window_of_the_last_partition_may_end_later() -> None:
    ahead = dg.DailyPartitionsDefinition("2026-01-01", end_offset=2, hour_offset=5)
    last = ahead.get_partition_keys()[-1]
    start = datetime.fromisoformat(last).replace(hour=5, tzinfo=UTC)
    schema = pa.schema({"t": pa.timestamp("us", "UTC")})
    batch = pa.record_batch([pa.array([start, start + timedelta(hours=23), start + timedelta(days=1)])], schema=schema)
    rows = rows_of(partition_predicate(ahead, [last], "t", schema, subject="x"), batch)
    assert rows.tolist() == [True, True, False]


def test_the_second_of_two_equal_hours_is_empty_without_a_zone() -> None:
    hourly = windows_around("America/New_York", "2025-11-02", "0 * * * *", MINUTES, 0.25)
    both = ["2025-11-02-01:00", "2025-11-02-01:00-0500"]
    naive = pa.schema({"t": pa.timestamp("us")})
    assert partition_predicate(hourly, both[1:], "t", naive, subject="x") == NO_ROWS
    first = partition_predicate(hourly, both[:1], "t", naive, subject="x")
    assert partition_predicate(hourly, both, "t", naive, subject="x") == first
    multi = dg.MultiPartitionsDefinition({"at": hourly, "b": dg.StaticPartitionsDefinition(["x"])})
    schema = pa.schema({"t": pa.timestamp("us"), "b": pa.string()})
    columns = {"at": "t", "b": "b"}
    assert partition_predicate(multi, [f"{both[1]}|x"], columns, schema, subject="x") == NO_ROWS
    assert partition_predicate(multi, [f"{key}|x" for key in both], columns, schema, subject="x") == (
        f"({first} and `b` = 'x')"
    )


def every(partitions: dg.PartitionsDefinition[str]) -> Iterator[str]:
    yield from partitions.get_partition_keys()


def test_partitions_of_two_dimensions_share_no_row() -> None:
    daily = dg.DailyPartitionsDefinition("2025-10-25", end_date="2025-10-28", timezone="Europe/Berlin")
    multi = dg.MultiPartitionsDefinition({"day": daily, "shop": dg.StaticPartitionsDefinition(["1", "2"])})
    schema = pa.schema({"at": pa.timestamp("ms", "UTC"), "shop": pa.int16()})
    hours = [datetime(2025, 10, 24, 12, tzinfo=UTC) + timedelta(hours=n) for n in range(96)]
    batch = pa.record_batch([pa.array(hours * 3), pa.array([1] * 96 + [2] * 96 + [None] * 96)], schema=schema)
    columns = {"day": "at", "shop": "shop"}
    found = np.sum(
        [rows_of(partition_predicate(multi, [key], columns, schema, subject="x"), batch) for key in every(multi)],
        axis=0,
    )
    expected = [
        datetime(2025, 10, 24, 22, tzinfo=UTC) <= hour < datetime(2025, 10, 27, 23, tzinfo=UTC) for hour in hours
    ]
    assert found.tolist() == [int(each) for each in expected] * 2 + [0] * 96
