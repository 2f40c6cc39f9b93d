"""Manifest file: its framing, and its header, the manifest message without the fragments.

A file has length-prefixed sections and a 16-byte footer:

    [dictionary values]      only in tables of format 0.1; the fields hold their positions
    [u32 n][index section]   only if the version has indices
    [u32 n][transaction]     only if the transaction is stored inline
    [u32 n][manifest]        starts at P
    i64 P, u16 major, u16 minor, "LANC"

The header lets a commit change a version without parsing its fragments. Its message type is the format's `Manifest`
without the field `fragments`. A protobuf parser keeps unknown fields as bytes, in their order, and writes them back. So
the fragments pass through unparsed, which is ten times faster than parsing them, and new fragments are appended behind
them as bytes. Code that needs the fragments uses `Manifest.message`.

Lengths and positions are checked against the size of the file before a byte is parsed.

Hardly any table has row ids or row versions outside the manifest, so opening a table should not pay for a check of
each fragment. Instead, the whole list is parsed as if it were one fragment: a protobuf parser merges repeated
occurrences, so the merged message has a field if any fragment has it.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from lance_core.errors import Corrupt
from lance_core.format._pb import table_pb2
from lance_core.limits import MANIFEST_BYTES

MAGIC = b"LANC"
FOOTER = struct.Struct("<qHH4s")
_LENGTH = struct.Struct("<I")
_MAJOR, _MINOR = 0, 2
_FRAGMENTS_FIELD = "fragments"
LINEAGE_IN_FILES: Mapping[str, str] = {
    "external_row_ids": "inline_row_ids",
    "external_created_at_versions": "inline_created_at_versions",
    "external_last_updated_at_versions": "inline_last_updated_at_versions",
}
"""Maps each field for an external sequence to the field that holds the same sequence inline."""
LINEAGE_IN_COLUMNS = ("column_row_ids", "column_created_at_versions", "column_last_updated_at_versions")


@dataclass(frozen=True, slots=True)
class Offsets:
    """Start positions of the optional sections. Zero is a valid position; `None` means that the section is absent."""

    index_section: int | None
    transaction: int | None


def section_offsets(index_section: bytes | None, transaction: bytes | None, *, before: bytes = b"") -> Offsets:
    """Return the positions at which `frame_manifest` puts the sections. The manifest contains these positions, so
    they are computed before it is serialised."""
    position = len(before)
    offsets: list[int | None] = []
    for section in (index_section, transaction):
        offsets.append(None if section is None else position)
        position += 0 if section is None else _LENGTH.size + len(section)
    return Offsets(index_section=offsets[0], transaction=offsets[1])


def frame_manifest(
    index_section: bytes | None, transaction: bytes | None, manifest: bytes, *, before: bytes = b""
) -> bytes:
    """Return the bytes of a manifest file. `before` precedes all sections."""
    parts: list[bytes] = [before]
    for section in (index_section, transaction):
        if section is not None:
            parts += (_LENGTH.pack(len(section)), section)
    position = sum(map(len, parts))
    parts += (_LENGTH.pack(len(manifest)), manifest, FOOTER.pack(position, _MAJOR, _MINOR, MAGIC))
    return b"".join(parts)


def find_manifest_position(tail: bytes, *, size: int, path: str) -> int:
    """Return the position of the manifest section, from the last bytes of a file of `size` bytes."""
    if len(tail) < FOOTER.size:
        raise Corrupt(f"is {size} bytes long, which is too short for a manifest", path=path, field="footer")
    position, _major, _minor, magic = FOOTER.unpack(tail[-FOOTER.size :])
    if magic != MAGIC:
        raise Corrupt(f"ends in {magic!r} instead of {MAGIC!r}", path=path, field="footer.magic")
    MANIFEST_BYTES.check(size, path=path)
    if not 0 <= position <= size - FOOTER.size - _LENGTH.size:
        raise Corrupt(
            f"its footer places the manifest at byte {position} of {size}", path=path, field="footer.position"
        )
    return int(position)


def extract_manifest_message(data: bytes, *, path: str) -> bytes:
    """Return the bytes of the manifest message in a whole file."""
    position = find_manifest_position(data[-FOOTER.size :], size=len(data), path=path)
    message = read_section(data, position, path=path, field="manifest")
    if position + _LENGTH.size + len(message) + FOOTER.size != len(data):
        raise Corrupt(
            f"the manifest has {len(message)} bytes, which do not reach up to the footer",
            path=path,
            field="manifest.length",
        )
    return message


def read_section(data: bytes, position: int, *, path: str, field: str) -> bytes:
    """Return the length-prefixed section that starts at `position`."""
    start = position + _LENGTH.size
    if position < 0 or start > len(data):
        raise Corrupt(f"section {field} is placed at byte {position} of {len(data)}", path=path, field=field)
    (length,) = _LENGTH.unpack_from(data, position)
    if start + length > len(data):
        raise Corrupt(f"section {field} is truncated: {length} bytes at {position}", path=path, field=field)
    return data[start : start + length]


def parse_header(message: bytes) -> table_pb2.Manifest:
    """Parse a manifest message. The result is typed as the full message, but access to `fragments` raises an error."""
    return _HEADER_TYPE.FromString(message)


def empty_header() -> table_pb2.Manifest:
    """Return a header without any field."""
    return _HEADER_TYPE()


def copy_header(header: table_pb2.Manifest) -> table_pb2.Manifest:
    """Return a copy of a header, including the fragments that it carries."""
    duplicate = _HEADER_TYPE()
    duplicate.CopyFrom(header)
    return duplicate


def add_fragments(header: table_pb2.Manifest, fragments: Iterable[table_pb2.DataFragment]) -> None:
    """Append fragments behind those that the header carries."""
    header.MergeFromString(table_pb2.Manifest(fragments=fragments).SerializeToString())


def without_fragments(header: table_pb2.Manifest) -> table_pb2.Manifest:
    """Return a copy that carries no fragments."""
    return parse_header(strip_fragments(header.SerializeToString()))


def strip_fragments(message: bytes) -> bytes:
    """Return an encoded manifest without its fragments."""
    whole = _LAST_FRAGMENT_TYPE.FromString(message)
    whole.ClearField(_FRAGMENTS_FIELD)
    return whole.SerializeToString()


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


def external_lineage_fields(file: bytes, *, path: str) -> frozenset[str]:
    """Return the fields of `LINEAGE_IN_FILES` and `LINEAGE_IN_COLUMNS` that at least one fragment has."""
    try:
        merged: Message = _MERGED_TYPE.FromString(extract_manifest_message(file, path=path)).fragments  # type: ignore[attr-defined]
    except DecodeError as error:
        raise Corrupt("a fragment of the manifest does not parse", path=path, field="fragments") from error
    return frozenset(name for name in (*LINEAGE_IN_FILES, *LINEAGE_IN_COLUMNS) if merged.HasField(name))


def _declare_merged_type() -> type[Message]:
    """Declare a manifest type with a single fragment that has only these fields, with their real numbers, as bytes."""
    package = "lance.table.external_lineage"
    file = descriptor_pb2.FileDescriptorProto(name="lance_core/format/external_lineage", package=package)
    fragment, manifest = file.message_type.add(name="Fragment"), file.message_type.add(name="Manifest")
    optional = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    for name in (*LINEAGE_IN_FILES, *LINEAGE_IN_COLUMNS):
        number = table_pb2.DataFragment.DESCRIPTOR.fields_by_name[name].number
        fragment.field.add(
            name=name, number=number, label=optional, type=descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
        )
    manifest.field.add(
        name="fragments",
        number=table_pb2.Manifest.DESCRIPTOR.fields_by_name["fragments"].number,
        label=optional,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
        type_name=f".{package}.Fragment",
    )
    pool = descriptor_pool.Default()  # type: ignore[no-untyped-call]
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Manifest"))


_MERGED_TYPE = _declare_merged_type()
