"""Text formatting: numbers, sizes and untrusted text for terminals, diagrams and markdown. Pure.

Text from a table is untrusted: it must neither control a terminal nor act as markup.
"""

import inspect
import re
from collections.abc import Iterable
from datetime import timedelta
from unicodedata import combining, east_asian_width

from lance_core.shell import plain

_MARKUP = re.compile(r"([\\`*_{}\[\]()#+.!|<>&~=$^:\"'-])")
_UNITS = ("kB", "MB", "GB", "TB", "PB")


def escape_markdown(text: str) -> str:
    """Return the text with control characters removed and markdown escaped, so that it appears verbatim."""
    return _MARKUP.sub(r"\\\1", plain(text))


def truncate(text: str, cells_max: int) -> str:
    """Shorten the text to `cells_max` cells of a fixed-width font, in which some characters take two cells."""
    if cell_width(text) <= cells_max:
        return text
    prefix, free = [], cells_max - 1
    for character in text:
        free -= cell_width(character)
        if free < 0:
            break
        prefix.append(character)
    return "".join(prefix) + "…" if cells_max > 0 else ""


def first_paragraph(function: object) -> str | None:
    """Return the first paragraph of a function's docstring in one line; `None` without one."""
    text = inspect.getdoc(function) if inspect.isroutine(function) else None
    return " ".join(text.split("\n\n")[0].split()) or None if text else None


def cell_width(text: Iterable[str]) -> int:
    """Return the width of the text in cells of a fixed-width font."""
    return sum(0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1 for character in text)


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun.

    >>> format_count(1, "row"), format_count(12345, "row")
    ('1 row', '12,345 rows')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def format_bytes(number: int | None) -> str:
    """Format a number of bytes; return an empty string for `None`.

    >>> format_bytes(1_234_567)
    '1.2 MB'
    """
    if number is None:
        return ""
    if number < 1000:
        return f"{number} B"
    amount = float(number)
    for unit in _UNITS:
        amount /= 1000
        if amount < 999.95 or unit == _UNITS[-1]:
            break
    return f"{amount:,.1f} {unit}"


def format_duration(time: timedelta) -> str:
    """Return a duration in its two largest units.

    >>> format_duration(timedelta(days=1, hours=2, minutes=3)), format_duration(timedelta(seconds=8.4))
    ('1 day 2 h', '8 s')
    """
    minutes, seconds = divmod(int(time.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{days} day{'s' if days > 1 else ''}" if days else "", f"{hours} h" if hours else "",
             f"{minutes} min" if minutes else "", f"{seconds} s" if seconds else ""]  # fmt: skip
    return " ".join([part for part in parts if part][:2]) or "0 s"
