"""Which types may be converted into which stored types on the way in, and whether a value survived.

The table is for data from engines that forget: Spark knows no unsigned integers, half floats, fixed sizes or time zones
of a column, so its `bigint` may well be meant for a `uint32`. What is allowed here loses nothing, or is refused at the
value that would: no text becomes a number, no timestamp a date, no boolean an integer. Nothing here knows tables or
batches.
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
"""Within one of these a safe cast keeps every value or fails; floats are compared besides."""
_ITEM = "[]"
Unfit = tuple[str, pa.DataType, pa.DataType]
"""The nested column that has a value which does not fit, its type, and the one it should have."""


def means_the_same(given: pa.DataType, stored: pa.DataType) -> bool:
    """Whether two types differ in nothing but spelling."""
    if given == stored:
        return True
    if isinstance(stored, pa.BaseExtensionType):
        bare = given.storage_type if isinstance(given, pa.BaseExtensionType) else given
        return means_the_same(bare, stored.storage_type) or (is_json(stored) and pa.types.is_large_string(bare))
    if pa.types.is_string_view(given) or pa.types.is_binary_view(given):
        plain = pa.string() if pa.types.is_string_view(given) else pa.binary()
        return bool(stored == plain)
    if given.id != stored.id:
        return False
    if pa.types.is_struct(given):
        return [field.name for field in given] == [field.name for field in stored] and all(
            means_the_same(ours.type, theirs.type) for ours, theirs in zip(given, stored, strict=True)
        )
    if pa.types.is_map(given):
        return means_the_same(given.key_type, stored.key_type) and means_the_same(given.item_type, stored.item_type)
    if pa.types.is_fixed_size_list(given):
        return given.list_size == stored.list_size and means_the_same(given.value_type, stored.value_type)
    if pa.types.is_list(given) or pa.types.is_large_list(given):
        return means_the_same(given.value_type, stored.value_type)
    if pa.types.is_dictionary(given):
        return given.index_type == stored.index_type and means_the_same(given.value_type, stored.value_type)
    return False


def obstacle(given: pa.DataType, stored: pa.DataType, path: str) -> str | None:
    """Why values of one type do not belong into the other, with the nested column it is about; None if they do."""
    if isinstance(given, pa.BaseExtensionType):
        given = given.storage_type
    if isinstance(stored, pa.BaseExtensionType):
        stored = stored.storage_type
    if pa.types.is_null(given) or means_the_same(given, stored):
        return None
    if pa.types.is_dictionary(given):
        return obstacle(given.value_type, stored, path)
    if pa.types.is_dictionary(stored):
        return obstacle(given, stored.value_type, path)
    if pa.types.is_struct(given) and pa.types.is_struct(stored):
        return _struct_obstacle(given, stored, path)
    if pa.types.is_map(given) and pa.types.is_map(stored):
        return obstacle(given.key_type, stored.key_type, f"{path}.key") or obstacle(
            given.item_type, stored.item_type, f"{path}.value"
        )
    if _is_any(given, _LISTS) and _is_any(stored, _LISTS):
        return obstacle(given.value_type, stored.value_type, f"{path}.{stored.value_field.name}")
    if _leaf_converts(given, stored):
        return None
    return f"{path!r} is stored as {stored}, the data has {given}; cast it before writing"


def _struct_obstacle(given: pa.DataType, stored: pa.DataType, path: str) -> str | None:
    names = [child.name for child in stored]
    for child in given:
        if child.name not in names:
            return f"{path!r} has no child {child.name!r}; its children are {', '.join(names)}"
        at = given.get_field_index(child.name)
        if at < 0:
            return f"{path!r} has two children named {child.name!r} in the data"
        if found := obstacle(child.type, stored.field(names.index(child.name)).type, f"{path}.{child.name}"):
            return found
    for child in stored:
        if given.get_field_index(child.name) < 0 and not child.nullable:
            return f"'{path}.{child.name}' is not nullable, and the data does not have it"
    return None


def _leaf_converts(given: pa.DataType, stored: pa.DataType) -> bool:
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(stored):
        return (given.tz is None) == (stored.tz is None)
    if pa.types.is_decimal(given):
        if pa.types.is_decimal(stored):
            return bool(stored.scale >= given.scale)
        return bool(pa.types.is_integer(stored) and given.scale == 0)
    if pa.types.is_integer(given) and (pa.types.is_floating(stored) or pa.types.is_decimal(stored)):
        return True
    return any(_is_any(given, family) and _is_any(stored, family) for family in _FAMILIES)


def may_round(given: pa.DataType, stored: pa.DataType) -> bool:
    """Whether a cast would say nothing of values that it rounds, or takes for infinite."""
    given, stored = _bare(given), _bare(stored)
    if pa.types.is_floating(stored):
        if pa.types.is_floating(given):
            return bool(given.bit_width > stored.bit_width)
        return bool(pa.types.is_integer(given) and pa.types.is_float16(stored))
    return any(may_round(ours, theirs) for _, ours, theirs in _children(given, stored))


def rounded(given: pa.Array, converted: pa.Array, path: str) -> Unfit | None:
    """Where a value is another one after such a cast, the first place. Not-a-number survives as itself."""
    given, converted = _values(given), _values(converted)
    if not may_round(given.type, converted.type):
        return None
    if pa.types.is_floating(converted.type):
        ours, theirs = (each.to_numpy(zero_copy_only=False) for each in (given, converted))
        wide = np.float64 if pa.types.is_integer(given.type) else ours.dtype
        if np.array_equal(ours.astype(wide), theirs.astype(wide), equal_nan=True):
            return None
        return path, given.type, converted.type
    pairs = _child_arrays(given, converted, path)
    return next((found for ours, theirs, at in pairs if (found := rounded(ours, theirs, at))), None)


def unfit(given: pa.Array, stored: pa.DataType, path: str) -> Unfit:
    """Why an array does not cast."""
    given, stored = _values(given), _bare(stored)
    for name, _, theirs in _children(given.type, stored):
        inner = _values(_child(given, name))
        try:
            inner.cast(_bare(theirs))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return unfit(inner, theirs, _below(path, name, stored))
    return path, given.type, stored


def _children(given: pa.DataType, stored: pa.DataType) -> Iterator[tuple[str, pa.DataType, pa.DataType]]:
    """Those that go into each other, by name."""
    if pa.types.is_dictionary(given) or pa.types.is_dictionary(stored):
        ours, theirs = (each.value_type if pa.types.is_dictionary(each) else each for each in (given, stored))
        yield from _children(ours, theirs)
    elif pa.types.is_struct(given) and pa.types.is_struct(stored):
        for child in stored:
            if (at := given.get_field_index(child.name)) >= 0:
                yield child.name, given.field(at).type, child.type
    elif pa.types.is_map(given) and pa.types.is_map(stored):
        yield "key", given.key_type, stored.key_type
        yield "value", given.item_type, stored.item_type
    elif _is_any(given, _LISTS) and _is_any(stored, _LISTS):
        yield _ITEM, given.value_type, stored.value_type


def _child_arrays(given: pa.Array, converted: pa.Array, path: str) -> Iterator[tuple[pa.Array, pa.Array, str]]:
    for name, _, _ in _children(given.type, converted.type):
        yield _child(given, name), _child(converted, name), _below(path, name, converted.type)


def _child(array: pa.Array, name: str) -> pa.Array:
    """Of an array without nulls."""
    if pa.types.is_struct(array.type):
        return array.field(name)
    if pa.types.is_map(array.type):
        return array.keys if name == "key" else array.items
    return array.flatten()


def _below(path: str, name: str, parent: pa.DataType) -> str:
    return f"{path}.{parent.value_field.name if name == _ITEM else name}"


def _values(array: pa.Array) -> pa.Array:
    """Without nulls, extensions and dictionaries."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.filter(array.is_valid()) if array.null_count else array


def _bare(arrow: pa.DataType) -> pa.DataType:
    return arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow


def _is_any(arrow: pa.DataType, tests: tuple[Callable[[pa.DataType], bool], ...]) -> bool:
    return any(test(arrow) for test in tests)
