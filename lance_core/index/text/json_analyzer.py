"""JSON analyzer: turns JSON values, and queries on JSON columns, into terms of a full-text index.

A term is a path, a type and a value, separated by commas: `title,str,lance`, `author.age,number,40`, `tags,str,red`. A
text has a term for each of its words; a number, boolean or null has one. The elements of a list have the path of the
list, and a value that is neither in an object nor in a list has an empty path. The terms of a value have consecutive
positions, in the order of the stored keys. A query lists such triples, separated by semicolons.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInput
from lance_core.index.text.analyzer import Analyzer, Numbers, Token, Tokens
from lance_core.index.text.parameters import TextParameters

_TEXT, _NUMBER, _BOOLEAN, _NULL = "str", "number", "bool", "null"
_TYPES = (_TEXT, _NUMBER, _BOOLEAN, _NULL)
_DECIMAL_EXPONENT = -5
"""Exponent of numbers that Python writes in exponential notation and terms as decimals."""


class JsonAnalyzer(Analyzer):
    """Analyzer for a column of JSON values."""

    def __init__(self, parameters: TextParameters) -> None:
        super().__init__(parameters)
        self._texts = Analyzer(replace(parameters, lance_tokenizer="text"))

    def analyze(self, text: str) -> list[Token]:
        """Return the terms of a query."""
        terms: list[str] = []
        for triple in text.split(";"):
            path, kind, value = _parse_triple(triple)
            words = [token.text for token in self._texts.analyze(value)] if kind == _TEXT else [value]
            terms += [f"{path},{kind},{word}" for word in words]
        return [Token(term, position, 0, 0) for position, term in enumerate(terms)]

    def analyze_all(self, texts: pa.Array) -> Tokens:
        """Return the terms of an array of JSON values. A null has no terms."""
        leaves = _Leaves()
        stored = texts.storage if isinstance(texts, pa.ExtensionArray) else texts
        for number, value in enumerate(stored.to_pylist()):
            if value is not None:
                leaves.add_value(number, value)
        return leaves.tokens(self._texts)


@dataclass(slots=True)
class _Leaves:
    """Texts, numbers, booleans and nulls of JSON values, in document order. The lists have one item per leaf."""

    documents: list[int] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    """Path and type of each leaf, each followed by a comma."""
    texts: list[str | None] = field(default_factory=list)
    """Text of each leaf that is a text; `None` for other leaves."""
    others: list[str | None] = field(default_factory=list)
    """Value of each leaf that is not a text; `None` for texts."""

    def add_value(self, document: int, value: str) -> None:
        try:
            parsed = json.loads(value, parse_float=_as_number, parse_int=_Number)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"a value of the JSON column cannot be indexed: {error}") from error
        for path, leaf in _leaves_of(parsed):
            kind, text = _describe(leaf)
            self.documents.append(document)
            self.prefixes.append(f"{path},{kind},")
            self.texts.append(text if kind == _TEXT else None)
            self.others.append(None if kind == _TEXT else text)

    def tokens(self, analyzer: Analyzer) -> Tokens:
        """Return the terms of all leaves."""
        words = analyzer.analyze_all(pa.array(self.texts, pa.large_string()))
        others = np.flatnonzero([value is not None for value in self.others])
        leaves = np.concatenate([words.documents, others])
        order = np.argsort(leaves, kind="stable")
        values = pa.concat_arrays(
            [
                words.terms.cast(pa.large_string()).take(pa.array(words.term_numbers)),
                pa.array(self.others, pa.large_string()).take(pa.array(others)),
            ]
        )
        prefixes = pa.array(self.prefixes, pa.large_string()).take(pa.array(leaves))
        terms = (
            pc.binary_join_element_wise(prefixes, values, pa.scalar("", pa.large_string()))
            .take(pa.array(order))
            .cast(pa.string())
        )
        encoded = terms.dictionary_encode()
        documents = np.array(self.documents, dtype=np.int32)[leaves[order]]
        return Tokens(encoded.dictionary, documents, np.asarray(encoded.indices), _ordinals(documents))


class _Number(str):
    """Number in the form of a term."""


def _as_number(text: str) -> _Number:
    """Return a floating-point number in the form of a term; Python writes it as `1e-05` or `1e+16`."""
    digits, _, exponent = text.partition("e")
    if not exponent:
        return _Number(text)
    if int(exponent) == _DECIMAL_EXPONENT:
        return _Number(format(Decimal(text), "f"))
    return _Number(f"{digits}e{int(exponent):+d}")


def _leaves_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a parsed value with their paths."""
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        path, found = pending.pop()
        if isinstance(found, dict):
            inner = [(f"{path}.{key}" if path else key, each) for key, each in found.items()]
            pending += reversed(inner)
        elif isinstance(found, list):
            pending += [(path, each) for each in reversed(found)]
        else:
            yield path, found


def _describe(leaf: Any) -> tuple[str, str]:
    """Return the type of a leaf and its text."""
    if leaf is None:
        return _NULL, "null"
    if isinstance(leaf, bool):
        return _BOOLEAN, "true" if leaf else "false"
    return (_NUMBER if isinstance(leaf, _Number) else _TEXT), str(leaf)


def _parse_triple(triple: str) -> Sequence[str]:
    parts = triple.split(",", 2)
    if len(parts) == 3 and parts[1] in _TYPES:
        return parts
    raise InvalidInput(
        f"{triple!r} is no query of a JSON column: it must be a path, a type and a value, such as 'title,str,lance', "
        f"or several of these separated by semicolons; the types are {', '.join(_TYPES)}"
    )


def _ordinals(documents: Numbers) -> Numbers:
    """Return the ordinal of each token within its document. `documents` are ascending."""
    places = np.arange(len(documents), dtype=np.int32)
    is_first = np.ones(len(documents), dtype=np.bool_)
    is_first[1:] = documents[1:] != documents[:-1]
    starts = np.flatnonzero(is_first)
    return places - np.repeat(places[starts], np.diff(np.append(starts, len(documents))))
