"""A map of the fragments of a version: how many rows each holds, which of them are deleted, which fragments are small.

Few fragments are drawn one by one, in the order in which they are read; of many, neighbours share a bar, so that the
picture stays as large, and as readable, with five thousand of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lance_assets.common.version_stats import FragmentStats, VersionStats, fragment_stats
from lance_assets.diagrams.svg import BLUE, FAINT, GREY, INK, ORANGE, RED, Picture, Point
from lance_core import Table

_BARS_MAX = 80
_SINGLE_BARS_MAX = 16
_LEFT, _TOP, _WIDTH, _HEIGHT = 12.0, 46.0, 616.0, 104.0
_BASE = _TOP + _HEIGHT
_BAR_WIDTH_MAX = 64.0
_STRIP_BARS, _STRIP_WIDTH, _STRIP_HEIGHT = 12, 240.0, 40.0


@dataclass(frozen=True, slots=True)
class _Bar:
    """Of neighbours."""

    fragments: Sequence[FragmentStats]

    @property
    def live(self) -> float:
        """A mean, since the last bar may stand for fewer of them."""
        return sum(each.rows for each in self.fragments) / len(self.fragments)

    @property
    def rows(self) -> float:
        return self.live + sum(each.deleted for each in self.fragments) / len(self.fragments)

    @property
    def small(self) -> float:
        return sum(each.is_small for each in self.fragments) / len(self.fragments)


def draw_fragment_map(table: Table) -> Picture:
    layout, found = VersionStats.of(table), list(fragment_stats(table))
    picture = Picture(_WIDTH + 2 * _LEFT, 212 if found else 100)
    count = f"{layout.fragments:,} fragment{'' if layout.fragments == 1 else 's'}"
    picture.text(_LEFT, 20, f"version {table.version}: {count}, {layout.rows:,} rows", bold=True)
    size = f"{bytes_text(layout.bytes)}{' and more' if layout.files_without_size else ''}"
    picture.text(
        _LEFT,
        36,
        f"{size} in {layout.files:,} file{'' if layout.files == 1 else 's'}{_files_note(found)}",
        size=11,
        fill=FAINT,
    )
    if not found:
        picture.text(_LEFT, 72, "no fragments: the version holds no rows", fill=FAINT)
        return picture
    bars = _group_bars(found)
    highest = max(1.0, *(bar.rows for bar in bars))
    picture.line((_LEFT, _BASE), (_LEFT + _WIDTH, _BASE), stroke=GREY)
    step = min(_WIDTH / len(bars), _BAR_WIDTH_MAX)
    if len(bars) <= _SINGLE_BARS_MAX:
        _draw_bars(picture, bars, step, highest)
    else:
        _draw_outlines(picture, bars, step, highest)
    each = 1 if len(found) == len(bars) else len(bars[0].fragments)
    per = "a bar is one fragment" if each == 1 else f"a bar is the mean of {each} neighbours"
    picture.text(_LEFT, 182, f"{per}; the highest has {round(highest):,} rows", size=11, fill=FAINT)
    _draw_legend(picture, layout)
    return picture


def draw_fragment_strip(table: Table) -> Picture:
    """The same at a glance, without words: Dagster's pages show at once what is short, and the map behind a link."""
    found = list(fragment_stats(table))
    picture = Picture(_STRIP_WIDTH, _STRIP_HEIGHT, background=None)
    bars = _group_bars(found, _STRIP_BARS)
    if bars:
        highest = max(1.0, *(bar.rows for bar in bars))
        step, scale = _STRIP_WIDTH / len(bars), _STRIP_HEIGHT / highest
        if any(bar.rows > bar.live for bar in bars):
            whole = [round(bar.rows * scale) for bar in bars]
            picture.path(_outline(whole, step, _STRIP_HEIGHT, left=0), fill=RED, stroke=None, closed=True)
        live = [round(bar.live * scale) for bar in bars]
        picture.path(_outline(live, step, _STRIP_HEIGHT, left=0), fill=BLUE, stroke=None, closed=True)
    return picture


def bytes_text(size: float) -> str:
    """
    >>> bytes_told(999), bytes_told(1536), bytes_told(5 * 1024**3)
    ('999 B', '1.5 KiB', '5.0 GiB')
    """
    if size < 1024:
        return f"{size:.0f} B"
    unit = min(4, int(math.log(size, 1024)))
    return f"{size / 1024**unit:,.1f} {('KiB', 'MiB', 'GiB', 'TiB')[unit - 1]}"


def _group_bars(found: Sequence[FragmentStats], most: int = _BARS_MAX) -> list[_Bar]:
    each = max(1, -(-len(found) // most))
    return [_Bar(found[start : start + each]) for start in range(0, len(found), each)]


def _draw_bars(picture: Picture, bars: Sequence[_Bar], step: float, highest: float) -> None:
    gap = 2 if step > 8 else 1
    for number, bar in enumerate(bars):
        x, width = _LEFT + number * step, step - gap
        live, whole = (_HEIGHT * each / highest for each in (bar.live, bar.rows))
        if bar.rows:
            picture.rect(x, _BASE - max(live, 1), width, max(live, 1), fill=BLUE)
        if whole > live:
            picture.rect(x, _BASE - max(whole, 2), width, max(whole - live, 1), fill=RED)
        if bar.small:
            picture.rect(x, _BASE + 3, width, 4, fill=ORANGE)
        if step >= 24 and len(bar.fragments) == 1:
            picture.text(
                x + width / 2, _BASE + 17, f"{bar.fragments[0].id}", size=9, fill=FAINT, anchor="middle", width=width
            )


def _draw_outlines(picture: Picture, bars: Sequence[_Bar], step: float, highest: float) -> None:
    """Three outlines instead of three hundred boxes."""
    whole = [_HEIGHT * bar.rows / highest for bar in bars]
    picture.path(_outline(whole, step, _BASE), fill=RED, stroke=None, closed=True)
    picture.path(
        _outline([_HEIGHT * bar.live / highest for bar in bars], step, _BASE), fill=BLUE, stroke=None, closed=True
    )
    if any(bar.small for bar in bars):
        picture.path(_outline([-8 * bar.small for bar in bars], step, _BASE + 3), fill=ORANGE, stroke=None, closed=True)


def _outline(heights: Sequence[float], step: float, base: float, *, left: float = _LEFT) -> list[Point]:
    points: list[Point] = [(left, base)]
    for number, height in enumerate(heights):
        points += [(left + number * step, base - height), (left + (number + 1) * step, base - height)]
    return [*points, (left + len(heights) * step, base)]


def _draw_legend(picture: Picture, layout: VersionStats) -> None:
    told = (
        (BLUE, f"{layout.rows:,} rows"),
        (RED, f"{layout.deleted:,} deleted ({layout.deleted_share:.1%})"),
        (ORANGE, f"{layout.small_fragments:,} small"),
    )
    x = _LEFT
    for colour, text in told:
        picture.rect(x, 192, 10, 10, fill=colour)
        picture.text(x + 15, 201, text, size=11, fill=INK)
        x += 15 + len(text) * 6.9 + 22


def _files_note(found: Sequence[FragmentStats]) -> str:
    most = max((piece.files for piece in found), default=0)
    return f", up to {most} of one fragment, which share its columns" if most > 1 else ""
