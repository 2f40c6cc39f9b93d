"""Tokenizers: find the tokens of texts as ranges of bytes, for all texts of an array at once.

`simple` splits at every character that is neither a letter nor a digit, `whitespace` at ASCII white space; `raw` keeps
a text whole, and `ngram` returns runs of n characters. Letters and digits are those of the reference implementation,
listed in `word_characters.txt`, so that they do not depend on the Unicode version of Python.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt

from lance_core.format.arrow_bytes import Offsets
from lance_core.index.text.parameters import TextParameters

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
ASCII_TOKENS = {
    "simple": re.compile("[0-9A-Za-z]+"),
    "whitespace": re.compile("[^\t\n\x0c\r ]+"),
}
"""Patterns of the tokens of an ASCII text."""
_CODE_POINTS = 0x110000
_WHITE_SPACE = b"\t\n\x0c\r "


@dataclass(frozen=True, slots=True)
class Spans:
    """Tokens as ranges of bytes, in the order of the texts."""

    starts: Offsets
    ends: Offsets
    counts: Offsets
    """Number of tokens of each text."""
    have_positions: bool = True
    """False if all tokens of a text are at position 0, as n-grams are."""

    @property
    def texts(self) -> Offsets:
        """Text of each token."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def filtered(self, retained: Mask) -> "Spans":
        """Return the tokens of the mask."""
        counts = np.bincount(self.texts[retained], minlength=len(self.counts)).astype(np.int64)
        return Spans(self.starts[retained], self.ends[retained], counts, self.have_positions)


def find_tokens(offsets: Offsets, data: Bytes, parameters: TextParameters) -> Spans:
    """Return the tokens of texts, which begin at `offsets` in `data`."""
    match parameters.base_tokenizer:
        case "raw":
            return Spans(offsets[:-1], offsets[1:], np.ones(len(offsets) - 1, dtype=np.int64))
        case "ngram":
            return _ngrams(offsets, data, parameters)
        case "whitespace":
            is_token = np.ones(256, dtype=np.bool_)
            is_token[list(_WHITE_SPACE)] = False
            return _runs(offsets, is_token[data])
        case _:
            return _runs(offsets, _word_bytes(data))


def _runs(offsets: Offsets, is_token: Mask) -> Spans:
    """Return the runs of bytes of the mask; a run ends where its text ends."""
    is_start = is_token.copy()
    is_start[1:] &= ~is_token[:-1]
    is_end = is_token.copy()
    is_end[:-1] &= ~is_token[1:]
    borders = offsets[1:-1]
    borders = borders[(borders > 0) & (borders < len(is_token))]
    is_start[borders] = is_token[borders]
    is_end[borders - 1] = is_token[borders - 1]
    starts, ends = np.flatnonzero(is_start), np.flatnonzero(is_end) + 1
    return Spans(starts, ends, np.diff(np.searchsorted(starts, offsets)))


def _word_bytes(data: Bytes) -> Mask:
    """Return which bytes belong to letters and digits."""
    is_word: Mask = _word_table()[:256].copy()
    is_word[0x80:] = False
    mask = is_word[data]
    leads = np.flatnonzero(data >= 0xC0)
    if not len(leads):
        return mask
    first = data[leads].astype(np.uint32)
    length = 2 + (first >= 0xE0) + (first >= 0xF0).astype(np.int64)
    code = first & np.array([0, 0, 0x1F, 0x0F, 0x07], dtype=np.uint32)[length]
    last = len(data) - 1
    for number in (1, 2, 3):
        following = data[np.minimum(leads + number, last)].astype(np.uint32) & 0x3F
        code = np.where(length > number, (code << np.uint32(6)) | following, code)
    is_letter = _word_table()[np.minimum(code, _CODE_POINTS - 1)]
    leads, length = leads[is_letter], length[is_letter]
    for number in range(4):
        mask[leads[length > number] + number] = True
    return mask


def _ngrams(offsets: Offsets, data: Bytes, parameters: TextParameters) -> Spans:
    """Return the runs of `min_ngram_length` to `max_ngram_length` characters, by their first character and length."""
    starts = np.flatnonzero((data & 0xC0) != 0x80)
    first = np.searchsorted(starts, offsets)
    texts = np.repeat(np.arange(len(offsets) - 1), np.diff(first))
    end_of_text = first[1:][texts]
    borders = np.append(starts, len(data))
    characters = np.arange(len(starts))
    if parameters.prefix_only:
        characters = first[:-1][first[1:] > first[:-1]]
        texts, end_of_text = texts[characters], end_of_text[characters]
    lengths = np.arange(parameters.min_ngram_length, parameters.max_ngram_length + 1)
    ends = characters[:, np.newaxis] + lengths
    is_within = ends <= end_of_text[:, np.newaxis]
    counts = np.bincount(texts, weights=is_within.sum(axis=1), minlength=len(offsets) - 1).astype(np.int64)
    begin = np.broadcast_to(borders[characters][:, np.newaxis], ends.shape)[is_within]
    return Spans(begin, borders[ends[is_within]], counts, have_positions=False)


@cache
def _word_table() -> Mask:
    """Return for each code point whether it is a letter or a digit."""
    table = np.zeros(_CODE_POINTS, dtype=np.bool_)
    text = resources.files(__package__).joinpath("word_characters.txt").read_text(encoding="ascii")
    for item in text.split():
        first, _, last = item.partition("-")
        table[int(first, 16) : int(last or first, 16) + 1] = True
    return table
