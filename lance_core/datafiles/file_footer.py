"""File footer: the last bytes of a data file, which locate its parts, and the serialized schema of the file.

Serves the two modules of this package that read files without the codec. Only the codec decodes columns.
"""

import os
import struct

from lance_core.storage.descriptors import open_descriptor

FOOTER = struct.Struct("<QQQIIHH4s")
"""Start of the column metadata, of its offset table and of the offset table of the global buffers; the number of
buffers and of columns; the file version; the magic bytes."""
SPAN = struct.Struct("<QQ")
"""Position and size."""
MAGIC = b"LANC"
_TAIL_BYTES = 4096
_SCHEMA_BYTES_MAX = 1 << 20
_SCHEMA_TAG = 0x0A
_LENGTH_BYTES_MAX = 10


def read_schema_bytes(path: str) -> bytes | None:
    """Return the serialized schema of a file: files with equal bytes have the same schema.

    `None` if the bytes are not easily accessible, for example in a damaged file or for a very large schema. The caller
    then asks the codec.
    """
    try:
        with open_descriptor(path, os.O_RDONLY) as descriptor:
            return _read_schema_bytes(descriptor)
    except OSError:
        return None


def _read_schema_bytes(descriptor: int) -> bytes | None:
    size = os.fstat(descriptor).st_size
    start = max(0, size - _TAIL_BYTES)
    tail = os.pread(descriptor, _TAIL_BYTES, start)
    if len(tail) < FOOTER.size or len(tail) != size - start:
        return None

    def span(position: int, length: int) -> bytes:
        if position >= start:
            return tail[position - start : position - start + length]
        return os.pread(descriptor, length, position)

    *_, buffers, _count, _columns, _major, _minor, magic = FOOTER.unpack_from(tail, len(tail) - FOOTER.size)
    if magic != MAGIC or buffers > size - SPAN.size:
        return None
    entry = span(buffers, SPAN.size)
    if len(entry) != SPAN.size:
        return None
    position, length = SPAN.unpack(entry)
    if length > _SCHEMA_BYTES_MAX or position > size - length:
        return None
    return _schema_field(span(position, length))


def _schema_field(message: bytes) -> bytes | None:
    """Return the first field of the message. The second one is the number of rows, in which files with the same
    schema differ."""
    if not message or message[0] != _SCHEMA_TAG:
        return None
    length, shift = 0, 0
    for number in range(1, min(len(message), _LENGTH_BYTES_MAX + 1)):
        length |= (message[number] & 0x7F) << shift
        shift += 7
        if message[number] < 0x80:
            end = number + 1 + length
            return message[:end] if end <= len(message) else None
    return None
