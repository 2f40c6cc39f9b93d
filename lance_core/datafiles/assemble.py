"""A column of the table, put together from what files hold of it: children may be in other files than their siblings,
be called otherwise there, have been dropped or added since, at any depth.

The tree of the table's fields is walked beside the arrays; ids say which child of a file is which. Whether a struct or
a list is null, and how long a list is, every file says that has a child of it. Pure: arrays in, arrays out. Start with
`assembled`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles import jsonb
from lance_core.datafiles.column_layout import Path
from lance_core.datafiles.conform import afresh
from lance_core.errors import Corrupt, Unsupported
from lance_core.format.logical_types import is_json
from lance_core.format.schema import Field


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """What one file holds of a field, and where in that file the table's fields are."""

    array: pa.Array
    paths: Mapping[int, Path]
    file: str
    all_live: bool = True
    """Whether no row is a deleted one: of those, files may say different things."""

    def path_of(self, field: Field) -> Path | None:
        """The file's path to the field, or to something below it."""
        return next((self.paths[node.id] for node in field.walk() if node.id in self.paths), None)


def assembled(field: Field, target: pa.DataType, parts: Sequence[StoredColumn], rows: int) -> pa.Array:
    """The values under the names, and with just the children, that the table gives them now."""
    try:
        return _assembled(field, target, parts, rows, depth=1)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        files = ", ".join(part.file for part in parts)
        raise Corrupt(
            f"what is stored of column {field.name!r} is not what a {target} is made of: {error}",
            path=files,
            field="fields",
        ) from error


def _assembled(field: Field, target: pa.DataType, parts: Sequence[StoredColumn], rows: int, *, depth: int) -> pa.Array:
    """`depth` counts the names on the way to `field`."""
    holding = [part for part in parts if part.path_of(field) is not None]
    if not holding:
        return pa.nulls(rows, target)
    first = holding[0]
    if len(holding) == 1 and first.array.type == target and is_in_place(field, first, depth):
        return first.array
    if field.children and not field.is_packed and not isinstance(target, pa.BaseExtensionType):
        for part in holding:
            if _shape(part.array.type) != _shape(target):
                raise _another_type(field, target, part)
        if pa.types.is_struct(target):
            return _struct(field, target, holding, rows, depth)
        if pa.types.is_map(target):
            return _map(field, target, holding, depth)
        if pa.types.is_fixed_size_list(target):
            return _fixed_size_list(field, target, holding, depth)
        if pa.types.is_list(target) or pa.types.is_large_list(target):
            return _list(field, target, holding, depth)
    return _leaf(field, target, first)


def _shape(type: pa.DataType) -> tuple[bool, bool, bool, int]:
    """Which of the ways to take an array apart is its own. Lists are alike, however long."""
    is_list = pa.types.is_list(type) or pa.types.is_large_list(type)
    size = type.list_size if pa.types.is_fixed_size_list(type) else -1
    return pa.types.is_struct(type), pa.types.is_map(type), is_list, size


def is_in_place(field: Field, part: StoredColumn, depth: int = 1) -> bool:
    """Whether the file's children are the table's: of equal types that alone says nothing, names may have moved."""
    if not field.children or field.is_packed:
        return field.id in part.paths
    return all(
        (path := part.path_of(child)) is not None
        and path[depth : depth + 1] == (child.name,)
        and is_in_place(child, part, depth + 1)
        for child in field.children
    )


def _struct(field: Field, target: pa.StructType, parts: Sequence[StoredColumn], rows: int, depth: int) -> pa.Array:
    children = []
    for child, child_target in zip(field.children, target, strict=True):
        below = [
            replace(part, array=_child(field, target, part, path[depth : depth + 1]))
            for part in parts
            if (path := part.path_of(child)) is not None
        ]
        children.append(_assembled(child, child_target.type, below, rows, depth=depth + 1))
    mask = _nulls(parts[0].array)
    if not children:
        return pa.StructArray.from_arrays([], fields=[], mask=mask if mask is not None else _none_of(rows))
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _child(field: Field, target: pa.StructType, part: StoredColumn, name: Path) -> pa.Array:
    if not name or part.array.type.get_field_index(name[0]) < 0:
        raise _another_type(field, target, part)
    return part.array.field(name[0])


def _list(field: Field, target: pa.DataType, parts: Sequence[StoredColumn], depth: int) -> pa.Array:
    parts, lengths = _of_one_shape(field, parts)
    below = [replace(part, array=part.array.flatten()) for part in parts]
    ends = np.cumsum(lengths)
    values = _assembled(field.children[0], target.value_type, below, int(ends[-1]) if len(ends) else 0, depth=depth + 1)
    is_large = pa.types.is_large_list(target)
    offsets = pa.array(np.concatenate([[0], ends]), pa.int64() if is_large else pa.int32())
    make = pa.LargeListArray if is_large else pa.ListArray
    return make.from_arrays(offsets, values, type=target, mask=_nulls(parts[0].array))


def _map(field: Field, target: pa.MapType, parts: Sequence[StoredColumn], depth: int) -> pa.Array:
    parts, _ = _of_one_shape(field, parts)
    whole = [replace(part, array=afresh(part.array)) for part in parts]
    key, value = field.children[0].children
    keys = [replace(part, array=part.array.keys) for part in whole]
    items = [replace(part, array=part.array.items) for part in whole]
    rows = len(keys[0].array)
    return pa.MapArray.from_arrays(
        whole[0].array.offsets,
        _assembled(key, target.key_type, keys, rows, depth=depth + 2),
        _assembled(value, target.item_type, items, rows, depth=depth + 2),
        type=target,
        mask=_nulls(parts[0].array),
    )


def _fixed_size_list(field: Field, target: pa.FixedSizeListType, parts: Sequence[StoredColumn], depth: int) -> pa.Array:
    below = [replace(part, array=afresh(part.array).values) for part in parts]
    rows = len(parts[0].array) * target.list_size
    values = _assembled(field.children[0], target.value_type, below, rows, depth=depth + 1)
    return pa.FixedSizeListArray.from_arrays(values, type=target, mask=_nulls(parts[0].array))


def _of_one_shape(field: Field, parts: Sequence[StoredColumn]) -> tuple[Sequence[StoredColumn], npt.NDArray[np.int64]]:
    """The parts and the lengths of their lists. Writers put anything where a row is deleted: what differs there becomes
    null."""
    lengths = [_lengths(part.array) for part in parts]
    differ = np.any([each != lengths[0] for each in lengths], axis=0)
    if not differ.any():
        return parts, lengths[0]
    for part, each in zip(parts, lengths, strict=True):
        if part.all_live and (each != lengths[0]).any():
            raise Corrupt(
                f"holds lists of column {field.name!r} that are of other lengths than in {parts[0].file}",
                path=part.file,
                field="fields",
            )
    agreeing = pa.array(np.arange(len(differ)), mask=differ)
    return [replace(part, array=part.array.take(agreeing)) for part in parts], np.where(differ, 0, lengths[0])


def _lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    """0 for a null."""
    lengths = np.diff(np.asarray(array.offsets)).astype(np.int64)
    return np.where(np.asarray(array.is_null()), 0, lengths) if array.null_count else lengths


def _leaf(field: Field, target: pa.DataType, part: StoredColumn) -> pa.Array:
    array = part.array
    if array.type == target:
        return array
    if is_json(target):
        return _json_text(array, target, part.file)
    if isinstance(target, pa.BaseExtensionType):
        storage = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
        return pa.ExtensionArray.from_storage(target, storage.cast(target.storage_type))
    try:
        return array.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise _another_type(field, target, part) from error


def _another_type(field: Field, target: pa.DataType, part: StoredColumn) -> Unsupported:
    return Unsupported(f"{part.file}: column {field.name!r} is stored as {part.array.type} and the table says {target}")


def _json_text(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    storage = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    if pa.types.is_string(storage.type) or pa.types.is_large_string(storage.type):
        # Releases that did not know the type stored what it was made of.
        return pa.ExtensionArray.from_storage(target, storage.cast(target.storage_type))
    texts = [None if value is None else jsonb.to_text(value, path=path) for value in storage.to_pylist()]
    return pa.ExtensionArray.from_storage(target, pa.array(texts, target.storage_type))


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _none_of(rows: int) -> pa.Array:
    return pa.array(np.zeros(rows, dtype=np.bool_))
