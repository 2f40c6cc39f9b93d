"""Highlights: the ranges of characters in the texts of a row that match a query.

A word matches if it becomes one of the terms that were searched. A phrase marks only the words that stand in it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from lance_core.index.text.analyzer import Analyzer, Token
from lance_core.index.text.list_elements import Elements
from lance_core.index.text.phrases import find_members
from lance_core.text import Match, Phrase

HIGHLIGHTS = "_highlights"
_SPAN = pa.struct(
    [
        pa.field("column", pa.string()),
        pa.field("element", pa.int32()),
        pa.field("start", pa.int32()),
        pa.field("end", pa.int32()),
    ]
)
HIGHLIGHTS_TYPE = pa.list_(_SPAN)
"""Spans in the order of the text. `element` is the position in a list of texts, null for a single text; `start` and
`end` count characters."""


class Highlighter:
    """Marks the words of one query."""

    def __init__(
        self, leaves: Sequence[tuple[Match | Phrase, Sequence[str]]], analyzers: Mapping[str, Analyzer]
    ) -> None:
        """`leaves` has the leaves of the query, each with the terms of the index that it matches."""
        self._leaves, self._analyzers = leaves, analyzers

    @property
    def columns(self) -> list[str]:
        """Columns whose texts are marked."""
        return list(dict.fromkeys(leaf.column or "" for leaf, _ in self._leaves))

    def mark(self, texts: pa.Table, elements: Elements | None = None) -> pa.Array:
        """Return the spans of each row, from the texts of the columns. If `elements` are given, only this element of
        the list of each row is marked."""
        rows: list[list[dict[str, object]]] = [[] for _ in range(len(texts))]
        for number, column in enumerate(self.columns):
            for row, value in enumerate(texts.column(number).to_pylist()):
                spans = self._mark_value(column, value)
                rows[row] += spans if elements is None else [span for span in spans if span["element"] == elements[row]]
        return pa.array(rows, HIGHLIGHTS_TYPE)

    def _mark_value(self, column: str, value: object) -> list[dict[str, object]]:
        if isinstance(value, str):
            return [_span(column, None, *each) for each in self._spans(column, value)]
        if not isinstance(value, list):
            return []
        return [
            _span(column, element, *each)
            for element, text in enumerate(value)
            if isinstance(text, str)
            for each in self._spans(column, text)
        ]

    def _spans(self, column: str, text: str) -> list[tuple[int, int]]:
        analyzer = self._analyzers[column]
        tokens = analyzer.analyze(text)
        found: set[tuple[int, int]] = set()
        for leaf, terms in self._leaves:
            if leaf.column != column:
                continue
            if isinstance(leaf, Phrase):
                found |= _phrase_spans(analyzer, leaf, tokens)
            else:
                wanted = set(terms)
                found |= {(token.start, token.end) for token in tokens if token.text in wanted}
        return sorted(found)


def _phrase_spans(analyzer: Analyzer, phrase: Phrase, tokens: Sequence[Token]) -> set[tuple[int, int]]:
    words = analyzer.analyze(phrase.text)
    if not words:
        return set()
    occurrences = [[token for token in tokens if token.text == word.text] for word in words]
    positions = [
        np.array([token.position - word.position for token in found], dtype=np.int64)
        for word, found in zip(words, occurrences, strict=True)
    ]
    return {
        (token.start, token.end)
        for found, members in zip(occurrences, find_members(positions, phrase.slop), strict=True)
        for token, is_member in zip(found, members.tolist(), strict=True)
        if is_member
    }


def _span(column: str, element: int | None, start: int, end: int) -> dict[str, object]:
    return {"column": column, "element": element, "start": start, "end": end}
