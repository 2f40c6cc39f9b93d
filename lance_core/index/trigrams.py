"""Three letters or digits that follow one another in a text, as the n-gram index numbers them.

A text is lowered, and each of its characters that is no ASCII but looks like some of it becomes that (`é` is `e`, `ß`
is `ss`): exactly as the reference writer does it, so that what its reader looks for is there. What we look for needs
none of it: only trigrams of ASCII, which stand for themselves wherever they are (`required_tokens`).

Pure ASCII, most of what there is, numpy numbers from the bytes of an Arrow array; other texts go through `_plain`.
"""

import unicodedata
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.format.arrow_bytes import offsets_and_data

Pairs = npt.NDArray[np.uint64]
"""A token in the upper half, the number of a row in the lower."""
TOKEN_SHIFT = np.uint64(32)
NULL_TOKEN = 0
_BASE = 37
_LENGTH = 3
_NO_CODE = -1
_FOLDED_CAPITAL = 0x80
_SPELT = {
    "æ": "ae",
    "ð": "d",
    "đ": "d",
    "ħ": "h",
    "\u0131": "i",
    "ĸ": "k",
    "ł": "l",
    "ŉ": "n",
    "ŋ": "n",
    "ø": "o",
    "œ": "oe",
    "ß": "ss",
    "ŧ": "t",
    "þ": "th",
    "Æ": "AE",
    "Œ": "OE",
    "Ø": "O",
    "Ħ": "H",
    "Ŋ": "N",
    # Outlined letters and digits, and a small capital: younger than the tables of some versions of Python.
    **{chr(0x1CCD6 + number): chr(ord("A") + number) for number in range(26)},
    **{chr(0x1CCF0 + number): str(number) for number in range(10)},
    "\ua7f1": "S",
}
"""Letters that Unicode takes for letters of their own."""


def _codes() -> npt.NDArray[np.int32]:
    """By byte. A capital that a character was folded to (a mathematical one: lowering had left that as it was) has the
    code that the reference writer makes of it, by counting in bytes."""
    codes = np.full(256, _NO_CODE, dtype=np.int32)
    for byte in range(256):
        letter = chr(byte & ~_FOLDED_CAPITAL)
        if byte < _FOLDED_CAPITAL and letter.isalnum():
            codes[byte] = 1 + int(letter) if letter.isdigit() else 11 + ord(letter.lower()) - ord("a")
        elif byte >= _FOLDED_CAPITAL and "A" <= letter <= "Z":
            codes[byte] = (11 + ord(letter) - ord("a")) % 256
    return codes


_CODES = _codes()


def token_pairs(texts: pa.Array) -> Pairs:
    """Each trigram of each text, with the number of the text. Some more than once, and in no order."""
    offsets, data = offsets_and_data(texts)
    rows = np.repeat(np.arange(len(texts), dtype=np.uint32), np.diff(offsets))
    left_out = texts.is_null().to_numpy(zero_copy_only=False)
    beyond = np.flatnonzero(data >= _FOLDED_CAPITAL)
    if not len(beyond):
        return _pairs(data, rows, left_out if left_out.any() else None)
    other = np.zeros(len(texts), dtype=np.bool_)
    other[rows[beyond]] = True
    numbers = np.flatnonzero(other & ~left_out).astype(np.uint32)
    spelt = [_plain(text) for text in texts.take(pa.array(numbers)).to_pylist()]
    lengths = np.fromiter(map(len, spelt), dtype=np.int64, count=len(spelt))
    folded = _pairs(np.frombuffer(b"".join(spelt), dtype=np.uint8), np.repeat(numbers, lengths), None)
    return np.concatenate([_pairs(data, rows, other | left_out), folded])


def required_tokens(text: str) -> list[int]:
    """The tokens that every text has in which this one is, in whatever case. Whatever is no letter or digit of ASCII
    may stand for anything: so this is also right for the pattern of a LIKE."""
    codes = np.array([_CODES[ord(letter)] if letter.isascii() else _NO_CODE for letter in text], dtype=np.int64)
    if len(codes) < _LENGTH:
        return []
    first, second, third = codes[:-2], codes[1:-1], codes[2:]
    whole = (np.minimum(np.minimum(first, second), third)) >= 0
    found: list[int] = np.unique(((first * _BASE + second) * _BASE + third)[whole]).tolist()
    return found


def _pairs(data: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint32], left_out: npt.NDArray[np.bool_] | None) -> Pairs:
    if len(data) < _LENGTH:
        return np.empty(0, dtype=np.uint64)
    codes = _CODES[data]
    tokens = (codes[:-2] * _BASE + codes[1:-1]) * _BASE + codes[2:]
    whole = ((codes[:-2] | codes[1:-1] | codes[2:]) >= 0) & (rows[:-2] == rows[2:])
    if left_out is not None:
        whole &= ~left_out[rows[:-2]]
    found: Pairs = (tokens[whole].astype(np.uint64) << TOKEN_SHIFT) | rows[:-2][whole]
    return found


class _Folds(dict[int, str]):
    """What each character becomes in a text of one byte a character, found out when it is first met."""

    def __missing__(self, code: int) -> str:
        folded = self[code] = "".join(map(_marked, _folded(chr(code))))
        return folded


_folds = _Folds()


def _plain(text: str) -> bytes:
    return text.lower().translate(_folds).encode("latin-1")


def _folded(character: str) -> str:
    if character.isascii():
        return character
    parts = _SPELT.get(character) or unicodedata.normalize("NFKD", character)
    return "".join(letter for part in parts for letter in _SPELT.get(part, part) if letter.isascii()) or character


def _marked(letter: str) -> str:
    if not letter.isascii():
        return "\x00"
    return chr(ord(letter) | _FOLDED_CAPITAL) if "A" <= letter <= "Z" else letter


def token_text(token: int) -> str:
    """For messages; what is no trigram of small letters and digits by its number.

    >>> spelled(wanted("Abc")[0])
    'abc'
    """
    letters = list(_letters(token))
    return "".join(reversed(letters)) if len(letters) == _LENGTH and all(letters) else f"token {token}"


def _letters(token: int) -> Iterator[str]:
    while token:
        token, code = divmod(token, _BASE)
        yield "" if not code else str(code - 1) if code <= 10 else chr(ord("a") + code - 11)
