"""List decoder: decodes the posting lists and positions of many terms at once, for merges. The inverse of
`posting_encoder.py`.

A search decodes single lists with `posting_decoder.py`, which reads older layouts too. The bytes are not trusted: a
contradiction raises `DamagedList`, and no number in a file leads to more memory than its bytes allow.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.format.arrow_bytes import offsets_and_data
from lance_core.index.text.bit_packing import BLOCK, BYTES_PER_BIT, Bytes, Ints, ranges, starts_of
from lance_core.index.text.posting_decoder import DamagedList
from lance_core.index.text.posting_encoder import PostingLists

_SCORE_BYTES, _FIRST_BYTES = 4, 4
_WIDTH_MAX = 32
_VARINT_BYTES_MAX = 5
_LANES = 4

Words = npt.NDArray[np.uint32]


def decode_lists(
    postings: pa.ListArray, lengths: Ints, positions: pa.Array | None, offsets: pa.ListArray | None, documents: int
) -> PostingLists:
    """Return the lists of consecutive terms. `documents` is the number of documents of the partition."""
    if postings.null_count or postings.flatten().null_count:
        raise DamagedList("a posting list is missing")
    per_list = -(-lengths // BLOCK)
    if (np.diff(np.asarray(postings.offsets)) != per_list).any():
        raise DamagedList("a posting list has another number of blocks than documents")
    starts, data = offsets_and_data(postings.flatten())
    first_block = starts_of(per_list)
    number = np.arange(first_block[-1]) - np.repeat(first_block[:-1], per_list)
    counts = np.minimum(np.repeat(lengths, per_list) - number * BLOCK, BLOCK)
    found = np.zeros(int(lengths.sum()), dtype=np.int64)
    frequencies = np.zeros(len(found), dtype=np.int64)
    first = starts_of(counts)
    _decode_full(data, starts, counts, first, found, frequencies)
    _decode_short(data, starts, counts, first, found, frequencies)
    _check_documents(found, starts_of(lengths), documents)
    if (frequencies < 1).any():
        raise DamagedList("a frequency is zero")
    decoded = None
    if positions is not None and offsets is not None:
        per_block = np.diff(starts_of(frequencies)[first])
        decoded = _decode_positions(positions, offsets, per_list, per_block, frequencies)
    return PostingLists(lengths, found.astype(np.int32), frequencies.astype(np.int32), decoded)


def _decode_full(data: Bytes, starts: Ints, counts: Ints, first: Ints, documents: Ints, frequencies: Ints) -> None:
    blocks = np.flatnonzero(counts == BLOCK)
    if not len(blocks):
        return
    at, ends = starts[blocks] + _SCORE_BYTES + _FIRST_BYTES, starts[blocks + 1]
    delta_at, widths = _widths(data, at, ends)
    frequency_at, frequency_widths = _widths(data, delta_at + BYTES_PER_BIT * widths, ends)
    if (frequency_at + BYTES_PER_BIT * frequency_widths != ends).any():
        raise DamagedList("a posting block has another size than its numbers")
    firsts = _words(data, at - _FIRST_BYTES)
    places = first[blocks][:, np.newaxis] + np.arange(BLOCK)
    documents[places] = firsts[:, np.newaxis] + np.cumsum(_unpack(data, delta_at, widths), axis=1, dtype=np.int64)
    frequencies[places] = _unpack(data, frequency_at, frequency_widths)


def _decode_short(data: Bytes, starts: Ints, counts: Ints, first: Ints, documents: Ints, frequencies: Ints) -> None:
    blocks = np.flatnonzero(counts < BLOCK)
    sizes = starts[blocks + 1] - starts[blocks] - _SCORE_BYTES
    wanted = counts[blocks]
    values = _decode_varints(data, starts[blocks] + _SCORE_BYTES, sizes, 2 * wanted)
    at = starts_of(2 * wanted)[:-1]
    deltas = values[ranges(at, wanted)]
    into = ranges(first[blocks], wanted)
    documents[into] = _running_sums(deltas, starts_of(wanted))
    frequencies[into] = values[ranges(at + wanted, wanted)]


def _decode_positions(
    positions: pa.Array, offsets: pa.ListArray, per_list: Ints, counts: Ints, frequencies: Ints
) -> npt.NDArray[np.int32]:
    """Return the positions of all lists. `counts` is the number of positions of each block."""
    if positions.null_count or offsets.null_count or (np.diff(np.asarray(offsets.offsets)) != per_list).any():
        raise DamagedList("the positions of a term have another number of blocks than its documents")
    list_starts, data = offsets_and_data(positions)
    within = np.asarray(offsets.flatten()).astype(np.int64)
    begins = within + np.repeat(list_starts[:-1], per_list)
    is_first = np.zeros(len(begins), dtype=np.bool_)
    is_first[starts_of(per_list)[:-1]] = True
    if (within[is_first] != 0).any():
        raise DamagedList("the positions of a term do not begin at its first byte")
    ends = np.append(begins[1:], len(data))
    if (ends < begins).any() or (begins > len(data)).any():
        raise DamagedList("the positions of a term have impossible offsets")
    if (counts > (ends - begins) * BLOCK + BLOCK).any():  # a packed group of equal positions has one byte
        raise DamagedList("a block has fewer positions than its frequencies")
    values = np.zeros(int(counts.sum()), dtype=np.int64)
    value_starts = starts_of(counts)
    groups, at = counts // BLOCK, begins.copy()
    number, blocks = 0, np.flatnonzero(groups)
    while len(blocks):
        packed_at, widths = _widths(data, at[blocks], ends[blocks])
        places = (value_starts[blocks] + BLOCK * number)[:, np.newaxis] + np.arange(BLOCK)
        values[places] = _unpack(data, packed_at, widths)
        at[blocks] = packed_at + BYTES_PER_BIT * widths
        number += 1
        blocks = blocks[groups[blocks] > number]
    rest = counts - BLOCK * groups
    values[ranges(value_starts[:-1] + BLOCK * groups, rest)] = _decode_varints(data, at, ends - at, rest)
    found = _running_sums(values, starts_of(frequencies))
    if len(found) and (found.max() >= 1 << 31 or found.min() < 0):
        raise DamagedList("a position has more than 31 bits")
    return found.astype(np.int32)


def _widths(data: Bytes, at: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return where packed values begin and their number of bits, which the byte before them states."""
    if (at >= ends).any() or (at < 0).any():
        raise DamagedList("a block ends too early")
    widths = data[at].astype(np.int64)
    if (widths > _WIDTH_MAX).any() or (at + 1 + BYTES_PER_BIT * widths > ends).any():
        raise DamagedList("a block has an impossible number of bits")
    return at + 1, widths


def _unpack(data: Bytes, at: Ints, widths: Ints) -> Words:
    """Return the 128 values of each block."""
    found = np.zeros((len(at), BLOCK // _LANES, _LANES), dtype=np.uint32)
    for width in np.flatnonzero(np.bincount(widths)).tolist():
        chosen = np.flatnonzero(widths == width)
        if not width:
            continue
        places = at[chosen][:, np.newaxis] + np.arange(width * BYTES_PER_BIT)
        words = data[places].view(np.uint32).reshape(len(chosen), width, _LANES)
        mask = np.uint32((1 << width) - 1)
        for number in range(BLOCK // _LANES):
            word, shift = divmod(number * width, 32)
            values = words[:, word] >> np.uint32(shift)
            if shift + width > 32:
                values |= words[:, word + 1] << np.uint32(32 - shift)
            found[chosen, number] = values & mask
    return found.reshape(len(at), BLOCK)


def _decode_varints(data: Bytes, starts: Ints, sizes: Ints, counts: Ints) -> Ints:
    """Return the numbers in ranges of bytes, of which each has a known count."""
    if (sizes < counts).any():
        raise DamagedList("a block has fewer bytes than numbers")
    read = data[ranges(starts, sizes)]
    is_last = read < 0x80
    ends = np.flatnonzero(is_last)
    before = np.append(0, np.cumsum(is_last))[starts_of(sizes)]
    occupied = sizes > 0
    if (np.diff(before) != counts).any() or not is_last[starts_of(sizes)[1:][occupied] - 1].all():
        raise DamagedList("a block has another number of bytes than its numbers")
    begins = np.append(0, ends[:-1] + 1)[: len(ends)]
    lengths = ends - begins + 1
    if lengths.max(initial=0) > _VARINT_BYTES_MAX:
        raise DamagedList("a number has more than 32 bits")
    values = np.zeros(len(ends), dtype=np.int64)
    for number in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > number)
        values[rows] |= (read[begins[rows] + number] & np.int64(0x7F)) << (7 * number)
    return values


def _running_sums(values: Ints, starts: Ints) -> Ints:
    """Return the sums of the values up to each one, which begin anew at `starts`."""
    sums = np.cumsum(values)
    before = np.append(0, sums)[starts[:-1]]
    found: Ints = sums - np.repeat(before, np.diff(starts))
    return found


def _check_documents(documents: Ints, starts: Ints, count: int) -> None:
    is_later = np.ones(len(documents), dtype=np.bool_)
    is_later[1:] = documents[1:] > documents[:-1]
    is_later[starts[:-1][starts[:-1] < len(documents)]] = True
    if not is_later.all() or documents.max(initial=0) >= count or documents.min(initial=0) < 0:
        raise DamagedList("a posting list has documents that are out of order or do not exist")


def _words(data: Bytes, at: Ints) -> Ints:
    words: Ints = data[at[:, np.newaxis] + np.arange(4)].view("<u4")[:, 0].astype(np.int64)
    return words
