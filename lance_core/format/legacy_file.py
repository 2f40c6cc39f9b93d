"""Data file footer of format 0.1: the positions of its batches and pages, and the schema that the file carries
itself.

    pages …  page table  dictionaries  [u32 n][manifest, fields only]  [u32 n][metadata]  footer as in a manifest file

A page is one column of one batch; `datafiles/legacy_codec.py` decodes its bytes. Every position is checked against
the size of the file before it is used. Start with `LegacyFile.decode` and `PageTable`.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt, Unsupported
from lance_core.format import manifest_file, size_guard
from lance_core.format._pb import file_pb2, table_pb2
from lance_core.format.schema import TableSchema

TAIL_BYTES = 65_536
_LENGTH = struct.Struct("<I")
_PAGE = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class Page:
    position: int
    length: int
    """The number of values, not bytes. A page of lists holds one offset more than it has lists."""


@dataclass(frozen=True, slots=True)
class LegacyFile:
    """Decoded metadata. The page table and the schema have to be read separately, from the positions given here."""

    size: int
    batch_offsets: tuple[int, ...]
    """The first row of each batch, followed by the number of rows."""
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
            raise Corrupt("its batch offsets are not in ascending order from 0", path=path, field="batch_offsets")
        if not message.manifest_position:
            raise Unsupported(f"{path} is a data file of format 0.1 without a schema, which no release wrote")
        return cls(size, offsets, message.page_table_position, message.manifest_position)


@dataclass(frozen=True, slots=True)
class LegacySchema:
    """The columns at the time when the file was written."""

    schema: TableSchema
    dictionaries: Mapping[int, Page]
    """The dictionary values by field id, as pages of the same file."""

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


def find_metadata_position(tail: bytes, *, size: int, path: str) -> int:
    """Return the position of the metadata message, from the last bytes of the file."""
    if len(tail) < manifest_file.FOOTER.size:
        raise Corrupt(f"is {size} bytes long, which is too short for a data file", path=path, field="footer")
    position, _major, _minor, magic = manifest_file.FOOTER.unpack(tail[-manifest_file.FOOTER.size :])
    if magic != manifest_file.MAGIC:
        raise Corrupt(f"ends in {magic!r} instead of {manifest_file.MAGIC!r}", path=path, field="footer.magic")
    if not 0 <= position <= size - manifest_file.FOOTER.size - _LENGTH.size:
        raise Corrupt(
            f"its footer places the metadata at byte {position} of {size}", path=path, field="footer.position"
        )
    return int(position)


def read_message(section: bytes, *, path: str, field: str) -> bytes:
    """Return the length-prefixed message at the start of these bytes."""
    if len(section) < _LENGTH.size:
        raise Corrupt(f"section {field} is truncated", path=path, field=field)
    (length,) = _LENGTH.unpack_from(section)
    if _LENGTH.size + length > len(section):
        raise Corrupt(
            f"section {field} is truncated: {length} bytes expected, {len(section)} read", path=path, field=field
        )
    return section[_LENGTH.size : _LENGTH.size + length]


@dataclass(frozen=True, slots=True)
class PageTable:
    """Page positions: one page for each field id from the first to the last and each batch. Struct fields have none."""

    _data: bytes
    _batches: int
    _first_id: int

    @classmethod
    def decode(cls, data: bytes, schema: TableSchema, batches: int) -> "PageTable":
        """Decode the table at the start of `data`, which may be longer than the table.

        Writers of 0.5 number the rows of the table from field id 0, those of 0.8 and later from the first field id of
        the file. A table of the later form has pages for the first leaf at the position of the later form; a table of
        the earlier form has only empty entries there.
        """
        nodes = [node for top in schema.fields for node in top.walk()]
        first_id = min((node.id for node in nodes), default=0)
        table = cls(data, batches, first_id)
        first_leaf = min((node.id for node in nodes if node.logical_type != "struct"), default=first_id)
        if first_id and batches and not any(table.page(first_leaf, batch) for batch in range(batches)):
            return cls(data, batches, 0)
        return table

    def page(self, field_id: int, batch: int) -> Page | None:
        """Return a page, or `None` if the table has no entry for it or ends before it."""
        position_in_table = ((field_id - self._first_id) * self._batches + batch) * _PAGE.size
        if not 0 <= position_in_table <= len(self._data) - _PAGE.size:
            return None
        position, length = _PAGE.unpack_from(self._data, position_in_table)
        return Page(position, length) if length or position else None
