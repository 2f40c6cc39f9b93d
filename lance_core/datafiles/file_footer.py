"""The last bytes of a data file: where its parts are, and the schema that it says it has, as bytes.

For the two modules of this room that look at a file beside the codec. What columns hold, the codec alone decodes.
"""

import os
import struct

FOOTER = struct.Struct("<QQQIIHH4s")
"""Starts of column metadata, of its offsets and of those of global buffers; counts of both; the version; the magic."""
SPAN = struct.Struct("<QQ")
"""Position and size."""
MAGIC = b"LANC"
_TAIL_BYTES = 4096
_SCHEMA_BYTES_MAX = 1 << 20
_SCHEMA_TAG = 0x0A
_LENGTH_BYTES_MAX = 10


def schema_bytes(path: str) -> bytes | None:
    """Two files in which these are equal have one schema. None where they are not at hand: a file may be damaged, or
    say a lot, and then its codec is asked."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _schema_bytes(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _schema_bytes(descriptor: int) -> bytes | None:
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
    return _first_field(span(position, length))


def _first_field(told: bytes) -> bytes | None:
    """Of a message; the second of this one is the number of rows, in which files of one schema differ."""
    if not told or told[0] != _SCHEMA_TAG:
        return None
    length, shift = 0, 0
    for number in range(1, min(len(told), _LENGTH_BYTES_MAX + 1)):
        length |= (told[number] & 0x7F) << shift
        shift += 7
        if told[number] < 0x80:
            end = number + 1 + length
            return told[:end] if end <= len(told) else None
    return None
