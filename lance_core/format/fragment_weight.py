"""Fragment weight: bounds the memory that the fragments of a large manifest take once they are parsed, in C.

`message_weight.py` follows the structure of any message, and takes seconds for a million fragments. This module knows
the structure of fragments: a parser that expects a single fragment with a single file merges all of them, so that one
list has all data files, and two arrays have the field ids and columns of all of them. Fragments with overlays are rare,
and are left to `message_weight.py`. Start with `check_manifest`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as FieldType
from google.protobuf.message import DecodeError, Message

from lance_core.format import manifest_file, size_guard
from lance_core.format._pb import table_pb2
from lance_core.format.message_weight import SMALL_PART_BYTES, Weight, is_repeated
from lance_core.limits import NUMBERS

_FRAGMENTS = table_pb2.Manifest.DESCRIPTOR.fields_by_name["fragments"].number
_FILES = table_pb2.DataFragment.DESCRIPTOR.fields_by_name["files"].number
_ARRAYS = ("fields", "column_indices")
_FILE_TAG = _FILES << 3 | 2
"""Tag of a file in a fragment, and of a fragment in a manifest."""
_BYTES_PER_TAG_MIN = 8
"""Fragments and files are counted in lists of 16 bytes for each. A message with more bytes that may be a tag is left to
`message_weight.py`, which needs no memory."""


def check_manifest(message: bytes, *, path: str) -> None:
    """Raise `Unsupported` if an encoded manifest would take too much memory once it is parsed."""
    if size_guard.is_small(message) or size_guard.has_provably_few_parts(message):
        return
    weight = bound_fragments(message)
    if weight is None or weight.small_parts > size_guard.small_parts_max(message):
        size_guard.check_message(message, path=path, kind=table_pb2.Manifest)
        return
    NUMBERS.check(weight.numbers, path=path)
    header = manifest_file.strip_fragments(message)
    size_guard.check_message(header, path=path, kind=table_pb2.Manifest)


def bound_fragments(message: bytes) -> Weight | None:
    """Return an upper bound of the weight of all fragments of a manifest; `None` if this module cannot bound it."""
    tags = int(np.count_nonzero((np.frombuffer(message, np.uint8) & 0x7F) == _FILE_TAG))
    if tags * _BYTES_PER_TAG_MIN > len(message):
        return None
    try:
        fragments = _parse(_FRAGMENTS_TYPE, message)
        contents = _parse(_CONTENTS_TYPE, message)
        has_many_bytes = len(message) > NUMBERS.maximum  # a number has at least one
        numbers = _count_numbers(_parse(_ARRAYS_TYPE, message).files) if has_many_bytes else len(message)
    except DecodeError:
        return None
    if any(contents.HasField(name) for name in _UNBOUNDED):
        return None
    singular = sum(contents.HasField(name) for name in _SINGULAR)  # at most one message of each in a fragment
    small = _count_small(fragments) + _count_small(contents.files)
    parts = small + len(_ARRAYS) * len(contents.files) + singular * len(fragments)
    return Weight(parts, numbers)


def _count_numbers(arrays: Any) -> int:
    return sum(len(getattr(arrays, name)) for name in _ARRAYS)


def _count_small(records: Sequence[bytes]) -> int:
    return int(np.count_nonzero(np.fromiter(map(len, records), np.int64, len(records)) < SMALL_PART_BYTES))


def _parse(kind: type[Message], message: bytes) -> Any:
    return cast(Any, kind.FromString(message)).fragments


def _message_fields(descriptor: Any) -> Iterable[FieldDescriptor]:
    return (field for field in descriptor.fields if field.message_type is not None)


def _has_parts(descriptor: Any) -> bool:
    """Return whether a message has parts of its own."""
    return any(is_repeated(field) or field.message_type is not None for field in descriptor.fields)


_OTHERS = [field for field in _message_fields(table_pb2.DataFragment.DESCRIPTOR) if field.number != _FILES]
_UNBOUNDED = tuple(field.name for field in _OTHERS if is_repeated(field) or _has_parts(field.message_type))
_SINGULAR = tuple(field.name for field in _OTHERS if field.name not in _UNBOUNDED)
assert not any(_message_fields(table_pb2.DataFile.DESCRIPTOR)), "a data file has no messages"


def _declare_types() -> tuple[type[Message], type[Message], type[Message]]:
    """Declare manifests whose fragments are a list of bytes, one fragment whose files are a list of bytes, and one
    fragment with one file."""
    package = "lance.table.fragment_weight"
    file = descriptor_pb2.FileDescriptorProto(name="lance_core/format/fragment_weight", package=package)

    def declare(name: str) -> DescriptorProto:
        return file.message_type.add(name=name)

    def add(message: DescriptorProto, name: str, number: int, kind: "FieldType.Type.ValueType", of: str = "") -> None:
        is_list = kind == FieldType.TYPE_INT32 or (kind == FieldType.TYPE_BYTES and name in ("files", "fragments"))
        label = FieldType.LABEL_REPEATED if is_list else FieldType.LABEL_OPTIONAL
        message.field.add(
            name=name, number=number, label=label, type=kind, type_name=f".{package}.{of}" if of else None
        )

    add(declare("Fragments"), "fragments", _FRAGMENTS, FieldType.TYPE_BYTES)
    add(declare("Contents"), "fragments", _FRAGMENTS, FieldType.TYPE_MESSAGE, "ContentsOfFragment")
    contents = declare("ContentsOfFragment")
    add(contents, "files", _FILES, FieldType.TYPE_BYTES)
    for other in _OTHERS:
        add(contents, other.name, other.number, FieldType.TYPE_BYTES)
    add(declare("Arrays"), "fragments", _FRAGMENTS, FieldType.TYPE_MESSAGE, "ArraysOfFragment")
    add(declare("ArraysOfFragment"), "files", _FILES, FieldType.TYPE_MESSAGE, "ArraysOfFile")
    arrays = declare("ArraysOfFile")
    for name in _ARRAYS:
        add(arrays, name, table_pb2.DataFile.DESCRIPTOR.fields_by_name[name].number, FieldType.TYPE_INT32)
    pool = descriptor_pool.Default()  # type: ignore[no-untyped-call]
    pool.AddSerializedFile(file.SerializeToString())
    first, second, third = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in ("Fragments", "Contents", "Arrays")
    )
    return first, second, third


_FRAGMENTS_TYPE, _CONTENTS_TYPE, _ARRAYS_TYPE = _declare_types()
