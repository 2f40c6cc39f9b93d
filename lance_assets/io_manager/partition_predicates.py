"""Which rows of a table belong to partitions of an asset, as a condition in Lance's SQL. Pure.

The asset says which column its partitions are of: `metadata={"partition_expr": "day"}`, as for other tables in Dagster;
with several dimensions one column for each of them. A time window is a range of dates or timestamps; where the column
is text, it has the partition's key. All other partitions are their keys, read as the column's type.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from typing import TypeAlias

import dagster as dg
import pyarrow as pa

from lance_assets.common.sql_literals import quote_identifier, sql_literal
from lance_core import InvalidInput

PARTITION_EXPR = "partition_expr"
Columns: TypeAlias = str | Mapping[str, str]


def partition_predicate(
    partitions: dg.PartitionsDefinition[str], keys: Sequence[str], columns: Columns, schema: pa.Schema, *, subject: str
) -> str:
    """The rows of these partitions. `columns` is what `partition_expr` says, `subject` the asset, for messages."""
    if not keys:
        return "false"
    if not isinstance(partitions, dg.MultiPartitionsDefinition):
        if not isinstance(columns, str):
            raise InvalidInput(f"{subject} has partitions of one dimension, so its {PARTITION_EXPR} is one column")
        return _dimension_predicate(partitions, keys, _partition_field(columns, schema, subject), subject)
    if not isinstance(columns, Mapping) or set(columns) != set(partitions.partition_dimension_names):
        names = dict.fromkeys(partitions.partition_dimension_names, "...")
        raise InvalidInput(f"{subject} has partitions of several dimensions; its {PARTITION_EXPR} names them: {names}")
    dimensions = {each.name: each.partitions_def for each in partitions.partitions_defs}
    return " or ".join(
        "("
        + " and ".join(
            _dimension_predicate(dimensions[name], [part], _partition_field(columns[name], schema, subject), subject)
            for name, part in _keys_by_dimension(partitions, key).items()
        )
        + ")"
        for key in keys
    )


def _keys_by_dimension(partitions: dg.MultiPartitionsDefinition, key: str) -> Mapping[str, str]:
    multiple = partitions.get_partition_key_from_str(key)
    return multiple.keys_by_dimension


def _dimension_predicate(
    partitions: dg.PartitionsDefinition[str], keys: Sequence[str], field: pa.Field, what: str
) -> str:
    name, kind = quote_identifier(field.name), field.type
    if isinstance(partitions, dg.TimeWindowPartitionsDefinition) and not _is_text(kind):
        windows = [partitions.time_window_for_partition_key(key) for key in keys]
        ranges = _merge_adjacent(sorted((window.start, window.end) for window in windows))
        found = [
            f"{name} >= {_window_bound(start, field, what)} and {name} < {_window_bound(end, field, what)}"
            for start, end in ranges
        ]
        return found[0] if len(found) == 1 else " or ".join(f"({each})" for each in found)
    values = ", ".join(sql_literal(_key_value(key, field, what), field.name) for key in keys)
    return f"{name} = {values}" if len(keys) == 1 else f"{name} in ({values})"


def _merge_adjacent(windows: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Windows that follow each other are one."""
    found: list[tuple[datetime, datetime]] = []
    for start, end in windows:
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found


def _window_bound(moment: datetime, field: pa.Field, what: str) -> date | str:
    kind = field.type
    if pa.types.is_date(kind):
        if moment.time() != time():
            raise InvalidInput(
                f"{what}: a partition begins at {moment.isoformat()}, and the column {field.name!r} knows only days; "
                f"name a column of timestamps as {PARTITION_EXPR}"
            )
        return sql_literal(moment.date(), field.name)
    if not pa.types.is_timestamp(kind):
        raise InvalidInput(
            f"{what}: the column {field.name!r} is {kind}, and partitions in time need dates, timestamps or text"
        )
    # Without a zone a table holds what the clock showed in the partitions' zone.
    return sql_literal(moment if kind.tz else moment.replace(tzinfo=None), field.name)


def _key_value(key: str, field: pa.Field, what: str) -> str | int | bool | date:
    kind = field.type
    try:
        if _is_text(kind):
            return key
        if pa.types.is_integer(kind):
            return int(key)
        if pa.types.is_boolean(kind):
            return {"true": True, "false": False}[key.lower()]
        if pa.types.is_date(kind):
            return date.fromisoformat(key)
    except (ValueError, KeyError):
        raise InvalidInput(f"{what}: the partition {key!r} is no {kind}, as its column {field.name!r} is") from None
    raise InvalidInput(
        f"{what}: the column {field.name!r} is {kind}, and partitions go by text, whole numbers, booleans or dates"
    )


def _partition_field(name: str, schema: pa.Schema, what: str) -> pa.Field:
    if name not in schema.names:
        raise InvalidInput(
            f"{what} is partitioned by {name!r}, and has no such column; it has {', '.join(schema.names)}. Say in the "
            f"asset's metadata which column its partitions are of: {PARTITION_EXPR}"
        )
    return schema.field(name)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
