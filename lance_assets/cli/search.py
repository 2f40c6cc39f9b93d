"""`lance-assets search URI "words"`: the rows that match best, with the words that matched."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lance_assets.cli import EXIT_OK, printing
from lance_assets.cli.table_names import TABLE_HELP, open_named
from lance_assets.common.text import format_count, truncate
from lance_core import Table
from lance_core.shell import Access, plain

HELP = "search texts by words, with a full-text index"
_SCORE, _HIGHLIGHTS, _ADDRESS = "_score", "_highlights", "_rowaddr"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_EXCERPT_CHARACTERS = 160
_BEFORE = 40
"""Characters of a long text that are shown before the first word that matched."""
_VALUE_CELLS = 60
_BREAKS_AS_SPACES = str.maketrans("\t\n\v\f\r", "     ")

Row = Mapping[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="URI[@VERSION]", help=TABLE_HELP)
    parser.add_argument("query", help="words, or a query in JSON")
    parser.add_argument("-k", type=int, default=10, metavar="N", help="number of rows (10)")
    parser.add_argument(
        "--column", action="append", metavar="NAME", help="column to search; repeatable; default: those with an index"
    )
    parser.add_argument("--filter", metavar="SQL", help="condition on the rows, applied before the search")
    parser.add_argument("--show", action="append", metavar="NAME", help="column to print with each row; repeatable")
    parser.add_argument("--exact", action="store_true", help="read every text instead of using an index")


def run(arguments: argparse.Namespace, access: Access) -> int:
    table = open_named(arguments.table, access).table
    found = table.text_search(
        arguments.query,
        arguments.k,
        columns=arguments.column,
        filter=arguments.filter,
        select=[*_shown_columns(table, arguments.show), _ADDRESS],
        highlight=True,
        exact=arguments.exact,
    )
    rows = found.drop_columns([_ADDRESS]).to_pylist()
    if arguments.json:
        printing.print_json(rows)
    else:
        mark = (_BOLD, _PLAIN) if sys.stdout.isatty() else ("[", "]")
        printing.print_text(_as_text(rows, _excerpts(table, found, mark)))
    return EXIT_OK


def _shown_columns(table: Table, names: Sequence[str] | None) -> list[str]:
    """Return the columns to print: those that the caller names, or else the first one that is a number."""
    if names is not None:
        return list(names)
    return [field.name for field in table.schema if pa.types.is_integer(field.type)][:1]


def _excerpts(table: Table, found: pa.Table, mark: tuple[str, str]) -> Iterator[list[str]]:
    """Yield the marked texts of each row."""
    spans = found[_HIGHLIGHTS].to_pylist()
    columns = list(dict.fromkeys(span["column"] for row in spans for span in row))
    texts = table.take(found[_ADDRESS].to_pylist(), columns, by="row_address") if columns else None
    for number, row in enumerate(spans):
        lines = []
        for column in columns:
            places = [span for span in row if span["column"] == column]
            assert texts is not None
            value = texts[column][number].as_py()
            for element in dict.fromkeys(span["element"] for span in places):
                text = value if element is None else value[element]
                ranges = [(span["start"], span["end"]) for span in places if span["element"] == element]
                lines.append(f"{column}: {_marked(text.translate(_BREAKS_AS_SPACES), ranges, mark)}")
        yield lines


def _marked(text: str, ranges: Sequence[tuple[int, int]], mark: tuple[str, str]) -> str:
    """Return the part of a text around its first match, with all matches in it marked."""
    begin = max(0, ranges[0][0] - _BEFORE)
    end = min(len(text), begin + _EXCERPT_CHARACTERS)
    parts, at = ["…" if begin else ""], begin
    for start, stop in _merged(ranges):
        if stop <= end:
            parts += [plain(text[at:start]), mark[0], plain(text[start:stop]), mark[1]]
            at = stop
    return "".join([*parts, plain(text[at:end]), "…" if end < len(text) else ""])


def _merged(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ascending ranges, those that overlap, as n-grams do, as one.

    >>> list(_merged([(0, 3), (1, 4), (6, 8)]))
    [(0, 4), (6, 8)]
    """
    begin, end = ranges[0]
    for start, stop in ranges[1:]:
        if start < end:
            end = max(end, stop)
        else:
            yield begin, end
            begin, end = start, stop
    yield begin, end


def _as_text(rows: Sequence[Row], excerpts: Iterator[list[str]]) -> Iterator[str]:
    yield format_count(len(rows), "row")
    for row, lines in zip(rows, excerpts, strict=True):
        values = "  ".join(
            f"{name} {truncate(plain(str(value)), _VALUE_CELLS)}"
            for name, value in row.items()
            if name not in (_SCORE, _HIGHLIGHTS)
        )
        yield f"{row[_SCORE]:.3f}  {values}"
        yield from (f"  {line}" for line in lines)
