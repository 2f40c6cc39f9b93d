"""Token positions: where a token occurs in each document of its posting list.

Formats 2 and 3 store one value for each list. It has the positions of each block of 128 or 256 documents, one document
after the other: the first position of a document, and the others as differences to the previous one. Groups of
128 numbers are packed (`u8 width`, then `16 * width` bytes), the rest are varints. Format 1 has a list of values for
each document: the number of positions, then blocks of 128 packed differences, then the rest as fixed numbers.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lance_core.index.text.bit_packing import ranges
from lance_core.index.text.posting_decoder import (
    BLOCK_DOCUMENTS,
    Bytes,
    DamagedList,
    Ints,
    decode_varints,
    unpack_blocks,
)

_WIDTH_MAX = 32


@dataclass(frozen=True, slots=True)
class TokenPositions:
    """Positions of a token in the documents of its posting list."""

    values: npt.NDArray[np.uint32]
    starts: Ints
    """Place in `values` of the first position of each document, and their number."""

    @property
    def size(self) -> int:
        return self.values.nbytes + self.starts.nbytes


def decode_shared_positions(
    data: Bytes, offsets: Ints, frequencies: npt.NDArray[np.uint32], block: int = BLOCK_DOCUMENTS
) -> TokenPositions:
    """Return the positions of a list in format 2 or 3. `offsets` has the first byte of each posting block, and
    `block` is the number of documents of a full block."""
    starts = np.concatenate([[0], np.cumsum(frequencies, dtype=np.int64)])
    blocks = -(-len(frequencies) // block)
    ends = np.concatenate([offsets[1:], [len(data)]])
    if len(offsets) != blocks or offsets[0] != 0 or (ends < offsets).any() or ends.max() > len(data):
        raise DamagedList("the positions of a token have impossible offsets")
    if int(starts[-1]) > 8 * len(data) * BLOCK_DOCUMENTS:
        raise DamagedList(f"{len(data)} bytes cannot contain {starts[-1]} positions")
    edges = np.append(starts[:-1:block], starts[-1])
    counts = np.diff(edges)
    groups_at, widths, rests_at = _find_groups(data, offsets, ends, counts // BLOCK_DOCUMENTS)
    packed = unpack_blocks(data, groups_at, widths)
    rest = data[ranges(rests_at, ends - rests_at)]
    varints = decode_varints(rest, int((counts % BLOCK_DOCUMENTS).sum()))
    differences = _interleave(packed, varints, counts)
    return TokenPositions(_absolute(differences, starts), starts)


def _find_groups(data: Bytes, begins: Ints, ends: Ints, groups: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the offsets and widths of the packed groups of all blocks, and the offset of the varints of each block.

    The width of a group determines where the next group of its block begins. The loop therefore reads the first groups
    of all blocks at once, then the second ones, and so on; most blocks have few groups."""
    first_group = np.cumsum(groups) - groups
    places, widths = np.empty(int(groups.sum()), dtype=np.int64), np.empty(int(groups.sum()), dtype=np.int64)
    at = begins.copy()
    blocks = np.flatnonzero(groups)
    number = 0
    while len(blocks):
        if (at[blocks] >= ends[blocks]).any():
            raise DamagedList("the positions of a token end too early")
        width = data[at[blocks]].astype(np.int64)
        places[first_group[blocks] + number], widths[first_group[blocks] + number] = at[blocks] + 1, width
        at[blocks] += 1 + 16 * width
        if (width > _WIDTH_MAX).any() or (at[blocks] > ends[blocks]).any():
            raise DamagedList("a group of positions has an impossible width")
        number += 1
        blocks = blocks[groups[blocks] > number]
    return places, widths, at


def _interleave(packed: npt.NDArray[np.uint32], varints: Ints, counts: Ints) -> npt.NDArray[np.uint32]:
    """Return the numbers of all blocks in order: those of the packed groups of a block, then its varints."""
    total = int(counts.sum())
    rests = counts % BLOCK_DOCUMENTS
    is_varint = np.zeros(total, dtype=np.bool_)
    ends = np.cumsum(counts)
    starts = ends - rests
    offsets = np.arange(int(rests.sum())) - np.repeat(np.cumsum(rests) - rests, rests)
    is_varint[np.repeat(starts, rests) + offsets] = True
    numbers = np.empty(total, dtype=np.uint32)
    numbers[is_varint] = varints
    numbers[~is_varint] = packed.reshape(-1)
    return numbers


def _absolute(differences: npt.NDArray[np.uint32], starts: Ints) -> npt.NDArray[np.uint32]:
    """Return positions from their differences, which restart with each document."""
    sums = np.zeros(len(differences) + 1, dtype=np.int64)
    positions = sums[1:]
    positions[:] = differences
    np.cumsum(positions, out=positions)  # faster in place than with a conversion
    positions -= np.repeat(sums[starts[:-1]], np.diff(starts))
    if len(positions) and int(positions.max()) >= 1 << 32:
        raise DamagedList("a position has more than 32 bits")
    absolute: npt.NDArray[np.uint32] = positions.astype(np.uint32)
    return absolute


def decode_listed_positions(
    data: Bytes, offsets: Ints, edges: Ints, frequencies: npt.NDArray[np.uint32]
) -> TokenPositions:
    """Return the positions of a list in format 1. `offsets` are those of all values in `data`, and `edges` has the
    first value of each document, and their number."""
    if len(edges) - 1 != len(frequencies):
        raise DamagedList(f"{len(edges) - 1} documents have positions instead of {len(frequencies)}")
    starts = np.concatenate([[0], np.cumsum(frequencies, dtype=np.int64)])
    if int(starts[-1]) > 8 * BLOCK_DOCUMENTS * max(1, len(data)):
        raise DamagedList(f"{len(data)} bytes cannot contain {starts[-1]} positions")
    values = np.empty(int(starts[-1]), dtype=np.uint32)
    for number, count in enumerate(frequencies.tolist()):
        first, last = int(edges[number]), int(edges[number + 1])
        parts = [data[offsets[value] : offsets[value + 1]] for value in range(first, last)]
        values[starts[number] : starts[number + 1]] = _listed_document(parts, count)
    return TokenPositions(values, starts)


def _listed_document(parts: list[Bytes], count: int) -> npt.NDArray[np.uint32]:
    full, rest = divmod(count, BLOCK_DOCUMENTS)
    if (
        len(parts) != 1 + full + bool(rest)
        or len(parts[0]) != 4
        or int.from_bytes(parts[0].tobytes(), "little") != count
    ):
        raise DamagedList(f"the positions of a document are not {count} numbers")
    decoded = [np.empty(0, dtype=np.uint32)]
    for block in parts[1 : 1 + full]:
        if len(block) < 5 or block[4] > _WIDTH_MAX or len(block) != 5 + 16 * int(block[4]):
            raise DamagedList("a block of positions has another size than its width requires")
        differences = unpack_blocks(block, np.array([5]), np.array([int(block[4])]))[0].astype(np.int64)
        first = int.from_bytes(block[:4].tobytes(), "little")
        decoded.append((np.cumsum(differences) + first).astype(np.uint32))
    if rest:
        if len(parts[-1]) != 4 * rest:
            raise DamagedList(f"the last block of positions has {len(parts[-1])} bytes for {rest} numbers")
        decoded.append(np.frombuffer(parts[-1].tobytes(), dtype="<u4"))
    return np.concatenate(decoded)
