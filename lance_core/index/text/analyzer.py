"""Analyzer: turns texts into the terms that an index stores and queries look up, with their positions.

The order of the steps is that of the reference implementation: tokenize, drop long tokens, lower-case, stem, drop stop
words, fold to ASCII. A dropped token, whether a stop word or a long one, leaves a gap in the positions.
Texts are tokenized as one array of bytes (`tokenizers.py`); the steps after that run once for each distinct token.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import Unsupported
from lance_core.format.arrow_bytes import Offsets, offsets_and_data
from lance_core.index.ascii_folding import fold_text
from lance_core.index.supported_types import is_list, is_text
from lance_core.index.text.parameters import TextParameters, reason_unsupported
from lance_core.index.text.stemming import Stemmer
from lance_core.index.text.stop_words import stop_words_of
from lance_core.index.text.tokenizers import ASCII_TOKENS, Bytes, Spans, find_tokens

Numbers = npt.NDArray[np.int32]
_DROPPED = -1
_LOWER_BYTES = np.array([ord(chr(byte).lower()) if byte < 0x80 else byte for byte in range(256)], dtype=np.uint8)
_LOWER_CASE = {
    0x3A3: "\u03c3",  # sigma, also at the end of a word
    # Letters that the Unicode tables of some Python versions lack.
    **{code: chr(code + 0x20) for code in range(0x10D50, 0x10D66)},
    **{code: chr(code + 0x1B) for code in range(0x16EA0, 0x16EB9)},
    **{code: chr(code + 1) for code in (0x1C89, 0xA7CC, 0xA7CE, 0xA7D2, 0xA7D4, 0xA7DA)},
    0xA7CB: "\u0264",
    0xA7DC: "\u019b",
}


@dataclass(frozen=True, slots=True)
class Token:
    """Term of one text, with the range of characters that it comes from."""

    text: str
    position: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Terms of many texts, in their order."""

    terms: pa.StringArray
    """Distinct terms."""
    documents: Numbers
    """Row of the text of each token, ascending."""
    term_numbers: Numbers
    """Position of its term in `terms`."""
    positions: Numbers


class Analyzer:
    """Analyzer for the parameters of one index. It has no state, so that threads may share it."""

    def __init__(self, parameters: TextParameters) -> None:
        reason = reason_unsupported(parameters)
        if reason is not None:
            raise Unsupported(f"the texts of a full-text index cannot be analyzed: {reason}")
        self.parameters = parameters
        self._stemmer = Stemmer(parameters.language) if parameters.stem else None
        words = parameters.custom_stop_words if parameters.remove_stop_words else ()
        self._stop_words = stop_words_of(parameters.language) if words is None else frozenset(words)

    def analyze(self, text: str) -> list[Token]:
        """Return the terms of one text."""
        if text.isascii() and (tokens := ASCII_TOKENS.get(self.parameters.base_tokenizer)) is not None:
            return self._analyze_ascii(tokens, text)
        offsets, data = offsets_and_data(pa.array([text], pa.large_string()))
        spans = find_tokens(offsets, data, self.parameters)
        positions = _positions(spans, spans.counts)
        spans, positions = self._drop_long(spans, positions)
        character = np.append(0, np.cumsum((data & 0xC0) != 0x80))
        starts, ends = character[spans.starts].tolist(), character[spans.ends].tolist()
        terms = self._terms_of([text[start:end] for start, end in zip(starts, ends, strict=True)])
        return [
            Token(term, position, start, end)
            for term, position, start, end in zip(terms, positions.tolist(), starts, ends, strict=True)
            if term is not None
        ]

    def _analyze_ascii(self, tokens: re.Pattern[str], text: str) -> list[Token]:
        """Return the terms of an ASCII text. A query has few tokens, for which this is faster than array operations."""
        limit = self.parameters.max_token_length
        spans = [found.span() for found in tokens.finditer(text)]
        places = [
            (place, start, end) for place, (start, end) in enumerate(spans) if limit is None or end - start < limit
        ]
        terms = self._terms_of([text[start:end] for _, start, end in places])
        return [Token(term, *place) for term, place in zip(terms, places, strict=True) if term is not None]

    def analyze_all(self, texts: pa.Array) -> Tokens:
        """Return the terms of an array of texts or of lists of texts. A null text has no terms."""
        present, rows = _texts_of(texts)
        offsets, data = offsets_and_data(present)
        spans = find_tokens(offsets, data, self.parameters)
        per_row = np.bincount(rows, weights=spans.counts, minlength=len(texts)).astype(np.int64)
        spans, positions = self._drop_long(spans, _positions(spans, per_row))
        documents = np.repeat(rows, spans.counts)
        encoded = _token_bytes(spans, _LOWER_BYTES[data] if self.parameters.lower_case else data).dictionary_encode()
        numbers = np.asarray(encoded.indices)
        terms, number_of = self._number_terms(encoded.dictionary.to_pylist())
        numbers = number_of[numbers]
        if _DROPPED in number_of:
            retained = numbers != _DROPPED
            documents, numbers, positions = documents[retained], numbers[retained], positions[retained]
        return Tokens(terms, documents, numbers, positions)

    def _drop_long(self, spans: Spans, positions: Numbers) -> tuple[Spans, Numbers]:
        limit = self.parameters.max_token_length
        if limit is None:
            return spans, positions
        is_short = spans.ends - spans.starts < limit
        return (spans, positions) if is_short.all() else (spans.filtered(is_short), positions[is_short])

    def _number_terms(self, tokens: list[str]) -> tuple[pa.StringArray, Numbers]:
        """Return the distinct terms of distinct tokens, and the number of the term of each token."""
        numbers: dict[str, int] = {}
        found = self._terms_of(tokens)
        of_token = [_DROPPED if term is None else numbers.setdefault(term, len(numbers)) for term in found]
        return pa.array(numbers, pa.string()), np.array(of_token, dtype=np.int32)

    def _terms_of(self, tokens: Sequence[str]) -> list[str | None]:
        """Return the term of each token; `None` for a stop word."""
        terms: Sequence[str] = tokens
        if self.parameters.lower_case:
            terms = [_lower(term) for term in terms]
        if self._stemmer is not None:
            terms = self._stemmer.stem(terms)
        stop_words, folds = self._stop_words, self.parameters.ascii_folding
        return [
            None if term in stop_words else fold_text(term) if folds and not term.isascii() else term for term in terms
        ]


def _lower(text: str) -> str:
    return text.lower() if text.isascii() else text.translate(_LOWER_CASE).lower()


def _texts_of(values: pa.Array) -> tuple[pa.Array, Numbers]:
    """Return the texts that are not null, and the row of each. The text of a list is that of its elements, joined by
    blanks."""
    texts = _join(values) if is_list(values.type) else values
    rows = np.arange(len(values), dtype=np.int32)
    if texts.null_count:
        rows, texts = rows[np.asarray(texts.is_valid())], texts.drop_null()
    return texts if is_text(texts.type) else texts.cast(pa.large_string()), rows


def _join(lists: pa.Array) -> pa.Array:
    """Return the elements of each list as one text. Nulls are left out, and so are empty texts before the first other
    one; a null list has the text of an empty one."""
    parents = np.asarray(pc.list_parent_indices(lists))
    elements = lists.flatten().cast(pa.large_string())
    lengths = np.asarray(pc.fill_null(pc.binary_length(elements), 0))
    up_to = np.cumsum(lengths)
    first = np.searchsorted(parents, parents)
    is_present = np.asarray(elements.is_valid()) & (up_to > (up_to - lengths)[first])
    counts = np.bincount(parents[is_present], minlength=len(lists))
    offsets = pa.array(np.append(0, np.cumsum(counts)), pa.int32())
    present = elements.filter(pa.array(is_present))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, present), pa.scalar(" ", present.type))


def _positions(spans: Spans, per_row: Offsets) -> Numbers:
    """Return the position of each token in its row, from the number of tokens of each row."""
    if not spans.have_positions:
        return np.zeros(len(spans.starts), dtype=np.int32)
    first = np.cumsum(per_row) - per_row
    return (np.arange(len(spans.starts)) - np.repeat(first, per_row)).astype(np.int32)


def _token_bytes(spans: Spans, data: Bytes) -> pa.LargeStringArray:
    """Return the tokens as an Arrow array."""
    lengths = spans.ends - spans.starts
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if len(lengths) and (spans.starts[1:] < spans.ends[:-1]).any():  # n-grams overlap
        copied = data[np.arange(offsets[-1]) + np.repeat(spans.starts - offsets[:-1], lengths)]
    else:
        border = np.zeros(len(data) + 1, dtype=np.int8)
        is_empty = lengths == 0
        border[spans.starts[~is_empty]] += 1
        border[spans.ends[~is_empty]] -= 1
        copied = data[np.cumsum(border[:-1], dtype=np.int8).view(np.bool_)]
    return pa.LargeStringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(copied))
