"""External lineage: detects fragments whose row ids or row versions are stored outside the manifest.

Hardly any table has such fragments, so opening a table should not pay for a check of each fragment. Instead, the
whole list is parsed as if it were one fragment: a protobuf parser merges repeated occurrences, so the merged message
has a field if any fragment has it. `datafiles/manifest_completion.py` reads the external sequences.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from lance_core.errors import Corrupt
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import Fragment

IN_FILES: Mapping[str, str] = {
    "external_row_ids": "inline_row_ids",
    "external_created_at_versions": "inline_created_at_versions",
    "external_last_updated_at_versions": "inline_last_updated_at_versions",
}
"""Maps each field for an external sequence to the field that holds the same sequence inline."""
IN_COLUMNS = ("column_row_ids", "column_created_at_versions", "column_last_updated_at_versions")


def external_lineage_fields(manifest: bytes, *, path: str) -> frozenset[str]:
    """Return the fields of `IN_FILES` and `IN_COLUMNS` that at least one fragment has."""
    try:
        merged: Message = _MERGED_TYPE.FromString(manifest).fragments  # type: ignore[attr-defined]
    except DecodeError as error:
        raise Corrupt("a fragment of the manifest does not parse", path=path, field="fragments") from error
    return frozenset(name for name in (*IN_FILES, *IN_COLUMNS) if merged.HasField(name))


@dataclass(frozen=True, slots=True)
class LineageFile:
    """Location of one sequence of a fragment. The path is relative to the table's root, as stored."""

    field: str
    path: str
    offset: int
    size: int


def lineage_files(fragment: Fragment) -> tuple[LineageFile, ...]:
    """Return the locations of the sequences of a fragment that are stored in files."""
    message = fragment.message
    files = ((name, getattr(message, name)) for name in IN_FILES if message.HasField(name))
    return tuple(LineageFile(name, file.path, file.offset, file.size) for name, file in files)


def inline_sequences(fragment: Fragment, sequences: Mapping[str, bytes]) -> Fragment:
    """Return the fragment with these sequences inline, by the name of the field that held their location."""
    message = table_pb2.DataFragment()
    message.CopyFrom(fragment.message)
    for name, sequence in sequences.items():
        setattr(message, IN_FILES[name], sequence)
    return Fragment(message)


def _declare_merged_type() -> type[Message]:
    """Declare a manifest type with a single fragment that has only these fields, with their real numbers, as bytes."""
    package = "lance.table.external_lineage"
    file = descriptor_pb2.FileDescriptorProto(name="lance_core/format/external_lineage", package=package)
    fragment, manifest = file.message_type.add(name="Fragment"), file.message_type.add(name="Manifest")
    optional = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    for name in (*IN_FILES, *IN_COLUMNS):
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
