"""Partition predicates: the rows that belong to partitions of an asset, as a condition in Lance SQL. Pure.

The asset names the column of its partitions, `metadata={"partition_expr": "day"}`, as other tables in Dagster do; an
asset with several dimensions names one column for each. A time window becomes a range of dates or timestamps, or its
partition key if the column is text. Any other partition key is parsed as the type of the column. Start with
`partition_predicate`.
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
    """Return the condition for the rows of these partitions.

    `columns` is the asset's `partition_expr`, and `subject` names the asset in messages.
    """
    if not keys:
        return "false"
    if not isinstance(partitions, dg.MultiPartitionsDefinition):
        if not isinstance(columns, str):
            raise InvalidInput(f"{subject} has partitions of one dimension, so its {PARTITION_EXPR} must be one column")
        return _dimension_predicate(partitions, keys, _partition_field(columns, schema, subject), subject)
    if not isinstance(columns, Mapping) or set(columns) != set(partitions.partition_dimension_names):
        names = dict.fromkeys(partitions.partition_dimension_names, "...")
        raise InvalidInput(
            f"{subject} has partitions of several dimensions, so its {PARTITION_EXPR} must name a column for each: "
            f"{names}"
        )
    dimensions = {dimension.name: dimension.partitions_def for dimension in partitions.partitions_defs}
    return " or ".join(
        "("
        + " and ".join(
            _dimension_predicate(
                dimensions[name], [dimension_key], _partition_field(columns[name], schema, subject), subject
            )
            for name, dimension_key in _keys_by_dimension(partitions, key).items()
        )
        + ")"
        for key in keys
    )


def _keys_by_dimension(partitions: dg.MultiPartitionsDefinition, key: str) -> Mapping[str, str]:
    return partitions.get_partition_key_from_str(key).keys_by_dimension


def _dimension_predicate(
    partitions: dg.PartitionsDefinition[str], keys: Sequence[str], field: pa.Field, subject: str
) -> str:
    """Return the condition for partitions of one dimension."""
    name = quote_identifier(field.name)
    if isinstance(partitions, dg.TimeWindowPartitionsDefinition) and not _is_text(field.type):
        windows = [partitions.time_window_for_partition_key(key) for key in keys]
        ranges = _merge_adjacent(sorted((window.start, window.end) for window in windows))
        conditions = [
            f"{name} >= {_window_bound(start, field, subject)} and {name} < {_window_bound(end, field, subject)}"
            for start, end in ranges
        ]
        return conditions[0] if len(conditions) == 1 else " or ".join(f"({condition})" for condition in conditions)
    values = ", ".join(sql_literal(_key_value(key, field, subject), field.name) for key in keys)
    return f"{name} = {values}" if len(keys) == 1 else f"{name} in ({values})"


def _merge_adjacent(windows: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Merge windows that follow each other without a gap."""
    merged: list[tuple[datetime, datetime]] = []
    for start, end in windows:
        if merged and merged[-1][1] == start:
            merged[-1] = merged[-1][0], end
        else:
            merged.append((start, end))
    return merged


def _window_bound(bound: datetime, field: pa.Field, subject: str) -> date | str:
    """Return the start or end of a time window as a literal of the column's type."""
    if pa.types.is_date(field.type):
        if bound.time() != time():
            raise InvalidInput(
                f"{subject}: a partition begins at {bound.isoformat()}, but the column {field.name!r} holds dates; use "
                f"a column of timestamps as {PARTITION_EXPR}"
            )
        return sql_literal(bound.date(), field.name)
    if not pa.types.is_timestamp(field.type):
        raise InvalidInput(
            f"{subject}: the column {field.name!r} is {field.type}, but partitions by time need dates, timestamps or "
            "text"
        )
    # A column without a zone holds local times in the zone of the partitions.
    return sql_literal(bound if field.type.tz else bound.replace(tzinfo=None), field.name)


def _key_value(key: str, field: pa.Field, subject: str) -> str | int | bool | date:
    """Parse a partition key as the type of its column."""
    try:
        if _is_text(field.type):
            return key
        if pa.types.is_integer(field.type):
            return int(key)
        if pa.types.is_boolean(field.type):
            return {"true": True, "false": False}[key.lower()]
        if pa.types.is_date(field.type):
            return date.fromisoformat(key)
    except (ValueError, KeyError):
        raise InvalidInput(
            f"{subject}: the partition {key!r} cannot be converted to {field.type}, the type of its column "
            f"{field.name!r}"
        ) from None
    raise InvalidInput(
        f"{subject}: the column {field.name!r} is {field.type}, but partition columns must be text, whole numbers, "
        "booleans or dates"
    )


def _partition_field(name: str, schema: pa.Schema, subject: str) -> pa.Field:
    if name not in schema.names:
        raise InvalidInput(
            f"{subject} is partitioned by {name!r}, but has no such column; it has {', '.join(schema.names)}. Name the "
            f"column of its partitions in the asset's metadata as {PARTITION_EXPR}"
        )
    return schema.field(name)


def _is_text(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(data_type) or pa.types.is_large_string(data_type) or pa.types.is_string_view(data_type)
    )
