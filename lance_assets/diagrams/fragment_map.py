"""Fragment map: a diagram of the fragments of a version, with rows, deleted rows and small fragments.

A few fragments are drawn one by one, in scan order; if there are many, neighbours share a bar, so that the diagram
keeps its size and stays readable with five thousand fragments.
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
    """Bar for a group of neighbouring fragments."""

    fragments: Sequence[FragmentStats]

    @property
    def live(self) -> float:
        """Mean of the live rows, since the last bar may represent fewer fragments."""
        return sum(fragment.rows for fragment in self.fragments) / len(self.fragments)

    @property
    def rows(self) -> float:
        return self.live + sum(fragment.deleted for fragment in self.fragments) / len(self.fragments)

    @property
    def small(self) -> float:
        return sum(fragment.is_small for fragment in self.fragments) / len(self.fragments)


def draw_fragment_map(table: Table) -> Picture:
    """Draw the fragments of a version with a legend."""
    stats, fragments = VersionStats.of(table), list(fragment_stats(table))
    picture = Picture(_WIDTH + 2 * _LEFT, 212 if fragments else 100)
    count = f"{stats.fragments:,} fragment{'' if stats.fragments == 1 else 's'}"
    picture.text(_LEFT, 20, f"version {table.version}: {count}, {stats.rows:,} rows", bold=True)
    size = f"{bytes_text(stats.bytes)}{' and more' if stats.files_without_size else ''}"
    picture.text(
        _LEFT,
        36,
        f"{size} in {stats.files:,} file{'' if stats.files == 1 else 's'}{_files_note(fragments)}",
        size=11,
        fill=FAINT,
    )
    if not fragments:
        picture.text(_LEFT, 72, "no fragments: the version holds no rows", fill=FAINT)
        return picture
    bars = _group_bars(fragments)
    highest = max(1.0, *(bar.rows for bar in bars))
    picture.line((_LEFT, _BASE), (_LEFT + _WIDTH, _BASE), stroke=GREY)
    step = min(_WIDTH / len(bars), _BAR_WIDTH_MAX)
    if len(bars) <= _SINGLE_BARS_MAX:
        _draw_bars(picture, bars, step, highest)
    else:
        _draw_outlines(picture, bars, step, highest)
    group_size = 1 if len(fragments) == len(bars) else len(bars[0].fragments)
    unit = "one bar per fragment" if group_size == 1 else f"each bar is the mean of {group_size} neighbours"
    picture.text(_LEFT, 182, f"{unit}; the highest has {round(highest):,} rows", size=11, fill=FAINT)
    _draw_legend(picture, stats)
    return picture


def draw_fragment_strip(table: Table) -> Picture:
    """Draw the fragments without text, for an overview: Dagster's pages show short values directly and the map behind
    a link."""
    fragments = list(fragment_stats(table))
    picture = Picture(_STRIP_WIDTH, _STRIP_HEIGHT, background=None)
    bars = _group_bars(fragments, _STRIP_BARS)
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
    """Return the size in the largest binary unit that it reaches.

    >>> bytes_text(999), bytes_text(1536), bytes_text(5 * 1024**3)
    ('999 B', '1.5 KiB', '5.0 GiB')
    """
    if size < 1024:
        return f"{size:.0f} B"
    unit = min(4, int(math.log(size, 1024)))
    return f"{size / 1024**unit:,.1f} {('KiB', 'MiB', 'GiB', 'TiB')[unit - 1]}"


def _group_bars(fragments: Sequence[FragmentStats], most: int = _BARS_MAX) -> list[_Bar]:
    size = max(1, -(-len(fragments) // most))
    return [_Bar(fragments[start : start + size]) for start in range(0, len(fragments), size)]


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
    """Draw three outlines instead of hundreds of rectangles."""
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


def _draw_legend(picture: Picture, stats: VersionStats) -> None:
    entries = (
        (BLUE, f"{stats.rows:,} rows"),
        (RED, f"{stats.deleted:,} deleted ({stats.deleted_share:.1%})"),
        (ORANGE, f"{stats.small_fragments:,} small"),
    )
    x = _LEFT
    for colour, text in entries:
        picture.rect(x, 192, 10, 10, fill=colour)
        picture.text(x + 15, 201, text, size=11, fill=INK)
        x += 15 + len(text) * 6.9 + 22


def _files_note(fragments: Sequence[FragmentStats]) -> str:
    most = max((fragment.files for fragment in fragments), default=0)
    return f", up to {most} per fragment, each with some of its columns" if most > 1 else ""
