"""Column sources: the columns that the values of a column were computed from, as a property of the version.

    {"tables": [["/lake/orders.lance", "lake/orders"]], "columns": {"total": [[0, "price"], [0, "amount"]]}}

A table is its URI and its asset key, which is null if the writer did not know it. Rows that a caller passes, such as a
DataFrame of unknown origin, have an empty URI. Any writer can set the property, so `parse_column_sources` ignores a
value of another form. This module does not import Dagster.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COLUMN_SOURCES = "lance_assets.columns"
"""Key of the property."""
_CHARACTERS_MAX = 64_000


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """Column of a table from which values were computed."""

    uri: str
    """URI of the table; empty for rows that the caller passes."""
    column: str
    asset: str | None = None
    """Asset key of the table as text; `None` if it is unknown."""


ColumnSources = Mapping[str, Sequence[ColumnSource]]
"""Sources by column. A column without known sources is left out."""


def encode_column_sources(sources: ColumnSources) -> str | None:
    """Return the value of the property; `None` if there are no sources, or more than a transaction should hold.

    >>> encode_column_sources({"b": [ColumnSource("/t.lance", "a")]})
    '{"columns": {"b": [[0, "a"]]}, "tables": [["/t.lance", null]]}'
    """
    known = {column: sorted(set(each), key=_order) for column, each in sources.items() if each}
    tables = list(dict.fromkeys((source.uri, source.asset) for each in known.values() for source in each))
    numbers = {table: number for number, table in enumerate(tables)}
    columns = {
        column: [[numbers[source.uri, source.asset], source.column] for source in each]
        for column, each in known.items()
    }
    text = json.dumps({"columns": columns, "tables": tables}, sort_keys=True)
    return text if known and len(text) <= _CHARACTERS_MAX else None


def parse_column_sources(properties: Mapping[str, str]) -> ColumnSources:
    """Return the sources that a version records; none if the property is missing or malformed.

    >>> value = encode_column_sources({"b": [ColumnSource("/t.lance", "a", "lake/t")]})
    >>> parse_column_sources({COLUMN_SOURCES: value or ""})
    {'b': (ColumnSource(uri='/t.lance', column='a', asset='lake/t'),)}
    """
    try:
        value = json.loads(properties.get(COLUMN_SOURCES, "{}"))
        tables = [(_text(uri), None if asset is None else _text(asset)) for uri, asset in value["tables"]]
        return {
            str(column): tuple(
                ColumnSource(tables[_index(number)][0], _text(name), tables[number][1]) for number, name in each
            )
            for column, each in value["columns"].items()
        }
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}


def _order(source: ColumnSource) -> tuple[str, str, str]:
    return source.uri, source.column, source.asset or ""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is expected")
    return value


def _index(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError("an index is expected")
    return value
