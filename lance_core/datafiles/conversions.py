"""Type conversions: which types may be converted to which stored types on input, and whether a value survived the
cast.

The rules serve engines with fewer types: Spark has no unsigned integers, half floats, fixed sizes or time zones per
column, so its `bigint` may be intended for a `uint32`. An allowed conversion loses nothing, or fails at the value that
would lose something: no text becomes a number, no timestamp a date, no boolean an integer. This module knows neither
tables nor batches.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from lance_core.format.logical_types import is_json

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
_ITEM = "[]"
ValueMismatch = tuple[str, pa.DataType, pa.DataType]
"""Path of the nested column with a value that does not fit, its type, and the type that it should have."""


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
