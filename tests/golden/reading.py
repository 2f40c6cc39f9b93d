"""Serialization of tables that were read: an old release records its tables with it once, and the tests compare ours.

The module uses only pyarrow, and only the API of pyarrow 12.
"""

import decimal
import hashlib
import json
from typing import Any

import pyarrow as pa

ROWS_LISTED_MAX = 100
Rows = dict[str, Any]


def plain_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Return a column as JSON values; temporal values become the stored integers."""
    kind = column.type
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return [value for chunk in chunks for value in chunk.view(width).to_pylist()]
    return [_plain_value(value) for value in column.to_pylist()]


def _plain_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if type(value).__name__ == "float16":
        return float(value)
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain_value(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain_value(one) for one in value]
    return value


def rows_of(table: pa.Table) -> Rows:
    """Return the columns with their values, or with a digest of them if there are many rows."""
    columns = {name: plain_values(table.column(name)) for name in table.column_names}
    if table.num_rows <= ROWS_LISTED_MAX:
        return columns
    return {name: hashlib.sha256(json.dumps(values).encode()).hexdigest() for name, values in columns.items()}


def schema_of(schema: pa.Schema) -> list[list[Any]]:
    return [[field.name, str(field.type), field.nullable] for field in schema]
