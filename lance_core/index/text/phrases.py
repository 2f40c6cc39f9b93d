"""Phrases: which documents have given tokens in order, with gaps of limited size.

A token has the place `q` in a phrase. A document matches if it has a position `p` for each token so that `p - q` never
falls from one token to the next, and grows by at most `slop`.
"""

from collections.abc import Sequence

import numpy as np

from lance_core.index.text.positions import TokenPositions
from lance_core.index.text.posting_decoder import Documents, Ints
from lance_core.index.text.scoring import Mask

_SHIFT = np.int64(34)
_OFFSET = np.int64(1 << 32)
"""A number contains the rank of a document, and a position relative to the phrase plus an offset, which is positive."""
_SLOP_MAX = 1 << 32
"""Largest difference of two positions of one document; numbers of different documents differ by more."""


class PhraseVerifier:
    """Check of one phrase in the documents of one partition."""

    def __init__(self, lists: Sequence[tuple[Documents, TokenPositions]], places: Sequence[int], slop: int) -> None:
        """`lists` has the documents and positions of each token, `places` its place in the phrase, ascending."""
        self._lists, self._places, self._slop = lists, places, slop

    def __call__(self, documents: Documents) -> Mask:
        """Return which of these documents have the phrase. All of them contain all tokens."""
        ends: Ints | None = None
        for (listed, positions), place in zip(self._lists, self._places, strict=True):
            keys = _relative_keys(listed, positions, documents, place)
            if ends is None:
                ends = keys
                continue
            ends = _continue(ends, keys, self._slop)
            if not len(ends):
                break
        matches = np.zeros(len(documents), dtype=np.bool_)
        if ends is not None:
            matches[np.unique(ends >> _SHIFT)] = True
        return matches


def find_members(occurrences: Sequence[Ints], slop: int) -> list[Mask]:
    """Return for each token of a phrase which of its occurrences in one text belong to an occurrence of the phrase.

    `occurrences` has the positions of each token minus its place in the phrase, ascending.

    >>> [mask.tolist() for mask in find_members([np.array([0, 7]), np.array([1, 3])], 1)]
    [[True, False], [True, False]]
    """
    reachable: list[Mask] = []
    ends = occurrences[0]
    for number, positions in enumerate(occurrences):
        is_reachable = _follows(ends, positions, slop) if number else np.ones(len(positions), dtype=np.bool_)
        reachable.append(is_reachable)
        ends = positions[is_reachable]
    members = reachable[-1:]
    for number in range(len(occurrences) - 2, -1, -1):
        continuing = occurrences[number + 1][members[0]]
        members.insert(0, reachable[number] & _precedes(continuing, occurrences[number], slop))
    return members


def _relative_keys(listed: Documents, positions: TokenPositions, documents: Documents, place: int) -> Ints:
    """Return numbers of a document (its rank in `documents`) and a position minus `place`, ascending."""
    rows = np.searchsorted(listed, documents)
    starts = positions.starts[rows]
    counts = positions.starts[rows + 1] - starts
    ends = np.cumsum(counts)
    at = np.repeat(starts - (ends - counts), counts) + np.arange(int(ends[-1]) if len(ends) else 0)
    ranks = np.repeat(np.arange(len(documents), dtype=np.int64), counts)
    keys: Ints = (ranks << _SHIFT) + positions.values[at].astype(np.int64) + (_OFFSET - place)
    return keys


def _continue(ends: Ints, keys: Ints, slop: int) -> Ints:
    """Return the keys that follow one of the ends within the slop."""
    return keys[_follows(ends, keys, min(slop, _SLOP_MAX))]


def _follows(ends: Ints, keys: Ints, slop: int) -> Mask:
    """Return which keys are equal to one of the ends, or larger by at most the slop."""
    if not len(ends):
        return np.zeros(len(keys), dtype=np.bool_)
    last = np.searchsorted(ends, keys, side="right") - 1
    is_near: Mask = (last >= 0) & (keys - ends[np.maximum(last, 0)] <= slop)
    return is_near


def _precedes(ends: Ints, keys: Ints, slop: int) -> Mask:
    """Return which keys are equal to one of the ends, or smaller by at most the slop."""
    if not len(ends):
        return np.zeros(len(keys), dtype=np.bool_)
    first = np.searchsorted(ends, keys)
    is_near: Mask = (first < len(ends)) & (ends[np.minimum(first, len(ends) - 1)] - keys <= slop)
    return is_near
