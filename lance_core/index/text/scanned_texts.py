"""Scanned texts: rows that no index covers, as a partition in memory that is searched like one of an index.

Only the postings of the terms that a query needs are kept, or those of all terms if the texts are few, so that the
searches that follow need not read them again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.index.text.analyzer import Tokens
from lance_core.index.text.edit_distance import within_distance
from lance_core.index.text.list_elements import document_keys, split_lists
from lance_core.index.text.positions import TokenPositions
from lance_core.index.text.posting_decoder import Ints
from lance_core.index.text.segment_reader import PartitionDocuments, PostingList
from lance_core.index.text.token_set import ArrowTokenSet, SortedTokens

Page = TypeVar("Page")


@dataclass(frozen=True, slots=True)
class NearTerm:
    """Term whose neighbours by edit distance are searched."""

    text: str
    distance: int
    prefix: int


@dataclass(frozen=True, slots=True)
class NeededTerms:
    """Terms whose postings a query reads."""

    exact: frozenset[str]
    near: tuple[NearTerm, ...]

    def select(self, terms: pa.Array) -> npt.NDArray[np.bool_]:
        """Return which of these terms are needed."""
        words = terms.cast(pa.large_string())
        wanted = pa.array(sorted(self.exact), pa.large_string())
        needed = np.array(pc.is_in(words, value_set=wanted))
        for near in self.near:
            needed[within_distance(words, near.text, near.distance, near.prefix)] = True
        return needed


class ScannedPartition:
    """Texts that were analyzed for a search."""

    def __init__(
        self, tokens: Tokens, positions: Ints, needed: NeededTerms | None, *, keeps_empty: bool = False
    ) -> None:
        """`positions` has the table position of each text. Without `needed`, all postings are kept. Texts without
        terms are documents if `keeps_empty`."""
        lengths = np.bincount(tokens.documents, minlength=len(positions)).astype(np.uint32)
        has_tokens = (lengths > 0) | keeps_empty
        number_of = (np.cumsum(has_tokens) - 1).astype(np.int32)
        self.positions = positions[has_tokens]
        kept = lengths[has_tokens]
        self.documents = PartitionDocuments(self.positions.view(np.uint64), kept, int(kept.sum(dtype=np.int64)))
        terms, documents, numbers, places = tokens.terms, tokens.documents, tokens.term_numbers, tokens.positions
        if needed is not None:
            is_needed = needed.select(terms)
            renumbered = (np.cumsum(is_needed) - 1).astype(np.int32)
            rows = is_needed[numbers]
            documents, numbers, places = documents[rows], renumbered[numbers[rows]], places[rows]
            terms = terms.filter(pa.array(is_needed))
        order = np.argsort(numbers, kind="stable")
        self._documents = number_of[documents[order]]
        self._places = places[order].astype(np.uint32)
        self._starts = np.searchsorted(numbers[order], np.arange(len(terms) + 1))
        self._tokens = ArrowTokenSet(terms.cast(pa.large_string()), np.arange(len(terms), dtype=np.int64))

    @property
    def size(self) -> int:
        arrays = (self.positions, self._documents, self._places, self._starts)
        return self.documents.size + self._tokens.size + sum(array.nbytes for array in arrays)

    @property
    def has_positions(self) -> bool:
        return True

    def find(self, term: str) -> int | None:
        return self._tokens.find(term)

    def list_tokens(self) -> SortedTokens:
        return self._tokens.list_tokens()

    def postings(self, tokens: Sequence[int]) -> list[PostingList]:
        return [PostingList(*self._counted(token)) for token in tokens]

    def positions_of(self, tokens: Sequence[int]) -> list[TokenPositions]:
        found = []
        for token in tokens:
            _, counts = self._counted(token)
            starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
            found.append(TokenPositions(self._places[self._starts[token] : self._starts[token + 1]], starts))
        return found

    def cached_weights(self, token: int, create: Callable[[], Page], is_valid: Callable[[Page], bool]) -> Page:
        return create()

    def _counted(self, token: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint32]]:
        documents = self._documents[self._starts[token] : self._starts[token + 1]]
        distinct, counts = np.unique(documents, return_counts=True)
        return distinct, counts.astype(np.uint32)


def scan_partitions(
    batches: Iterator[tuple[pa.Array, Ints]],
    analyze: Callable[[pa.Array], Tokens],
    needed: NeededTerms | None,
    *,
    by_element: bool,
) -> Iterator[ScannedPartition]:
    """Yield a partition for each batch of texts with their table positions. With `by_element`, each text of a list is
    a document."""
    for texts, positions in batches:
        if by_element:
            texts, rows, elements = split_lists(texts)
            positions = document_keys(positions[rows], elements)
        partition = ScannedPartition(analyze(texts), positions, needed, keeps_empty=by_element)
        if len(partition.positions):
            yield partition
