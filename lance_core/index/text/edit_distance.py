"""Edit distance: the words of an array that become another word by few insertions, deletions and replacements.

Characters are Unicode code points, and an exchange of two neighbours counts as two edits, as in Lance. All words of
similar length are compared at once.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
_WORDS_AT_ONCE = 1 << 16
_LENGTH_MAX = 1 << 12
"""Characters of a word that is compared; a longer one is near to no query word."""


def within_distance(words: pa.Array, word: str, distance: int, prefix: int) -> Ints:
    """Return the numbers of the words within this edit distance that share the first `prefix` characters of a word, in
    ascending order.

    >>> within_distance(pa.array(["cat", "cart", "dog"], pa.large_string()), "cat", 1, 1).tolist()
    [0, 1]
    """
    lengths = pc.utf8_length(words).to_numpy(zero_copy_only=False).astype(np.int64)
    is_candidate = (np.abs(lengths - len(word)) <= distance) & (lengths <= _LENGTH_MAX)
    fixed = word[:prefix]
    if fixed:
        is_candidate &= np.asarray(pc.starts_with(words, fixed))
    rows = np.flatnonzero(is_candidate)
    near = [np.empty(0, dtype=np.int64)]
    for start in range(0, len(rows), _WORDS_AT_ONCE):
        portion = rows[start : start + _WORDS_AT_ONCE]
        distances = _distances(words.take(pa.array(portion)), lengths[portion], word)
        near.append(portion[distances <= distance])
    return np.concatenate(near)


def _distances(words: pa.Array, lengths: Ints, word: str) -> Ints:
    """Return the edit distance of each word from `word`, by the usual table, a column of all words at a time."""
    longest = int(lengths.max(initial=0))
    characters = _characters(words, lengths, longest)
    target = np.frombuffer(word.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    row = np.broadcast_to(np.arange(len(target) + 1, dtype=np.int32), (len(words), len(target) + 1)).copy()
    result = np.where(lengths == 0, len(target), 0).astype(np.int64)
    for column in range(longest):
        next_row = np.empty_like(row)
        next_row[:, 0] = column + 1
        replaced = row[:, :-1] + (characters[:, column, np.newaxis] != target)
        shortest = np.minimum(replaced, row[:, 1:] + 1)
        for place in range(len(target)):
            next_row[:, place + 1] = np.minimum(shortest[:, place], next_row[:, place] + 1)
        row = next_row
        ends = lengths == column + 1
        result[ends] = row[ends, -1]
    return result


def _characters(words: pa.Array, lengths: Ints, longest: int) -> npt.NDArray[np.uint32]:
    """Return the code points of the words, one word a row."""
    text = np.frombuffer("".join(words.to_pylist()).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    starts = np.cumsum(lengths) - lengths
    places = starts[:, np.newaxis] + np.arange(longest)
    is_character = np.arange(longest) < lengths[:, np.newaxis]
    padded = np.where(is_character, text[np.minimum(places, max(0, len(text) - 1))] if len(text) else 0, 0)
    return padded.astype(np.uint32)
