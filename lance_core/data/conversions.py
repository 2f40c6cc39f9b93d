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


def floats_survived(given: pa.Array, converted: pa.Array) -> bool:
    """A cast to a narrower float is silent about what it rounds; this is not. Not-a-number survives as itself."""
    pairs = zip(_float_leaves(given), _float_leaves(converted), strict=False)
    return all(np.array_equal(ours, theirs.astype(ours.dtype), equal_nan=True) for ours, theirs in pairs)


def narrows_floats(given: pa.DataType, stored: pa.DataType) -> bool:
    widths = [_float_widths(given), _float_widths(stored)]
    return any(after < before for before, after in zip(*widths, strict=False))


def _float_widths(arrow: pa.DataType) -> list[int]:
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    if pa.types.is_floating(arrow):
        return [int(arrow.bit_width)]
    if pa.types.is_struct(arrow):
        children = sorted(arrow, key=lambda child: child.name)
        return [width for child in children for width in _float_widths(child.type)]
    if pa.types.is_map(arrow):
        return [*_float_widths(arrow.key_type), *_float_widths(arrow.item_type)]
    return _float_widths(arrow.value_type) if _is_any(arrow, _LISTS) else []


def _float_leaves(array: pa.Array) -> Iterator[np.ndarray[tuple[int], np.dtype[np.floating]]]:
    """The float values below an array, in an order that does not depend on the order of children; nulls left out."""
    array = array.drop_null()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_floating(array.type):
        yield array.to_numpy(zero_copy_only=False)
    elif pa.types.is_struct(array.type):
        for child in sorted(array.type, key=lambda child: child.name):
            yield from _float_leaves(array.field(child.name))
    elif pa.types.is_map(array.type):
        yield from _float_leaves(array.keys)
        yield from _float_leaves(array.items)
    elif _is_any(array.type, _LISTS):
        yield from _float_leaves(array.flatten())


def _is_any(arrow: pa.DataType, tests: tuple[Callable[[pa.DataType], bool], ...]) -> bool:
    return any(test(arrow) for test in tests)
