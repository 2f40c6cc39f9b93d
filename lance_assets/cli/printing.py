"""Printing: tables that fit a terminal, lines, and JSON. Text from a table is made safe for terminals."""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lance_assets.common.text import cell_width, truncate
from lance_core.shell import plain

_GAP = 2
_WIDTH_MIN = 8
"""Minimum width of a column that is shrunk."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a printed table."""

    title: str
    is_number: bool = False
    is_required: bool = False
    """True to show the column even if it is empty, and never to shrink it."""


def terminal_width() -> int | None:
    """Return the width of the terminal, or `None` if the output is not a terminal and lines may be long."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_lines(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int | None, indent: str = ""
) -> list[str]:
    """Return the lines of a table. Empty columns are omitted; if the table is too wide, its widest columns are
    shrunk."""
    safe_rows = [[plain(cell) for cell in row] for row in rows]
    shown = [
        number for number, column in enumerate(columns) if column.is_required or any(row[number] for row in safe_rows)
    ]
    titles = [columns[number].title for number in shown]
    body = [[row[number] for number in shown] for row in safe_rows]
    widths = [max(map(cell_width, column)) for column in zip(titles, *body, strict=True)] if shown else []
    if width is not None:
        fixed = [columns[number].is_required or columns[number].is_number for number in shown]
        _shrink_widths(widths, fixed, width - len(indent) - _GAP * (len(shown) - 1))
    numeric = [columns[number].is_number for number in shown]
    lines = [_row_line(row, widths, numeric) for row in (titles, *body)]
    return [indent + line if width is None else truncate(indent + line, width) for line in lines]


def pair_lines(pairs: Iterable[tuple[str, str | None]], width: int | None, indent: str = "") -> list[str]:
    """Return a line for each name and value; `None` and empty values are omitted."""
    safe_pairs = [(plain(name), plain(value)) for name, value in pairs if value]
    longest = max((cell_width(name) for name, _ in safe_pairs), default=0)
    lines = [f"{indent}{name}{' ' * (longest - cell_width(name))}  {value}" for name, value in safe_pairs]
    return lines if width is None else [truncate(line, width) for line in lines]


def tree_prefix(lasts: Sequence[bool]) -> str:
    """Return the prefix of a tree line.

    >>> tree_prefix((False, True))
    '│  └─ '
    """
    if not lasts:
        return ""
    return "".join("   " if last else "│  " for last in lasts[:-1]) + ("└─ " if lasts[-1] else "├─ ")


def print_text(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def print_json(document: object) -> None:
    print(_escape_controls(json.dumps(document, indent=1, ensure_ascii=False, default=str)))


def printable(text: str) -> str:
    """Make one line safe for terminals."""
    return plain(text)


def format_time(moment: datetime) -> str:
    """Format a time in UTC, since the reader's time zone is unknown."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def format_number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def format_change(value: int | None) -> str:
    return "" if not value else f"{value:+,}"


def limit_lines(lines: Sequence[str], most: int, more: Callable[[int], str]) -> list[str]:
    """Return the first lines, and a line with the number of the others."""
    return [*lines] if len(lines) <= most else [*lines[:most], more(len(lines) - most)]


def _shrink_widths(widths: list[int], fixed: Sequence[bool], width_max: int) -> None:
    """Shrink the widest column by one cell at a time."""
    shrinkable = [number for number, is_fixed in enumerate(fixed) if not is_fixed]
    while sum(widths) > width_max:
        widest = max(shrinkable, key=lambda number: widths[number], default=None)
        if widest is None or widths[widest] <= _WIDTH_MIN:
            return
        widths[widest] -= 1


def _escape_controls(text: str) -> str:
    """Escape terminal control characters that JSON does not require to be escaped."""
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(
        character if character == "\n" or plain(character) == character else json.dumps(character)[1:-1]
        for character in text
    )


def _row_line(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = []
    for cell, width, is_number in zip(row, widths, numeric, strict=True):
        shown = truncate(cell, width)
        padding = " " * (width - cell_width(shown))
        padded.append(padding + shown if is_number else shown + padding)
    return (" " * _GAP).join(padded).rstrip()
