"""Query evaluation on one column: turns the words of a query into terms of the partitions, and finds matching rows.

A column has several partitions: those of the segments of its index, and scanned ones. The inverse document frequency of
a term counts the documents of all partitions. Results are table positions with scores. Words of a query with fuzziness
are divided at characters that are neither letters nor digits and lower-cased, but not stemmed, as in Lance; the terms
near to them are chosen in bytewise order, at most `max_expansions` for the query.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias, TypeGuard

import numpy as np

from lance_core.errors import InvalidInput
from lance_core.index.text.analyzer import Analyzer
from lance_core.index.text.analyzers import analyzer_of
from lance_core.index.text.best_documents import (
    Allowed,
    PartitionQuery,
    ScoredDocuments,
    find_all_documents,
    find_best_documents,
)
from lance_core.index.text.phrases import PhraseVerifier
from lance_core.index.text.posting_decoder import LARGE_BLOCK_DOCUMENTS, Documents, Ints
from lance_core.index.text.scanned_texts import NearTerm, NeededTerms, ScannedPartition
from lance_core.index.text.scoring import (
    Floats,
    Group,
    ScoredConjunction,
    ScoredList,
    Scorer,
    Term,
    inverse_document_frequency,
)
from lance_core.index.text.segment_reader import PostingList
from lance_core.index.text.statistics import CorpusStatistics, PartitionView
from lance_core.text import Boolean, Match, Phrase

Leaf = Match | Phrase


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Rows with their scores, in order of position."""

    positions: Ints
    scores: Floats

    @classmethod
    def empty(cls) -> "ScoredRows":
        return cls(np.empty(0, dtype=np.int64), np.empty(0))

    @classmethod
    def sorted(cls, positions: Ints, scores: Floats) -> "ScoredRows":
        order = np.argsort(positions, kind="stable")
        return cls(positions[order], scores[order])

    def best(self, k: int) -> "ScoredRows":
        """Return the best `k` rows, best first; equal scores in table order."""
        scores = self.scores.astype(np.float32)
        chosen = np.arange(len(scores))
        if len(scores) > 4 * k:
            threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
            chosen = np.flatnonzero(scores >= threshold)
        order = chosen[np.lexsort((self.positions[chosen], -scores[chosen]))][:k]
        return ScoredRows(self.positions[order], self.scores[order])


@dataclass(frozen=True, slots=True)
class Words:
    """Terms of one leaf of a query, in its order."""

    texts: tuple[str, ...]
    places: tuple[int, ...]
    """Position of each term in the text of the query."""


_Terms: TypeAlias = tuple[tuple[str, float], ...]
"""Terms with the factors of their weights."""


@dataclass(frozen=True, slots=True)
class _Conjunction:
    """Clause of a boolean query that needs all of its words: a phrase, or a match with the operator AND."""

    groups: tuple[_Terms, ...]
    """A document needs one term of each group."""
    factor: float = 1.0
    phrase: Words | None = None
    slop: int = 0


@dataclass(frozen=True, slots=True)
class _Clauses:
    """Conjunctions of a boolean query."""

    required: tuple[_Conjunction, ...] = ()
    optional: tuple[_Conjunction, ...] = ()
    excluded: tuple[_Conjunction, ...] = ()

    @property
    def all(self) -> tuple[_Conjunction, ...]:
        return (*self.required, *self.optional, *self.excluded)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Terms of a leaf, or of a boolean query of leaves on one column."""

    required: tuple[_Terms, ...]
    """A document needs one term of each group."""
    optional: _Terms
    excluded: tuple[str, ...]
    clauses: _Clauses = _Clauses()
    phrase: Words | None = None
    slop: int = 0

    @property
    def terms(self) -> set[str]:
        in_clauses = (group for clause in self.clauses.all for group in clause.groups)
        groups = (*self.required, self.optional, *in_clauses)
        return {term for group in groups for term, _ in group} | set(self.excluded)


@dataclass(frozen=True, slots=True)
class OpenColumn:
    """Partitions of one column of a version, ready to be searched."""

    name: str
    analyzer: Analyzer
    views: tuple[PartitionView, ...]
    statistics: CorpusStatistics

    @property
    def size(self) -> int:
        """Memory that no other cache counts."""
        scanned = (view.partition.size for view in self.views if isinstance(view.partition, ScannedPartition))
        return 1024 + sum(view.size for view in self.views) + sum(scanned)


class ColumnQueries:
    """Evaluation of queries on one column."""

    def __init__(self, column: OpenColumn, allowed: Sequence[Allowed | None]) -> None:
        """`allowed` has the documents of each partition that may be returned; `None` for all of them."""
        self._column, self._analyzer, self._views = column.name, column.analyzer, column.views
        self._statistics, self._allowed = column.statistics, allowed

    def find_best(self, query: Leaf | Boolean, k: int) -> ScoredRows:
        """Return the best `k` rows, and maybe some others, of a leaf or of a query that `is_flat`."""
        return self._find(query, k)

    def find_all(self, query: Leaf) -> ScoredRows:
        """Return all rows that match."""
        return self._find(query, None)

    @property
    def views(self) -> Sequence[PartitionView]:
        return self._views

    @property
    def statistics(self) -> CorpusStatistics:
        return self._statistics

    def analyze(self, text: str) -> tuple[str, ...]:
        """Return the terms of a text."""
        return analyze_words(self._analyzer, text).texts

    def count_documents(self, term: str) -> int:
        """Return the number of documents that contain a term, as the statistics count them."""
        return sum(
            self._statistics.count_documents(view, postings.documents) for view, _, postings in self._postings_of(term)
        )

    def occurrences(self, term: str) -> Iterator[tuple[PartitionView, Documents, Floats]]:
        """Yield, for each partition, the documents that contain a term and may be returned, with its frequencies."""
        for view, allowed, postings in self._postings_of(term):
            is_allowed = slice(None) if allowed is None else allowed.mask[postings.documents]
            yield view, postings.documents[is_allowed], postings.frequencies[is_allowed].astype(np.float64)

    def _postings_of(self, term: str) -> Iterator[tuple[PartitionView, Allowed | None, PostingList]]:
        for view, allowed in zip(self._views, self._allowed, strict=True):
            number = view.partition.find(term)
            if number is not None:
                (postings,) = view.partition.postings([number])
                yield view, allowed, postings

    def terms_of(self, query: Leaf) -> list[str]:
        """Return the terms of the index that a leaf matches."""
        return sorted(self._plan(query).terms)

    def _find(self, query: Leaf | Boolean, k: int | None) -> ScoredRows:
        plan = self._plan(query)
        resolved = self._resolve(plan)
        positions, scores = [np.empty(0, dtype=np.int64)], [np.empty(0)]
        for view, allowed, partition_query in zip(self._views, self._allowed, resolved, strict=True):
            count = len(view.positions)
            if k is None:
                found = find_all_documents(partition_query, allowed, count)
            else:
                found = find_best_documents(partition_query, k, allowed, view.positions, count)
            positions.append(view.positions[found.documents])
            scores.append(found.scores)
        rows = ScoredRows.sorted(np.concatenate(positions), np.concatenate(scores))
        return rows if k is None else rows.best(k)

    # Terms

    def _plan(self, query: Leaf | Boolean) -> _Plan:
        match query:
            case Boolean():
                return self._plan_boolean(query)
            case Phrase():
                phrase = self._phrase(query)
                return _Plan(phrase.groups, (), (), phrase=phrase.phrase, slop=phrase.slop)
            case _:
                groups = self._groups(query)
                if query.operator == "AND":
                    return _Plan(groups, (), ())
                return _Plan((), _combine(groups), ())

    def _plan_boolean(self, query: Boolean) -> _Plan:
        required: list[_Terms] = []
        optional: list[tuple[str, float]] = []
        excluded: list[str] = []
        conjunctions: dict[str, list[_Conjunction]] = {"must": [], "should": [], "must_not": []}
        for clause in query.must:
            if isinstance(clause, Match):
                groups = self._groups(clause)
                required += groups if clause.operator == "AND" and groups else [_combine(groups)]
            else:
                conjunctions["must"].append(self._conjunction(clause))
        for clause in query.should:
            if _is_disjunction(clause):
                optional += [each for group in self._groups(clause) for each in group]
            else:
                conjunctions["should"].append(self._conjunction(clause))
        for clause in query.must_not:
            if _is_disjunction(clause):
                excluded += [term for group in self._groups(clause) for term, _ in group]
            else:
                conjunctions["must_not"].append(self._conjunction(clause))
        clauses = _Clauses(*map(tuple, conjunctions.values()))
        return _Plan(tuple(required), tuple(optional), tuple(excluded), clauses)

    def _conjunction(self, query: object) -> _Conjunction:
        if isinstance(query, Phrase):
            return self._phrase(query)
        assert isinstance(query, Match)
        return _Conjunction(self._groups(replace(query, boost=1.0)), query.boost)

    def _phrase(self, query: Phrase) -> _Conjunction:
        words = analyze_words(self._analyzer, query.text)
        groups = tuple(((term, float(count)),) for term, count in Counter(words.texts).items())
        return _Conjunction(groups, phrase=words, slop=query.slop)

    def _groups(self, query: Match) -> tuple[tuple[tuple[str, float], ...], ...]:
        """Return the terms of each word of a query, with factors. A word that occurs twice counts twice; all n-grams
        of a text are alternatives, since they have one position."""
        if not query.fuzziness:
            words = analyze_words(self._analyzer, query.text)
            alternatives: dict[int, dict[str, float]] = {}
            for term, place in zip(words.texts, words.places, strict=True):
                alternatives.setdefault(place, {})[term] = query.boost
            return tuple(tuple(terms.items()) for terms in alternatives.values())
        groups, left = [], query.max_expansions
        for near in near_terms(self._analyzer, query):
            terms = self._expand(near, left)
            left -= len(terms)
            groups.append(tuple((term, query.boost) for term in terms))
        return tuple(groups)

    def _expand(self, near: NearTerm, count: int) -> list[str]:
        """Return up to `count` terms near to a word, in bytewise order."""
        found: set[str] = set()
        for view in self._views:
            terms, _ = view.partition.list_tokens().near(near.text, near.distance, near.prefix)
            found.update(terms)
        ordered = sorted(found, key=lambda term: term.encode("utf-8", "surrogatepass"))
        if not self._statistics.counts_live_rows:
            return ordered[:count]
        return list(islice(filter(self._is_in_live_row, ordered), count))

    def _is_in_live_row(self, term: str) -> bool:
        for view in self._views:
            number = view.partition.find(term)
            if number is None:
                continue
            (postings,) = view.partition.postings([number])
            if self._statistics.count_documents(view, postings.documents):
                return True
        return False

    # Partitions

    def _resolve(self, plan: _Plan) -> list[PartitionQuery]:
        """Return the query for each partition, with the statistics of all of them."""
        terms = sorted(plan.terms)
        scored: list[dict[str, ScoredList]] = []
        containing = dict.fromkeys(terms, 0)
        tokens: list[dict[str, int]] = []
        for view in self._views:
            numbers = {term: number for term in terms if (number := view.partition.find(term)) is not None}
            lists = view.partition.postings(list(numbers.values()))
            weights = {}
            for (term, number), postings in zip(numbers.items(), lists, strict=True):
                containing[term] += self._statistics.count_documents(view, postings.documents)
                weights[term] = self._scored_list(view, number, postings)
            scored.append(weights)
            tokens.append(numbers)
        factors = {
            term: inverse_document_frequency(self._statistics.documents, count) for term, count in containing.items()
        }
        return [
            self._partition_query(plan, view, weights, numbers, factors)
            for view, weights, numbers in zip(self._views, scored, tokens, strict=True)
        ]

    def _scored_list(self, view: PartitionView, number: int, postings: PostingList) -> ScoredList:
        """Return the weights of a posting list, which depend on the average length of the documents."""
        average = self._statistics.average_length
        is_rounded = self._analyzer.parameters.block_size == LARGE_BLOCK_DOCUMENTS
        return view.partition.cached_weights(
            number,
            lambda: ScoredList(postings, view.partition.documents.lengths, average, has_rounded_lengths=is_rounded),
            lambda cached: cached.average_length == average,
        )

    def _partition_query(
        self,
        plan: _Plan,
        view: PartitionView,
        weights: dict[str, ScoredList],
        numbers: dict[str, int],
        factors: dict[str, float],
    ) -> PartitionQuery:
        def group(terms: _Terms, *, is_required: bool) -> Group:
            found = (Term(weights[term], factors[term] * factor) for term, factor in terms if term in weights)
            return Group(tuple(found), is_required)

        def conjunction(clause: _Conjunction) -> Term:
            groups = [group(terms, is_required=True) for terms in clause.groups]
            verify = None
            if clause.phrase is not None and len(clause.phrase.texts) > 1 and all(each.count for each in groups):
                verify = self._verifier(clause.phrase, clause.slop, view, numbers)
            return Term(ScoredConjunction(groups, verify, len(view.positions)), clause.factor)

        groups = [group(terms, is_required=True) for terms in plan.required]
        groups += [group((term,), is_required=False) for term in plan.optional]
        groups += [Group((conjunction(clause),), is_required=True) for clause in plan.clauses.required]
        groups += [Group((conjunction(clause),), is_required=False) for clause in plan.clauses.optional]
        excluded: list[Scorer] = [weights[term] for term in plan.excluded if term in weights]
        excluded += [conjunction(clause).scores for clause in plan.clauses.excluded]
        query = PartitionQuery(tuple(groups), tuple(excluded))
        if plan.phrase is None or len(plan.phrase.texts) < 2 or not query.can_match:
            return query
        return replace(query, verify=self._verifier(plan.phrase, plan.slop, view, numbers))

    def _verifier(self, words: Words, slop: int, view: PartitionView, numbers: dict[str, int]) -> PhraseVerifier:
        if not view.partition.has_positions:
            raise InvalidInput(
                f"the full-text index on column {self._column!r} has no positions, which a phrase needs; rebuild it "
                "with create_index(..., with_position=True, replace=True), or search with exact=True"
            )
        distinct = sorted({numbers[term] for term in words.texts})
        lists = dict(zip(distinct, view.partition.postings(distinct), strict=True))
        positions = dict(zip(distinct, view.partition.positions_of(distinct), strict=True))
        chosen = [numbers[term] for term in words.texts]
        return PhraseVerifier([(lists[number].documents, positions[number]) for number in chosen], words.places, slop)


def _combine(groups: Sequence[Sequence[tuple[str, float]]]) -> tuple[tuple[str, float], ...]:
    """Return the terms of all groups as one, each with the sum of its factors."""
    factors: dict[str, float] = {}
    for group in groups:
        for term, factor in group:
            factors[term] = factors.get(term, 0.0) + factor
    return tuple(factors.items())


def is_flat(query: object) -> bool:
    """Return whether a boolean query can be evaluated at once, since its clauses are matches and phrases on one column.

    >>> is_flat(Boolean(must=[Match("lance", "body")], should=[Phrase("table format", "body")]))
    True
    """
    return (
        isinstance(query, Boolean)
        and len(query.columns) == 1
        and all(isinstance(clause, Match | Phrase) for clause in query.clauses)
    )


def _is_disjunction(clause: object) -> TypeGuard[Match]:
    return isinstance(clause, Match) and clause.operator == "OR"


def analyze_words(analyzer: Analyzer, text: str) -> Words:
    """Return the terms of the text of a query."""
    tokens = analyzer.analyze(text)
    return Words(tuple(token.text for token in tokens), tuple(token.position for token in tokens))


def near_terms(analyzer: Analyzer, query: Match) -> list[NearTerm]:
    """Return the words of a query with fuzziness."""
    plain = replace(
        analyzer.parameters,
        base_tokenizer="simple",
        max_token_length=None,
        stem=False,
        remove_stop_words=False,
        ascii_folding=False,
    )
    words = analyze_words(analyzer_of(plain), query.text).texts
    return [NearTerm(word, query.fuzziness or 0, query.prefix_length) for word in words]


def needed_terms(analyzer: Analyzer, leaves: Sequence[Leaf]) -> NeededTerms:
    """Return the terms whose postings some leaves read."""
    exact: set[str] = set()
    near: list[NearTerm] = []
    for leaf in leaves:
        if isinstance(leaf, Match) and leaf.fuzziness:
            near += near_terms(analyzer, leaf)
        else:
            exact.update(analyze_words(analyzer, leaf.text).texts)
    return NeededTerms(frozenset(exact), tuple(near))


def merge_best(parts: Sequence[ScoredRows]) -> ScoredRows:
    """Return the rows of all parts, each with its best score."""
    positions = np.concatenate([np.empty(0, dtype=np.int64), *(part.positions for part in parts)])
    scores = np.concatenate([np.empty(0), *(part.scores for part in parts)])
    order = np.lexsort((-scores, positions))
    positions, scores = positions[order], scores[order]
    is_first = np.ones(len(positions), dtype=np.bool_)
    is_first[1:] = positions[1:] != positions[:-1]
    return ScoredRows(positions[is_first], scores[is_first])


def score_at(rows: ScoredRows, positions: Ints) -> tuple[Floats, np.ndarray]:
    """Return the scores of rows at these positions, 0 where none is, and a mask of those that are."""
    if not len(rows.positions):
        return np.zeros(len(positions)), np.zeros(len(positions), dtype=np.bool_)
    places = np.minimum(np.searchsorted(rows.positions, positions), len(rows.positions) - 1)
    exists = rows.positions[places] == positions
    return np.where(exists, rows.scores[places], 0.0), exists


__all__ = ["ColumnQueries", "ScoredDocuments", "ScoredRows", "is_flat", "merge_best", "needed_terms", "score_at"]
