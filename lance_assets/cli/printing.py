"""What a command says: tables that fit a terminal, lines, and JSON. Words from a table are made harmless on the way."""

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
"""No column is made narrower than this."""


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    is_number: bool = False
    is_required: bool = False
    """Shown even where nothing is in it, and never cut."""


def terminal_width() -> int | None:
    """Of the terminal; None where nobody looks and everything may be long."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_lines(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int | None, indent: str = ""
) -> list[str]:
    """Columns in which nothing is are left out. Where it is too wide, the widest are cut, as far as that goes."""
    cleaned = [[plain(cell) for cell in row] for row in rows]
    shown = [
        number for number, column in enumerate(columns) if column.is_required or any(row[number] for row in cleaned)
    ]
    titles = [columns[number].title for number in shown]
    body = [[row[number] for number in shown] for row in cleaned]
    widths = [max(map(cell_width, column)) for column in zip(titles, *body, strict=True)] if shown else []
    if width is not None:
        fixed = [columns[number].is_required or columns[number].is_number for number in shown]
        _shrink_widths(widths, fixed, width - len(indent) - _GAP * (len(shown) - 1))
    numeric = [columns[number].is_number for number in shown]
    lines = [_row_line(row, widths, numeric) for row in (titles, *body)]
    return [indent + line if width is None else truncate(indent + line, width) for line in lines]


def pair_lines(told: Iterable[tuple[str, str | None]], width: int | None, indent: str = "") -> list[str]:
    """A name and what it is, a line each; what is None or empty is left out."""
    known = [(plain(name), plain(value)) for name, value in told if value]
    longest = max((cell_width(name) for name, _ in known), default=0)
    lines = [f"{indent}{name}{' ' * (longest - cell_width(name))}  {value}" for name, value in known]
    return lines if width is None else [truncate(line, width) for line in lines]


def tree_prefix(lasts: Sequence[bool]) -> str:
    """What stands before a line of a tree.

    >>> tree((False, True))
    '│  └─ '
    """
    if not lasts:
        return ""
    return "".join("   " if last else "│  " for last in lasts[:-1]) + ("└─ " if lasts[-1] else "├─ ")


def print_text(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def print_json(told: object) -> None:
    print(_escape_controls(json.dumps(told, indent=1, ensure_ascii=False, default=str)))


def printable(text: str) -> str:
    """Of a line that is as long as it is."""
    return plain(text)


def format_time(moment: datetime) -> str:
    """In UTC, as nobody knows where who reads it is."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def format_number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def format_change(value: int | None) -> str:
    return "" if not value else f"{value:+,}"


def limit_lines(lines: Sequence[str], most: int, more: Callable[[int], str]) -> list[str]:
    """The first of them, and how many there are besides."""
    return [*lines] if len(lines) <= most else [*lines[:most], more(len(lines) - most)]


def _shrink_widths(widths: list[int], fixed: Sequence[bool], room: int) -> None:
    """By a cell at a time, from whichever is the widest."""
    open_ones = [number for number, is_fixed in enumerate(fixed) if not is_fixed]
    while sum(widths) > room:
        widest = max(open_ones, key=lambda number: widths[number], default=None)
        if widest is None or widths[widest] <= _WIDTH_MIN:
            return
        widths[widest] -= 1


def _escape_controls(text: str) -> str:
    """JSON need not escape all that a terminal obeys."""
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(each if each == "\n" or plain(each) == each else json.dumps(each)[1:-1] for each in text)


def _row_line(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = []
    for cell, width, is_number in zip(row, widths, numeric, strict=True):
        shown = truncate(cell, width)
        room = " " * (width - cell_width(shown))
        padded.append(room + shown if is_number else shown + room)
    return (" " * _GAP).join(padded).rstrip()
