"""Recall curve: a diagram of the recall of a vector search over the number of partitions that it searches.

A line shows the recall, another one the milliseconds of a query. The diagram marks the number that searches use, and
names the smallest one that reaches the target.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lance_assets.diagrams.svg import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PALE_GREEN, RED, Picture, Point

_LEFT, _TOP, _WIDTH, _HEIGHT = 52.0, 52.0, 540.0, 190.0
_RIGHT, _BASE = _LEFT + _WIDTH, _TOP + _HEIGHT
_STEPS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
_GRID_LINES_MAX = 6


@dataclass(frozen=True, slots=True)
class RecallPoint:
    """Recall and time of searches in a number of partitions."""

    nprobes: int
    recall: float
    milliseconds: float
    """Mean time of a query in a batch."""


def draw_recall_curve(
    points: Sequence[RecallPoint], *, k: int, target: float, used: int, recommended: int | None, title: str
) -> Picture:
    """Draw the curve of at least one point."""
    picture = Picture(_RIGHT + 60, _BASE + 62)
    picture.text(12, 20, title, bold=True, width=_RIGHT)
    picture.text(
        12, 36, f"recall@{k} and milliseconds of a query, by partitions searched (nprobes)", size=11, fill=FAINT
    )
    low = min(target, *(point.recall for point in points))
    floor = max(0.0, math.floor((low - 0.02) * 20) / 20)

    def place(nprobes: int, recall: float) -> Point:
        first, last = math.log2(points[0].nprobes), math.log2(points[-1].nprobes)
        share = 0.5 if last == first else (math.log2(nprobes) - first) / (last - first)
        return _LEFT + 16 + share * (_WIDTH - 32), _BASE - (recall - floor) / (1 - floor) * _HEIGHT

    target_height = place(points[0].nprobes, target)[1]
    picture.rect(_LEFT, _TOP, _WIDTH, target_height - _TOP, fill=PALE_GREEN)
    for level in _grid(floor):
        height = place(points[0].nprobes, level)[1]
        picture.line((_LEFT, height), (_RIGHT, height), stroke=GREY)
        picture.text(_LEFT - 6, height + 4, f"{level:.2f}", size=10, fill=FAINT, anchor="end")
    picture.line((_LEFT, target_height), (_RIGHT, target_height), stroke=GREEN, dashed=True)
    picture.text(_RIGHT + 4, target_height + 4, f"{target:g}", size=10, fill=GREEN)
    slowest = max(point.milliseconds for point in points) or 1.0
    times = [(place(each.nprobes, floor)[0], _BASE - each.milliseconds / slowest * _HEIGHT * 0.9) for each in points]
    picture.path(times, stroke=ORANGE, dashed=True)
    picture.text(_RIGHT + 4, times[-1][1] + 4, f"{slowest:.2f} ms", size=10, fill=ORANGE)
    picture.path([place(point.nprobes, point.recall) for point in points], stroke=BLUE, width=2)
    for point in points:
        where = place(point.nprobes, point.recall)
        is_used = point.nprobes == used
        colour = BLUE if not is_used else INK if point.recall >= target else RED
        picture.circle(*where, 5 if is_used else 3, fill=colour)
        picture.text(where[0], _BASE + 16, str(point.nprobes), size=10, anchor="middle", bold=is_used)
    advice = "no number of partitions reaches it; refine=10 raises the recall of compressed vectors"
    if recommended is not None:
        advice = f"the smallest that reaches it is nprobes={recommended}"
    picture.text(12, _BASE + 36, f"target {target:g}: {advice}", size=11, fill=INK if recommended else RED)
    current = next((point for point in points if point.nprobes == used), points[-1])
    picture.text(12, _BASE + 52, f"nprobes={used}: recall {current.recall:.3f}", size=11, fill=FAINT)
    return picture


def _grid(floor: float) -> list[float]:
    """Return the recalls at which lines are drawn."""
    step = next((each for each in reversed(_STEPS) if (1 - floor) / each <= _GRID_LINES_MAX), 0.5)
    first = math.ceil(round(floor / step, 6))
    return [round(number * step, 3) for number in range(first, round(1 / step) + 1)]
