"""Type conformance: converts a batch to the types that the table stores, and reports exactly what does not fit.

Columns are matched by name. `EXACT` accepts only the stored type, apart from differences without meaning (names of
list items, string views, a storage array for its extension type). `CAST` also converts values if no value loses
information, because Spark has no fixed sizes, unsigned integers, time zones per column or nullability;
`conversions.py` lists the pairs of types. `OUTWARD` is the same in the other direction, for a reader with fewer types.
`REQUESTED` is for columns whose type a user changes: whatever Arrow casts safely, and floats are rounded. Start with
`columns_to_write` and `conform`.
"""

import enum

import pyarrow as pa

from lance_core.datafiles.conversions import (
    ValueMismatch,
    find_rounded_value,
    find_type_mismatch,
    find_unconvertible_value,
    is_equivalent,
    may_round,
)
from lance_core.errors import InvalidInput, SchemaMismatch
from lance_core.format.fragment import StorageVersion
from lance_core.format.schema import TableSchema

_DECIMAL_ALIGNMENT = 16
_FIRST_WITH_NULL_STRUCTS = StorageVersion(2, 1)


class Conversion(enum.Enum):
    """Conversions that are allowed."""

    EXACT = "exact"
    CAST = "cast"
    OUTWARD = "outward"
    REQUESTED = "asked for"


def columns_to_write(data_schema: pa.Schema, stored: TableSchema, *, conversion: Conversion, what: str) -> TableSchema:
    """Return the part of the stored schema that `data_schema` fills, after checking every column.

    Nullable columns that are absent from the data are absent from the file, and read as null.
    """
    seen: set[str] = set()
    for column in data_schema:
        if column.name in seen:
            raise SchemaMismatch(
                f"{what}: the data has two columns named {column.name!r}",
                column=column.name,
                expected="one column",
                got="two columns",
            )
        seen.add(column.name)
        if column.name not in stored.arrow.names:
            raise SchemaMismatch(
                f"{what} has no column {column.name!r}; its columns are {', '.join(stored.arrow.names)}. Add "
                "the column to the table first, or drop it from the data",
                column=column.name,
                expected="no such column",
                got=str(column.type),
            )
        expected = stored.arrow.field(column.name).type
        _check_type(column.name, column.type, expected, conversion, what)
    for field in stored.arrow:
        if field.name not in seen and not field.nullable:
            raise SchemaMismatch(
                f"{what}: column {field.name!r} is not nullable, but the data does not contain it",
                column=field.name,
                expected=str(field.type),
                got="nothing",
            )
    present = tuple(field for field in stored.fields if field.name in seen)
    if not present:
        raise SchemaMismatch(
            f"{what}: the data has no columns",
            column="",
            expected=", ".join(stored.arrow.names),
            got="nothing",
        )
    return stored if len(present) == len(stored.fields) else TableSchema(present, stored.metadata)


def conform(batch: pa.RecordBatch, schema: pa.Schema, *, conversion: Conversion, what: str) -> pa.RecordBatch:
    """Return the batch with the columns and the exact types of `schema`."""
    return pa.RecordBatch.from_arrays(
        [
            _conform_column(batch.column(batch.schema.get_field_index(field.name)), field, conversion, what)
            for field in schema
        ],
        schema=schema,
    )


def _conform_column(array: pa.Array, field: pa.Field, conversion: Conversion, what: str) -> pa.Array:
    _check_type(field.name, array.type, field.type, conversion, what)
    if array.type != field.type:
        array = _convert(array, field, conversion, what)
    _check_nulls(array, field, field.name, what)
    return _align_decimals(array)


def _convert(array: pa.Array, field: pa.Field, conversion: Conversion, what: str) -> pa.Array:
    target = field.type
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    storage = target.storage_type if isinstance(target, pa.BaseExtensionType) else target
    if array.type != storage:
        original = array = _with_allocated_buffers(array)
        try:
            array = array.cast(storage, safe=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise _lossy_error(
                what, find_unconvertible_value(original, storage, field.name), str(error), conversion
            ) from error
        can_round = conversion is not Conversion.REQUESTED and may_round(original.type, storage)
        if can_round and (mismatch := find_rounded_value(original, array, field.name)):
            raise _lossy_error(what, mismatch, "a number would be rounded", conversion)
    return array if storage is target else pa.ExtensionArray.from_storage(target, array)


def _with_allocated_buffers(array: pa.Array) -> pa.Array:
    """Return a copy if a buffer has no memory. Arrow IPC delivers such item buffers if no list has an item, and the
    cast to fixed-size lists reads them."""
    is_unallocated = any(buffer is not None and not buffer.address for buffer in array.buffers())
    return copy_array(array) if is_unallocated else array


def _check_nulls(array: pa.Array, field: pa.Field, path: str, what: str) -> None:
    nulls = array.null_count
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        nulls = array.dictionary_decode().null_count
    if not field.nullable and nulls:
        raise SchemaMismatch(
            f"{what}: column {path!r} is not nullable, but the data has {nulls} nulls in it",
            column=path,
            expected=f"{field.type} not null",
            got="nulls",
        )
    # `drop_null` fails if all values are null and the type is nested in some ways, for example with UUIDs.
    if pa.types.is_struct(array.type):
        valid = array.filter(array.is_valid()) if array.null_count else array
        for index, child in enumerate(array.type):
            _check_nulls(valid.field(index), child, f"{path}.{child.name}", what)
    elif pa.types.is_map(array.type):
        child = array.type.item_field
        _check_nulls(copy_array(array.filter(array.is_valid())).items, child, f"{path}.{child.name}", what)
    elif isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        child = array.type.value_field
        _check_nulls(array.flatten(), child, f"{path}.{child.name}", what)


def check_no_null_structs(batch: pa.RecordBatch, version: StorageVersion, *, what: str) -> None:
    """Raise `InvalidInput` for null structs, which storage version 2.0 cannot store: the codec would fail in the
    middle of a file."""
    if version >= _FIRST_WITH_NULL_STRUCTS:
        return
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if path := _find_null_struct(array, name):
            raise InvalidInput(
                f"{what}: column {path!r} has a null struct, which storage version {version} cannot store; "
                f"{_FIRST_WITH_NULL_STRUCTS} can. Fill its fields with nulls, or create a table with "
                f"storage_version={str(_FIRST_WITH_NULL_STRUCTS)!r}"
            )


def _find_null_struct(array: pa.Array, path: str) -> str | None:
    """Return the path of the first null struct."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_struct(array.type):
        if array.null_count:
            return path
        children = ((array.field(index), f"{path}.{child.name}") for index, child in enumerate(array.type))
        return next((null_path for child_path in children if (null_path := _find_null_struct(*child_path))), None)
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return _find_null_struct(array.flatten(), f"{path}.{array.type.value_field.name}")
    return None


def _align_decimals(array: pa.Array) -> pa.Array:
    """Return an array whose decimal buffers are aligned to the width of a value. The codec panics on others, and Arrow
    IPC guarantees only half of that alignment."""
    if not _has_decimals(array.type):
        return array
    if all(buffer is None or buffer.address % _DECIMAL_ALIGNMENT == 0 for buffer in array.buffers()):
        return array
    return copy_array(array)


def copy_array(array: pa.Array) -> pa.Array:
    """Return a copy in new, aligned buffers that begin with its first value. `take` cannot be used: for slices of
    nested fixed-size lists it returns other rows."""
    return pa.concat_arrays([array, array.slice(0, 0)])


def _has_decimals(arrow: pa.DataType) -> bool:
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    if pa.types.is_dictionary(arrow):
        return _has_decimals(arrow.value_type)
    return pa.types.is_decimal(arrow) or any(
        _has_decimals(arrow.field(index).type) for index in range(arrow.num_fields)
    )


def _check_type(column: str, source: pa.DataType, stored: pa.DataType, conversion: Conversion, what: str) -> None:
    if conversion is Conversion.REQUESTED:
        return
    if conversion is Conversion.EXACT:
        is_same = is_equivalent(source, stored)
        mismatch = (
            None if is_same else f"{column!r} is stored as {stored}, but the data has {source}; cast it before writing"
        )
    else:
        mismatch = find_type_mismatch(source, stored, column)
    if mismatch:
        raise SchemaMismatch(f"{what}: column {mismatch}", column=column, expected=str(stored), got=str(source))


_REMEDIES = {
    Conversion.CAST: "Round or cast these values before writing",
    Conversion.OUTWARD: "Leave the column out with columns=[...], or read it with lance_core.Table",
}


def _lossy_error(what: str, mismatch: ValueMismatch, why: str, conversion: Conversion) -> SchemaMismatch:
    path, source, stored = mismatch
    way_out = f". {way}" if (way := _REMEDIES.get(conversion)) else ""
    return SchemaMismatch(
        f"{what}: column {path!r} of type {source} does not convert to {stored} without loss: "
        f"{why.rstrip('.')}{way_out}",
        column=path,
        expected=str(stored),
        got=str(source),
    )
