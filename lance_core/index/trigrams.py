"""Trigrams: the tokens of the n-gram index, three consecutive letters or digits of a text, each encoded as a number.

A text is lowercased, and each of its characters that is not ASCII but resembles ASCII characters is folded to them
(`é` to `e`, `ß` to `ss`), exactly as the reference writer does, so that the reference reader finds its tokens.
Searches here need no folding: they use only trigrams of ASCII, which fold to themselves (`required_tokens`).

Pure ASCII texts, the large majority, are tokenized with numpy from the bytes of an Arrow array; other texts go
through `_fold_text`.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.format.arrow_bytes import offsets_and_data
from lance_core.index.ascii_folding import fold_character

Pairs = npt.NDArray[np.uint64]
"""Tokens in the upper half, row numbers in the lower half."""
TOKEN_SHIFT = np.uint64(32)
NULL_TOKEN = 0
_BASE = 37
_LENGTH = 3
_NO_CODE = -1
_FOLDED_CAPITAL = 0x80


def _code_table() -> npt.NDArray[np.int32]:
    """Return the code of each byte. A character may fold to a capital letter (a mathematical one, which lowercasing
    leaves unchanged); it has the code that the reference writer computes for it in byte arithmetic."""
    codes = np.full(256, _NO_CODE, dtype=np.int32)
    for byte in range(256):
        letter = chr(byte & ~_FOLDED_CAPITAL)
        if byte < _FOLDED_CAPITAL and letter.isalnum():
            codes[byte] = 1 + int(letter) if letter.isdigit() else 11 + ord(letter.lower()) - ord("a")
        elif byte >= _FOLDED_CAPITAL and "A" <= letter <= "Z":
            codes[byte] = (11 + ord(letter) - ord("a")) % 256
    return codes


_CODES = _code_table()


def token_pairs(texts: pa.Array) -> Pairs:
    """Return each trigram of each text with the number of the text, in no particular order and possibly repeated."""
    offsets, data = offsets_and_data(texts)
    rows = np.repeat(np.arange(len(texts), dtype=np.uint32), np.diff(offsets))
    is_skipped = texts.is_null().to_numpy(zero_copy_only=False)
    not_ascii = np.flatnonzero(data >= _FOLDED_CAPITAL)
    if not len(not_ascii):
        return _pairs_of_bytes(data, rows, is_skipped if is_skipped.any() else None)
    is_folded = np.zeros(len(texts), dtype=np.bool_)
    is_folded[rows[not_ascii]] = True
    numbers = np.flatnonzero(is_folded & ~is_skipped).astype(np.uint32)
    folded_texts = [_fold_text(text) for text in texts.take(pa.array(numbers)).to_pylist()]
    lengths = np.fromiter(map(len, folded_texts), dtype=np.int64, count=len(folded_texts))
    folded = _pairs_of_bytes(np.frombuffer(b"".join(folded_texts), dtype=np.uint8), np.repeat(numbers, lengths), None)
    return np.concatenate([_pairs_of_bytes(data, rows, is_folded | is_skipped), folded])


def required_tokens(text: str) -> list[int]:
    """Return the tokens of every text that contains this one, in any letter case. A character other than an ASCII
    letter or digit may match anything, so that the result is also right for the pattern of a LIKE."""
    codes = np.array([_CODES[ord(letter)] if letter.isascii() else _NO_CODE for letter in text], dtype=np.int64)
    if len(codes) < _LENGTH:
        return []
    first, second, third = codes[:-2], codes[1:-1], codes[2:]
    is_trigram = (np.minimum(np.minimum(first, second), third)) >= 0
    tokens: list[int] = np.unique(((first * _BASE + second) * _BASE + third)[is_trigram]).tolist()
    return tokens


def _pairs_of_bytes(
    data: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint32], is_skipped: npt.NDArray[np.bool_] | None
) -> Pairs:
    if len(data) < _LENGTH:
        return np.empty(0, dtype=np.uint64)
    codes = _CODES[data]
    tokens = (codes[:-2] * _BASE + codes[1:-1]) * _BASE + codes[2:]
    is_trigram = ((codes[:-2] | codes[1:-1] | codes[2:]) >= 0) & (rows[:-2] == rows[2:])
    if is_skipped is not None:
        is_trigram &= ~is_skipped[rows[:-2]]
    pairs: Pairs = (tokens[is_trigram].astype(np.uint64) << TOKEN_SHIFT) | rows[:-2][is_trigram]
    return pairs


class _FoldTable(dict[int, str]):
    """Translation table from each character to its folded form in a one-byte encoding, filled on first use."""

    def __missing__(self, code: int) -> str:
        folded = self[code] = "".join(map(_mark_capital, fold_character(chr(code))))
        return folded


_FOLD_TABLE = _FoldTable()


def _fold_text(text: str) -> bytes:
    return text.lower().translate(_FOLD_TABLE).encode("latin-1")


def _mark_capital(letter: str) -> str:
    if not letter.isascii():
        return "\x00"
    return chr(ord(letter) | _FOLDED_CAPITAL) if "A" <= letter <= "Z" else letter


def token_text(token: int) -> str:
    """Return a token as text for messages; a token that is not a trigram of lowercase letters and digits as its
    number.

    >>> token_text(required_tokens("Abc")[0])
    'abc'
    """
    letters = list(_letters(token))
    return "".join(reversed(letters)) if len(letters) == _LENGTH and all(letters) else f"token {token}"


def _letters(token: int) -> Iterator[str]:
    while token:
        token, code = divmod(token, _BASE)
        yield "" if not code else str(code - 1) if code <= 10 else chr(ord("a") + code - 11)
