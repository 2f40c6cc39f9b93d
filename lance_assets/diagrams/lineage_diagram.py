"""A version and what it comes from, as a picture: the versions that were read on the left, what was made of them on the
right, with the run and the asset that did it.
"""

from collections.abc import Sequence

from lance_assets.diagrams.svg import BLUE, FAINT, GREY, INK, PALE_BLUE, PALE_GREY, Picture
from lance_assets.lineage.model import AncestryKind, InputVersion, Origin, VersionName
from lance_assets.lineage.render import short_run_id, version_range, without_credentials

_SOURCES_MAX = 6
"""More would be too large for an event, and for the eye."""
_LETTERS_MAX = 60
"""Of any line, before it is cut to its box: an event is not to grow with what a table calls itself."""
_EDGE, _GAP = 10, 8
_BOX_WIDTH, _BOX_HEIGHT = 220, 42
_COLUMN_GAP = 70
_RESULT_WIDTH, _LINE_HEIGHT = 280, 17


def draw_lineage(origin: Origin) -> Picture:
    boxes = [_source_text(source) for source in origin.sources[:_SOURCES_MAX]]
    if more := len(origin.sources) - _SOURCES_MAX:
        boxes += [(f"and {more:,} more", "")] if more > 0 else []
    if origin.parent is not None:
        boxes.append((_table_name(origin.name.uri), f"version {origin.parent}, before it"))
    lines = _result_lines(origin)
    left_height = len(boxes) * (_BOX_HEIGHT + _GAP) - _GAP
    made_height = len(lines) * _LINE_HEIGHT + 2 * _GAP
    height = max(left_height, made_height) + 2 * _EDGE
    picture = Picture(2 * _EDGE + _BOX_WIDTH + _COLUMN_GAP + _RESULT_WIDTH, height)
    made_left, middle = _EDGE + _BOX_WIDTH + _COLUMN_GAP, height / 2
    top = (height - left_height) / 2
    for number, (title, told) in enumerate(boxes):
        is_source = number < min(len(origin.sources), _SOURCES_MAX)
        at = top + number * (_BOX_HEIGHT + _GAP)
        picture.curve((_EDGE + _BOX_WIDTH, at + _BOX_HEIGHT / 2), (made_left - 6, middle), dashed=not is_source)
        picture.rect(
            _EDGE, at, _BOX_WIDTH, _BOX_HEIGHT,
            fill=PALE_GREY, stroke=FAINT if is_source else GREY, radius=5, dashed=not is_source,
        )  # fmt: skip
        picture.text(_EDGE + _GAP, at + 17, title[:_LETTERS_MAX], width=_BOX_WIDTH - 2 * _GAP, bold=is_source)
        picture.text(_EDGE + _GAP, at + 34, told, width=_BOX_WIDTH - 2 * _GAP, fill=FAINT)
    if boxes:
        picture.arrowhead((made_left - 1, middle))
    at = middle - made_height / 2
    picture.rect(made_left, at, _RESULT_WIDTH, made_height, fill=PALE_BLUE, stroke=BLUE, radius=5)
    for number, line in enumerate(lines):
        below = at + _GAP + number * _LINE_HEIGHT + 12
        colour = INK if number < 2 else FAINT
        text = line[:_LETTERS_MAX]
        picture.text(made_left + _GAP, below, text, width=_RESULT_WIDTH - 2 * _GAP, bold=number == 0, fill=colour)
    return picture


def _result_lines(origin: Origin) -> Sequence[str]:
    told = (("asset", origin.asset), ("partition", origin.partition), ("run", short_run_id(origin.run_id)))
    return (
        _table_name(origin.name.uri),
        f"version {origin.name.version}: {origin.operation}",
        *(f"{name} {value}" for name, value in told if value),
        *([f"rebased over {version_range(origin.rebased_over)}"] if origin.rebased_over else []),
    )


def _source_text(source: InputVersion) -> tuple[str, str]:
    name: VersionName = source.name
    how = "" if source.kind is AncestryKind.READ else f", {source.kind.value}"
    return _table_name(name.uri), f"version {name.version}{how}"


def _table_name(uri: str) -> str:
    """The end of where it is, which is what people call it."""
    shown = without_credentials(uri).rstrip("/")
    main, _, branch = shown.partition("/tree/")
    return main.rpartition("/")[2] + (f" ({branch})" if branch else "")
