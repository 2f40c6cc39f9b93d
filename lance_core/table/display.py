"""Display: a table as HTML for notebooks, with rows, columns, the newest versions and a chart of their row counts.

All functions are pure: rows and descriptions of versions in, text out. Start with `table_as_html`.
"""

from collections.abc import Sequence
from html import escape

import pyarrow as pa

from lance_core.versions.history import VersionInfo

_CELL_CHARS_MAX = 60
_LISTED_VERSIONS = 5
_NO_VALUE = "(out of range)"
_WIDTH, _HEIGHT, _MARGIN = 160, 32, 3


def table_as_html(title: str, rows: pa.Table, versions: Sequence[VersionInfo]) -> str:
    """Return the first rows of a table, the types of its columns, and its newest versions, oldest first."""
    types = {field.name: f"{field.type}{'' if field.nullable else ' not null'}" for field in rows.schema}
    head = "".join(f"<th>{escape(name)}<br><small>{escape(text)}</small></th>" for name, text in types.items())
    cells = [[escape(_cell(value)) for value in column] for column in rows.columns]
    body = "".join(
        f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in (zip(*cells, strict=True) if cells else ())
    )
    parts = [
        f"<p><code>{escape(title)}</code></p>",
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
    ]
    if versions:
        parts.append(sparkline([info.rows for info in versions]))
        parts.append(_versions_as_html(versions[-_LISTED_VERSIONS:]))
    return "".join(parts)


def sparkline(values: Sequence[int]) -> str:
    """Return a line chart of the values as SVG, without axes.

    >>> sparkline([1, 3]).count("<circle")
    1
    """
    low, high = min(values), max(values)
    across, up = (_WIDTH - 2 * _MARGIN) / max(1, len(values) - 1), (_HEIGHT - 2 * _MARGIN) / max(1, high - low)
    points = [
        (_MARGIN + number * across, _HEIGHT - _MARGIN - (value - low) * up) for number, value in enumerate(values)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    label = f"rows of {len(values)} versions: {low:,} to {high:,}, now {values[-1]:,}"
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{label}"><title>{label}</title>'
        f'<polyline points="{line}" fill="none" stroke="currentColor"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="currentColor"/></svg>'
    )


def _versions_as_html(versions: Sequence[VersionInfo]) -> str:
    lines = "".join(
        f"<tr><td>{info.version}</td><td>{info.timestamp:%Y-%m-%d %H:%M:%S}</td><td>{escape(info.action)}</td>"
        f"<td>{info.rows:,}</td></tr>"
        for info in reversed(versions)
    )
    return (
        "<table><thead><tr><th>version</th><th>committed</th><th>action</th><th>rows</th></tr></thead>"
        f"<tbody>{lines}</tbody></table>"
    )


def _cell(value: pa.Scalar) -> str:
    try:
        text = str(value.as_py())
    except (OverflowError, ValueError):  # Python has no time of this year or precision
        return _NO_VALUE
    return text if len(text) <= _CELL_CHARS_MAX else f"{text[:_CELL_CHARS_MAX]}…"
