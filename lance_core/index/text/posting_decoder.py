"""Posting list decoder: the documents that contain a token, and how often, from the blocks of a posting list.

A full block has 128 documents: `f32 maximum score, u32 first document, u8 b, 16*b bytes, u8 f, 16*f bytes`, where the
packed numbers are differences of documents, and frequencies. A full block of format 3 may have 256 documents: `u32
first document, u8 b, 32*b bytes, u8 f, u8 e, 32*f bytes, e times (u8 place, varint high bits)`. It packs the lowest `f`
bits of each frequency; the `e` exceptions add the higher bits of frequencies that have more. The last block of a list,
if it is not full, begins with the maximum score if full blocks do. All documents and all frequencies follow, as fixed
numbers of four bytes (format 1) or as varints with documents as differences (formats 2 and 3). Packed numbers are in
the order of BitPacker4x, or of BitPacker8x in blocks of 256: number `j` belongs to lane `j mod 4` or `j mod 8`, and the
words of the lanes alternate. All blocks of one width are unpacked together.
"""

import enum

import numpy as np
import numpy.typing as npt

BLOCK_DOCUMENTS = 128
LARGE_BLOCK_DOCUMENTS = 256
_NUMBERS_PER_LANE = 32
_MAX_SCORE_BYTES = {BLOCK_DOCUMENTS: 4, LARGE_BLOCK_DOCUMENTS: 0}
_WIDTH_MAX = 32
_VARINT_BYTES_MAX = 5

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Documents = npt.NDArray[np.int32]


class Tail(enum.Enum):
    """Encoding of a block that is not full."""

    FIXED = "fixed32_v1"
    VARINT = "varint_delta_v1"


class DamagedList(ValueError):
    """A posting list contradicts the format; the caller names the file."""


def decode_posting_list(
    data: Bytes, offsets: Ints, length: int, tail: Tail, documents: int, block: int = BLOCK_DOCUMENTS
) -> tuple[Documents, npt.NDArray[np.uint32]]:
    """Return the documents of a posting list, ascending, and their frequencies.

    `offsets` are those of the blocks in `data`, one more than there are blocks; `documents` is the number of documents
    of the partition, and `block` the number of documents of a full block. Raise `DamagedList` if the blocks contradict
    the format.
    """
    full, rest = divmod(length, block)
    if len(offsets) - 1 != full + bool(rest):
        raise DamagedList(f"a posting list of {length} documents has {len(offsets) - 1} blocks")
    if not 0 < length <= documents:
        raise DamagedList(f"a posting list has {length} of {documents} documents")
    found = np.empty(length, dtype=np.int64)
    frequencies = np.empty(length, dtype=np.uint32)
    if full:
        first, differences, counts = _full_blocks(data, offsets[: full + 1], block)
        blocks = differences.astype(np.int64)
        blocks[:, 0] += first
        found[: full * block] = np.cumsum(blocks, axis=1).reshape(-1)
        frequencies[: full * block] = counts.reshape(-1)
    if rest:
        short = data[offsets[full] + _MAX_SCORE_BYTES[block] : offsets[full + 1]]
        last = _fixed_tail(short, rest) if tail is Tail.FIXED else _varint_tail(short, rest)
        found[full * block :], frequencies[full * block :] = last
    if found[0] < 0 or found[-1] >= documents or (found[1:] <= found[:-1]).any():
        raise DamagedList(f"the documents of a posting list are not ascending numbers below {documents}")
    if not frequencies.all():
        raise DamagedList("a posting list has a document without occurrences")
    return found.astype(np.int32), frequencies


def _full_blocks(data: Bytes, offsets: Ints, block: int) -> tuple[Ints, npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    starts, sizes = offsets[:-1] + _MAX_SCORE_BYTES[block], np.diff(offsets)
    if (sizes < _MAX_SCORE_BYTES[block] + 6).any():
        raise DamagedList("a block of a posting list is too short")
    first = _words_at(data, starts)
    bit, header = block // 8, 1 if block == BLOCK_DOCUMENTS else 2
    width = data[starts + 4].astype(np.int64)
    counts_at = starts + 5 + bit * width
    if (width > _WIDTH_MAX).any() or (counts_at + header > offsets[1:]).any():
        raise DamagedList("a block of a posting list has impossible widths")
    count_width = data[counts_at].astype(np.int64)
    ends = counts_at + header + bit * count_width
    if (count_width > _WIDTH_MAX).any() or (ends > offsets[1:]).any():
        raise DamagedList("a block of a posting list has impossible widths")
    differences = unpack_blocks(data, starts + 5, width, block)
    counts = unpack_blocks(data, counts_at + header, count_width, block)
    if block == LARGE_BLOCK_DOCUMENTS:
        ends = _add_high_bits(data, ends, offsets[1:], count_width, data[counts_at + 1].astype(np.int64), counts)
    if (ends != offsets[1:]).any():
        raise DamagedList("a block of a posting list has another size than its widths require")
    return first, differences, counts


def _add_high_bits(
    data: Bytes, at: Ints, ends: Ints, widths: Ints, exceptions: Ints, counts: npt.NDArray[np.uint32]
) -> Ints:
    """Add the high bits of the exceptions of each block to its frequencies `counts`, and return the end of each block.
    The first exceptions of all blocks are read at once, then the second ones, and so on."""
    at = at.copy()
    for number in range(int(exceptions.max(initial=0))):
        blocks = np.flatnonzero(exceptions > number)
        places = _read_bytes(data, at[blocks], ends[blocks])
        at[blocks] += 1
        high = np.zeros(len(blocks), dtype=np.int64)
        unfinished = np.arange(len(blocks))
        for step in range(_VARINT_BYTES_MAX):
            rows = blocks[unfinished]
            read = _read_bytes(data, at[rows], ends[rows])
            at[rows] += 1
            high[unfinished] |= (read & 0x7F) << (7 * step)
            unfinished = unfinished[read >= 0x80]
        if len(unfinished) or (high >> (_WIDTH_MAX - widths[blocks])).any():
            raise DamagedList("a frequency has more than 32 bits")
        counts[blocks, places] |= (high << widths[blocks]).astype(np.uint32)
    return at


def _read_bytes(data: Bytes, at: Ints, ends: Ints) -> Ints:
    """Return the byte at each offset of `at`. Raise `DamagedList` unless each offset is below its end."""
    if (at >= ends).any():
        raise DamagedList("a block of a posting list ends too early")
    return data[at].astype(np.int64)


def unpack_blocks(data: Bytes, starts: Ints, widths: Ints, block: int = BLOCK_DOCUMENTS) -> npt.NDArray[np.uint32]:
    """Return the numbers of each packed block, one row per block. The caller ensures that the blocks are within the
    data."""
    numbers = np.zeros((len(starts), block), dtype=np.uint32)
    lanes = block // _NUMBERS_PER_LANE
    for width in np.unique(widths).tolist():
        if width:
            rows = np.flatnonzero(widths == width)
            packed = data[starts[rows][:, np.newaxis] + np.arange(lanes * 4 * width)]
            words = np.ascontiguousarray(packed).view("<u4").reshape(len(rows), width, lanes)
            numbers[rows] = _unpack(words, width)
    return numbers


def _unpack(words: npt.NDArray[np.uint32], width: int) -> npt.NDArray[np.uint32]:
    """Return the numbers of blocks of one width. `words` has the axes block, word of a lane, lane."""
    by_word = np.ascontiguousarray(words.transpose(1, 0, 2))
    lanes = words.shape[2]
    numbers = np.empty((len(words), _NUMBERS_PER_LANE, lanes), dtype=np.uint32)
    mask = np.uint32((1 << width) - 1)
    for place in range(_NUMBERS_PER_LANE):
        word, shift = divmod(place * width, 32)
        value = by_word[word] >> np.uint32(shift)
        if shift + width > 32:
            value |= by_word[word + 1] << np.uint32(32 - shift)
        numbers[:, place] = value & mask
    return numbers.reshape(len(words), _NUMBERS_PER_LANE * lanes)


def _words_at(data: Bytes, starts: Ints) -> Ints:
    return np.ascontiguousarray(data[starts[:, np.newaxis] + np.arange(4)]).view("<u4").reshape(-1).astype(np.int64)


def _fixed_tail(block: Bytes, count: int) -> tuple[Ints, npt.NDArray[np.uint32]]:
    if len(block) != 8 * count:
        raise DamagedList(f"the last block of a posting list has {len(block)} bytes for {count} documents")
    numbers = np.frombuffer(block.tobytes(), dtype="<u4")
    return numbers[:count].astype(np.int64), numbers[count:]


def _varint_tail(block: Bytes, count: int) -> tuple[Ints, npt.NDArray[np.uint32]]:
    numbers = decode_varints(block, 2 * count)
    return np.cumsum(numbers[:count]), numbers[count:].astype(np.uint32)


def decode_varints(data: Bytes, count: int) -> Ints:
    """Return numbers of seven bits a byte, lowest bits first, whose last byte is below 128. Raise `DamagedList` unless
    the data has exactly `count` of them, each below 2**32."""
    ends = np.flatnonzero(data < 0x80)
    if len(ends) != count or (len(data) and (not count or ends[-1] != len(data) - 1)):
        raise DamagedList(f"{len(data)} bytes do not contain {count} numbers")
    if not count:
        return np.empty(0, dtype=np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if (lengths > _VARINT_BYTES_MAX).any():
        raise DamagedList("a number has more than five bytes")
    places = np.arange(len(data)) - np.repeat(starts, lengths)
    parts = (data & 0x7F).astype(np.int64) << (7 * places)
    numbers = np.add.reduceat(parts, starts)
    if (numbers >= 1 << 32).any():
        raise DamagedList("a number has more than 32 bits")
    return numbers
