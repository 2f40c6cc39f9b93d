"""What a message would weigh once it is parsed, found out before it is.

Parsed, a part of a message is an object of 64 to 130 bytes, and an empty part costs two bytes to write: ten megabytes
of them become 640. Large parts pay for themselves with their bytes, so only small ones are counted, and not exactly:
`check_message` counts whatever could be one, in numpy, without following the message. Bytes that are text or numbers hardly
ever look like it. What is too short to hold too many is not looked at at all.
"""

import numpy as np
import numpy.typing as npt

from lance_core.limits import JSON_PARTS, SMALL_PARTS

_PART_BYTES_MIN = 2
_SMALL_PART_BYTES = 16
"""Bytes below this length are a small part."""
_CHUNK_BYTES = 1 << 18
_LENGTH_DELIMITED = 2
_WIRE_TYPE = 7
_CONTINUATION_BIT = 0x80

_Bytes = npt.NDArray[np.uint8]


def check_message(message: bytes, *, path: str) -> None:
    """Refuses a message of too many small parts, at any depth."""
    if len(message) < _PART_BYTES_MIN * SMALL_PARTS.maximum:
        return
    data = np.frombuffer(message, dtype=np.uint8)
    # Every small part has its length in a byte below 16, even where that is spelt with more bytes than it needs.
    if np.count_nonzero(data < _SMALL_PART_BYTES) <= SMALL_PARTS.maximum:
        return
    count = count_small_parts(data)
    if count > SMALL_PARTS.maximum:
        raise SMALL_PARTS.exceeded(f"perhaps {count:,}", path=path)


def check_json(text: bytes, *, path: str) -> None:
    """The same for a record of JSON: whatever is in it is behind one of these. Names that have them are counted too."""
    JSON_PARTS.check(sum(text.count(mark) for mark in (b",", b"[", b"{")), path=path)


def count_small_parts(data: _Bytes) -> int:
    """Never fewer than there are."""
    return sum(_count_in_chunk(data[start : start + _CHUNK_BYTES + 2]) for start in range(0, len(data), _CHUNK_BYTES))


def _count_in_chunk(data: _Bytes) -> int:
    """Of those that begin in all but the last two bytes: a tag that says "length-delimited", and a small length.

    Tags and lengths may be spelt with more bytes than they need, the last of which is zero then."""
    data = np.concatenate([data, np.zeros(2, dtype=np.uint8)]) if len(data) < _CHUNK_BYTES + 2 else data
    tag, following, third = data[:-2], data[1:-1], data[2:]
    is_tag = (tag & _WIRE_TYPE) == _LENGTH_DELIMITED
    is_padded = (following >= _CONTINUATION_BIT) & ((third & ~np.uint8(_CONTINUATION_BIT)) == 0)
    return int(np.count_nonzero(is_tag & ((following < _SMALL_PART_BYTES) | is_padded)))
