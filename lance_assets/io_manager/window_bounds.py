"""Time window bounds: the start or end of a partition's window, as a literal for a column of dates or timestamps. Pure.

A bound depends only on its moment and never decreases as that moment increases. Adjacent windows therefore divide the
values of a column into sets without gaps or overlaps, whatever the column's type (`001-partition-is-a-set.md`).
Start with `bound_literal`.
"""

from datetime import UTC, date, datetime, time, timedelta

import pyarrow as pa

from lance_assets.common.sql_literals import sql_literal, timestamp_literal

_RESOLUTION = timedelta(microseconds=1)


def bound_value(bound: datetime, data_type: pa.DataType) -> datetime | date | None:
    """Return the smallest value of the column's type that is not before the bound; `None` if the column holds dates and
    the bound is not at midnight."""
    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        return bound.astimezone(UTC)
    local = first_local_time(bound)
    if pa.types.is_timestamp(data_type):
        return local
    return local.date() if local.time() == time() else None


def bound_literal(value: datetime | date, data_type: pa.DataType, name: str) -> str:
    """Return a `bound_value` as a literal of the column's type."""
    return timestamp_literal(value, data_type) if isinstance(value, datetime) else sql_literal(value, name)


def first_local_time(bound: datetime) -> datetime:
    """Return the first local time, without its zone, that no clock in the zone of `bound` shows before that moment.

    A local time that occurs twice, when clocks are turned back, is thus before every bound within its second
    occurrence. A local time that clocks skip is not before the bound at which they skip it.
    """
    zone = bound.tzinfo
    last = (bound.astimezone(UTC) - _RESOLUTION).astimezone(zone)
    if last.fold:
        last = _last_before_turning_back(last)
    return last.replace(tzinfo=None, fold=0) + _RESOLUTION


def _last_before_turning_back(second: datetime) -> datetime:
    """Return the last local time before clocks were turned back, by bisection. `second` is a time after that moment
    that occurs for the second time."""
    offset = second.utcoffset()
    before, after = second.replace(fold=0).astimezone(UTC), second.astimezone(UTC)
    while after - before > _RESOLUTION:
        midpoint = before + (after - before) // 2
        if midpoint.astimezone(second.tzinfo).utcoffset() == offset:
            after = midpoint
        else:
            before = midpoint
    return before.astimezone(second.tzinfo)
