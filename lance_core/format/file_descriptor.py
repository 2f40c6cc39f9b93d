"""File descriptor: the schema and the number of rows that a data file of version 2.0 or later declares.

Files of a table have the same serialized schema, which is therefore checked once. Start with `FileDescriptor.decode`.
"""

import functools
from collections.abc import Set
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt, LanceError
from lance_core.format import size_guard
from lance_core.format._pb import file_pb2
from lance_core.format.schema import TableSchema
from lance_core.limits import FIELDS

_SCHEMA_TAG = 0x0A
_LENGTH_BYTES_MAX = 10
_DEPTH_MAX = 100
_CACHED_SCHEMAS_MAX = 1024


@dataclass(frozen=True, slots=True)
class FileDescriptor:
    """Descriptor of one file."""

    schema_bytes: bytes
    """Serialized schema: files with equal bytes have the same schema, and share one object."""
    rows: int

    @classmethod
    def decode(cls, message: bytes, *, path: str) -> "FileDescriptor":
        end = _end_of_schema(message)
        if end is None:
            raise Corrupt("its schema does not parse", path=path, field="schema")
        schema = message[:end]
        try:
            schema = _checked_schema(schema)
        except LanceError:
            _check_schema(schema, path)
            raise
        try:
            return cls(schema, file_pb2.FileDescriptor.FromString(message[end:]).length)
        except DecodeError as error:
            raise Corrupt("its number of rows does not parse", path=path, field="length") from error

    def leaf_names(self) -> tuple[str, ...]:
        """Return the name of the top-level column of each field without children, in the order of the schema."""
        return _leaf_names(self.schema_bytes)

    def top_level_names(self) -> tuple[str, ...]:
        """Return the name of the top-level column of each field, in the order of the schema."""
        return _top_level_names(self.schema_bytes)


@functools.lru_cache(maxsize=_CACHED_SCHEMAS_MAX)
def decode_schema(schema: bytes) -> TableSchema:
    """Return the schema of a file from its serialized form."""
    message = file_pb2.FileDescriptor.FromString(schema).schema
    return TableSchema.decode(message.fields, message.metadata)


def select_fields(schema: bytes, ids: Set[int]) -> bytes:
    """Return a serialized schema with these fields alone, which include the parents and children of each."""
    message = file_pb2.FileDescriptor.FromString(schema).schema
    kept = file_pb2.Schema(fields=[each for each in message.fields if each.id in ids], metadata=message.metadata)
    return file_pb2.FileDescriptor(schema=kept).SerializeToString()


@functools.lru_cache(maxsize=_CACHED_SCHEMAS_MAX)
def _leaf_names(schema: bytes) -> tuple[str, ...]:
    fields = _fields(schema, "")
    parents = {each.parent_id for each in fields}
    tops = zip(fields, _top_level_names(schema), strict=True)
    return tuple(name for each, name in tops if each.id not in parents)


def _end_of_schema(message: bytes) -> int | None:
    """Return the end of the first field of the message. The second one is the number of rows."""
    if not message or message[0] != _SCHEMA_TAG:
        return None if message[:1] not in (b"", b"\x10") else 0
    length, shift = 0, 0
    for number in range(1, min(len(message), _LENGTH_BYTES_MAX + 1)):
        length |= (message[number] & 0x7F) << shift
        shift += 7
        if message[number] < 0x80:
            end = number + 1 + length
            return end if end <= len(message) else None
    return None


@functools.lru_cache(maxsize=_CACHED_SCHEMAS_MAX)
def _checked_schema(schema: bytes) -> bytes:
    """Return one object for all schemas with these bytes, which are checked once."""
    _check_schema(schema, "")
    return schema


def _check_schema(schema: bytes, path: str) -> None:
    """Raise an error if a schema does not parse or is nested too deeply for a recursive decoder."""
    size_guard.check_message(schema, path=path)
    depths: dict[int, int] = {-1: 0}
    fields = _fields(schema, path)
    FIELDS.check(len(fields), path=path)
    for each in fields:
        depth = depths.get(each.parent_id, 0) + 1
        if depth > _DEPTH_MAX:
            raise Corrupt(f"its schema is nested more than {_DEPTH_MAX} deep", path=path, field="schema")
        depths[each.id] = depth


@functools.lru_cache(maxsize=_CACHED_SCHEMAS_MAX)
def _top_level_names(schema: bytes) -> tuple[str, ...]:
    names: list[str] = []
    for each in _fields(schema, ""):
        names.append(each.name if each.parent_id == -1 or not names else names[-1])
    return tuple(names)


def _fields(schema: bytes, path: str) -> list[file_pb2.Field]:
    try:
        return list(file_pb2.FileDescriptor.FromString(schema).schema.fields)
    except DecodeError as error:
        raise Corrupt("its schema does not parse", path=path, field="schema") from error
