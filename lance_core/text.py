"""Full-text queries: the arguments of `Table.text_search`, from objects, from JSON, or from a plain text.

    Match("lance format")                          texts with one of the words; operator="AND" for all of them
    Phrase("table format", slop=1)                 words in this order, up to one position between two neighbours
    MultiMatch("lance", ["title", "body"])         the best of several columns
    CombinedFields("lance", ["title", "body"])     several columns as one text
    Boost(Match("lance"), Match("spear"))          lowers the scores of texts that match the second query
    Boolean(must=[...], should=[...], must_not=[...])

A query without a column searches the columns that the search names, or else every column with a full-text index. JSON
has the form that pylance reads: `{"match": {"column": "body", "terms": "lance"}}`. Nothing here reads a table.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from lance_core.errors import InvalidInput

Granularity: TypeAlias = Literal["row", "list_element"]
_GRANULARITIES = ("row", "list_element")
_DEPTH_MAX = 32
_EXPANSIONS = 50
_FIELD_WEIGHT_MAX = 1 << 20
_WEIGHT_MAX = 1e9
"""Largest boost: sums of scores stay far below the largest number of 32 bits."""


@dataclass(frozen=True, slots=True)
class Match:
    """Texts that contain the words of `text`, as the analyzer of the index divides it.

    With `fuzziness=n`, words within `n` edits match too, if they share the first `prefix_length` characters: at most
    `max_expansions` words of the index for the whole query. `fuzziness=None` means 0, as in pylance.

    >>> Match("lance format", operator="AND").columns
    ()
    """

    text: str
    column: str | None = None
    boost: float = field(default=1.0, kw_only=True)
    fuzziness: int | None = field(default=0, kw_only=True)
    max_expansions: int = field(default=_EXPANSIONS, kw_only=True)
    operator: Literal["OR", "AND"] = field(default="OR", kw_only=True)
    prefix_length: int = field(default=0, kw_only=True)
    document_granularity: Granularity | None = field(default=None, kw_only=True)
    """`row`, or `list_element` to score each text of a list by itself; `None` means that of the index."""

    def __post_init__(self) -> None:
        _check_text(self.text, self.column)
        _check_granularity(self.document_granularity)
        object.__setattr__(self, "boost", _weight(self.boost, "boost"))
        object.__setattr__(self, "operator", _operator(self.operator))
        if self.fuzziness is not None:
            _check_count(self.fuzziness, "fuzziness")
        _check_count(self.max_expansions, "max_expansions")
        _check_count(self.prefix_length, "prefix_length")

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.column is None else (self.column,)


@dataclass(frozen=True, slots=True)
class Phrase:
    """Texts that contain the words of `text` in this order, with up to `slop` positions between two neighbours.

    >>> Phrase("table format", "body").slop
    0
    """

    text: str
    column: str | None = None
    slop: int = field(default=0, kw_only=True)
    document_granularity: Granularity | None = field(default=None, kw_only=True)
    """As in `Match`."""

    def __post_init__(self) -> None:
        _check_text(self.text, self.column)
        _check_granularity(self.document_granularity)
        _check_count(self.slop, "slop")

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.column is None else (self.column,)


@dataclass(frozen=True, slots=True)
class MultiMatch:
    """Texts that match in one of several columns. The score of a row is its best score in one of them. `boosts` are
    factors for the columns.

    >>> MultiMatch("lance", ["title", "body"], boosts=[2.0, 1.0]).columns
    ('title', 'body')
    """

    text: str
    columns: Sequence[str] = ()
    boosts: Sequence[float] | None = field(default=None, kw_only=True)
    operator: Literal["OR", "AND"] = field(default="OR", kw_only=True)

    def __post_init__(self) -> None:
        _check_text(self.text, None)
        object.__setattr__(self, "columns", column_names(self.columns, "columns"))
        object.__setattr__(self, "operator", _operator(self.operator))
        if self.boosts is not None:
            if isinstance(self.boosts, str | Mapping) or not isinstance(self.boosts, Iterable):
                raise InvalidInput(f"boosts={self.boosts!r:.80} must be a list of numbers")
            boosts = tuple(_weight(boost, "boosts") for boost in self.boosts)
            if len(boosts) != len(self.columns):
                raise InvalidInput(f"boosts= has {len(boosts)} numbers for {len(self.columns)} columns")
            object.__setattr__(self, "boosts", boosts)


@dataclass(frozen=True, slots=True)
class CombinedFields:
    """Texts of several columns as if they were one text (BM25F): a word may be in any of them. `boosts` are weights of
    the columns from 1.

    >>> CombinedFields("ada lovelace", ["first", "last"], operator="AND").columns
    ('first', 'last')
    """

    text: str
    columns: Sequence[str] = ()
    boosts: Sequence[float] | None = field(default=None, kw_only=True)
    operator: Literal["OR", "AND"] = field(default="OR", kw_only=True)

    def __post_init__(self) -> None:
        checked = MultiMatch(self.text, self.columns, boosts=self.boosts, operator=self.operator)
        for name in ("columns", "operator", "boosts"):
            object.__setattr__(self, name, getattr(checked, name))
        for boost in self.boosts or ():
            if not 1 <= boost <= _FIELD_WEIGHT_MAX:
                raise InvalidInput(
                    f"boosts= of combined fields are numbers from 1 to {_FIELD_WEIGHT_MAX:,}, not {boost}"
                )


@dataclass(frozen=True, slots=True)
class Boost:
    """Rows that match `positive`. The score of a row that also matches `negative` is lowered by `negative_boost` times
    its score there.

    >>> Boost(Match("lance"), Match("spear")).negative_boost
    0.5
    """

    positive: "Query"
    negative: "Query"
    negative_boost: float = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "positive", parse_query(self.positive))
        object.__setattr__(self, "negative", parse_query(self.negative))
        object.__setattr__(self, "negative_boost", _weight(self.negative_boost, "negative_boost"))

    @property
    def columns(self) -> tuple[str, ...]:
        return _distinct((*self.positive.columns, *self.negative.columns))


@dataclass(frozen=True, slots=True)
class Boolean:
    """Rows that match all of `must`, or one of `should` if `must` is empty, and none of `must_not`. The scores of the
    matching `must` and `should` queries are added.

    >>> Boolean(must=["lance"], must_not=[Phrase("fencing club")]).must == (Match("lance"),)
    True
    """

    must: "Sequence[Query | str]" = ()
    should: "Sequence[Query | str]" = ()
    must_not: "Sequence[Query | str]" = ()

    def __post_init__(self) -> None:
        for name in ("must", "should", "must_not"):
            object.__setattr__(self, name, _clauses(getattr(self, name), name))
        if not self.must and not self.should:
            raise InvalidInput("a Boolean query needs a clause in must= or should=; must_not= only excludes rows")

    @property
    def clauses(self) -> "tuple[Query, ...]":
        return tuple(map(parse_query, (*self.must, *self.should, *self.must_not)))

    @property
    def columns(self) -> tuple[str, ...]:
        return _distinct(column for clause in self.clauses for column in clause.columns)


@dataclass(frozen=True, slots=True)
class BestOf:
    """Rows that match one of several queries, with their best score: the general form of `MultiMatch`."""

    queries: "tuple[Match | Phrase, ...]"

    @property
    def columns(self) -> tuple[str, ...]:
        return _distinct(column for query in self.queries for column in query.columns)


Query: TypeAlias = Match | Phrase | MultiMatch | CombinedFields | Boost | Boolean | BestOf
_QUERIES = (Match, Phrase, MultiMatch, CombinedFields, Boost, Boolean, BestOf)


@dataclass(frozen=True, slots=True)
class TextRequest:
    """Arguments of a search, checked for their ranges."""

    query: Query
    k: int
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    select: Sequence[str] | None = None
    highlight: bool = False
    exact: bool = False


def parse_query(query: object) -> Query:
    """Return a query from an object of this module, a plain text, or the JSON form of pylance as text or as a mapping.

    >>> parse_query("lance format") == Match("lance format")
    True
    >>> parse_query('{"phrase": {"terms": "table format", "slop": 2}}') == Phrase("table format", slop=2)
    True
    """
    if isinstance(query, _QUERIES):
        return query
    if isinstance(query, Mapping):
        return _from_json(query, 0)
    if not isinstance(query, str):
        raise InvalidInput(
            "query must be a text, its JSON form, or a Match, Phrase, MultiMatch, CombinedFields, Boost or Boolean, "
            f"not {type(query).__name__}"
        )
    if query.lstrip().startswith("{"):
        try:
            parsed = json.loads(query)
        except (ValueError, RecursionError):
            return Match(query)
        if isinstance(parsed, dict):
            return _from_json(parsed, 0)
    return Match(query)


def bind_columns(query: Query, columns: Sequence[str]) -> Query:
    """Return the query with these columns in every part that names none, and with `BestOf` for `MultiMatch`.

    >>> bind_columns(Match("lance"), ["title"]).columns
    ('title',)
    """
    match query:
        case Match(column=None) | Phrase(column=None):
            bound = tuple(replace(query, column=column) for column in columns)
            return bound[0] if len(bound) == 1 else BestOf(bound)
        case MultiMatch():
            boosts = query.boosts or (1.0,) * len(query.columns or columns)
            pairs = zip(query.columns or columns, boosts, strict=True)
            return BestOf(
                tuple(Match(query.text, column, boost=boost, operator=query.operator) for column, boost in pairs)
            )
        case CombinedFields(columns=()):
            return replace(query, columns=columns)
        case Boost():
            positive, negative = bind_columns(query.positive, columns), bind_columns(query.negative, columns)
            return replace(query, positive=positive, negative=negative)
        case Boolean():
            clauses = (query.must, query.should, query.must_not)
            must, should, must_not = (
                tuple(bind_columns(parse_query(each), columns) for each in part) for part in clauses
            )
            return Boolean(must, should, must_not)
    return query


def names_every_column(query: Query) -> bool:
    """Return whether every part of a query names its column.

    >>> names_every_column(Boolean(must=[Match("lance", "body")], should=["format"]))
    False
    """
    match query:
        case Boost():
            return names_every_column(query.positive) and names_every_column(query.negative)
        case Boolean():
            return all(names_every_column(clause) for clause in query.clauses)
    return bool(query.columns)


def column_names(columns: object, name: str) -> tuple[str, ...]:
    """Return distinct names of columns from a list of them; one text is one name."""
    names = (columns,) if isinstance(columns, str) else tuple(columns) if isinstance(columns, Sequence) else None
    if names is None or not all(isinstance(each, str) and each for each in names):
        raise InvalidInput(f"{name} must be a list of column names, not {columns!r}")
    if len(set(names)) != len(names):
        raise InvalidInput(f"{name} names a column twice")
    return names


def _from_json(value: Any, depth: int) -> Query:
    if depth > _DEPTH_MAX:
        raise InvalidInput(f"a query in JSON has at most {_DEPTH_MAX} levels")
    if not isinstance(value, Mapping) or len(value) != 1:
        raise InvalidInput(f"a query in JSON is an object with one key, such as 'match', not {_shown(value)}")
    ((kind, content),) = value.items()
    parse = _PARSERS.get(kind)
    if parse is None:
        raise InvalidInput(f"{kind!r} is not a query; use one of {', '.join(_PARSERS)}")
    if not isinstance(content, Mapping):
        raise InvalidInput(f"a {kind} query in JSON is an object, not {_shown(content)}")
    return parse(content, depth)


_MATCH_KEYS = (
    "column",
    "terms",
    "boost",
    "fuzziness",
    "max_expansions",
    "operator",
    "prefix_length",
    "document_granularity",
)


def _match_from_json(content: Mapping[str, Any], depth: int = 0) -> Match:
    _check_keys(content, _MATCH_KEYS, "match")
    fuzziness = content.get("fuzziness", 0)
    return Match(
        _terms(content, "match"),
        content.get("column"),
        boost=_given(content, "boost", 1.0),
        fuzziness=None if fuzziness == "auto" else fuzziness,
        max_expansions=_given(content, "max_expansions", _EXPANSIONS),
        operator=_given(content, "operator", "OR"),
        prefix_length=_given(content, "prefix_length", 0),
        document_granularity=content.get("document_granularity"),
    )


def _phrase_from_json(content: Mapping[str, Any], depth: int) -> Phrase:
    _check_keys(content, ("column", "terms", "slop", "document_granularity"), "phrase")
    return Phrase(
        _terms(content, "phrase"),
        content.get("column"),
        slop=_given(content, "slop", 0),
        document_granularity=content.get("document_granularity"),
    )


def _multi_match_from_json(content: Mapping[str, Any], depth: int) -> Query:
    if "match_queries" in content:
        _check_keys(content, ("match_queries",), "multi_match")
        queries = content["match_queries"]
        if not isinstance(queries, list) or not queries or not all(isinstance(each, Mapping) for each in queries):
            raise InvalidInput("match_queries of a multi_match query must be a list of match queries")
        return BestOf(tuple(_match_from_json(each) for each in queries))
    _check_keys(content, ("query", "columns", "boost", "operator"), "multi_match")
    text = content.get("query")
    if not isinstance(text, str):
        raise InvalidInput("a multi_match query in JSON needs 'query', the text to search for")
    operator = _given(content, "operator", "OR")
    return MultiMatch(text, _given(content, "columns", ()), boosts=content.get("boost"), operator=operator)


def _combined_fields_from_json(content: Mapping[str, Any], depth: int) -> CombinedFields:
    _check_keys(content, ("query", "columns", "boost", "operator"), "combined_fields")
    text = content.get("query")
    if not isinstance(text, str):
        raise InvalidInput("a combined_fields query in JSON needs 'query', the text to search for")
    operator = _given(content, "operator", "OR")
    return CombinedFields(text, _given(content, "columns", ()), boosts=content.get("boost"), operator=operator)


def _boost_from_json(content: Mapping[str, Any], depth: int) -> Boost:
    _check_keys(content, ("positive", "negative", "negative_boost"), "boost")
    for part in ("positive", "negative"):
        if part not in content:
            raise InvalidInput(f"a boost query in JSON needs {part!r}")
    positive, negative = (_from_json(content[part], depth + 1) for part in ("positive", "negative"))
    return Boost(positive, negative, negative_boost=_given(content, "negative_boost", 0.5))


def _boolean_from_json(content: Mapping[str, Any], depth: int) -> Boolean:
    _check_keys(content, ("must", "should", "must_not"), "boolean")
    parts = {}
    for name in ("must", "should", "must_not"):
        clauses = _given(content, name, [])
        if not isinstance(clauses, list):
            raise InvalidInput(f"{name!r} of a boolean query in JSON is a list of queries, not {_shown(clauses)}")
        parts[name] = [_from_json(clause, depth + 1) for clause in clauses]
    return Boolean(parts["must"], parts["should"], parts["must_not"])


_PARSERS: Mapping[str, Callable[[Mapping[str, Any], int], Query]] = {
    "match": _match_from_json,
    "phrase": _phrase_from_json,
    "match_phrase": _phrase_from_json,
    "multi_match": _multi_match_from_json,
    "combined_fields": _combined_fields_from_json,
    "boost": _boost_from_json,
    "boolean": _boolean_from_json,
}


def _given(content: Mapping[str, Any], key: str, default: Any) -> Any:
    value = content.get(key)
    return default if value is None else value


def _terms(content: Mapping[str, Any], kind: str) -> str:
    terms = content.get("terms")
    if not isinstance(terms, str):
        raise InvalidInput(f"a {kind} query in JSON needs 'terms', the text to search for")
    return terms


def _check_keys(content: Mapping[str, Any], known: Sequence[str], kind: str) -> None:
    if unknown := [key for key in content if key not in known]:
        raise InvalidInput(f"a {kind} query in JSON has no key {unknown[0]!r}; it has {', '.join(known)}")


def _shown(value: object) -> str:
    return repr(value)[:80]


def _clauses(value: object, name: str) -> tuple[Query, ...]:
    if isinstance(value, (str, Mapping, *_QUERIES)):
        return (parse_query(value),)
    if not isinstance(value, Sequence):
        raise InvalidInput(f"{name}= must be a list of queries, not {type(value).__name__}")
    return tuple(parse_query(clause) for clause in value)


def _check_text(text: object, column: object) -> None:
    if not isinstance(text, str):
        raise InvalidInput(f"the text of a query must be a string, not {type(text).__name__}")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInput(f"the text of a query must be valid Unicode, not {text!r:.80}, which has a lone surrogate")
    if column is not None and (not isinstance(column, str) or not column):
        raise InvalidInput(f"the column of a query must be the name of one, not {column!r}")


def _check_granularity(granularity: object) -> None:
    if granularity is not None and granularity not in _GRANULARITIES:
        raise InvalidInput(f"document_granularity={granularity!r:.80} must be one of {', '.join(_GRANULARITIES)}")


def _check_count(number: object, name: str) -> None:
    if type(number) is not int or number < 0:
        raise InvalidInput(f"{name}={number!r} must be a whole number from 0")


def _weight(number: object, name: str) -> float:
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= _WEIGHT_MAX:
        raise InvalidInput(f"{name}={number!r} must be a number from 0 to {_WEIGHT_MAX:,.0f}")
    return float(number)


def _operator(operator: object) -> str:
    name = operator.upper() if isinstance(operator, str) else operator
    if name not in ("OR", "AND"):
        raise InvalidInput(f"operator={operator!r} must be 'OR' or 'AND'")
    return str(name)


def _distinct(names: Iterator[str] | Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


__all__ = ["Boolean", "Boost", "Match", "MultiMatch", "Phrase", "Query", "parse_query"]
