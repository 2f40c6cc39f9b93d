"""Size guard: estimates how much memory a message needs, before it is parsed.

A part of a message, such as a nested message, becomes an object of 64 to 130 bytes when it is parsed, and an empty part
is encoded in two bytes: ten megabytes of empty parts become 640 megabytes. A large part takes little more memory than
its encoding, so only small parts are counted. `check_message` first counts, in numpy, every position at which a small
part could begin, without following the structure of the message. A message that is too short to hold too many parts is
not scanned. If the count exceeds the cap and the type of the message is known, its parts are counted exactly
(`message_weight.py`), since the numbers in the fragments of a wide table look like parts.
"""

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from lance_core.format.message_weight import SMALL_PART_BYTES, TooManyParts, Unweighable, weigh
from lance_core.limits import JSON_PARTS, NUMBERS, SMALL_PARTS

_PART_BYTES_MIN = 2
_BYTES_PER_SMALL_PART = 24
"""A message may have one small part for each 24 of its bytes, even above the cap; a fragment has three in a hundred
bytes. The parsed message then takes at most seven times its encoded size."""
_UNITS_OF_A_NUMBER_MAX = 2
"""Maximum size of an array element in memory, in units of four bytes; it is encoded in one byte or more."""
_CHUNK_BYTES = 1 << 18
_SCANNED_BYTES_MAX = 32 << 20
"""Size above which a message nearly always has more bytes below 16 than it may have small parts, so that counting them
proves nothing."""
_LENGTH_DELIMITED = 2
_WIRE_TYPE = 7
_CONTINUATION_BIT = 0x80

_Bytes = npt.NDArray[np.uint8]


def check_message(message: bytes, *, path: str, kind: type[Message] | None = None) -> None:
    """Raise `Unsupported` if a message has too many small parts, at any depth, or too many numbers in arrays.

    `kind` is its type. A message of unknown type is refused if the upper bound of its small parts exceeds the cap, and
    its numbers are not counted."""
    if is_small(message):
        return
    parts = _bound_small_parts(message)
    if parts <= SMALL_PARTS.maximum and _has_few_numbers(message):
        return
    if kind is None:
        if parts > SMALL_PARTS.maximum:
            raise SMALL_PARTS.exceeded(f"up to {parts:,}", path=path)
        return
    try:
        weight = weigh(message, kind, small_parts_max=small_parts_max(message))
    except (TooManyParts, Unweighable):
        raise SMALL_PARTS.exceeded(f"up to {parts:,}", path=path) from None
    NUMBERS.check(weight.numbers, path=path)


def is_small(message: bytes) -> bool:
    """Return whether a message is too short to hold too many parts."""
    return len(message) < _PART_BYTES_MIN * SMALL_PARTS.maximum


def has_provably_few_parts(message: bytes) -> bool:
    """Return whether the bytes prove, without being parsed, that a message has few parts and numbers. This takes a
    millisecond for each 5 MB."""
    if len(message) > _SCANNED_BYTES_MAX or not _has_few_numbers(message):
        return False
    return _count_small_bytes(np.frombuffer(message, dtype=np.uint8)) <= SMALL_PARTS.maximum


def _has_few_numbers(message: bytes) -> bool:
    return len(message) * _UNITS_OF_A_NUMBER_MAX <= NUMBERS.maximum


def small_parts_max(message: bytes) -> int:
    """Return how many small parts a message may have."""
    return max(SMALL_PARTS.maximum, len(message) // _BYTES_PER_SMALL_PART)


def _bound_small_parts(message: bytes) -> int:
    """Return an upper bound on the number of small parts. If a cheaper and higher bound does not exceed the cap, return
    that one."""
    data = np.frombuffer(message, dtype=np.uint8)
    cheap_bound = _count_small_bytes(data)
    return cheap_bound if cheap_bound <= SMALL_PARTS.maximum else count_small_parts(data)


def _count_small_bytes(data: _Bytes) -> int:
    """Return the number of bytes below 16. Every small part has its length in one of them, even if the length is
    encoded in more bytes than it needs."""
    return int(np.count_nonzero(data < SMALL_PART_BYTES))


def check_json(text: bytes, *, path: str) -> None:
    """Raise `Unsupported` if a JSON record has too many parts. Each part follows one of the counted characters; the
    same characters inside strings are counted too."""
    JSON_PARTS.check(sum(text.count(character) for character in (b",", b"[", b"{")), path=path)


def count_small_parts(data: _Bytes) -> int:
    """Return an upper bound on the number of small parts."""
    return sum(_count_in_chunk(data[start : start + _CHUNK_BYTES + 2]) for start in range(0, len(data), _CHUNK_BYTES))


def _count_in_chunk(data: _Bytes) -> int:
    """Return the number of positions, except the last two, at which a small part could begin: a tag of the wire type
    "length-delimited", followed by a small length.

    A writer may pad a tag or a length to more bytes than it needs; the last byte is then zero.
    """
    data = np.concatenate([data, np.zeros(2, dtype=np.uint8)]) if len(data) < _CHUNK_BYTES + 2 else data
    tag, following, third = data[:-2], data[1:-1], data[2:]
    is_tag = (tag & _WIRE_TYPE) == _LENGTH_DELIMITED
    is_padded = (following >= _CONTINUATION_BIT) & ((third & ~np.uint8(_CONTINUATION_BIT)) == 0)
    return int(np.count_nonzero(is_tag & ((following < SMALL_PART_BYTES) | is_padded)))
