"""Type conformance: converts a batch to the types that the table stores, and reports exactly what does not fit.

Columns are matched by name. `CAST`, the rule for rows of the user in one process and on Spark, converts values if no
value loses information: an int32 is stored in an int64 column, and an int64 in an int32 column if it fits. Spark has no
unsigned integers, half floats, fixed sizes, time zones per column or nullability, so its `bigint` may be intended for a
`uint32`. `EXACT` accepts only the stored type, apart from differences without meaning (names of list items, string
views, a storage array for its extension type), for rows that this library made. No text becomes a number, no timestamp
a date, no boolean an integer. `OUTWARD` is the same in the other direction, for a reader with fewer types.
`REQUESTED` is for columns whose type a user changes: whatever Arrow casts safely, and floats are rounded. Start with
`columns_to_write` and `conform`.
"""

import enum
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from lance_core.errors import InvalidInput, SchemaMismatch
from lance_core.format.fragment import StorageVersion
from lance_core.format.logical_types import is_json
from lance_core.format.schema import TableSchema

_DECIMAL_ALIGNMENT = 16
_FIRST_WITH_NULL_STRUCTS = StorageVersion(2, 1)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], ...], ...] = (
    (pa.types.is_integer,),
    (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    (pa.types.is_date,),
    (pa.types.is_time,),
    (pa.types.is_duration,),
    (pa.types.is_floating,),
)
"""Within one family a safe cast keeps every value or fails; float values are also compared after the cast."""
LIST_TYPES = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_large_list, pa.large_list),
    (pa.types.is_list_view, pa.list_),
    (pa.types.is_large_list_view, pa.large_list),
)
"""Types of lists with any number of items, and the plain type for each."""
_FLAT_TYPE_IDS = frozenset(
    arrow.id
    for arrow in (
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us")),
        *(pa.timestamp("us"), pa.duration("us"), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        pa.binary(1),
    )
)
"""Types without children, dictionaries and alignment."""
_ITEM = "[]"
ValueMismatch = tuple[str, pa.DataType, pa.DataType]
"""Path of the nested column with a value that does not fit, its type, and the type that it should have."""


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
    arrow = stored.arrow
    if stored.fields and data_schema.equals(arrow):
        return stored
    seen: set[str] = set()
    known = frozenset(arrow.names)
    for column in data_schema:
        if column.name in seen:
            raise SchemaMismatch(
                f"{what}: the data has two columns named {column.name!r}",
                column=column.name,
                expected="one column",
                got="two columns",
            )
        seen.add(column.name)
        if column.name not in known:
            raise SchemaMismatch(
                f"{what} has no column {column.name!r}; its columns are {', '.join(arrow.names)}. Add "
                "the column to the table first, or drop it from the data",
                column=column.name,
                expected="no such column",
                got=str(column.type),
            )
        _check_type(column.name, column.type, arrow.field(column.name).type, conversion, what)
    for field in arrow:
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
    if batch.schema.equals(schema):
        return _conform_values(batch, schema, conversion, what)
    return pa.RecordBatch.from_arrays(
        [
            _conform_column(batch.column(batch.schema.get_field_index(field.name)), field, conversion, what)
            for field in schema
        ],
        schema=schema,
    )


def _conform_values(batch: pa.RecordBatch, schema: pa.Schema, conversion: Conversion, what: str) -> pa.RecordBatch:
    """Return a batch that has the columns and types of `schema` already. Flat columns with nulls need no check, which
    saves most of the time of thousands of columns."""
    arrays: list[pa.Array] | None = None
    for index, (field, arrow) in enumerate(zip(schema, schema.types, strict=True)):
        if field.nullable and arrow.id in _FLAT_TYPE_IDS:
            continue
        array = batch.column(index)
        conformed = _conform_column(array, field, conversion, what)
        if conformed is not array:
            arrays = batch.columns if arrays is None else arrays
            arrays[index] = conformed
    if arrays is None and batch.schema.equals(schema, check_metadata=True):
        return batch
    return pa.RecordBatch.from_arrays(batch.columns if arrays is None else arrays, schema=schema)


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
            plain = without_views(array.type)  # Arrow casts no view to a dictionary
            array = (array if array.type == plain else array.cast(plain)).cast(storage, safe=True)
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


def without_views(arrow: pa.DataType) -> pa.DataType:
    """Return the type with plain strings, bytes and lists instead of views, which no file stores."""
    if pa.types.is_string_view(arrow):
        return pa.string()
    if pa.types.is_binary_view(arrow):
        return pa.binary()
    if pa.types.is_dictionary(arrow):
        return pa.dictionary(arrow.index_type, without_views(arrow.value_type), arrow.ordered)
    if pa.types.is_struct(arrow):
        return pa.struct([field.with_type(without_views(field.type)) for field in arrow])
    for is_list, make_list in LIST_TYPES:
        if is_list(arrow):
            return make_list(arrow.value_field.with_type(without_views(arrow.value_type)))
    return arrow


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


def is_equivalent(source: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether two types hold the same values and differ at most in their declaration: an extension type or its
    storage type, a view or the plain type, other names of list items."""
    if source == stored:
        return True
    if isinstance(stored, pa.BaseExtensionType):
        bare = source.storage_type if isinstance(source, pa.BaseExtensionType) else source
        return is_equivalent(bare, stored.storage_type) or (is_json(stored) and pa.types.is_large_string(bare))
    if pa.types.is_string_view(source) or pa.types.is_binary_view(source):
        plain = pa.string() if pa.types.is_string_view(source) else pa.binary()
        return bool(stored == plain)
    if source.id != stored.id:
        return False
    if pa.types.is_struct(source):
        return [field.name for field in source] == [field.name for field in stored] and all(
            is_equivalent(ours.type, theirs.type) for ours, theirs in zip(source, stored, strict=True)
        )
    if pa.types.is_map(source):
        return is_equivalent(source.key_type, stored.key_type) and is_equivalent(source.item_type, stored.item_type)
    if pa.types.is_fixed_size_list(source):
        return source.list_size == stored.list_size and is_equivalent(source.value_type, stored.value_type)
    if pa.types.is_list(source) or pa.types.is_large_list(source):
        return is_equivalent(source.value_type, stored.value_type)
    if pa.types.is_dictionary(source):
        return source.index_type == stored.index_type and is_equivalent(source.value_type, stored.value_type)
    return False


def find_type_mismatch(source: pa.DataType, stored: pa.DataType, path: str) -> str | None:
    """Return why values of one type cannot be stored as the other, with the nested column concerned;
    `None` if they can."""
    if isinstance(source, pa.BaseExtensionType):
        source = source.storage_type
    if isinstance(stored, pa.BaseExtensionType):
        stored = stored.storage_type
    if pa.types.is_null(source) or is_equivalent(source, stored):
        return None
    if pa.types.is_dictionary(source):
        return find_type_mismatch(source.value_type, stored, path)
    if pa.types.is_dictionary(stored):
        return find_type_mismatch(source, stored.value_type, path)
    if pa.types.is_struct(source) and pa.types.is_struct(stored):
        return _find_struct_mismatch(source, stored, path)
    if pa.types.is_map(source) and pa.types.is_map(stored):
        return find_type_mismatch(source.key_type, stored.key_type, f"{path}.key") or find_type_mismatch(
            source.item_type, stored.item_type, f"{path}.value"
        )
    if _matches_any(source, _LISTS) and _matches_any(stored, _LISTS):
        return find_type_mismatch(source.value_type, stored.value_type, f"{path}.{stored.value_field.name}")
    if _leaf_converts(source, stored):
        return None
    return f"{path!r} is stored as {stored}, but the data has {source}; cast it before writing"


def _find_struct_mismatch(source: pa.DataType, stored: pa.DataType, path: str) -> str | None:
    names = [child.name for child in stored]
    for child in source:
        if child.name not in names:
            return f"{path!r} has no child {child.name!r}; its children are {', '.join(names)}"
        index = source.get_field_index(child.name)
        if index < 0:
            return f"{path!r} has two children named {child.name!r} in the data"
        if mismatch := find_type_mismatch(
            child.type, stored.field(names.index(child.name)).type, f"{path}.{child.name}"
        ):
            return mismatch
    for child in stored:
        if source.get_field_index(child.name) < 0 and not child.nullable:
            return f"'{path}.{child.name}' is not nullable, but the data does not contain it"
    return None


def _leaf_converts(source: pa.DataType, stored: pa.DataType) -> bool:
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(stored):
        return (source.tz is None) == (stored.tz is None)
    if pa.types.is_decimal(source):
        if pa.types.is_decimal(stored):
            return bool(stored.scale >= source.scale)
        return bool(pa.types.is_integer(stored) and source.scale == 0)
    if pa.types.is_integer(source) and (pa.types.is_floating(stored) or pa.types.is_decimal(stored)):
        return True
    return any(_matches_any(source, family) and _matches_any(stored, family) for family in _FAMILIES)


def may_round(source: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether a cast would silently round values, or make them infinite."""
    source, stored = _storage_type(source), _storage_type(stored)
    if pa.types.is_floating(stored):
        if pa.types.is_floating(source):
            return bool(source.bit_width > stored.bit_width)
        return bool(pa.types.is_integer(source) and pa.types.is_float16(stored))
    return any(may_round(ours, theirs) for _, ours, theirs in _matching_children(source, stored))


def find_rounded_value(source: pa.Array, converted: pa.Array, path: str) -> ValueMismatch | None:
    """Return the nested column in which the cast from `source` to `converted` first changed a number; `None` if it
    changed none. NaN equals NaN."""
    source, converted = _plain_values(source), _plain_values(converted)
    if not may_round(source.type, converted.type):
        return None
    if pa.types.is_floating(converted.type):
        ours, theirs = (each.to_numpy(zero_copy_only=False) for each in (source, converted))
        wide = np.float64 if pa.types.is_integer(source.type) else ours.dtype
        if np.array_equal(ours.astype(wide), theirs.astype(wide), equal_nan=True):
            return None
        return path, source.type, converted.type
    pairs = _child_arrays(source, converted, path)
    return next(
        (mismatch for ours, theirs, child_path in pairs if (mismatch := find_rounded_value(ours, theirs, child_path))),
        None,
    )


def find_unconvertible_value(source: pa.Array, stored: pa.DataType, path: str) -> ValueMismatch:
    """Return the nested column at which the cast of an array fails."""
    source, stored = _plain_values(source), _storage_type(stored)
    for name, _, theirs in _matching_children(source.type, stored):
        inner = _plain_values(_child_array(source, name))
        try:
            inner.cast(_storage_type(theirs))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return find_unconvertible_value(inner, theirs, _child_path(path, name, stored))
    return path, source.type, stored


def _matching_children(source: pa.DataType, stored: pa.DataType) -> Iterator[tuple[str, pa.DataType, pa.DataType]]:
    """Yield the children that both types have: name, type and stored type."""
    if pa.types.is_dictionary(source) or pa.types.is_dictionary(stored):
        ours, theirs = (each.value_type if pa.types.is_dictionary(each) else each for each in (source, stored))
        yield from _matching_children(ours, theirs)
    elif pa.types.is_struct(source) and pa.types.is_struct(stored):
        for child in stored:
            if (index := source.get_field_index(child.name)) >= 0:
                yield child.name, source.field(index).type, child.type
    elif pa.types.is_map(source) and pa.types.is_map(stored):
        yield "key", source.key_type, stored.key_type
        yield "value", source.item_type, stored.item_type
    elif _matches_any(source, _LISTS) and _matches_any(stored, _LISTS):
        yield _ITEM, source.value_type, stored.value_type


def _child_arrays(source: pa.Array, converted: pa.Array, path: str) -> Iterator[tuple[pa.Array, pa.Array, str]]:
    for name, _, _ in _matching_children(source.type, converted.type):
        yield _child_array(source, name), _child_array(converted, name), _child_path(path, name, converted.type)


def _child_array(array: pa.Array, name: str) -> pa.Array:
    """Return the values of a child of an array without nulls."""
    if pa.types.is_struct(array.type):
        return array.field(name)
    if pa.types.is_map(array.type):
        return array.keys if name == "key" else array.items
    return array.flatten()


def _child_path(path: str, name: str, parent: pa.DataType) -> str:
    return f"{path}.{parent.value_field.name if name == _ITEM else name}"


def _plain_values(array: pa.Array) -> pa.Array:
    """Return the array without nulls, extension types and dictionaries."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.filter(array.is_valid()) if array.null_count else array


def _storage_type(arrow: pa.DataType) -> pa.DataType:
    return arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow


def _matches_any(arrow: pa.DataType, tests: tuple[Callable[[pa.DataType], bool], ...]) -> bool:
    return any(test(arrow) for test in tests)
