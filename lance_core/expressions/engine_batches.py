"""How batches are shown to the engine, without copying where nothing is in the way.

Four things are. Extension types come as their storage. A JSON column is wrapped so that only IS NULL and the JSON
functions accept it: its text has no one spelling to compare. A field of a null struct must read as null, whatever
lies below. And a column that the SQL spells in another case is shown under that spelling too. Nothing here
evaluates anything.
"""

import re
from collections.abc import Iterable, Mapping

import pyarrow as pa

from lance_core.expressions.engine import JSON_SHOWN, JSON_TEXT
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
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`")
_WORD = re.compile(r"\w+")
_PLAIN_WORDS = frozenset({"and", "or", "not", "in", "is", "null", "like", "between", "true", "false"})
_CLOCKS = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp", "now", "today"}
)
_JOINT = re.compile(r"\b(?:and|or)\b|[\w)\]]\s*[-+*/%|&^]", re.IGNORECASE)


def with_metadata_columns(schema: pa.Schema) -> pa.Schema:
    """`schema` and the columns that every table has besides: row id, address, offset and versions."""
    return pa.schema([*schema, *(each for each in METADATA_COLUMNS if each.name not in schema.names)], schema.metadata)


def spellings(sql: str, schema: pa.Schema) -> dict[str, str]:
    """Words of the SQL that name a column in another case, each with that column: the first that matches."""
    return folded_names(set(_WORD.findall(_QUOTED.sub(" ", sql))) - set(schema.names), schema)


def joints(sql: str) -> int:
    """How many operators the SQL joins expressions by, which is how deep its tree may be."""
    return len(_JOINT.findall(_QUOTED.sub("x", sql)))


def reads_no_clock(sql: str, schema: pa.Schema) -> bool:
    """Whether it means the same at any time: it has no words but names of columns and those of plain conditions."""
    words = {word.lower() for word in _WORD.findall(_QUOTED.sub(" ", sql)) if not word.isdigit()}
    return words.isdisjoint(_CLOCKS) and words <= _PLAIN_WORDS | {name.lower() for name in schema.names}


def folded_names(words: Iterable[str], schema: pa.Schema) -> dict[str, str]:
    folded: dict[str, str] = {}
    for name in schema.names:
        folded.setdefault(name.lower(), name)
    return {word: folded[word.lower()] for word in sorted(words) if word.lower() in folded}


def engine_schema(schema: pa.Schema, spelt: Mapping[str, str]) -> pa.Schema:
    fields = [pa.field(each.name, _shown_type(each.type)) for each in schema]
    fields += [pa.field(word, _shown_type(schema.field(name).type)) for word, name in spelt.items()]
    return pa.schema(fields)


def to_engine(batch: pa.RecordBatch, columns: Mapping[str, str]) -> pa.RecordBatch:
    """The named columns of a batch, each under the name that the expression has for it."""
    arrays = [_shown_array(batch.column(name)) for name in columns.values()]
    if not arrays:  # an expression of constants still needs to know how many rows there are
        return pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows)], names=["no column"])
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _shown_type(arrow: pa.DataType) -> pa.DataType:
    if isinstance(arrow, pa.BaseExtensionType):
        return JSON_SHOWN if is_json(arrow) else arrow.storage_type
    return arrow


def _shown_array(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        stored = array.storage
        if not is_json(array.type):
            return stored
        mask = stored.is_null() if stored.null_count else None
        return pa.StructArray.from_arrays([stored.cast(pa.string())], names=[JSON_TEXT], mask=mask)
    return _nulls_pushed_down(array)


def _nulls_pushed_down(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_struct(kind):
        if not (array.null_count or any(pa.types.is_nested(each.type) for each in kind)):
            return array
        children = [_nulls_pushed_down(child) for child in array.flatten()]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_struct(kind.value_type):
        values = _nulls_pushed_down(array.values)
        make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        mask = array.is_null() if array.null_count else None
        if array.offset and mask is not None:
            array = pa.concat_arrays([array, array.slice(0, 0)])
            values, mask = _nulls_pushed_down(array.values), array.is_null()
        return make.from_arrays(array.offsets, values, type=kind, mask=mask)
    return array
