"""BM25 scoring: the best documents of one partition for terms that are required, optional or excluded.

The score of a document is the sum over the terms of the query of `idf * weight`, where the weight depends on the
frequency of the term and the length of the document. `ScoredList` has the weights of one term, and for a frequent term
an upper bound for each document of the partition, a byte, that is zero for documents without the term.

`best_documents` scores few documents. Candidates are the documents of one term after the other, those with the largest
weights first, each with an upper bound of its score. The candidates with the largest bounds are scored first; their
k-th best score is a floor that excludes the others, and terms that cannot reach it by themselves (MaxScore). Equal
scores are ordered by table position. Sums are computed for each document in the order of the terms in the query, so
that equal documents have equal scores.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lance_core.index.text.posting_decoder import BLOCK_DOCUMENTS, Documents, Ints
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
_SCORED_AT_ONCE = 1024
"""Documents that are scored without looking for a bound first."""
_FIRST_CHUNK = 256
"""Candidates that are scored first, or twice `k` if that is more."""
_SAMPLE = 2048
"""Bounds from which the bound of the first chunk is estimated."""
_BLOCKS_SHARE = 8
"""If at most one block in this many reaches a threshold, only the weights of these blocks are compared with it."""
_SLACK = 1 + 1e-5
"""Factor for upper bounds, which are computed in single precision."""
_ROUNDING = 1 - 1e-6
"""Factor for lower bounds, since scores are compared in single precision."""


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
        return self.bounds.take(documents) * np.float32(self.quantum * _SLACK)

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
        return sum(term.maximum for group in self._groups for term in group.terms) * _SLACK if self.count else 0.0

    @cached_property
    def documents(self) -> Documents:
        if not self.count:
            return np.empty(0, dtype=np.int32)
        groups = sorted(self._groups, key=lambda group: group.count)
        found = _union([term.scores.documents for term in groups[0].terms], self._all_documents)
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
                bounds += np.float32(term.factor * _SLACK) * upper
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


@dataclass(frozen=True, slots=True)
class Allowed:
    """Documents that may be returned."""

    mask: Mask
    documents: Documents

    @classmethod
    def of(cls, mask: Mask) -> "Allowed":
        return cls(mask, np.flatnonzero(mask).astype(np.int32))

    @property
    def size(self) -> int:
        return self.mask.nbytes + self.documents.nbytes


@dataclass(frozen=True, slots=True)
class PartitionQuery:
    """Query on one partition. Its score is the sum over all terms of the groups."""

    groups: tuple[Group, ...]
    excluded: tuple[Scorer, ...] = ()
    verify: Verify | None = None
    """Condition in addition, which takes longer to check."""

    @property
    def can_match(self) -> bool:
        """Return whether every required group has a term that the partition contains."""
        return any(group.count for group in self.groups) and all(
            group.count for group in self.groups if group.is_required
        )

    @property
    def terms(self) -> tuple[Term, ...]:
        return tuple(term for group in self.groups for term in group.terms)

    @property
    def driving_terms(self) -> tuple[Term, ...]:
        """Terms of which every match has one: those of the rarest required group, or else all."""
        required = [group for group in self.groups if group.is_required]
        return min(required, key=lambda group: group.count).terms if required else self.terms


@dataclass(frozen=True, slots=True)
class ScoredDocuments:
    """Documents with their scores."""

    documents: Documents
    scores: Floats

    @classmethod
    def empty(cls) -> "ScoredDocuments":
        return cls(np.empty(0, dtype=np.int32), np.empty(0))


def all_documents(query: PartitionQuery, allowed: Allowed | None, documents: int) -> ScoredDocuments:
    """Return all documents that match, ascending. `documents` is the number of documents of the partition."""
    if not query.can_match:
        return ScoredDocuments.empty()
    candidates = _union([term.scores.documents for term in query.driving_terms], documents)
    return _verified(query, _score(query, _within(candidates, allowed)))


def best_documents(
    query: PartitionQuery, k: int, allowed: Allowed | None, order: Ints, documents: int
) -> ScoredDocuments:
    """Return the best `k` documents, and maybe some others, in no order. `order` is the table position of each."""
    if not query.can_match:
        return ScoredDocuments.empty()
    driving = query.driving_terms
    count = sum(term.scores.count for term in driving)
    if allowed is not None and len(allowed.documents) * max(1, len(query.terms)) < count:
        return reduce_to_best(_verified(query, _score(query, allowed.documents)), k, order)
    if count <= _SCORED_AT_ONCE:
        candidates = _union([term.scores.documents for term in driving], documents)
        return reduce_to_best(_verified(query, _score(query, _within(candidates, allowed))), k, order)
    if len(query.terms) == 1 and not query.excluded and query.verify is None:
        (term,) = query.terms
        if isinstance(term.scores, ScoredList):
            return _best_of_term(term.scores, term.factor, k, allowed, order)
    return _BestSearch(query, k, allowed, order, documents).run()


def reduce_to_best(found: ScoredDocuments, k: int, order: Ints) -> ScoredDocuments:
    """Return the best `k` documents; among equal scores those first in table order."""
    scores = found.scores.astype(np.float32)
    if len(scores) <= k:
        return found
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    better = np.flatnonzero(scores > threshold)
    equal = np.flatnonzero(scores == threshold)
    missing = k - len(better)
    if len(equal) > missing:
        equal = equal[np.argpartition(order[found.documents[equal]], missing - 1)[:missing]]
    chosen = np.concatenate([better, equal])
    return ScoredDocuments(found.documents[chosen], found.scores[chosen])


def _score(query: PartitionQuery, documents: Documents) -> ScoredDocuments:
    """Return the documents that match, with their scores, without verification."""
    scores = np.zeros(len(documents))
    has_required = any(group.is_required for group in query.groups)
    matches = np.full(len(documents), has_required)
    for group in query.groups:
        in_group = np.zeros(len(documents), dtype=np.bool_)
        for term in group.terms:
            weights = term.scores.weights_of(documents)
            scores += term.factor * weights.astype(np.float64)
            if group.is_required:
                in_group |= weights > 0
            elif not has_required:
                matches |= weights > 0
        if group.is_required:
            matches &= in_group
    for scored in query.excluded:
        matches &= ~scored.contains(documents)
    if matches.all():
        return ScoredDocuments(documents, scores)
    return ScoredDocuments(documents[matches], scores[matches])


def _verified(query: PartitionQuery, found: ScoredDocuments) -> ScoredDocuments:
    if query.verify is None or not len(found.documents):
        return found
    holds = query.verify(found.documents)
    return ScoredDocuments(found.documents[holds], found.scores[holds])


class _BestSearch:
    """Search for the best documents by upper bounds."""

    def __init__(self, query: PartitionQuery, k: int, allowed: Allowed | None, order: Ints, documents: int) -> None:
        self._query, self._k, self._allowed, self._order, self._documents = query, k, allowed, order, documents
        self._best = ScoredDocuments.empty()
        self._floor = -np.inf

    def run(self) -> ScoredDocuments:
        required = [group for group in self._query.groups if group.is_required]
        if required:
            driving = min(required, key=lambda group: group.count)
            candidates = _union([term.scores.documents for term in driving.terms], self._documents)
            others = [group for group in self._query.groups if group is not driving]
            self._add(candidates, list(driving.terms), others)
            return self._best
        terms = sorted(self._query.terms, key=lambda term: -term.maximum)
        for number, term in enumerate(terms):
            reachable = sum(each.maximum for each in terms[number:]) * _SLACK
            if reachable < self._floor:
                break
            self._add(self._reaching(term, reachable - term.maximum), terms[number:], [])
        return self._best

    def _reaching(self, term: Term, others: float) -> Documents:
        """Return the documents of a term whose score reaches the floor if the other terms add this much."""
        needed = self._floor - others
        if needed <= 0 or not term.factor:
            return term.scores.documents
        return term.scores.reaching(needed / term.factor * _ROUNDING / _SLACK)

    def _add(self, candidates: Documents, terms: Sequence[Term], groups: Sequence[Group]) -> None:
        """Score the candidates that can be among the best. Their scores are those of the terms and groups."""
        candidates = _within(candidates, self._allowed)
        bounds = np.zeros(len(candidates), dtype=np.float32)
        for term in terms:
            bounds += np.float32(term.factor * _SLACK) * term.scores.upper_bounds(candidates)
        for group in groups:
            added = np.zeros(len(candidates), dtype=np.float32)
            is_member = np.zeros(len(candidates), dtype=np.bool_)
            for term in group.terms:
                upper = term.scores.upper_bounds(candidates)
                added += np.float32(term.factor * _SLACK) * upper
                is_member |= upper > 0
            bounds += added
            if group.is_required and not is_member.all():
                candidates, bounds = candidates[is_member], bounds[is_member]
        self._add_bounded(candidates, bounds)

    def _add_bounded(self, candidates: Documents, bounds: Weights) -> None:
        size = max(_FIRST_CHUNK, 2 * self._k)
        while len(candidates):
            reaches = bounds >= np.float32(self._floor)
            if not reaches.all():
                candidates, bounds = candidates[reaches], bounds[reaches]
            if len(candidates) <= 2 * size:
                self._score(candidates)
                return
            threshold = _estimate_threshold(bounds, size)
            is_first = bounds >= threshold
            self._score(candidates[is_first])
            candidates, bounds = candidates[~is_first], bounds[~is_first]
            size *= 4

    def _score(self, candidates: Documents) -> None:
        found = _verified(self._query, _score(self._query, candidates))
        together = concatenate([self._best, found])
        if len(together.documents) > len(found.documents):
            _, first = np.unique(together.documents, return_index=True)
            together = ScoredDocuments(together.documents[first], together.scores[first])
        self._best = reduce_to_best(together, self._k, self._order)
        if len(self._best.scores) == self._k:
            self._floor = float(self._best.scores.min()) * _ROUNDING


def _estimate_threshold(bounds: Weights, count: int) -> np.float32:
    """Return a bound that about `count` of the bounds reach, at least one of them."""
    sample = bounds[:: max(1, len(bounds) // _SAMPLE)]
    rank = min(len(sample), max(1, len(sample) * count // len(bounds)))
    return np.float32(np.partition(sample, len(sample) - rank)[len(sample) - rank])


def concatenate(parts: Sequence[ScoredDocuments]) -> ScoredDocuments:
    nothing = ScoredDocuments.empty()
    return ScoredDocuments(
        np.concatenate([nothing.documents, *(part.documents for part in parts)]),
        np.concatenate([nothing.scores, *(part.scores for part in parts)]),
    )


def _within(documents: Documents, allowed: Allowed | None) -> Documents:
    return documents if allowed is None else documents[allowed.mask[documents]]


def _union(parts: Sequence[Documents], documents: int) -> Documents:
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


def _best_of_term(scores: ScoredList, factor: float, k: int, allowed: Allowed | None, order: Ints) -> ScoredDocuments:
    """Return the best documents of a single term, from the blocks with the largest weights."""
    weights, listed, maxima = scores.weights, scores.documents, scores.block_maxima
    count = min(len(maxima), max(1, -(-k // 16))) if factor else len(maxima)
    while True:
        threshold = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
        if count == len(maxima):
            threshold = np.float32(0)
        places = _places_reaching(threshold, weights, maxima)
        found = listed[places]
        if allowed is not None:
            is_allowed = allowed.mask[found]
            places, found = places[is_allowed], found[is_allowed]
        if len(found) >= k or count == len(maxima):
            return reduce_to_best(ScoredDocuments(found, factor * weights[places].astype(np.float64)), k, order)
        count = min(len(maxima), count * 8)


def _places_reaching(threshold: np.float32, weights: Weights, maxima: Weights) -> Ints:
    """Return the places of the weights that reach a threshold. `maxima` has the largest weight of each block."""
    blocks = np.flatnonzero(maxima >= threshold)
    if len(blocks) * _BLOCKS_SHARE > len(maxima):
        return np.flatnonzero(weights >= threshold)
    places = (blocks[:, np.newaxis] * BLOCK_DOCUMENTS + np.arange(BLOCK_DOCUMENTS)).reshape(-1)
    places = places[: np.searchsorted(places, len(weights))]
    return places[weights.take(places) >= threshold]
