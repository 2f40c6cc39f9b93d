"""Engine batches: converts batches to the form in which the engine evaluates them, without a copy where possible.

There are four differences. Extension types become their storage types. A JSON column is wrapped in a struct that only
IS NULL and the JSON functions accept, because equal JSON values can have different texts. A field of a null struct
becomes null, whatever is stored in its child array. A column that the SQL spells in another case also appears under
that spelling. This module evaluates nothing.
"""

import re
from collections.abc import Iterable, Mapping

import pyarrow as pa

from lance_core.expressions.cost_limits import QUOTED
from lance_core.expressions.engine import JSON_ENGINE_TYPE, JSON_FIELD_NAME
from lance_core.format.logical_types import is_json

METADATA_COLUMNS = pa.schema(
    [
        pa.field("_rowid", pa.uint64()),
        pa.field("_rowaddr", pa.uint64()),
        pa.field("_rowoffset", pa.uint64()),
        pa.field("_row_created_at_version", pa.uint64()),
        pa.field("_row_last_updated_at_version", pa.uint64()),
    ]
)
_WORD = re.compile(r"\w+")
_TIME_INDEPENDENT_WORDS = frozenset({"and", "or", "not", "in", "is", "null", "like", "between", "true", "false"})
_CLOCK_FUNCTIONS = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp", "now", "today"}
)


def with_metadata_columns(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the system columns that every table has: row id, address, offset and row versions."""
    return pa.schema(
        [*schema, *(field for field in METADATA_COLUMNS if field.name not in schema.names)], schema.metadata
    )


def find_case_aliases(sql: str, schema: pa.Schema) -> dict[str, str]:
    """Return the words of the SQL that name a column in another case, each with the first column that matches."""
    return match_ignoring_case(set(_WORD.findall(QUOTED.sub(" ", sql))) - set(schema.names), schema)


def is_time_independent(sql: str, schema: pa.Schema) -> bool:
    """Return whether the SQL certainly means the same at any time: all its words are columns or plain operators."""
    words = {word.lower() for word in _WORD.findall(QUOTED.sub(" ", sql)) if not word.isdigit()}
    return words.isdisjoint(_CLOCK_FUNCTIONS) and words <= _TIME_INDEPENDENT_WORDS | {
        name.lower() for name in schema.names
    }


def reads_clock(sql: str) -> bool:
    """Return whether the SQL calls a function whose value depends on the time.

    >>> reads_clock("day > now()"), reads_clock("note = 'now'")
    (True, False)
    """
    return not {word.lower() for word in _WORD.findall(QUOTED.sub(" ", sql))}.isdisjoint(_CLOCK_FUNCTIONS)


def match_ignoring_case(words: Iterable[str], schema: pa.Schema) -> dict[str, str]:
    """Return the words that equal the name of a column but for case, each with the first such column."""
    folded: dict[str, str] = {}
    for name in schema.names:
        folded.setdefault(name.lower(), name)
    return {word: folded[word.lower()] for word in sorted(words) if word.lower() in folded}


def engine_schema(schema: pa.Schema, aliases: Mapping[str, str]) -> pa.Schema:
    """Return the schema as the engine sees it, with the aliased columns under their aliases as well."""
    fields = [pa.field(field.name, _engine_type(field.type)) for field in schema]
    fields += [pa.field(alias, _engine_type(schema.field(name).type)) for alias, name in aliases.items()]
    return pa.schema(fields)


def to_engine(batch: pa.RecordBatch, columns: Mapping[str, str]) -> pa.RecordBatch:
    """Return some columns of a batch as the engine sees them. `columns` maps names in the expression to columns."""
    arrays = [_engine_array(batch.column(name)) for name in columns.values()]
    if not arrays:  # an expression without columns still needs the number of rows
        return pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows)], names=["no column"])
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _engine_type(arrow: pa.DataType) -> pa.DataType:
    if isinstance(arrow, pa.BaseExtensionType):
        return JSON_ENGINE_TYPE if is_json(arrow) else arrow.storage_type
    return arrow


def _engine_array(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        stored = array.storage
        if not is_json(array.type):
            return stored
        mask = stored.is_null() if stored.null_count else None
        return pa.StructArray.from_arrays([stored.cast(pa.string())], names=[JSON_FIELD_NAME], mask=mask)
    return _push_down_nulls(array)


def _push_down_nulls(array: pa.Array) -> pa.Array:
    """Return the array with the nulls of structs applied to their fields, also inside of lists."""
    arrow = array.type
    if pa.types.is_struct(arrow):
        if not (array.null_count or any(pa.types.is_nested(field.type) for field in arrow)):
            return array
        children = [_push_down_nulls(child) for child in array.flatten()]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(arrow), mask=mask)
    if (pa.types.is_list(arrow) or pa.types.is_large_list(arrow)) and pa.types.is_struct(arrow.value_type):
        values = _push_down_nulls(array.values)
        list_array = pa.LargeListArray if pa.types.is_large_list(arrow) else pa.ListArray
        mask = array.is_null() if array.null_count else None
        if array.offset and mask is not None:  # `from_arrays` accepts no mask for a sliced array, so copy it
            array = pa.concat_arrays([array, array.slice(0, 0)])
            values, mask = _push_down_nulls(array.values), array.is_null()
        return list_array.from_arrays(array.offsets, values, type=arrow, mask=mask)
    return array
