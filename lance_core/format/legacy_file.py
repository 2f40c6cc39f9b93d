"""The end of a data file of format 0.1: where its batches and pages are, and the schema that it carries itself.

    pages …  page table  dictionaries  [u32 n][manifest, fields only]  [u32 n][metadata]  footer as in a manifest file

What lives here: `LegacyFile.decode` and the page table. A page is a column of one batch; what its bytes mean is
`datafiles/legacy_codec.py`'s. Every number is checked against the file's size before anybody seeks to it.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt, Unsupported
from lance_core.format import framing, size_guard
from lance_core.format._pb import file_pb2, table_pb2
from lance_core.format.schema import TableSchema

TAIL_BYTES = 65_536
_LENGTH = struct.Struct("<I")
_PAGE = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class Page:
    position: int
    length: int
    """In values, not bytes; a list's page holds one offset more than it has lists."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of bytes of the file."""

    position: int
    length: int


@dataclass(frozen=True, slots=True)
class LegacyFile:
    """What the metadata says; the two other places still have to be read."""

    size: int
    batch_offsets: tuple[int, ...]
    """First row of each batch, and the row count at the end."""
    page_table_position: int
    schema_position: int

    @property
    def batches(self) -> int:
        return len(self.batch_offsets) - 1

    @classmethod
    def decode(cls, metadata: bytes, *, size: int, path: str) -> "LegacyFile":
        size_guard.check_message(metadata, path=path)
        try:
            message = file_pb2.Metadata.FromString(metadata)
        except DecodeError as error:
            raise Corrupt("the file's metadata does not parse", path=path, field="metadata") from error
        offsets = tuple(message.batch_offsets) or (0,)
        if offsets[0] != 0 or any(after < before for before, after in pairwise(offsets)):
            raise Corrupt("its batches do not follow one another", path=path, field="batch_offsets")
        if not message.manifest_position:
            raise Unsupported(
                f"{path} is a data file of format 0.1 that carries no schema; no release wrote such tables"
            )
        return cls(size, offsets, message.page_table_position, message.manifest_position)


@dataclass(frozen=True, slots=True)
class LegacySchema:
    """The columns as they were when the file was written."""

    schema: TableSchema
    dictionaries: Mapping[int, Page]
    """Field id -> the values of its dictionary, which are in the same file."""

    @classmethod
    def decode(cls, manifest: bytes, *, path: str) -> "LegacySchema":
        size_guard.check_message(manifest, path=path)
        try:
            message = table_pb2.Manifest.FromString(manifest)
        except DecodeError as error:
            raise Corrupt("the schema in the file does not parse", path=path, field="manifest") from error
        dictionaries = {
            field.id: Page(field.dictionary.offset, field.dictionary.length)
            for field in message.fields
            if field.HasField("dictionary")
        }
        return cls(TableSchema.decode(message.fields, message.schema_metadata, path=path), dictionaries)


def metadata_span(tail: bytes, *, size: int, path: str) -> Span:
    """Where the metadata message is, read from the file's last bytes."""
    if len(tail) < framing.FOOTER.size:
        raise Corrupt(f"{size} bytes are too few for a data file", path=path, field="footer")
    position, _major, _minor, magic = framing.FOOTER.unpack(tail[-framing.FOOTER.size :])
    if magic != framing.MAGIC:
        raise Corrupt(f"does not end in {framing.MAGIC!r} but in {magic!r}", path=path, field="footer.magic")
    length = size - framing.FOOTER.size - position
    if position < 0 or length < _LENGTH.size:
        raise Corrupt(f"the metadata would start at byte {position} of {size}", path=path, field="footer.position")
    return Span(position, length)


def read_message(section: bytes, *, path: str, field: str) -> bytes:
    """The length-prefixed message at the start of these bytes."""
    if len(section) < _LENGTH.size:
        raise Corrupt(f"section {field} is cut short", path=path, field=field)
    (length,) = _LENGTH.unpack_from(section)
    if _LENGTH.size + length > len(section):
        raise Corrupt(f"section {field} is cut short: {length} bytes of {len(section)}", path=path, field=field)
    return section[_LENGTH.size : _LENGTH.size + length]


@dataclass(frozen=True, slots=True)
class PageTable:
    """One page for every field id from the first to the last, and every batch; parents of structs have none."""

    _data: bytes
    _batches: int
    _first_id: int

    @classmethod
    def decode(cls, data: bytes, schema: TableSchema, batches: int) -> "PageTable":
        """`data` begins at the table and may go on behind it.

        Writers of 0.5 began at id 0, those of 0.8 and later at the first id of the file. In a table of the later kind
        the first leaf has pages where that kind puts them; in one of the earlier kind there are only empty ones.
        """
        nodes = [node for top in schema.fields for node in top.walk()]
        first_id = min((node.id for node in nodes), default=0)
        table = cls(data, batches, first_id)
        first_leaf = min((node.id for node in nodes if node.logical_type != "struct"), default=first_id)
        if first_id and batches and not any(table.page(first_leaf, batch) for batch in range(batches)):
            return cls(data, batches, 0)
        return table

    def page(self, field_id: int, batch: int) -> Page | None:
        """None where the table says that there is none, or ends before it."""
        at = ((field_id - self._first_id) * self._batches + batch) * _PAGE.size
        if not 0 <= at <= len(self._data) - _PAGE.size:
            return None
        position, length = _PAGE.unpack_from(self._data, at)
        return Page(position, length) if length or position else None
