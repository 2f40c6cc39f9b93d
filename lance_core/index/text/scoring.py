"""BM25 weights: what the terms of a query, and clauses that need several terms, add to the scores of documents.

The score of a document is the sum over the terms of the query of `idf * weight`, where the weight depends on the
frequency of the term and the length of the document. `ScoredList` has the weights of one term, and for a frequent term
an upper bound for each document of the partition, a byte, that is zero for documents without the term.
`best_documents.py` finds the documents with the best scores.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lance_core.index.text.posting_decoder import BLOCK_DOCUMENTS, Documents
from lance_core.index.text.segment_reader import PostingList

K1, B = 1.2, 0.75
Floats = npt.NDArray[np.float64]
Weights = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Verify = Callable[[Documents], Mask]
_BOUNDS_SHARE = 128
"""A list with at least one document in this many has upper bounds for all documents."""
_BOUND_STEPS = 255
_LENGTH_BITS = 4
_DENSE_SHARE = 8
"""A list with at least one document in this many also has an array of weights by document. A binary search for a
thousand documents in a long list takes a tenth of a millisecond, since most of its steps miss the processor's cache."""
SLACK = 1 + 1e-5
"""Factor for upper bounds, which are computed in single precision."""


def inverse_document_frequency(documents: int, containing: int) -> float:
    """Return the factor of a term that this many of all documents contain.

    >>> round(inverse_document_frequency(4, 2), 4)
    0.6931
    """
    return log(1 + (documents - containing + 0.5) / (containing + 0.5))


def round_lengths(lengths: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return lengths reduced to their four highest bits. Indices with blocks of 256 documents score them like this.

    >>> round_lengths(np.array([15, 17, 1000], dtype=np.uint32)).tolist()
    [15, 16, 960]
    """
    dropped = np.maximum(np.frexp(lengths.astype(np.float64))[1] - _LENGTH_BITS, 0).astype(np.uint32)
    rounded: npt.NDArray[np.uint32] = lengths >> dropped << dropped
    return rounded


class Scorer(Protocol):
    """Weights of the documents that match a part of a query."""

    @property
    def count(self) -> int:
        """Upper bound of the number of documents."""
        ...

    @property
    def maximum(self) -> float:
        """Upper bound of the weights."""
        ...

    @property
    def documents(self) -> Documents:
        """Documents that may match, ascending."""
        ...

    def reaching(self, needed: float) -> Documents:
        """Return the documents whose weight may be at least `needed`."""
        ...

    def weights_of(self, documents: Documents) -> npt.NDArray[np.floating[Any]]:
        """Return the weight of each document; 0 for documents that do not match."""
        ...

    def upper_bounds(self, documents: Documents) -> Weights:
        """Return an upper bound of the weight of each document; it is 0 only for documents that do not match."""
        ...

    def contains(self, documents: Documents) -> Mask:
        """Return which documents match."""
        ...


class ScoredList:
    """Weights of one term in the documents that contain it."""

    def __init__(
        self,
        postings: PostingList,
        lengths: npt.NDArray[np.uint32],
        average_length: float,
        *,
        has_rounded_lengths: bool = False,
    ) -> None:
        self.documents, self.average_length = postings.documents, average_length
        frequencies = postings.frequencies.astype(np.float32)
        scored = lengths[self.documents]
        scored = round_lengths(scored) if has_rounded_lengths else scored
        norms = (K1 * (1 - B) + scored * np.float32(K1 * B / average_length)).astype(np.float32)
        self.weights: Weights = frequencies * np.float32(K1 + 1) / (frequencies + norms)
        blocks = np.arange(0, len(self.weights), BLOCK_DOCUMENTS)
        self.block_maxima: Weights = np.maximum.reduceat(self.weights, blocks) if len(blocks) else self.weights
        self.maximum = float(self.block_maxima.max(initial=0))
        self.quantum = self.maximum / _BOUND_STEPS
        self._all_documents = len(lengths)

    @cached_property
    def bounds(self) -> npt.NDArray[np.uint8] | None:
        """Upper bound of the weight of each document of the partition, in quanta; `None` for a rare term. A search for
        one word does not need it, so it is computed on demand."""
        if not self._has_bounds:
            return None
        bounds = np.zeros(self._all_documents, dtype=np.uint8)
        steps = np.ceil(self.weights * np.float32(1 / self.quantum))
        bounds[self.documents] = np.clip(steps, 1, _BOUND_STEPS)
        return bounds

    @cached_property
    def _dense(self) -> Weights | None:
        """Weight of each document of the partition; `None` unless the term is frequent."""
        if not self._has_dense:
            return None
        dense = np.zeros(self._all_documents, dtype=np.float32)
        dense[self.documents] = self.weights
        return dense

    @property
    def _has_bounds(self) -> bool:
        return bool(self.maximum) and len(self.documents) * _BOUNDS_SHARE >= self._all_documents

    @property
    def _has_dense(self) -> bool:
        return bool(self.maximum) and len(self.documents) * _DENSE_SHARE >= self._all_documents

    @property
    def count(self) -> int:
        return len(self.documents)

    @property
    def size(self) -> int:
        """Bytes in memory after all arrays have been computed."""
        by_document = (1 if self._has_bounds else 0) + (self.weights.itemsize if self._has_dense else 0)
        return self.weights.nbytes + self.block_maxima.nbytes + by_document * self._all_documents

    def reaching(self, needed: float) -> Documents:
        return self.documents[self.weights >= np.float32(needed)]

    def weights_of(self, documents: Documents) -> Weights:
        """Return the weight of each document; 0 for documents without the term."""
        if self._dense is not None:
            return self._dense.take(documents)
        weights = np.zeros(len(documents), dtype=np.float32)
        if len(documents) > 4 * len(self.documents):  # ascending, so that either can be searched for in the other
            places = np.minimum(np.searchsorted(documents, self.documents), max(0, len(documents) - 1))
            found = documents[places] == self.documents
            weights[places[found]] = self.weights[found]
        elif len(self.documents):
            places = np.minimum(np.searchsorted(self.documents, documents), len(self.documents) - 1)
            found = self.documents[places] == documents
            weights[found] = self.weights[places[found]]
        return weights

    def upper_bounds(self, documents: Documents) -> Weights:
        """Return a number for each document that its weight does not exceed; 0 for documents without the term."""
        if self.bounds is None:
            return self.weights_of(documents)
        return self.bounds.take(documents) * np.float32(self.quantum * SLACK)

    def contains(self, documents: Documents) -> Mask:
        if self.bounds is None:
            return self.weights_of(documents) > 0
        found: Mask = self.bounds.take(documents) > 0
        return found


@dataclass(frozen=True, slots=True)
class Term:
    """Term of a query in one partition."""

    scores: Scorer
    factor: float
    """Product of the inverse document frequency, the boost and the number of times that the query has the term."""

    @property
    def maximum(self) -> float:
        return self.factor * self.scores.maximum


@dataclass(frozen=True, slots=True)
class Group:
    """Terms of which a document needs at least one, if the group is required."""

    terms: tuple[Term, ...]
    is_required: bool

    @property
    def count(self) -> int:
        return sum(term.scores.count for term in self.terms)


class ScoredConjunction:
    """Weights of the documents that have a term of each of several groups and satisfy an optional condition: a phrase,
    or a match of all words. The weight is the sum over all terms.

    The condition takes longer to check than the terms, so only documents whose weight or membership is requested are
    checked.
    """

    def __init__(self, groups: Sequence[Group], verify: Verify | None, documents: int) -> None:
        """Prepare the scores. `documents` is the number of documents of the partition, and `verify` the condition."""
        self._groups, self._verify, self._all_documents = groups, verify, documents

    @property
    def count(self) -> int:
        return min((group.count for group in self._groups), default=0)

    @cached_property
    def maximum(self) -> float:
        return sum(term.maximum for group in self._groups for term in group.terms) * SLACK if self.count else 0.0

    @cached_property
    def documents(self) -> Documents:
        if not self.count:
            return np.empty(0, dtype=np.int32)
        groups = sorted(self._groups, key=lambda group: group.count)
        found = unite([term.scores.documents for term in groups[0].terms], self._all_documents)
        for group in groups[1:]:
            found = found[_is_in_group(group, found)]
        return found

    def reaching(self, needed: float) -> Documents:
        return self.documents[self.upper_bounds(self.documents) >= np.float32(needed)]

    def weights_of(self, documents: Documents) -> Floats:
        weights = np.zeros(len(documents))
        matches = self._candidates(documents)
        found = documents[matches]
        total = np.zeros(len(found))
        for group in self._groups:
            for term in group.terms:
                total += term.factor * term.scores.weights_of(found).astype(np.float64)
        if self._verify is not None and len(found):
            total[~self._verify(found)] = 0
        weights[matches] = total
        return weights

    def upper_bounds(self, documents: Documents) -> Weights:
        bounds = np.zeros(len(documents), dtype=np.float32)
        matches = np.full(len(documents), bool(self.count))
        for group in self._groups:
            in_group = np.zeros(len(documents), dtype=np.bool_)
            for term in group.terms:
                upper = term.scores.upper_bounds(documents)
                bounds += np.float32(term.factor * SLACK) * upper
                in_group |= upper > 0
            matches &= in_group
        bounds[~matches] = 0
        return bounds

    def contains(self, documents: Documents) -> Mask:
        matches = self._candidates(documents)
        if self._verify is not None and len(matches):
            matches[matches] = self._verify(documents[matches])
        return matches

    def _candidates(self, documents: Documents) -> Mask:
        """Return which documents have a term of each group."""
        matches = np.full(len(documents), bool(self.count))
        for group in sorted(self._groups, key=lambda group: group.count):
            matches[matches] = _is_in_group(group, documents[matches])
        return matches


def _is_in_group(group: Group, documents: Documents) -> Mask:
    matches = np.zeros(len(documents), dtype=np.bool_)
    for term in group.terms:
        matches |= term.scores.contains(documents)
    return matches


def unite(parts: Sequence[Documents], documents: int) -> Documents:
    """Return the distinct documents of several lists, ascending."""
    if len(parts) == 1:
        return parts[0]
    total = sum(map(len, parts))
    if total * 32 < documents:
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int32)
    contained = np.zeros(documents, dtype=np.bool_)
    for part in parts:
        contained[part] = True
    return np.flatnonzero(contained).astype(np.int32)
