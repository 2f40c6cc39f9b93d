"""SVG picture: rectangles, lines and text as an SVG image that fits into Markdown.

Dagster's pages strip inline SVG and show images whose source is a data URI, so the result is a data URI. Text may come
from any table: it is escaped, and characters that XML does not allow are replaced. The caller places every element;
this module does not depend on tables.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from lance_assets.common.text import cell_width, truncate

INK = "#1f2933"
FAINT = "#7b8794"
PAPER = "#ffffff"
BLUE = "#4e79c4"
PALE_BLUE = "#e3ecfa"
GREEN = "#3a9d6e"
PALE_GREEN = "#dff3e9"
ORANGE = "#d97f30"
PALE_ORANGE = "#fbeada"
RED = "#c94f4f"

GREY = "#cbd2d9"
PALE_GREY = "#f1f3f6"

_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"
_CHARACTER_WIDTH = 0.62
"""Width of a character relative to the font size, for all of these fonts, with a margin."""
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})
_ALT = re.compile(r"[^\w.,:;@/+-]+")

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]


@dataclass(slots=True)
class Picture:
    """Picture under construction.

    >>> picture = Picture(120, 40)
    >>> picture.rect(4, 4, 112, 32, fill=PALE_BLUE, stroke=BLUE)
    >>> picture.text(60, 24, "<orders>", anchor="middle")
    >>> "&lt;orders&gt;" in picture.svg(), picture.markdown("orders")[:36]
    (True, '![orders](data:image/svg+xml;base64,')
    """

    width: float
    height: float
    background: str | None = PAPER
    """Background colour; pages may be dark, and an image cannot adapt."""
    _elements: list[str] = field(default_factory=list)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "none",
        stroke: str | None = None,
        radius: float = 0,
        dashed: bool = False,
    ) -> None:
        self._add(
            "rect", x=x, y=y, width=max(width, 0), height=max(height, 0), rx=radius or None, fill=fill, stroke=stroke,
            stroke_dasharray="4 3" if dashed else None,
        )  # fmt: skip

    def circle(self, x: float, y: float, radius: float, *, fill: str = INK, stroke: str | None = None) -> None:
        self._add("circle", cx=x, cy=y, r=radius, fill=fill, stroke=stroke)

    def line(self, start: Point, end: Point, *, stroke: str = FAINT, width: float = 1, dashed: bool = False) -> None:
        self._add(
            "line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], stroke=stroke,
            stroke_width=_none_if_default(width, 1), stroke_dasharray="4 3" if dashed else None,
        )  # fmt: skip

    def path(
        self,
        points: Sequence[Point],
        *,
        stroke: str | None = FAINT,
        fill: str = "none",
        width: float = 1,
        closed: bool = False,
        dashed: bool = False,
    ) -> None:
        """Draw straight lines from point to point."""
        if not points:
            return
        first, *rest = (f"{_format_number(x)} {_format_number(y)}" for x, y in points)
        d = "".join((f"M{first}", *(f"L{point}" for point in rest), "Z" if closed else ""))
        self._add(
            "path", d=d, fill=fill, stroke=stroke, stroke_width=_none_if_default(width, 1),
            stroke_dasharray="4 3" if dashed else None,
        )  # fmt: skip

    def curve(self, start: Point, end: Point, *, stroke: str = FAINT, width: float = 1, dashed: bool = False) -> None:
        """Draw an S-shaped curve that is horizontal at both ends."""
        (x1, y1), (x2, y2) = start, end
        left, top, right, bottom = map(_format_number, (x1, y1, x2, y2))
        middle = _format_number((x1 + x2) / 2)
        d = f"M{left} {top}C{middle} {top} {middle} {bottom} {right} {bottom}"
        self._add(
            "path", d=d, fill="none", stroke=stroke, stroke_width=_none_if_default(width, 1),
            stroke_dasharray="4 3" if dashed else None,
        )  # fmt: skip

    def arrowhead(self, tip: Point, *, fill: str = FAINT, size: float = 6) -> None:
        """Draw an arrowhead that points to the right."""
        x, y = tip
        self.path([(x, y), (x - size, y - size / 2), (x - size, y + size / 2)], fill=fill, stroke=None, closed=True)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        fill: str = INK,
        anchor: Anchor = "start",
        bold: bool = False,
        width: float | None = None,
    ) -> None:
        """Draw text with its baseline at `y`. Text wider than `width` is cut at the right."""
        shown = text if width is None else shorten(text, width, size)
        self._add(
            "text", content=shown, x=x, y=y, font_size=_none_if_default(size, 12), fill=fill,
            text_anchor=None if anchor == "start" else anchor, font_weight="bold" if bold else None,
        )  # fmt: skip

    def svg(self) -> str:
        width, height = _format_number(self.width), _format_number(self.height)
        background = (
            "" if self.background is None else _element("rect", width="100%", height="100%", fill=self.background)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="{_FONT}" font-size="12">{background}{"".join(self._elements)}</svg>'
        )

    def data_uri(self) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg().encode()).decode()

    def markdown(self, alt: str) -> str:
        """Return a Markdown image for `dagster.MetadataValue.md`."""
        return f"![{_ALT.sub(' ', alt).strip()}]({self.data_uri()})"

    def _add(self, name: str, content: str | None = None, **attributes: str | float | None) -> None:
        self._elements.append(_element(name, content, **attributes))


def escape(text: str) -> str:
    """Escape text for XML content and attributes, and replace characters that XML does not allow."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text).translate(_ENTITIES)


def shorten(text: str, width: float, size: float = 12) -> str:
    """
    >>> shorten("clickstream", 50), shorten("clicks", 50)
    ('click…', 'clicks')
    """
    return truncate(text, int(width / (size * _CHARACTER_WIDTH)))


def text_width(text: str, size: float = 12) -> float:
    return cell_width(text) * size * _CHARACTER_WIDTH


def _element(name: str, content: str | None = None, **attributes: str | float | None) -> str:
    attribute_text = "".join(
        f' {key.replace("_", "-")}="{escape(value if isinstance(value, str) else _format_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    opening = f"<{name}{attribute_text}"
    return f"{opening}/>" if content is None else f"{opening}>{escape(content)}</{name}>"


def _format_number(value: float) -> str:
    """Format a number with one decimal, without trailing zeros."""
    return f"{round(value, 1):g}" if abs(value) < 1e5 else str(round(value))


def _none_if_default(value: float, default: float) -> float | None:
    return None if value == default else value
