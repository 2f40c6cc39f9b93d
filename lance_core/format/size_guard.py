"""Size guard: estimates how much memory a message needs, before it is parsed.

A parsed part of a message is an object of 64 to 130 bytes, and an empty part costs two bytes to write: ten megabytes
of empty parts become 640 megabytes. Large parts are paid for by their own bytes, so only small parts are counted. The
count is an upper bound: `check_message` counts every position that could be a small part, in numpy, without following
the structure of the message. Bytes of text or numbers rarely look like one. A message that is too short to hold too
many parts is not scanned.
"""

import numpy as np
import numpy.typing as npt

from lance_core.limits import JSON_PARTS, SMALL_PARTS

_PART_BYTES_MIN = 2
_SMALL_PART_BYTES = 16
"""A part shorter than this is small."""
_CHUNK_BYTES = 1 << 18
_LENGTH_DELIMITED = 2
_WIRE_TYPE = 7
_CONTINUATION_BIT = 0x80

_Bytes = npt.NDArray[np.uint8]


def check_message(message: bytes, *, path: str) -> None:
    """Raise `Unsupported` if a message has too many small parts, at any depth."""
    if len(message) < _PART_BYTES_MIN * SMALL_PARTS.maximum:
        return
    data = np.frombuffer(message, dtype=np.uint8)
    # Every small part has its length in a byte below 16, even if the length is encoded in more bytes than it needs.
    if np.count_nonzero(data < _SMALL_PART_BYTES) <= SMALL_PARTS.maximum:
        return
    count = count_small_parts(data)
    if count > SMALL_PARTS.maximum:
        raise SMALL_PARTS.exceeded(f"up to {count:,}", path=path)


def check_json(text: bytes, *, path: str) -> None:
    """Raise `Unsupported` if a JSON record has too many parts. Each part follows one of the counted characters; the
    same characters inside strings are counted too."""
    JSON_PARTS.check(sum(text.count(mark) for mark in (b",", b"[", b"{")), path=path)


def count_small_parts(data: _Bytes) -> int:
    """Return an upper bound on the number of small parts."""
    return sum(_count_in_chunk(data[start : start + _CHUNK_BYTES + 2]) for start in range(0, len(data), _CHUNK_BYTES))


def _count_in_chunk(data: _Bytes) -> int:
    """Count the parts that begin in all but the last two bytes: a tag of the wire type "length-delimited", then a
    small length.

    Tags and lengths may be padded to more bytes than they need; the last byte is then zero.
    """
    data = np.concatenate([data, np.zeros(2, dtype=np.uint8)]) if len(data) < _CHUNK_BYTES + 2 else data
    tag, following, third = data[:-2], data[1:-1], data[2:]
    is_tag = (tag & _WIRE_TYPE) == _LENGTH_DELIMITED
    is_padded = (following >= _CONTINUATION_BIT) & ((third & ~np.uint8(_CONTINUATION_BIT)) == 0)
    return int(np.count_nonzero(is_tag & ((following < _SMALL_PART_BYTES) | is_padded)))
