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
_SPANS_MAX = 10_000


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

    @staticmethod
    def spans(occurrences: Sequence[Sequence[int]], places: Sequence[int], slop: int) -> list[tuple[int, ...]]:
        """Return the positions of each occurrence of a phrase in one text, given the positions of its tokens."""
        chains: list[tuple[int, ...]] = [()]
        for number, positions in enumerate(occurrences):
            continued = []
            for chain in chains:
                for position in positions:
                    gap = position - places[number] - (chain[-1] - places[number - 1]) if chain else 0
                    if 0 <= gap <= slop:
                        continued.append((*chain, position))
            chains = continued[:_SPANS_MAX]
        return [chain for chain in chains if chain]


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
    last = np.searchsorted(ends, keys, side="right") - 1
    is_near: Mask = (last >= 0) & (keys - ends[np.maximum(last, 0)] <= slop)
    return keys[is_near]
