"""CSV values: parses the bytes of CSV fields into the types of the table, and chooses the types that JSON is parsed
into.

A value that cannot be parsed raises `pa.ArrowInvalid` for the whole array; the caller determines which value it is.
This module infers no type from values.
"""

import re

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import SchemaMismatch
from lance_core.tasks.ingest.formats import CsvFormat

_EPOCH_DAY = "1970-01-01T"
_TIME = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d{1,9})?)?")


def parse_values(values: pa.Array, field: pa.Field, csv: CsvFormat, *, uri: str) -> pa.Array:
    """Parse binary values, which are null only where the reader found a null value."""
    type_ = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    if pa.types.is_dictionary(type_):
        inner = parse_values(values, pa.field(field.name, type_.value_type), csv, uri=uri)
        return inner.dictionary_encode().cast(type_)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return values.cast(type_)
    if pa.types.is_fixed_size_binary(type_):
        null = pc.is_in(values, pa.array([value.encode() for value in csv.null_values], pa.binary()))
        return pc.if_else(null, pa.scalar(None, pa.binary()), values).cast(type_)
    text = values.cast(pa.string())
    if any(test(type_) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        return text.cast(type_)
    null = pc.is_in(text, pa.array(csv.null_values, pa.string()))
    text = pc.utf8_trim_whitespace(pc.if_else(null, pa.scalar(None, pa.string()), text))
    if pa.types.is_boolean(type_):
        return _parse_booleans(text, csv)
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return _parse_numbers(text, type_, csv)
    if pa.types.is_integer(type_):
        return text.cast(type_)
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return _parse_timestamps(text, type_, csv)
    if pa.types.is_time(type_):
        return _parse_times(text, type_)
    raise SchemaMismatch(
        f"{uri}: column {field.name!r} is {field.type}, which cannot be parsed from text; leave it out of the file, "
        "or ingest the rows as Parquet, Arrow or JSON lines",
        column=field.name,
        expected=str(field.type),
        got="text",
    )


def _parse_booleans(text: pa.Array, csv: CsvFormat) -> pa.Array:
    true = pc.is_in(text, pa.array(csv.true_values, pa.string()))
    false = pc.is_in(text, pa.array(csv.false_values, pa.string()))
    known = pc.or_(pc.or_(true, false), text.is_null())
    if not pc.all(known, min_count=0).as_py():
        raise pa.ArrowInvalid(f"{text.filter(pc.invert(known))[0].as_py()!r} is neither true nor false")
    return pc.if_else(text.is_null(), pa.scalar(None, pa.bool_()), true)


def _parse_numbers(text: pa.Array, type_: pa.DataType, csv: CsvFormat) -> pa.Array:
    if csv.decimal_point != ".":
        text = pc.replace_substring(text, csv.decimal_point, ".")
    numbers = text.cast(type_)
    if pa.types.is_floating(type_) and type_.bit_width < 64 and pc.any(pc.is_inf(numbers)).as_py():
        exact = text.cast(pa.float64())
        if pc.any(pc.and_(pc.is_inf(numbers), pc.invert(pc.is_inf(exact)))).as_py():
            raise pa.ArrowInvalid(f"a number is too large for {type_}")
    return numbers


def _parse_timestamps(text: pa.Array, type_: pa.DataType, csv: CsvFormat) -> pa.Array:
    """Parse timestamps and dates by the formats of `csv`, and values that match none of them by ISO 8601."""
    unit = type_.unit if pa.types.is_timestamp(type_) else "s"
    parsed = pa.nulls(len(text), pa.timestamp(unit))
    for format_ in csv.timestamp_parsers:
        parsed = pc.coalesce(parsed, pc.strptime(text, format=format_, unit=unit, error_is_null=True))
    zone = type_.tz if pa.types.is_timestamp(type_) else None
    values = parsed.cast(type_) if zone is None else pc.assume_timezone(parsed, zone).cast(type_)
    unparsed = pc.if_else(parsed.is_valid(), pa.scalar(None, pa.string()), text)
    return values if unparsed.null_count == len(unparsed) else pc.coalesce(values, unparsed.cast(type_))


def _parse_times(text: pa.Array, type_: pa.DataType) -> pa.Array:
    invalid = next((value for value in text.to_pylist() if value is not None and not _TIME.fullmatch(value)), None)
    if invalid is not None:
        raise pa.ArrowInvalid(f"{invalid!r} is not a time such as 09:30:00")
    timestamps = pc.binary_join_element_wise(_EPOCH_DAY, text, "").cast(pa.timestamp("ns"))
    return timestamps.cast(pa.time64("ns")).cast(type_)


def json_parse_type(type_: pa.DataType) -> pa.DataType:
    """Return the type into which JSON is parsed, before the values are cast to `type_`."""
    if isinstance(type_, pa.BaseExtensionType):
        return json_parse_type(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return json_parse_type(type_.value_type)
    if pa.types.is_float16(type_):
        return pa.float32()
    if pa.types.is_fixed_size_binary(type_) or pa.types.is_binary_view(type_):
        return pa.binary()
    if pa.types.is_duration(type_):
        return pa.int64()
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return pa.list_(json_parse_type(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(child.name, json_parse_type(child.type)) for child in type_])
    if pa.types.is_map(type_):
        entry = {"key": json_parse_type(type_.key_type), "value": json_parse_type(type_.item_type)}
        return pa.list_(pa.struct(list(entry.items())))
    return type_
