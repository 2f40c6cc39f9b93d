"""Partition windows: the time window of a partition key, which no other key may have. Pure.

Dagster gives one window to two keys where a zone skips a day, and one key to several windows if the format of the keys
leaves out a part of the time. `check_windows` finds such keys when a definition is loaded, and `own_window` when a
partition is written or read.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice

import dagster as dg

from lance_core import InvalidInput

_FIRST_WINDOWS = 60
"""Number of windows whose keys are compared: a format without the date repeats its keys after a day, one without the
month after a month."""
_ORDINARY_CHANGE = timedelta(hours=1)
_NEAR = timedelta(hours=2)
_NEAR_SKIPPED_DAY = timedelta(hours=36)
_DAY, _MINUTE = timedelta(days=1), timedelta(minutes=1)


def check_windows(partitions: dg.PartitionsDefinition[str], subject: str) -> None:
    """Raise `InvalidInput` if two keys of the definition have one window, or one key has several.

    The first windows are checked, and those near changes of time. Elsewhere, keys follow each other as windows do.
    """
    if isinstance(partitions, dg.MultiPartitionsDefinition):
        for dimension in partitions.partitions_defs:
            check_windows(dimension.partitions_def, subject)
    if not isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        return
    seen: dict[str, dg.TimeWindow] = {}
    for window in islice(_windows(partitions), _FIRST_WINDOWS):
        key = partitions.get_partition_key_for_timestamp(window.start.timestamp())
        if key in seen:
            raise _shared_key_error(partitions, key, seen[key].start, window.start, subject)
        seen[key] = window
    for moment, skipped in _skipped_times(partitions):
        near = _NEAR if skipped <= _ORDINARY_CHANGE else _NEAR_SKIPPED_DAY
        for key in partitions.get_partition_keys_in_time_window(dg.TimeWindow(moment - near, moment + near)):
            own_window(partitions, key, subject)


def own_window(partitions: dg.TimeWindowPartitionsDefinition, key: str, subject: str) -> dg.TimeWindow:
    """Return the window of a partition. Raise `InvalidInput` if Dagster assigns the window to another key, or several
    windows to this key."""
    window = partitions.time_window_for_partition_key(key)
    owner = partitions.get_partition_key_for_timestamp(window.start.timestamp())
    if owner != key:
        raise InvalidInput(
            f"{subject}: the partitions {key!r} and {owner!r} have one time window, which begins at "
            f"{window.start.isoformat()}, so each would replace the rows of the other; use {owner!r}, and exclude "
            f"{key!r}"
        )
    if window.end.strftime(partitions.fmt) == key and _has_two_windows(partitions, key, window):
        raise _shared_key_error(partitions, key, window.start, window.end, subject)
    return window


def _has_two_windows(partitions: dg.TimeWindowPartitionsDefinition, key: str, window: dg.TimeWindow) -> bool:
    """Return whether the next window has the same key. The key of a window differs from its formatted start if
    clocks are turned back, since it then contains an offset."""
    after = partitions.get_next_partition_window(window.end, respect_bounds=False)
    return after is not None and partitions.get_partition_key_for_timestamp(after.start.timestamp()) == key


def _shared_key_error(
    partitions: dg.TimeWindowPartitionsDefinition, key: str, first: datetime, second: datetime, subject: str
) -> InvalidInput:
    return InvalidInput(
        f"{subject}: the partition {key!r} has several time windows, because fmt={partitions.fmt!r} does not "
        f"distinguish {first.isoformat()} from {second.isoformat()}; use a format with all parts of the time"
    )


def _windows(partitions: dg.TimeWindowPartitionsDefinition) -> Iterator[dg.TimeWindow]:
    window = partitions.get_first_partition_window()
    while window is not None:
        yield window
        window = partitions.get_next_partition_window(window.end)


def _skipped_times(partitions: dg.TimeWindowPartitionsDefinition) -> Iterator[tuple[datetime, timedelta]]:
    """Yield the moments within the windows at which clocks skip a time, and how much they skip."""
    first, last = partitions.get_first_partition_window(), partitions.get_last_partition_window()
    if first is None or last is None or first.start.tzinfo in (None, UTC):
        return
    moment, zone = first.start.astimezone(UTC), first.start.tzinfo
    offset = _offset(moment, zone)
    while moment <= last.end:
        before, moment = moment, moment + _DAY
        skipped = _offset(moment, zone) - offset
        offset += skipped
        if skipped > timedelta(0):
            yield _find_change(before, moment, zone), skipped


def _find_change(before: datetime, after: datetime, zone: tzinfo | None) -> datetime:
    """Return the moment, to a minute, at which the offset of the zone changes, by bisection."""
    offset = _offset(before, zone)
    while after - before > _MINUTE:
        midpoint = before + (after - before) / 2
        if _offset(midpoint, zone) == offset:
            before = midpoint
        else:
            after = midpoint
    return after


def _offset(moment: datetime, zone: tzinfo | None) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)
