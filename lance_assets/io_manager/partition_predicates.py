"""Partition predicates: the rows that belong to partitions of an asset, as a condition in Lance SQL. Pure.

The asset names the column of its partitions, `metadata={"partition_expr": "day"}`, as other tables in Dagster do; an
asset with several dimensions names one column for each. A time window becomes a range of dates or timestamps
(`window_bounds.py`), or its partition key if the column is text. Any other partition key is parsed as the type of the
column (`partition_values.py`). A row belongs to at most one partition, and a null to none
(`001-partition-is-a-set.md`). Start with `partition_predicate`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import TypeAlias

import dagster as dg
import pyarrow as pa

from lance_assets.common.sql_literals import quote_identifier, sql_literal
from lance_assets.io_manager.partition_values import is_text, partition_values
from lance_assets.io_manager.partition_windows import own_window
from lance_assets.io_manager.window_bounds import bound_literal, bound_value
from lance_core import InvalidInput

PARTITION_EXPR = "partition_expr"
NO_ROWS = "false"
"""Condition that no row meets: for an empty list of partitions, and for a window without values of the column."""
Columns: TypeAlias = str | Mapping[str, str]
ListKeys: TypeAlias = Callable[[dg.PartitionsDefinition[str]], Iterable[str]]
_Bound: TypeAlias = datetime | date


def partition_predicate(
    partitions: dg.PartitionsDefinition[str],
    keys: Sequence[str],
    columns: Columns,
    schema: pa.Schema,
    *,
    subject: str,
    list_keys: ListKeys = lambda partitions: partitions.get_partition_keys(),
) -> str:
    """Return the condition for the rows of these partitions.

    `columns` is the asset's `partition_expr`, and `subject` names the asset in messages. `list_keys` returns the
    current keys of a definition; dynamic ones are in Dagster's instance. Raise `InvalidInput` if a partition would
    share rows with another one.
    """
    if not keys:
        return NO_ROWS
    if not isinstance(partitions, dg.MultiPartitionsDefinition):
        if not isinstance(columns, str):
            raise InvalidInput(f"{subject} has partitions of one dimension, so its {PARTITION_EXPR} must be one column")
        return _dimension_predicate(partitions, keys, _partition_field(columns, schema, subject), list_keys, subject)
    if not isinstance(columns, Mapping) or set(columns) != set(partitions.partition_dimension_names):
        names = dict.fromkeys(partitions.partition_dimension_names, "...")
        raise InvalidInput(
            f"{subject} has partitions of several dimensions, so its {PARTITION_EXPR} must name a column for each: "
            f"{names}"
        )
    return _multi_predicate(partitions, keys, columns, schema, list_keys, subject)


def replace_predicate(
    partitions: dg.PartitionsDefinition[str],
    keys: Sequence[str],
    columns: Columns,
    schema: pa.Schema,
    *,
    subject: str,
    list_keys: ListKeys,
) -> str:
    """Return the condition for the rows that a write of these partitions replaces. Raise `InvalidInput` if they can
    contain no row."""
    predicate = partition_predicate(partitions, keys, columns, schema, subject=subject, list_keys=list_keys)
    if predicate == NO_ROWS:
        raise InvalidInput(
            f"{subject}: no row can be in the partition {', '.join(keys)}: clocks were turned back, so its local times "
            "occurred before and belong to the partition of their first occurrence. Write the rows to that partition, "
            "or use a column of timestamps with a zone. Nothing was written"
        )
    return predicate


def _multi_predicate(
    partitions: dg.MultiPartitionsDefinition,
    keys: Sequence[str],
    columns: Mapping[str, str],
    schema: pa.Schema,
    list_keys: ListKeys,
    subject: str,
) -> str:
    dimensions = {dimension.name: dimension.partitions_def for dimension in partitions.partitions_defs}
    conditions: dict[tuple[str, str], str] = {}

    def condition_of(name: str, key: str) -> str:
        if (name, key) not in conditions:
            field = _partition_field(columns[name], schema, subject)
            conditions[name, key] = _dimension_predicate(dimensions[name], [key], field, list_keys, subject)
        return conditions[name, key]

    cells = [
        [
            condition_of(name, part)
            for name, part in partitions.get_partition_key_from_str(key).keys_by_dimension.items()
        ]
        for key in keys
    ]
    return " or ".join(f"({' and '.join(cell)})" for cell in cells if NO_ROWS not in cell) or NO_ROWS


def _dimension_predicate(
    partitions: dg.PartitionsDefinition[str],
    keys: Sequence[str],
    field: pa.Field,
    list_keys: ListKeys,
    subject: str,
) -> str:
    """Return the condition for partitions of one dimension."""
    name = quote_identifier(field.name)
    if isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        if not is_text(field.type):
            return _window_predicate(partitions, keys, field, subject)
        literals = [sql_literal(key, field.name) for key in keys]
    else:
        literals = partition_values(keys, field, lambda: list_keys(partitions), subject=subject)
    return f"{name} = {literals[0]}" if len(literals) == 1 else f"{name} in ({', '.join(literals)})"


def _window_predicate(
    partitions: dg.TimeWindowPartitionsDefinition, keys: Sequence[str], field: pa.Field, subject: str
) -> str:
    if not (pa.types.is_timestamp(field.type) or pa.types.is_date(field.type)):
        raise InvalidInput(
            f"{subject}: the column {field.name!r} is {field.type}, but partitions by time need dates, timestamps or "
            "text"
        )
    windows = [own_window(partitions, key, subject) for key in keys]
    ranges = [(_bound(window.start, field, subject), _bound(window.end, field, subject)) for window in windows]
    name = quote_identifier(field.name)
    conditions = [
        f"{name} >= {bound_literal(start, field.type, field.name)} and {name} < "
        f"{bound_literal(end, field.type, field.name)}"
        for start, end in _merge_adjacent(sorted(bounds for bounds in ranges if bounds[0] < bounds[1]))
    ]
    if len(conditions) < 2:
        return conditions[0] if conditions else NO_ROWS
    return " or ".join(f"({condition})" for condition in conditions)


def _bound(bound: datetime, field: pa.Field, subject: str) -> _Bound:
    value = bound_value(bound, field.type)
    if value is None:
        raise InvalidInput(
            f"{subject}: a partition begins at {bound.isoformat()}, but the column {field.name!r} holds dates; use "
            f"a column of timestamps as {PARTITION_EXPR}"
        )
    return value


def _merge_adjacent(ranges: Iterable[tuple[_Bound, _Bound]]) -> list[tuple[_Bound, _Bound]]:
    """Merge ranges that follow each other without a gap."""
    merged: list[tuple[_Bound, _Bound]] = []
    for start, end in ranges:
        if merged and merged[-1][1] == start:
            merged[-1] = merged[-1][0], end
        else:
            merged.append((start, end))
    return merged


def _partition_field(name: str, schema: pa.Schema, subject: str) -> pa.Field:
    if name not in schema.names:
        raise InvalidInput(
            f"{subject} is partitioned by {name!r}, but has no such column; it has {', '.join(schema.names)}. Name the "
            f"column of its partitions in the asset's metadata as {PARTITION_EXPR}"
        )
    return schema.field(name)
