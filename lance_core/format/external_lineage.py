"""Whether any fragment of a version keeps its row ids, or the versions of its rows, elsewhere than in the manifest.

Hardly any table does, and who opens one should not pay for looking at each fragment. So the whole list is parsed as if
it were one fragment: a parser merges what comes more than once, and in the end a field is there if any fragment has it.
Reading what is elsewhere is `datafiles/row_lineage.py`'s.
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
"""Field -> the one that holds the same in the manifest itself."""
IN_COLUMNS = ("column_row_ids", "column_created_at_versions", "column_last_updated_at_versions")


def external_lineage_fields(manifest: bytes, *, path: str) -> frozenset[str]:
    """Which of the fields above some fragment has."""
    try:
        merged: Message = _MERGED_TYPE.FromString(manifest).fragments  # type: ignore[attr-defined]
    except DecodeError as error:
        raise Corrupt("a fragment of the manifest does not parse", path=path, field="fragments") from error
    return frozenset(name for name in (*IN_FILES, *IN_COLUMNS) if merged.HasField(name))


@dataclass(frozen=True, slots=True)
class LineageFile:
    """Where one sequence of a fragment is; the path from the table's root, as it is stored."""

    field: str
    path: str
    offset: int
    size: int


def lineage_files(fragment: Fragment) -> tuple[LineageFile, ...]:
    message = fragment.message
    found = ((name, getattr(message, name)) for name in IN_FILES if message.HasField(name))
    return tuple(LineageFile(name, file.path, file.offset, file.size) for name, file in found)


def inline_sequences(fragment: Fragment, sequences: Mapping[str, bytes]) -> Fragment:
    """With these in the manifest itself, by the field that said where they are."""
    message = table_pb2.DataFragment()
    message.CopyFrom(fragment.message)
    for name, sequence in sequences.items():
        setattr(message, IN_FILES[name], sequence)
    return Fragment(message)


def _declare_merged_type() -> type[Message]:
    """A manifest of one fragment, which has just these fields, under their real numbers, each as bytes."""
    package = "lance.table.spilled_lineage"
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
