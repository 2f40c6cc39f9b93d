"""Bringing a batch into the types that the table stores, and saying exactly what does not fit.

Columns are matched by name. `EXACT` accepts what already is the stored type, but for differences that mean nothing
(names of list items, string views, a storage array for its extension type). `CAST` also converts values where none is
lost, because Spark forgets fixed sizes, unsigned integers, time zones and nullability: which pairs of types, says
`conversions.py`. `OUTWARD` is the same on the way to somebody who has fewer types. `ASKED_FOR` is for columns that
get another type because somebody said so: whatever Arrow casts safely, and floats are rounded.
"""

import enum

import pyarrow as pa

from lance_core.datafiles.conversions import Unfit, may_round, means_the_same, obstacle, rounded, unfit
from lance_core.errors import InvalidInput, SchemaMismatch
from lance_core.format.fragment import StorageVersion
from lance_core.format.schema import TableSchema

_DECIMAL_ALIGNMENT = 16
_FIRST_WITH_NULL_STRUCTS = StorageVersion(2, 1)


class Conversion(enum.Enum):
    EXACT = "exact"
    CAST = "cast"
    OUTWARD = "outward"
    ASKED_FOR = "asked for"


def columns_to_write(incoming: pa.Schema, stored: TableSchema, *, conversion: Conversion, what: str) -> TableSchema:
    """The part of the stored schema that `incoming` fills, after checking every column.

    Nullable columns that are absent stay absent from the file, and read as null.
    """
    seen: set[str] = set()
    for column in incoming:
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
        _refuse_type(column.name, column.type, expected, conversion, what)
    for field in stored.arrow:
        if field.name not in seen and not field.nullable:
            raise SchemaMismatch(
                f"{what}: column {field.name!r} is not nullable, and the data does not have it",
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
    """`batch` with the columns and the exact types of `schema`."""
    return pa.RecordBatch.from_arrays(
        [
            _conform_column(batch.column(batch.schema.get_field_index(field.name)), field, conversion, what)
            for field in schema
        ],
        schema=schema,
    )


def _conform_column(array: pa.Array, field: pa.Field, conversion: Conversion, what: str) -> pa.Array:
    _refuse_type(field.name, array.type, field.type, conversion, what)
    if array.type != field.type:
        array = _converted(array, field, conversion, what)
    _refuse_nulls(array, field, field.name, what)
    return _aligned(array)


def _converted(array: pa.Array, field: pa.Field, conversion: Conversion, what: str) -> pa.Array:
    target = field.type
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    storage = target.storage_type if isinstance(target, pa.BaseExtensionType) else target
    if array.type != storage:
        given = array = _with_buffers(array)
        try:
            array = array.cast(storage, safe=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise _lossy(what, unfit(given, storage, field.name), str(error), conversion) from error
        rounds = conversion is not Conversion.ASKED_FOR and may_round(given.type, storage)
        if rounds and (at := rounded(given, array, field.name)):
            raise _lossy(what, at, "a number would be rounded", conversion)
    return array if storage is target else pa.ExtensionArray.from_storage(target, array)


def _with_buffers(array: pa.Array) -> pa.Array:
    """Where no list has an item, Arrow IPC gives items without memory, and the cast to fixed-size lists reads it."""
    lacking = any(buffer is not None and not buffer.address for buffer in array.buffers())
    return afresh(array) if lacking else array


def _refuse_nulls(array: pa.Array, field: pa.Field, path: str, what: str) -> None:
    nulls = array.null_count
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        nulls = array.dictionary_decode().null_count
    if not field.nullable and nulls:
        raise SchemaMismatch(
            f"{what}: column {path!r} is not nullable, and the data has {nulls} nulls in it",
            column=path,
            expected=f"{field.type} not null",
            got="nulls",
        )
    # Not `drop_null`: where all is null it cannot build some types that are nested, UUIDs for one.
    if pa.types.is_struct(array.type):
        alive = array.filter(array.is_valid()) if array.null_count else array
        for index, child in enumerate(array.type):
            _refuse_nulls(alive.field(index), child, f"{path}.{child.name}", what)
    elif pa.types.is_map(array.type):
        child = array.type.item_field
        _refuse_nulls(afresh(array.filter(array.is_valid())).items, child, f"{path}.{child.name}", what)
    elif isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        child = array.type.value_field
        _refuse_nulls(array.flatten(), child, f"{path}.{child.name}", what)


def check_no_null_structs(batch: pa.RecordBatch, version: StorageVersion, *, what: str) -> None:
    """Storage version 2.0 has no place for them: the codec refuses a file half way."""
    if version >= _FIRST_WITH_NULL_STRUCTS:
        return
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if path := _null_struct(array, name):
            raise InvalidInput(
                f"{what}: column {path!r} has a struct that is null, which storage version {version} cannot store; "
                f"{_FIRST_WITH_NULL_STRUCTS} can. Fill its fields with nulls, or create a table with "
                f"storage_version={str(_FIRST_WITH_NULL_STRUCTS)!r}"
            )


def _null_struct(array: pa.Array, path: str) -> str | None:
    """Where the first one is."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_struct(array.type):
        if array.null_count:
            return path
        below = ((array.field(index), f"{path}.{child.name}") for index, child in enumerate(array.type))
        return next((found for each in below if (found := _null_struct(*each))), None)
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return _null_struct(array.flatten(), f"{path}.{array.type.value_field.name}")
    return None


def _aligned(array: pa.Array) -> pa.Array:
    """The codec panics on decimals whose buffer is not aligned to their width;
    Arrow IPC promises only half of it."""
    if not _has_decimals(array.type):
        return array
    if all(buffer is None or buffer.address % _DECIMAL_ALIGNMENT == 0 for buffer in array.buffers()):
        return array
    return afresh(array)


def afresh(array: pa.Array) -> pa.Array:
    """A copy in buffers of its own, aligned, that begin with its first value. Not by `take`: for slices of nested
    fixed-size lists that gives other rows."""
    return pa.concat_arrays([array, array.slice(0, 0)])


def _has_decimals(arrow: pa.DataType) -> bool:
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    if pa.types.is_dictionary(arrow):
        return _has_decimals(arrow.value_type)
    return pa.types.is_decimal(arrow) or any(
        _has_decimals(arrow.field(index).type) for index in range(arrow.num_fields)
    )


def _refuse_type(column: str, given: pa.DataType, stored: pa.DataType, conversion: Conversion, what: str) -> None:
    if conversion is Conversion.ASKED_FOR:
        return
    if conversion is Conversion.EXACT:
        same = means_the_same(given, stored)
        found = None if same else f"{column!r} is stored as {stored}, the data has {given}; cast it before writing"
    else:
        found = obstacle(given, stored, column)
    if found:
        raise SchemaMismatch(f"{what}: column {found}", column=column, expected=str(stored), got=str(given))


_WAYS_OUT = {
    Conversion.CAST: "Round or cast what does not fit before it is written",
    Conversion.OUTWARD: "Leave the column out with columns=[...], or read it with lance_core.Table",
}


def _lossy(what: str, unfit: Unfit, why: str, conversion: Conversion) -> SchemaMismatch:
    path, given, stored = unfit
    way_out = f". {way}" if (way := _WAYS_OUT.get(conversion)) else ""
    return SchemaMismatch(
        f"{what}: column {path!r} of type {given} does not convert to {stored} without loss: "
        f"{why.rstrip('.')}{way_out}",
        column=path,
        expected=str(stored),
        got=str(given),
    )
