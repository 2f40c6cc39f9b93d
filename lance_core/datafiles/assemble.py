"""Column assembly: builds a column of the table from what several files store of it. At any depth, children may be in
other files than their siblings, have other names in those files, or have been dropped or added since.

The assembly walks the tree of the table's fields together with the arrays; field ids tell which child of a file is
which. Every file that stores a child of a struct or a list also stores whether the parent is null, and how long a list
is. Pure: arrays in, arrays out. Start with `assemble_column`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles import jsonb
from lance_core.datafiles.column_layout import Path
from lance_core.datafiles.conform import copy_array
from lance_core.errors import Corrupt, Unsupported
from lance_core.format.logical_types import is_json
from lance_core.format.schema import Field


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """Values that one file stores for a field, and the paths of the table's fields in that file."""

    array: pa.Array
    paths: Mapping[int, Path]
    file: str
    all_live: bool = True
    """`True` if no row is deleted. Files may store different values for deleted rows."""

    def path_of(self, field: Field) -> Path | None:
        """Return the path in the file to the field, or to one of its descendants."""
        return next((self.paths[node.id] for node in field.walk() if node.id in self.paths), None)


def assemble_column(field: Field, target: pa.DataType, parts: Sequence[StoredColumn], rows: int) -> pa.Array:
    """Return the values with the names and exactly the children that the table gives them now."""
    try:
        return _assemble(field, target, parts, rows, depth=1)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        files = ", ".join(part.file for part in parts)
        raise Corrupt(
            f"the stored data of column {field.name!r} does not form a {target}: {error}",
            path=files,
            field="fields",
        ) from error


def _assemble(field: Field, target: pa.DataType, parts: Sequence[StoredColumn], rows: int, *, depth: int) -> pa.Array:
    """Assemble a field. `depth` is the number of names on the path to `field`."""
    storing = [part for part in parts if part.path_of(field) is not None]
    if not storing:
        return pa.nulls(rows, target)
    first = storing[0]
    if len(storing) == 1 and first.array.type == target and has_same_children(field, first, depth):
        return first.array
    if field.children and not field.is_packed and not isinstance(target, pa.BaseExtensionType):
        for part in storing:
            if _container_shape(part.array.type) != _container_shape(target):
                raise _type_mismatch(field, target, part)
        if pa.types.is_struct(target):
            return _assemble_struct(field, target, storing, rows, depth)
        if pa.types.is_map(target):
            return _assemble_map(field, target, storing, depth)
        if pa.types.is_fixed_size_list(target):
            return _assemble_fixed_size_list(field, target, storing, depth)
        if pa.types.is_list(target) or pa.types.is_large_list(target):
            return _assemble_list(field, target, storing, depth)
    return _convert_leaf(field, target, first)


def _container_shape(type: pa.DataType) -> tuple[bool, bool, bool, int]:
    """Return what decides how an array is taken apart. All variable-length lists are alike."""
    is_list = pa.types.is_list(type) or pa.types.is_large_list(type)
    size = type.list_size if pa.types.is_fixed_size_list(type) else -1
    return pa.types.is_struct(type), pa.types.is_map(type), is_list, size


def has_same_children(field: Field, part: StoredColumn, depth: int = 1) -> bool:
    """Return whether the file's children are those of the table. Equal types do not prove it, since fields may have
    been renamed."""
    if not field.children or field.is_packed:
        return field.id in part.paths
    return all(
        (path := part.path_of(child)) is not None
        and path[depth : depth + 1] == (child.name,)
        and has_same_children(child, part, depth + 1)
        for child in field.children
    )


def _assemble_struct(
    field: Field, target: pa.StructType, parts: Sequence[StoredColumn], rows: int, depth: int
) -> pa.Array:
    children = []
    for child, child_target in zip(field.children, target, strict=True):
        below = [
            replace(part, array=_child_array(field, target, part, path[depth : depth + 1]))
            for part in parts
            if (path := part.path_of(child)) is not None
        ]
        children.append(_assemble(child, child_target.type, below, rows, depth=depth + 1))
    mask = _null_mask(parts[0].array)
    if not children:
        return pa.StructArray.from_arrays([], fields=[], mask=mask if mask is not None else _no_nulls(rows))
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _child_array(field: Field, target: pa.StructType, part: StoredColumn, name: Path) -> pa.Array:
    if not name or part.array.type.get_field_index(name[0]) < 0:
        raise _type_mismatch(field, target, part)
    return part.array.field(name[0])


def _assemble_list(field: Field, target: pa.DataType, parts: Sequence[StoredColumn], depth: int) -> pa.Array:
    parts, lengths = _align_list_lengths(field, parts)
    below = [replace(part, array=part.array.flatten()) for part in parts]
    ends = np.cumsum(lengths)
    values = _assemble(field.children[0], target.value_type, below, int(ends[-1]) if len(ends) else 0, depth=depth + 1)
    is_large = pa.types.is_large_list(target)
    offsets = pa.array(np.concatenate([[0], ends]), pa.int64() if is_large else pa.int32())
    make = pa.LargeListArray if is_large else pa.ListArray
    return make.from_arrays(offsets, values, type=target, mask=_null_mask(parts[0].array))


def _assemble_map(field: Field, target: pa.MapType, parts: Sequence[StoredColumn], depth: int) -> pa.Array:
    parts, _ = _align_list_lengths(field, parts)
    copied = [replace(part, array=copy_array(part.array)) for part in parts]
    key, value = field.children[0].children
    keys = [replace(part, array=part.array.keys) for part in copied]
    items = [replace(part, array=part.array.items) for part in copied]
    rows = len(keys[0].array)
    return pa.MapArray.from_arrays(
        copied[0].array.offsets,
        _assemble(key, target.key_type, keys, rows, depth=depth + 2),
        _assemble(value, target.item_type, items, rows, depth=depth + 2),
        type=target,
        mask=_null_mask(parts[0].array),
    )


def _assemble_fixed_size_list(
    field: Field, target: pa.FixedSizeListType, parts: Sequence[StoredColumn], depth: int
) -> pa.Array:
    below = [replace(part, array=copy_array(part.array).values) for part in parts]
    rows = len(parts[0].array) * target.list_size
    values = _assemble(field.children[0], target.value_type, below, rows, depth=depth + 1)
    return pa.FixedSizeListArray.from_arrays(values, type=target, mask=_null_mask(parts[0].array))


def _align_list_lengths(
    field: Field, parts: Sequence[StoredColumn]
) -> tuple[Sequence[StoredColumn], npt.NDArray[np.int64]]:
    """Return the parts and the lengths of their lists. Writers may store anything for deleted rows: lists whose
    lengths differ there become null."""
    lengths = [_list_lengths(part.array) for part in parts]
    differ = np.any([each != lengths[0] for each in lengths], axis=0)
    if not differ.any():
        return parts, lengths[0]
    for part, each in zip(parts, lengths, strict=True):
        if part.all_live and (each != lengths[0]).any():
            raise Corrupt(
                f"stores lists of column {field.name!r} whose lengths differ from those in {parts[0].file}",
                path=part.file,
                field="fields",
            )
    agreeing = pa.array(np.arange(len(differ)), mask=differ)
    return [replace(part, array=part.array.take(agreeing)) for part in parts], np.where(differ, 0, lengths[0])


def _list_lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the length of each list; 0 for a null."""
    lengths = np.diff(np.asarray(array.offsets)).astype(np.int64)
    return np.where(np.asarray(array.is_null()), 0, lengths) if array.null_count else lengths


def _convert_leaf(field: Field, target: pa.DataType, part: StoredColumn) -> pa.Array:
    array = part.array
    if array.type == target:
        return array
    if is_json(target):
        return _decode_json(array, target, part.file)
    if isinstance(target, pa.BaseExtensionType):
        storage = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
        return pa.ExtensionArray.from_storage(target, storage.cast(target.storage_type))
    try:
        return array.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise _type_mismatch(field, target, part) from error


def _type_mismatch(field: Field, target: pa.DataType, part: StoredColumn) -> Unsupported:
    return Unsupported(
        f"{part.file}: column {field.name!r} is stored as {part.array.type}, but the table declares {target}"
    )


def _decode_json(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    storage = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    if pa.types.is_string(storage.type) or pa.types.is_large_string(storage.type):
        # Releases that did not know the extension type wrote its storage type.
        return pa.ExtensionArray.from_storage(target, storage.cast(target.storage_type))
    texts = [None if value is None else jsonb.to_text(value, path=path) for value in storage.to_pylist()]
    return pa.ExtensionArray.from_storage(target, pa.array(texts, target.storage_type))


def _null_mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _no_nulls(rows: int) -> pa.Array:
    return pa.array(np.zeros(rows, dtype=np.bool_))
