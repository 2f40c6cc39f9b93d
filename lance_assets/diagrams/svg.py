"""A picture out of boxes, lines and words, as an SVG image that fits into markdown.

Dagster's pages strip inline SVG and show images whose source is a data URI, so that is what comes out. Words may come
from a table, that is from anybody: they are escaped, and characters that XML does not have are replaced. What is drawn,
and where, is up to the caller; nothing here knows what a table is.
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
PALE_RED = "#f9e0e0"
GREY = "#cbd2d9"
PALE_GREY = "#f1f3f6"

_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"
_CHARACTER_WIDTH = 0.62
"""Of the font's size, for all of these fonts, with some to spare."""
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})
_ALT = re.compile(r"[^\w.,:;@/+-]+")

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]


@dataclass(slots=True)
class Picture:
    """
    >>> picture = Picture(120, 40)
    >>> picture.rect(4, 4, 112, 32, fill=PALE_BLUE, stroke=BLUE)
    >>> picture.text(60, 24, "<orders>", anchor="middle")
    >>> "&lt;orders&gt;" in picture.svg(), picture.markdown("orders")[:36]
    (True, '![orders](data:image/svg+xml;base64,')
    """

    width: float
    height: float
    background: str | None = PAPER
    """Pages may be dark, and an image cannot know."""
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
            "line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], stroke=stroke, stroke_width=_none_if_default(width, 1),
            stroke_dasharray="4 3" if dashed else None,
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
        """From point to point."""
        if not points:
            return
        first, *rest = (f"{_format_number(x)} {_format_number(y)}" for x, y in points)
        d = "".join((f"M{first}", *(f"L{each}" for each in rest), "Z" if closed else ""))
        self._add(
            "path", d=d, fill=fill, stroke=stroke, stroke_width=_none_if_default(width, 1),
            stroke_dasharray="4 3" if dashed else None,
        )  # fmt: skip

    def curve(self, start: Point, end: Point, *, stroke: str = FAINT, width: float = 1, dashed: bool = False) -> None:
        """A soft one, which leaves and arrives level."""
        (x1, y1), (x2, y2) = start, end
        middle = _format_number((x1 + x2) / 2)
        d = f"M{_format_number(x1)} {_format_number(y1)}C{middle} {_format_number(y1)} {middle} {_format_number(y2)} {_format_number(x2)} {_format_number(y2)}"
        self._add(
            "path", d=d, fill="none", stroke=stroke, stroke_width=_none_if_default(width, 1),
            stroke_dasharray="4 3" if dashed else None,
        )  # fmt: skip

    def arrowhead(self, tip: Point, *, fill: str = FAINT, size: float = 6) -> None:
        """One that points to the right."""
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
        """`y` is where the letters stand. What is wider than `width` is cut, from the right."""
        shown = text if width is None else shorten(text, width, size)
        self._add(
            "text", content=shown, x=x, y=y, font_size=_none_if_default(size, 12), fill=fill,
            text_anchor=None if anchor == "start" else anchor, font_weight="bold" if bold else None,
        )  # fmt: skip

    def svg(self) -> str:
        width, height = _format_number(self.width), _format_number(self.height)
        paper = "" if self.background is None else _element("rect", width="100%", height="100%", fill=self.background)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="{_FONT}" font-size="12">{paper}{"".join(self._elements)}</svg>'
        )

    def data_uri(self) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg().encode()).decode()

    def markdown(self, alt: str) -> str:
        """For `dagster.MetadataValue.md`."""
        return f"![{_ALT.sub(' ', alt).strip()}]({self.data_uri()})"

    def _add(self, name: str, content: str | None = None, **attributes: str | float | None) -> None:
        self._elements.append(_element(name, content, **attributes))


def escape(text: str) -> str:
    """Fit for an XML text or attribute, whatever it held."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text).translate(_ENTITIES)


def shorten(text: str, width: float, size: float = 12) -> str:
    """
    >>> shortened("clickstream", 50), shortened("clicks", 50)
    ('click…', 'clicks')
    """
    return truncate(text, int(width / (size * _CHARACTER_WIDTH)))


def text_width(text: str, size: float = 12) -> float:
    return cell_width(text) * size * _CHARACTER_WIDTH


def _element(name: str, content: str | None = None, **attributes: str | float | None) -> str:
    told = "".join(
        f' {key.replace("_", "-")}="{escape(value if isinstance(value, str) else _format_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{told}/>" if content is None else f"<{name}{told}>{escape(content)}</{name}>"


def _format_number(value: float) -> str:
    """To a tenth, without what says nothing."""
    return f"{round(value, 1):g}" if abs(value) < 1e5 else str(round(value))


def _none_if_default(value: float, default: float) -> float | None:
    return None if value == default else value
