"""Words and numbers for people: in a terminal, in a picture, in markdown. What comes from a table comes from anybody,
so nothing in it may steer a terminal or be markup. Pure.
"""

import re
from collections.abc import Iterable
from datetime import timedelta
from unicodedata import combining, east_asian_width

from lance_core.shell import plain

_MARKUP = re.compile(r"([\\`*_{}\[\]()#+.!|<>&~=$^:\"'-])")
_UNITS = ("kB", "MB", "GB", "TB", "PB")


def escape_markdown(text: str) -> str:
    """As it stands there."""
    return _MARKUP.sub(r"\\\1", plain(text))


def truncate(text: str, cells_max: int) -> str:
    """To so many cells of a fixed-width font, in which some characters take two."""
    if cell_width(text) <= cells_max:
        return text
    kept, room = [], cells_max - 1
    for character in text:
        room -= cell_width(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + "…" if cells_max > 0 else ""


def cell_width(text: Iterable[str]) -> int:
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


def format_count(number: int, what: str, several: str | None = None) -> str:
    """
    >>> count(1, "row"), count(12345, "row")
    ('1 row', '12,345 rows')
    """
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


def format_bytes(number: int | None) -> str:
    """Of bytes; nothing where nobody knows.

    >>> size(1_234_567)
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
    """
    >>> age(timedelta(days=1, hours=2, minutes=3)), age(timedelta(seconds=8.4))
    ('1 day 2 h', '8 s')
    """
    minutes, seconds = divmod(int(time.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{days} day{'s' if days > 1 else ''}" if days else "", f"{hours} h" if hours else "",
             f"{minutes} min" if minutes else "", f"{seconds} s" if seconds else ""]  # fmt: skip
    return " ".join([part for part in parts if part][:2]) or "0 s"
