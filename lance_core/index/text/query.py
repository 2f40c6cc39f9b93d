"""Query evaluation on one column: turns the words of a query into terms of the partitions, and finds matching rows.

A column has several partitions: those of the segments of its index, and scanned ones. The inverse document frequency of
a term counts the documents of all partitions. Results are table positions with scores. Words of a query with fuzziness
are divided at characters that are neither letters nor digits and lower-cased, but not stemmed, as in Lance; the terms
near to them are chosen in bytewise order, at most `max_expansions` for the query.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from lance_core.errors import InvalidInput
from lance_core.index.text.analyzer import Analyzer, analyzer_of
from lance_core.index.text.phrases import PhraseVerifier
from lance_core.index.text.posting_decoder import Ints
from lance_core.index.text.scanned_texts import NearTerm, NeededTerms, ScannedPartition
from lance_core.index.text.scoring import (
    Allowed,
    Floats,
    Group,
    PartitionQuery,
    ScoredDocuments,
    ScoredList,
    Term,
    all_documents,
    best_documents,
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


@dataclass(frozen=True, slots=True)
class _Plan:
    """Leaf, or boolean query of leaves on one column, in terms: alternatives of which a document needs one or more."""

    required: tuple[tuple[tuple[str, float], ...], ...]
    """Terms with factors. A document needs one term of each group."""
    optional: tuple[tuple[str, float], ...]
    excluded: tuple[str, ...]
    phrase: Words | None = None
    slop: int = 0

    @property
    def terms(self) -> set[str]:
        groups = (*self.required, self.optional)
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
                found = all_documents(partition_query, allowed, count)
            else:
                found = best_documents(partition_query, k, allowed, view.positions, count)
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
                words = analyze_words(self._analyzer, query.text)
                counts = Counter(words.texts)
                required = tuple(((term, float(count)),) for term, count in counts.items())
                return _Plan(required, (), (), words, query.slop)
            case _:
                groups = self._groups(query)
                if query.operator == "AND":
                    return _Plan(groups, (), ())
                return _Plan((), _combine(groups), ())

    def _plan_boolean(self, query: Boolean) -> _Plan:
        required: list[tuple[tuple[str, float], ...]] = []
        optional: list[tuple[str, float]] = []
        excluded: list[str] = []
        for clause in query.must:
            assert isinstance(clause, Match)
            groups = self._groups(clause)
            if clause.operator == "AND" and groups:
                required += groups
            else:
                required.append(_combine(groups))
        for clause in query.should:
            assert isinstance(clause, Match)
            optional += [each for group in self._groups(clause) for each in group]
        for clause in query.must_not:
            assert isinstance(clause, Match)
            excluded += [term for group in self._groups(clause) for term, _ in group]
        return _Plan(tuple(required), tuple(optional), tuple(excluded))

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
        return view.partition.cached_weights(
            number,
            lambda: ScoredList(postings, view.partition.documents.lengths, average),
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
        def group(terms: Sequence[tuple[str, float]], *, is_required: bool) -> Group:
            found = (Term(weights[term], factors[term] * factor) for term, factor in terms if term in weights)
            return Group(tuple(found), is_required)

        groups = [group(terms, is_required=True) for terms in plan.required]
        groups += [group([term], is_required=False) for term in plan.optional]
        excluded = tuple(weights[term] for term in plan.excluded if term in weights)
        query = PartitionQuery(tuple(groups), excluded)
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
    """Return whether one evaluation of terms answers a boolean query: its clauses are matches on one column, without
    "AND" where only all words together count.

    >>> is_flat(Boolean(must=[Match("lance", "body")], should=[Match("format", "body")]))
    True
    """
    if not isinstance(query, Boolean) or len(query.columns) != 1:
        return False
    if not all(isinstance(clause, Match) for clause in query.clauses):
        return False
    return all(isinstance(clause, Match) and clause.operator == "OR" for clause in (*query.should, *query.must_not))


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
