"""A manifest message without its fragments, so that what concerns a whole version costs the same at any size.

The type is the format's `Manifest` less one field. A parser keeps what it does not know, as bytes and in their order,
and writes it back: the fragments pass through unread, ten times faster than they are parsed, and new ones go behind
them as bytes. Who needs to look at them takes `Manifest.message`.
"""

from collections.abc import Iterable
from typing import cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from lance_core.format._pb import table_pb2

_FRAGMENTS_FIELD = "fragments"


def parse(message: bytes) -> table_pb2.Manifest:
    """Typed as the message it is an outline of, but asking for `fragments` is an error."""
    return _HEADER_TYPE.FromString(message)


def empty() -> table_pb2.Manifest:
    return _HEADER_TYPE()


def copy(header: table_pb2.Manifest) -> table_pb2.Manifest:
    fresh = _HEADER_TYPE()
    fresh.CopyFrom(header)
    return fresh


def add_fragments(header: table_pb2.Manifest, fragments: Iterable[table_pb2.DataFragment]) -> None:
    """Behind those that it carries."""
    header.MergeFromString(table_pb2.Manifest(fragments=fragments).SerializeToString())


def without_fragments(header: table_pb2.Manifest) -> table_pb2.Manifest:
    """A copy that carries none."""
    whole = table_pb2.Manifest.FromString(header.SerializeToString())
    whole.ClearField(_FRAGMENTS_FIELD)
    return parse(whole.SerializeToString())


def last_fragment_id(message: bytes) -> int | None:
    """Of the fragment that a manifest lists last, found without parsing the others; None where it has none."""
    last: bytes = getattr(_LAST_FRAGMENT_TYPE.FromString(message), _FRAGMENTS_FIELD)
    return table_pb2.DataFragment.FromString(last).id if last else None


def _declare_last_fragment_type() -> type[Message]:
    """A manifest that has room for one fragment, as bytes: a parser keeps the last of those that it meets."""
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
    """From the declaration of the real one, so that it cannot fall behind."""
    real = table_pb2.Manifest.DESCRIPTOR
    package = f"{real.file.package}.outline"
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
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{real.name}"))
    return cast(type[table_pb2.Manifest], made)


_HEADER_TYPE = _declare_header_type()
_LAST_FRAGMENT_TYPE = _declare_last_fragment_type()
