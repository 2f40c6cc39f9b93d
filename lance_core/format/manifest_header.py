"""Manifest header: a manifest message without its fragments, so that work on a whole version costs the same at any
size.

The message type is the format's `Manifest` without one field. A protobuf parser keeps unknown fields as bytes, in
their order, and writes them back: the fragments pass through unparsed, which is ten times faster than parsing them,
and new fragments are appended behind them as bytes. Code that needs the fragments uses `Manifest.message`.
"""

from collections.abc import Iterable
from typing import cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from lance_core.format._pb import table_pb2

_FRAGMENTS_FIELD = "fragments"


def parse(message: bytes) -> table_pb2.Manifest:
    """Parse a manifest message. The result is typed as the full message, but access to `fragments` raises an error."""
    return _HEADER_TYPE.FromString(message)


def empty() -> table_pb2.Manifest:
    """Return a header without any field."""
    return _HEADER_TYPE()


def copy(header: table_pb2.Manifest) -> table_pb2.Manifest:
    """Return a copy of a header, including the fragments that it carries."""
    duplicate = _HEADER_TYPE()
    duplicate.CopyFrom(header)
    return duplicate


def add_fragments(header: table_pb2.Manifest, fragments: Iterable[table_pb2.DataFragment]) -> None:
    """Append fragments behind those that the header carries."""
    header.MergeFromString(table_pb2.Manifest(fragments=fragments).SerializeToString())


def without_fragments(header: table_pb2.Manifest) -> table_pb2.Manifest:
    """Return a copy that carries no fragments."""
    whole = table_pb2.Manifest.FromString(header.SerializeToString())
    whole.ClearField(_FRAGMENTS_FIELD)
    return parse(whole.SerializeToString())


def last_fragment_id(message: bytes) -> int | None:
    """Return the id of the last listed fragment without parsing the others, or `None` if there are no fragments."""
    last: bytes = getattr(_LAST_FRAGMENT_TYPE.FromString(message), _FRAGMENTS_FIELD)
    return table_pb2.DataFragment.FromString(last).id if last else None


def _declare_last_fragment_type() -> type[Message]:
    """Declare a manifest type with a single fragment, as bytes. A parser keeps the last occurrence of a field that is
    not repeated."""
    package = f"{table_pb2.DESCRIPTOR.package}.last_fragment"
    file = descriptor_pb2.FileDescriptorProto(name="lance_core/format/last_fragment", package=package)
    file.message_type.add(name="Manifest").field.add(
        name=_FRAGMENTS_FIELD,
        number=table_pb2.Manifest.DESCRIPTOR.fields_by_name[_FRAGMENTS_FIELD].number,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    )
    pool = descriptor_pool.Default()  # type: ignore[no-untyped-call]
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Manifest"))


def _declare_header_type() -> type[table_pb2.Manifest]:
    """Derive the header type from the declaration of the real manifest, so that it always has the same fields."""
    real = table_pb2.Manifest.DESCRIPTOR
    package = f"{real.file.package}.header"
    file = descriptor_pb2.FileDescriptorProto(
        name="lance_core/format/manifest_header", package=package, syntax="proto3"
    )
    file.dependency.extend([real.file.name, *(dependency.name for dependency in real.file.dependencies)])
    message = file.message_type.add()
    real.CopyToProto(message)  # type: ignore[no-untyped-call]
    kept = [field for field in message.field if field.name != _FRAGMENTS_FIELD]
    del message.field[:]
    message.field.extend(kept)
    for field in message.field:
        if field.type_name.startswith(f".{real.full_name}."):
            field.type_name = field.type_name.replace(real.full_name, f"{package}.{real.name}", 1)
    pool = descriptor_pool.Default()  # type: ignore[no-untyped-call]
    pool.AddSerializedFile(file.SerializeToString())
    message_type = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{real.name}"))
    return cast(type[table_pb2.Manifest], message_type)


_HEADER_TYPE = _declare_header_type()
_LAST_FRAGMENT_TYPE = _declare_last_fragment_type()
