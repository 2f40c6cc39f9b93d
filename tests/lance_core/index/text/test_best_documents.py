"""The search by upper bounds returns the documents that scoring every document returns."""

import random

import numpy as np
import pytest

from lance_core.index.text import best_documents
from lance_core.index.text.best_documents import Allowed, PartitionQuery, ScoredDocuments
from lance_core.index.text.scoring import Group, ScoredConjunction, ScoredList, Scorer, Term
from lance_core.index.text.segment_reader import PostingList

DOCUMENTS = 20_000
GENERATOR = np.random.default_rng(3)
LENGTHS = GENERATOR.integers(3, 12, DOCUMENTS).astype(np.uint32)
ORDER = GENERATOR.permutation(DOCUMENTS).astype(np.int64)


def make_list(share: float) -> ScoredList:
    documents = np.flatnonzero(GENERATOR.random(DOCUMENTS) < share).astype(np.int32)
    frequencies = np.minimum(GENERATOR.geometric(0.6, len(documents)), LENGTHS[documents]).astype(np.uint8)
    return ScoredList(PostingList(documents, frequencies), LENGTHS, float(LENGTHS.mean()))


LISTS = [make_list(share) for share in (0.5, 0.45, 0.3, 0.1, 0.04, 0.01, 0.001, 0.00005)]


def make_query(generator: random.Random) -> PartitionQuery:
    def scorer() -> Scorer:
        if generator.random() < 0.7:
            return generator.choice(LISTS)
        sizes = generator.choices([0, 1, 2], [1, 8, 4], k=generator.choice([1, 2, 3]))
        groups = [Group(tuple(Term(generator.choice(LISTS), 0.8) for _ in range(size)), True) for size in sizes]
        return ScoredConjunction(groups, (lambda documents: documents % 5 > 1), DOCUMENTS)

    def term() -> Term:
        return Term(scorer(), generator.choice([0.0, 0.4, 0.7, 1.0, 3.0]))

    required = [
        Group(tuple(term() for _ in range(generator.choice([1, 1, 2]))), True)
        for _ in range(generator.choice([0, 0, 1, 2, 3]))
    ]
    optional = [Group((term(),), False) for _ in range(generator.choice([0, 1, 3]))]
    groups = (*required, *optional) or (Group((term(),), False),)
    excluded = (scorer(),) if generator.random() < 0.2 else ()
    verify = (lambda documents: documents % 3 > 0) if generator.random() < 0.2 else None
    return PartitionQuery(groups, excluded, verify)


def weigh_every_document(scorer: Scorer) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of all documents, and which of them match."""
    weights, matches = np.zeros(DOCUMENTS), np.zeros(DOCUMENTS, dtype=np.bool_)
    if isinstance(scorer, ScoredList):
        weights[scorer.documents], matches[scorer.documents] = scorer.weights, True
        return weights, matches
    assert isinstance(scorer, ScoredConjunction)
    matches = np.arange(DOCUMENTS) % 5 > 1
    for group in scorer._groups:
        members = np.zeros(DOCUMENTS, dtype=np.bool_)
        for term in group.terms:
            added, has_term = weigh_every_document(term.scores)
            weights += term.factor * added
            members |= has_term
        matches &= members
    return np.where(matches, weights, 0), matches


def score_every_document(query: PartitionQuery, allowed: Allowed | None) -> ScoredDocuments:
    """Return all documents that match, by dense arrays."""
    scores = np.zeros(DOCUMENTS)
    has_required = any(group.is_required for group in query.groups)
    matches = np.full(DOCUMENTS, has_required)
    for group in query.groups:
        members = np.zeros(DOCUMENTS, dtype=np.bool_)
        for term in group.terms:
            weights, has_term = weigh_every_document(term.scores)
            scores += term.factor * weights
            members |= has_term
        if group.is_required:
            matches &= members
        elif not has_required:
            matches |= members
    for excluded in query.excluded:
        matches &= ~weigh_every_document(excluded)[1]
    if allowed is not None:
        matches &= allowed.mask
    found = np.flatnonzero(matches).astype(np.int32)
    if query.verify is not None:
        found = found[query.verify(found)]
    return ScoredDocuments(found, scores[found])


@pytest.mark.parametrize("seed", range(4))
def test_the_best_documents_are_those_of_all(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(60):
        query, k = make_query(generator), generator.choice([1, 10, 300])
        share = generator.choice([None, None, 0.5, 0.002])
        allowed = None if share is None else Allowed.of(GENERATOR.random(DOCUMENTS) < share)
        everything = score_every_document(query, allowed)
        rank = np.lexsort((ORDER[everything.documents], -everything.scores.astype(np.float32)))[:k]
        expected = dict(zip(everything.documents[rank].tolist(), everything.scores[rank].tolist(), strict=True))
        found = best_documents.find_best_documents(query, k, allowed, ORDER, DOCUMENTS)
        assert dict(zip(found.documents.tolist(), found.scores.tolist(), strict=True)) == expected
        whole = best_documents.find_all_documents(query, allowed, DOCUMENTS)
        assert whole.documents.tolist() == everything.documents.tolist()
        assert whole.scores.tolist() == everything.scores.tolist()
