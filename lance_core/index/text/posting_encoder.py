"""Posting encoder: the bytes of posting lists, impacts and positions of format version 2, many lists at once.

A posting list is divided into blocks of 128 documents; each begins with the highest score that one of its documents
can have. A full block is packed; the last one, if it is shorter, is a sequence of varints. Impacts state for each
block, and for each group of 32 blocks, which pairs of frequency and document length no other pair of it surpasses.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.index.text.bit_packing import (
    BLOCK,
    BYTES_PER_BIT,
    Bytes,
    Ints,
    bit_widths,
    put_packed,
    put_varints,
    ranges,
    starts_of,
    varint_lengths,
)

K1, B = 1.2, 0.75
_SCORE_BYTES, _FIRST_BYTES = 4, 4
_EXACT_LENGTHS = 16
_BLOCKS_PER_GROUP = 32
_MANTISSA_BITS = 3
_HALF = np.uint64(32)
_LOWER = np.uint64(0xFFFFFFFF)

Numbers = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PostingLists:
    """Posting lists of consecutive terms, decoded."""

    lengths: Ints
    """Number of documents of each list."""
    documents: Numbers
    frequencies: Numbers
    positions: Numbers | None
    """Positions of each document of each list, as many as its frequency."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents of a partition, as scores need them."""

    document_lengths: npt.NDArray[np.uint32]
    token_count: int

    @property
    def norms(self) -> Floats:
        """Part of the score that depends on the length of the document alone."""
        average = self.token_count / max(1, len(self.document_lengths))
        return (K1 * (1 - B + B * self.document_lengths / max(average, 1e-9))).astype(np.float32)

    @property
    def length_codes(self) -> Bytes:
        return length_codes(self.document_lengths)


class PostingEncoder:
    """Encoder for the lists of one partition."""

    def __init__(self, corpus: Corpus) -> None:
        self._count = len(corpus.document_lengths)
        self._norms = corpus.norms
        self._codes = corpus.length_codes

    def encode(self, lists: PostingLists) -> dict[str, pa.Array]:
        """Return the columns of the lists."""
        blocks = _Blocks.of(lists.lengths)
        scores = self._scores(lists)
        block_scores = np.maximum.reduceat(scores, blocks.starts) if len(scores) else scores
        columns = {
            "_posting": _nested(_posting_bytes(lists, blocks, block_scores), blocks.per_list),
            "_max_score": pa.array(np.maximum.reduceat(block_scores, blocks.first) if len(scores) else scores),
            "_length": pa.array(lists.lengths.astype(np.uint32)),
            "_impacts": _nested(*_impacts(lists, blocks, self._codes)),
        }
        if lists.positions is not None:
            columns |= _position_columns(lists, blocks)
        return columns

    def _scores(self, lists: PostingLists) -> Floats:
        """Return the score of each posting."""
        lengths = lists.lengths
        idf = np.log1p((self._count - lengths + 0.5) / (lengths + 0.5)).astype(np.float32)
        frequencies = lists.frequencies.astype(np.float32)
        weights = frequencies * np.float32(K1 + 1) / (frequencies + self._norms[lists.documents])
        scores: Floats = np.repeat(idf, lengths) * weights
        return scores


def length_codes(lengths: npt.NDArray[np.uint32]) -> Bytes:
    """Return a byte for each document length, which is exact below 16 and keeps four significant bits above.

    >>> length_codes(np.array([3, 15, 16, 17, 18, 100], dtype=np.uint32)).tolist()
    [3, 15, 16, 16, 17, 36]
    """
    values = lengths.astype(np.int64)
    shift = np.maximum(np.frexp(values.astype(np.float64))[1] - (_MANTISSA_BITS + 1), 0)
    codes = ((shift + 1) << _MANTISSA_BITS) | ((values >> shift) & ((1 << _MANTISSA_BITS) - 1))
    return np.where(values < _EXACT_LENGTHS, values, codes).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks of consecutive posting lists."""

    starts: Ints
    """First posting of each block."""
    lengths: Ints
    per_list: Ints
    first: Ints
    """First block of each list."""

    @classmethod
    def of(cls, list_lengths: Ints) -> "_Blocks":
        per_list = -(-list_lengths // BLOCK)
        first = starts_of(per_list)
        number = np.arange(first[-1]) - np.repeat(first[:-1], per_list)
        remaining = np.repeat(list_lengths, per_list) - number * BLOCK
        lengths = np.minimum(remaining, BLOCK)
        return cls(starts_of(lengths)[:-1], lengths, per_list, first[:-1])

    @property
    def list_of(self) -> Ints:
        return np.repeat(np.arange(len(self.per_list)), self.per_list)


def _posting_bytes(lists: PostingLists, blocks: _Blocks, block_scores: Floats) -> pa.Array:
    """Return the bytes of all blocks."""
    is_full = blocks.lengths == BLOCK
    full, short = np.flatnonzero(is_full), np.flatnonzero(~is_full)
    at = blocks.starts[full][:, np.newaxis] + np.arange(BLOCK)
    documents, frequencies = lists.documents[at].astype(np.uint32), lists.frequencies[at].astype(np.uint32)
    deltas = np.zeros_like(documents)
    deltas[:, 1:] = documents[:, 1:] - documents[:, :-1]
    delta_widths, frequency_widths = (
        bit_widths(each) if len(full) else np.zeros(0, np.int64) for each in (deltas, frequencies)
    )
    values, counts = _short_values(lists, blocks.starts[short], blocks.lengths[short])
    value_lengths = varint_lengths(values)
    value_starts = starts_of(value_lengths)
    borders = value_starts[starts_of(counts)]
    sizes = np.zeros(len(blocks.lengths), dtype=np.int64)
    sizes[full] = _SCORE_BYTES + _FIRST_BYTES + 2 + BYTES_PER_BIT * (delta_widths + frequency_widths)
    sizes[short] = _SCORE_BYTES + np.diff(borders)
    starts = starts_of(sizes)
    out = np.zeros(int(starts[-1]), dtype=np.uint8)
    _put_words(out, starts[:-1], block_scores.astype("<f4"))
    after_first = starts[full] + _SCORE_BYTES + _FIRST_BYTES
    _put_words(out, starts[full] + _SCORE_BYTES, documents[:, 0].astype("<u4"))
    put_packed(out, after_first, deltas, delta_widths)
    put_packed(out, after_first + 1 + BYTES_PER_BIT * delta_widths, frequencies, frequency_widths)
    shift = np.repeat(starts[short] + _SCORE_BYTES - borders[:-1], counts)
    put_varints(out, value_starts[:-1] + shift, values, value_lengths)
    return _binary(out, starts)


def _short_values(lists: PostingLists, starts: Ints, lengths: Ints) -> tuple[npt.NDArray[np.uint64], Ints]:
    """Return the numbers of short blocks, first the documents of each and then the frequencies, and how many numbers
    each block has."""
    at = ranges(starts, lengths)
    documents = lists.documents[at].astype(np.uint64)
    first = starts_of(lengths)[:-1]
    deltas = documents.copy()
    deltas[1:] -= documents[:-1]
    deltas[first] = documents[first]
    values = np.empty(2 * len(at), dtype=np.uint64)
    into = ranges(2 * first, lengths)
    values[into] = deltas
    values[into + np.repeat(lengths, lengths)] = lists.frequencies[at].astype(np.uint64)
    return values, 2 * lengths


def _impacts(lists: PostingLists, blocks: _Blocks, codes: Bytes) -> tuple[pa.Array, Ints]:
    """Return the impacts of all blocks and, after the blocks of each list, of each group of 32 of them; and how many
    each list has."""
    if not len(lists.documents):
        return _binary(np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)), np.zeros(0, dtype=np.int64)
    block_of = np.repeat(np.arange(len(blocks.lengths)), blocks.lengths)
    groups = -(-blocks.per_list // _BLOCKS_PER_GROUP)
    first_group, list_of = starts_of(groups)[:-1], blocks.list_of
    group_of = (np.arange(len(list_of)) - blocks.first[list_of]) // _BLOCKS_PER_GROUP + first_group[list_of]
    in_blocks = _best_pairs(block_of, codes[lists.documents], lists.frequencies)
    in_groups = _best_pairs(group_of[in_blocks.group], in_blocks.code, in_blocks.frequency)
    item_of_block = np.arange(len(list_of)) + first_group[list_of]
    item_of_group = np.arange(int(groups.sum())) + np.repeat(starts_of(blocks.per_list)[1:], groups)
    last = np.zeros(len(item_of_block) + len(item_of_group), dtype=np.int64)
    last_of_block = lists.documents[blocks.starts + blocks.lengths - 1]
    last[item_of_block] = last_of_block
    last[item_of_group[group_of]] = last_of_block
    item = np.concatenate([item_of_block[in_blocks.group], item_of_group[in_groups.group]])
    order = np.argsort(item, kind="stable")
    frequency = np.concatenate([in_blocks.frequency, in_groups.frequency])[order].astype(np.int64)
    code = np.concatenate([in_blocks.code, in_groups.code])[order].astype(np.int64)
    return _impact_bytes(item[order], code, frequency, last), blocks.per_list + groups


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of length code and frequency, ordered by group and both ascending within it."""

    group: Ints
    code: Ints
    frequency: Ints


def _best_pairs(group: Ints, code: npt.NDArray[np.integer], frequency: npt.NDArray[np.integer]) -> _Pairs:
    """Return for each group the pairs such that no other pair has a frequency as high in a document as short."""
    key = (group.astype(np.uint64) << np.uint64(40)) | (code.astype(np.uint64) << _HALF)
    key |= _LOWER - frequency.astype(np.uint64)
    key.sort()
    sorted_group = (key >> np.uint64(40)).astype(np.int64)
    sorted_frequency = (_LOWER - (key & _LOWER)).astype(np.int64)
    highest = np.maximum.accumulate((sorted_group << 32) | sorted_frequency)
    is_best = np.ones(len(key), dtype=np.bool_)
    is_best[1:] = (highest[1:] > highest[:-1]) | (sorted_group[1:] != sorted_group[:-1])
    best_code = ((key[is_best] >> _HALF) & np.uint64(0xFF)).astype(np.int64)
    return _Pairs(sorted_group[is_best], best_code, sorted_frequency[is_best])


def _impact_bytes(item: Ints, code: Ints, frequency: Ints, last: Ints) -> pa.Array:
    """Return the bytes of each item: its last document, its number of pairs, and the pairs as differences."""
    counts = np.bincount(item, minlength=len(last))
    is_first = np.ones(len(item), dtype=np.bool_)
    is_first[1:] = item[1:] != item[:-1]
    more_frequent = np.where(is_first, frequency, frequency - np.roll(frequency, 1)) - 1
    longer = np.where(is_first, code, code - np.roll(code, 1))
    is_explicit = longer != 1
    width = 1 + is_explicit.astype(np.int64)
    per_item = 2 + np.bincount(item, weights=width, minlength=len(last)).astype(np.int64)
    at = starts_of(per_item)
    values = np.zeros(int(at[-1]), dtype=np.uint64)
    values[at[:-1]], values[at[:-1] + 1] = last, counts
    pair_at = starts_of(width)[:-1] + 2 * (item + 1)
    values[pair_at] = (more_frequent << 1) | is_explicit
    values[pair_at[is_explicit] + 1] = longer[is_explicit]
    lengths = varint_lengths(values)
    starts = starts_of(lengths)
    out = np.zeros(int(starts[-1]), dtype=np.uint8)
    put_varints(out, starts[:-1], values, lengths)
    return _binary(out, starts[at])


def _position_columns(lists: PostingLists, blocks: _Blocks) -> dict[str, pa.Array]:
    """Return the positions of each list as one sequence of bytes, and where in it each block begins."""
    assert lists.positions is not None
    first = starts_of(lists.frequencies.astype(np.int64))
    deltas = lists.positions.astype(np.uint32)
    deltas[1:] -= lists.positions[:-1].astype(np.uint32)
    deltas[first[:-1]] = lists.positions[first[:-1]]
    borders = np.append(first[blocks.starts], first[-1])
    counts = np.diff(borders)
    packed_groups = counts // BLOCK
    group_block = np.repeat(np.arange(len(counts)), packed_groups)
    group_number = np.arange(len(group_block)) - np.repeat(starts_of(packed_groups)[:-1], packed_groups)
    groups = deltas[(borders[group_block] + BLOCK * group_number)[:, np.newaxis] + np.arange(BLOCK)]
    widths = bit_widths(groups) if len(groups) else np.zeros(0, dtype=np.int64)
    group_sizes = 1 + BYTES_PER_BIT * widths
    rest_counts = counts - BLOCK * packed_groups
    rest = deltas[ranges(borders[:-1] + BLOCK * packed_groups, rest_counts)].astype(np.uint64)
    rest_lengths = varint_lengths(rest)
    rest_starts = starts_of(rest_lengths)
    rest_borders = rest_starts[starts_of(rest_counts)]
    packed_starts = starts_of(group_sizes)
    packed_borders = packed_starts[starts_of(packed_groups)]
    packed_sizes = np.diff(packed_borders)
    starts = starts_of(packed_sizes + np.diff(rest_borders))
    out = np.zeros(int(starts[-1]), dtype=np.uint8)
    put_packed(out, packed_starts[:-1] + (starts[:-1] - packed_borders[:-1])[group_block], groups, widths)
    shift = np.repeat(starts[:-1] + packed_sizes - rest_borders[:-1], rest_counts)
    put_varints(out, rest_starts[:-1] + shift, rest, rest_lengths)
    list_starts = starts[np.append(blocks.first, len(counts))]
    offsets = (starts[:-1] - np.repeat(list_starts[:-1], blocks.per_list)).astype(np.uint32)
    return {
        "_compressed_position": _binary(out, list_starts),
        "_position_block_offset": _nested(pa.array(offsets), blocks.per_list),
    }


def _put_words(out: Bytes, at: Ints, words: npt.NDArray[np.generic]) -> None:
    out[at[:, np.newaxis] + np.arange(4)] = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), 4)


def _binary(data: Bytes, starts: Ints) -> pa.Array:
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(starts) - 1, [None, pa.py_buffer(starts), pa.py_buffer(data)]
    )


def _nested(items: pa.Array, counts: Ints) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(starts_of(counts).astype(np.int32)), items)
