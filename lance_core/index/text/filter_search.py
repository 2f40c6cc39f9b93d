"""Filter search: finds the rows of a full-text segment that can satisfy a condition of an ordinary filter."""

from functools import reduce

import numpy as np

from lance_core.errors import MissingDependency, Unsupported
from lance_core.format.row_sets import RowSet
from lance_core.index.index_type import Certainty, Leaf, MatchedRows
from lance_core.index.text.analyzers import analyzer_of
from lance_core.index.text.filter_terms import required_terms
from lance_core.index.text.segment_reader import TextPartition, TextSegment

_ROWS_SHARE = 8
"""If more than one row in this many has all terms, the texts are read instead, which takes as long as a re-check."""


class FilterSearcher:
    """Searcher for one segment of a full-text index."""

    def __init__(self, opened: TextSegment) -> None:
        self._opened = opened
        self._parameters = opened.recorded_parameters()

    def search(self, leaf: Leaf) -> MatchedRows | None:
        try:
            alternatives = required_terms(leaf, analyzer_of(self._parameters))
        except (Unsupported, MissingDependency):  # the texts are read instead
            return None
        if not alternatives or self._parameters.document_granularity != "row":
            return None
        parts, documents = [], 0
        for partition in self._opened.partitions:
            documents += len(partition.documents.lengths)
            parts += [_rows_with(partition, terms) for terms in alternatives]
        rows = RowSet.of(np.concatenate(parts)) if parts else RowSet()
        return None if len(rows) * _ROWS_SHARE > documents else MatchedRows(rows, Certainty.AT_MOST)


def _rows_with(partition: TextPartition, terms: frozenset[str]) -> np.ndarray:
    """Return the row numbers of the documents that have all terms."""
    numbers = [partition.find(term) for term in terms]
    found = [number for number in numbers if number is not None]
    row_numbers = partition.documents.row_numbers
    if len(found) < len(numbers):
        return row_numbers[:0]
    lists = sorted((each.documents for each in partition.postings(found)), key=len)
    return row_numbers[reduce(_intersect, lists)]


def _intersect(documents: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the documents that both ascending lists have."""
    places = np.minimum(np.searchsorted(others, documents), max(0, len(others) - 1))
    return documents[others[places] == documents] if len(others) else documents[:0]
