"""Best documents: finds the best documents of one partition for terms that are required, optional or excluded.

`find_best_documents` scores few documents. Candidates are the documents of one term after the other, those with the
largest weights first, each with an upper bound of its score. The candidates with the largest bounds are scored first;
their k-th best score is a floor that excludes the others, and terms that cannot reach it by themselves (MaxScore).
Equal scores are ordered by table position. Sums are computed for each document in the order of the terms in the query,
so that equal documents have equal scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lance_core.index.text.posting_decoder import BLOCK_DOCUMENTS, Documents, Ints
from lance_core.index.text.scoring import (
    SLACK,
    Floats,
    Group,
    Mask,
    ScoredList,
    Scorer,
    Term,
    Verify,
    Weights,
    unite,
)

_SCORED_AT_ONCE = 1024
"""Maximum number of documents that are all scored, without bounds."""
_FIRST_CHUNK = 256
"""Candidates that are scored first, or twice `k` if that is more."""
_SAMPLE = 2048
"""Bounds from which the bound of the first chunk is estimated."""
_BLOCKS_SHARE = 8
"""If at most one block in this many reaches a threshold, only the weights of these blocks are compared with it."""
_ROUNDING = 1 - 1e-6
"""Factor for lower bounds, since scores are compared in single precision."""


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
    """Additional condition, which takes longer to check than the terms."""

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
        """The terms of the rarest required group, or else all terms: every match has at least one of them."""
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


def find_all_documents(query: PartitionQuery, allowed: Allowed | None, documents: int) -> ScoredDocuments:
    """Return all documents that match, ascending. `documents` is the number of documents of the partition."""
    if not query.can_match:
        return ScoredDocuments.empty()
    candidates = unite([term.scores.documents for term in query.driving_terms], documents)
    return _verify(query, _score(query, _select_allowed(candidates, allowed)))


def find_best_documents(
    query: PartitionQuery, k: int, allowed: Allowed | None, order: Ints, documents: int
) -> ScoredDocuments:
    """Return the best `k` documents, and maybe some others, in no order. `order` is the table position of each."""
    if not query.can_match:
        return ScoredDocuments.empty()
    driving = query.driving_terms
    count = sum(term.scores.count for term in driving)
    if allowed is not None and len(allowed.documents) * max(1, len(query.terms)) < count:
        return reduce_to_best(_verify(query, _score(query, allowed.documents)), k, order)
    if count <= _SCORED_AT_ONCE:
        candidates = unite([term.scores.documents for term in driving], documents)
        return reduce_to_best(_verify(query, _score(query, _select_allowed(candidates, allowed))), k, order)
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


def _verify(query: PartitionQuery, found: ScoredDocuments) -> ScoredDocuments:
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
            candidates = unite([term.scores.documents for term in driving.terms], self._documents)
            others = [group for group in self._query.groups if group is not driving]
            self._add(candidates, list(driving.terms), others)
            return self._best
        terms = sorted(self._query.terms, key=lambda term: -term.maximum)
        for number, term in enumerate(terms):
            reachable = sum(each.maximum for each in terms[number:]) * SLACK
            if reachable < self._floor:
                break
            self._add(self._reaching(term, reachable - term.maximum), terms[number:], [])
        return self._best

    def _reaching(self, term: Term, others: float) -> Documents:
        """Return the documents of a term whose score reaches the floor if the other terms add this much."""
        needed = self._floor - others
        if needed <= 0 or not term.factor:
            return term.scores.documents
        return term.scores.reaching(needed / term.factor * _ROUNDING / SLACK)

    def _add(self, candidates: Documents, terms: Sequence[Term], groups: Sequence[Group]) -> None:
        """Score the candidates that can be among the best. Their scores are those of the terms and groups."""
        candidates = _select_allowed(candidates, self._allowed)
        bounds = np.zeros(len(candidates), dtype=np.float32)
        for term in terms:
            bounds += np.float32(term.factor * SLACK) * term.scores.upper_bounds(candidates)
        for group in groups:
            added = np.zeros(len(candidates), dtype=np.float32)
            is_member = np.zeros(len(candidates), dtype=np.bool_)
            for term in group.terms:
                upper = term.scores.upper_bounds(candidates)
                added += np.float32(term.factor * SLACK) * upper
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
        found = _verify(self._query, _score(self._query, candidates))
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


def _select_allowed(documents: Documents, allowed: Allowed | None) -> Documents:
    return documents if allowed is None else documents[allowed.mask[documents]]


def _best_of_term(scores: ScoredList, factor: float, k: int, allowed: Allowed | None, order: Ints) -> ScoredDocuments:
    """Return the best documents of a single term, from the blocks with the largest weights."""
    weights, listed, maxima = scores.weights, scores.documents, scores.block_maxima
    count = min(len(maxima), max(1, -(-k // 16))) if factor else len(maxima)
    while True:
        threshold = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
        if count == len(maxima):
            threshold = np.float32(0)
        places = _find_places_reaching(threshold, weights, maxima)
        found = listed[places]
        if allowed is not None:
            is_allowed = allowed.mask[found]
            places, found = places[is_allowed], found[is_allowed]
        if len(found) >= k or count == len(maxima):
            return reduce_to_best(ScoredDocuments(found, factor * weights[places].astype(np.float64)), k, order)
        count = min(len(maxima), count * 8)


def _find_places_reaching(threshold: np.float32, weights: Weights, maxima: Weights) -> Ints:
    """Return the places of the weights that reach a threshold. `maxima` has the largest weight of each block."""
    blocks = np.flatnonzero(maxima >= threshold)
    if len(blocks) * _BLOCKS_SHARE > len(maxima):
        return np.flatnonzero(weights >= threshold)
    places = (blocks[:, np.newaxis] * BLOCK_DOCUMENTS + np.arange(BLOCK_DOCUMENTS)).reshape(-1)
    places = places[: np.searchsorted(places, len(weights))]
    return places[weights.take(places) >= threshold]
