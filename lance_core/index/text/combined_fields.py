"""Combined fields: the BM25 score of several columns as one text (BM25F).

The frequency of a term is the sum over the columns of its frequency times the weight of the column, and so is the
length of a document. As in Lance, the document frequency of a term is the largest of those in the columns, and so is
the number of documents. A term that the query repeats counts once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lance_core.index.text.posting_decoder import Documents, Ints
from lance_core.index.text.query import ColumnQueries, ScoredRows
from lance_core.index.text.scoring import K1, B, Floats, inverse_document_frequency
from lance_core.index.text.statistics import PartitionView


@dataclass(frozen=True, slots=True)
class WeightedColumn:
    """Column of a query, with its weight."""

    queries: ColumnQueries
    weight: float


@dataclass(frozen=True, slots=True)
class _Occurrences:
    """Rows of one term, and its weighted frequency in each."""

    positions: Ints
    frequencies: Floats
    containing: int
    """Number of documents that contain the term."""


def find_combined(columns: Sequence[WeightedColumn], text: str, *, needs_all: bool) -> ScoredRows:
    """Return all rows that have one of the words in one of the columns, or each word in some column."""
    terms = list(dict.fromkeys(columns[0].queries.analyze(text)))
    found = [_find_term(columns, term) for term in terms]
    if not found:
        return ScoredRows.empty()
    positions = np.unique(np.concatenate([each.positions for each in found]))
    documents = max(column.queries.statistics.documents for column in columns)
    tokens = sum(column.weight * column.queries.statistics.tokens for column in columns)
    average = tokens / documents if tokens else 1.0
    norms = K1 * (1 - B + B * _lengths(columns, positions) / average)
    scores, words = np.zeros(len(positions)), np.zeros(len(positions), dtype=np.int64)
    for each in found:
        places = np.searchsorted(positions, each.positions)
        frequencies = np.bincount(places, each.frequencies, minlength=len(positions))
        idf = inverse_document_frequency(documents, each.containing)
        scores += idf * frequencies * (K1 + 1) / (frequencies + norms)
        words += frequencies > 0
    matches = words == len(found) if needs_all else words > 0
    return ScoredRows(positions[matches], scores[matches])


def _find_term(columns: Sequence[WeightedColumn], term: str) -> _Occurrences:
    positions, frequencies, containing = [np.empty(0, dtype=np.int64)], [np.empty(0)], [0]
    for column in columns:
        containing.append(column.queries.count_documents(term))
        for view, documents, counts in column.queries.occurrences(term):
            positions.append(view.positions[documents])
            frequencies.append(column.weight * counts)
    return _Occurrences(np.concatenate(positions), np.concatenate(frequencies), max(containing))


def _lengths(columns: Sequence[WeightedColumn], positions: Ints) -> Floats:
    """Return the weighted number of tokens of rows."""
    lengths: Floats = np.zeros(len(positions))
    for column in columns:
        for view in column.queries.views:
            documents, rows = _documents_at(view, positions)
            lengths[rows] += column.weight * view.partition.documents.lengths[documents]
    return lengths


def _documents_at(view: PartitionView, positions: Ints) -> tuple[Documents, Ints]:
    """Return the documents of a partition that are at ascending table positions, and where in `positions`."""
    if not len(positions):
        return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
    rows = np.minimum(np.searchsorted(positions, view.positions), len(positions) - 1)
    documents = np.flatnonzero(positions[rows] == view.positions)
    return documents.astype(np.int32), rows[documents]
