"""Values of CSV, which are bytes to begin with, into the types that a table stores; and which types JSON is asked for.

A value that cannot be read raises `pa.ArrowInvalid` for the whole array: who calls finds out which it was. No type is
ever guessed from values here.
"""

import re

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import SchemaMismatch
from lance_core.tasks.ingest.formats import CsvFormat

_EPOCH_DAY = "1970-01-01T"
_TIME = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d{1,9})?)?")


def parse_values(values: pa.Array, field: pa.Field, csv: CsvFormat, *, uri: str) -> pa.Array:
    """`values` is binary, and null only where the reader was told so."""
    arrow = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    if pa.types.is_dictionary(arrow):
        inner = parse_values(values, pa.field(field.name, arrow.value_type), csv, uri=uri)
        return inner.dictionary_encode().cast(arrow)
    if pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow):
        return values.cast(arrow)
    if pa.types.is_fixed_size_binary(arrow):
        null = pc.is_in(values, pa.array([each.encode() for each in csv.null_values], pa.binary()))
        return pc.if_else(null, pa.scalar(None, pa.binary()), values).cast(arrow)
    text = values.cast(pa.string())
    if any(test(arrow) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        return text.cast(arrow)
    null = pc.is_in(text, pa.array(csv.null_values, pa.string()))
    text = pc.utf8_trim_whitespace(pc.if_else(null, pa.scalar(None, pa.string()), text))
    if pa.types.is_boolean(arrow):
        return _booleans(text, csv)
    if pa.types.is_floating(arrow) or pa.types.is_decimal(arrow):
        return _numbers(text, arrow, csv)
    if pa.types.is_integer(arrow):
        return text.cast(arrow)
    if pa.types.is_timestamp(arrow) or pa.types.is_date(arrow):
        return _moments(text, arrow, csv)
    if pa.types.is_time(arrow):
        return _times(text, arrow)
    raise SchemaMismatch(
        f"{uri}: column {field.name!r} is {field.type}, and text has no such value; leave it out of the file, or "
        "bring the rows as Parquet, Arrow or JSON lines",
        column=field.name,
        expected=str(field.type),
        got="text",
    )


def _booleans(text: pa.Array, csv: CsvFormat) -> pa.Array:
    true = pc.is_in(text, pa.array(csv.true_values, pa.string()))
    false = pc.is_in(text, pa.array(csv.false_values, pa.string()))
    known = pc.or_(pc.or_(true, false), text.is_null())
    if not pc.all(known, min_count=0).as_py():
        raise pa.ArrowInvalid(f"{text.filter(pc.invert(known))[0].as_py()!r} is neither true nor false")
    return pc.if_else(text.is_null(), pa.scalar(None, pa.bool_()), true)


def _numbers(text: pa.Array, arrow: pa.DataType, csv: CsvFormat) -> pa.Array:
    if csv.decimal_point != ".":
        text = pc.replace_substring(text, csv.decimal_point, ".")
    numbers = text.cast(arrow)
    if pa.types.is_floating(arrow) and arrow.bit_width < 64 and pc.any(pc.is_inf(numbers)).as_py():
        meant = text.cast(pa.float64())
        if pc.any(pc.and_(pc.is_inf(numbers), pc.invert(pc.is_inf(meant)))).as_py():
            raise pa.ArrowInvalid(f"a number is too large for {arrow}")
    return numbers


def _moments(text: pa.Array, arrow: pa.DataType, csv: CsvFormat) -> pa.Array:
    """By the formats that were given, what is left by ISO 8601."""
    unit = arrow.unit if pa.types.is_timestamp(arrow) else "s"
    found = pa.nulls(len(text), pa.timestamp(unit))
    for shape in csv.timestamp_parsers:
        found = pc.coalesce(found, pc.strptime(text, format=shape, unit=unit, error_is_null=True))
    zone = arrow.tz if pa.types.is_timestamp(arrow) else None
    moments = found.cast(arrow) if zone is None else pc.assume_timezone(found, zone).cast(arrow)
    left = pc.if_else(found.is_valid(), pa.scalar(None, pa.string()), text)
    return moments if left.null_count == len(left) else pc.coalesce(moments, left.cast(arrow))


def _times(text: pa.Array, arrow: pa.DataType) -> pa.Array:
    odd = next((each for each in text.to_pylist() if each is not None and not _TIME.fullmatch(each)), None)
    if odd is not None:
        raise pa.ArrowInvalid(f"{odd!r} is no time such as 09:30:00")
    moments = pc.binary_join_element_wise(_EPOCH_DAY, text, "").cast(pa.timestamp("ns"))
    return moments.cast(pa.time64("ns")).cast(arrow)


def json_parse_type(arrow: pa.DataType) -> pa.DataType:
    """What the JSON reader is to make of a column, so that it converts to `arrow` afterwards."""
    if isinstance(arrow, pa.BaseExtensionType):
        return json_parse_type(arrow.storage_type)
    if pa.types.is_dictionary(arrow):
        return json_parse_type(arrow.value_type)
    if pa.types.is_float16(arrow):
        return pa.float32()
    if pa.types.is_fixed_size_binary(arrow) or pa.types.is_binary_view(arrow):
        return pa.binary()
    if pa.types.is_duration(arrow):
        return pa.int64()
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        return pa.list_(json_parse_type(arrow.value_type))
    if pa.types.is_struct(arrow):
        return pa.struct([pa.field(child.name, json_parse_type(child.type)) for child in arrow])
    if pa.types.is_map(arrow):
        entry = {"key": json_parse_type(arrow.key_type), "value": json_parse_type(arrow.item_type)}
        return pa.list_(pa.struct(list(entry.items())))
    return arrow
