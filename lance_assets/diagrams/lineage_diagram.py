"""Lineage diagram: the versions that were read on the left, and the version made from them on the right, with its run
and asset.
"""

from collections.abc import Sequence

from lance_assets.diagrams.svg import BLUE, FAINT, GREY, INK, PALE_BLUE, PALE_GREY, Picture
from lance_assets.lineage.model import AncestryKind, InputVersion, Origin, VersionName
from lance_assets.lineage.render import short_run_id, version_range, without_credentials

_SOURCES_MAX = 6
"""Maximum number of drawn sources, so that the picture fits into an event and stays readable."""
_LETTERS_MAX = 60
"""Maximum number of characters of a line before it is shortened to its box, since names can have any length."""
_EDGE, _GAP = 10, 8
_BOX_WIDTH, _BOX_HEIGHT = 220, 42
_COLUMN_GAP = 70
_RESULT_WIDTH, _LINE_HEIGHT = 280, 17


def draw_lineage(origin: Origin) -> Picture:
    """Draw the sources and the parent of a version, with arrows to the version."""
    boxes = [_source_text(source) for source in origin.sources[:_SOURCES_MAX]]
    if more := len(origin.sources) - _SOURCES_MAX:
        boxes += [(f"and {more:,} more", "")] if more > 0 else []
    if origin.parent is not None:
        boxes.append((_table_name(origin.name.uri), f"version {origin.parent}, its parent"))
    lines = _result_lines(origin)
    left_height = len(boxes) * (_BOX_HEIGHT + _GAP) - _GAP
    result_height = len(lines) * _LINE_HEIGHT + 2 * _GAP
    height = max(left_height, result_height) + 2 * _EDGE
    picture = Picture(2 * _EDGE + _BOX_WIDTH + _COLUMN_GAP + _RESULT_WIDTH, height)
    result_left, middle = _EDGE + _BOX_WIDTH + _COLUMN_GAP, height / 2
    top = (height - left_height) / 2
    for number, (title, detail) in enumerate(boxes):
        is_source = number < min(len(origin.sources), _SOURCES_MAX)
        at = top + number * (_BOX_HEIGHT + _GAP)
        picture.curve((_EDGE + _BOX_WIDTH, at + _BOX_HEIGHT / 2), (result_left - 6, middle), dashed=not is_source)
        picture.rect(
            _EDGE, at, _BOX_WIDTH, _BOX_HEIGHT,
            fill=PALE_GREY, stroke=FAINT if is_source else GREY, radius=5, dashed=not is_source,
        )  # fmt: skip
        picture.text(_EDGE + _GAP, at + 17, title[:_LETTERS_MAX], width=_BOX_WIDTH - 2 * _GAP, bold=is_source)
        picture.text(_EDGE + _GAP, at + 34, detail, width=_BOX_WIDTH - 2 * _GAP, fill=FAINT)
    if boxes:
        picture.arrowhead((result_left - 1, middle))
    at = middle - result_height / 2
    picture.rect(result_left, at, _RESULT_WIDTH, result_height, fill=PALE_BLUE, stroke=BLUE, radius=5)
    for number, line in enumerate(lines):
        below = at + _GAP + number * _LINE_HEIGHT + 12
        colour = INK if number < 2 else FAINT
        text = line[:_LETTERS_MAX]
        picture.text(result_left + _GAP, below, text, width=_RESULT_WIDTH - 2 * _GAP, bold=number == 0, fill=colour)
    return picture


def _result_lines(origin: Origin) -> Sequence[str]:
    pairs = (("asset", origin.asset), ("partition", origin.partition), ("run", short_run_id(origin.run_id)))
    return (
        _table_name(origin.name.uri),
        f"version {origin.name.version}: {origin.named_action}",
        *(f"{name} {value}" for name, value in pairs if value),
        *([f"rebased over {version_range(origin.rebased_over)}"] if origin.rebased_over else []),
    )


def _source_text(source: InputVersion) -> tuple[str, str]:
    name: VersionName = source.name
    relation = "" if source.kind is AncestryKind.READ else f", {source.kind.value}"
    return _table_name(name.uri), f"version {name.version}{relation}"


def _table_name(uri: str) -> str:
    """Return the last part of the location, which is how users refer to the table."""
    shown = without_credentials(uri).rstrip("/")
    main, _, branch = shown.partition("/tree/")
    return main.rpartition("/")[2] + (f" ({branch})" if branch else "")
