"""Filter terms: finds the terms that every text has if it satisfies a condition of an ordinary filter.

A full-text index lists words and a filter compares characters, so the rows with all terms are candidates that have to
be re-checked. Equal texts have equal terms. A text that contains a piece of text has the words inside the piece. The
first and the last word of the piece are left out, since they may be parts of longer words; n-grams are all used.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lance_core.expressions.tree import Call, Comparison, In, Like, Op
from lance_core.index.index_type import Leaf
from lance_core.index.text.analyzer import Analyzer

_PIECES = re.compile(r"%|_|(?:[^\\%_]|\\.|\\$)+", re.DOTALL)
_FUNCTIONS = {"contains": (False, False), "starts_with": (True, False), "ends_with": (False, True)}
"""Functions that search for a piece of text, with whether it begins and whether it ends the whole text."""
_WORD_TOKENIZERS = frozenset({"simple", "whitespace"})


@dataclass(frozen=True, slots=True)
class _Piece:
    """Piece of a text, and whether the whole text begins and ends with it."""

    text: str
    is_start: bool = False
    is_end: bool = False


def required_terms(leaf: Leaf, analyzer: Analyzer) -> list[frozenset[str]]:
    """Return alternatives of terms: a matching text has all terms of one of them. The result is empty if nothing is
    known about matching texts.

    >>> from lance_core.index.text.parameters import TextParameters
    >>> analyzer = Analyzer(TextParameters(stem=False, remove_stop_words=False))
    >>> [sorted(terms) for terms in required_terms(Like(("body",), "Lance has%a table format"), analyzer)]
    [['format', 'lance', 'table']]
    """
    if analyzer.parameters.lance_tokenizer != "text":
        return []
    found = [frozenset(_terms_of(pieces, analyzer)) for pieces in _alternatives(leaf)]
    return found if all(found) else []


def _alternatives(leaf: Leaf) -> Iterator[list[_Piece]]:
    match leaf:
        case Comparison(op=Op.EQ, value=value) if isinstance(value.as_py(), str):
            yield [_Piece(value.as_py(), is_start=True, is_end=True)]
        case In(values=values) if all(isinstance(value.as_py(), str) for value in values):
            for value in values:
                yield [_Piece(value.as_py(), is_start=True, is_end=True)]
        case Like(pattern=pattern, ignore_case=False):
            yield list(_pieces_of_pattern(pattern))
        case Call(function=function, arguments=(value,)) if function in _FUNCTIONS and isinstance(value.as_py(), str):
            is_start, is_end = _FUNCTIONS[function]
            yield [_Piece(value.as_py(), is_start, is_end)]


def _pieces_of_pattern(pattern: str) -> Iterator[_Piece]:
    """Yield the pieces between the wildcards of a LIKE pattern."""
    for found in _PIECES.finditer(pattern):
        if found.group() not in ("%", "_"):
            text = re.sub(r"\\(.)", r"\1", found.group(), flags=re.DOTALL)
            yield _Piece(text, found.start() == 0, found.end() == len(pattern))


def _terms_of(pieces: list[_Piece], analyzer: Analyzer) -> Iterator[str]:
    parameters = analyzer.parameters
    for piece in pieces:
        tokens = analyzer.analyze(piece.text)
        if piece.is_start and piece.is_end:
            yield from (token.text for token in tokens)
        elif parameters.base_tokenizer == "ngram" and not parameters.prefix_only:
            yield from (token.text for token in tokens if len(piece.text) >= parameters.min_ngram_length)
        elif parameters.base_tokenizer in _WORD_TOKENIZERS:
            end = len(piece.text)
            yield from (
                token.text
                for token in tokens
                if (piece.is_start or token.start > 0) and (piece.is_end or token.end < end)
            )
