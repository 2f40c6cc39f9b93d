"""Version graph: the versions around one version, with their operations and writers, tags, branches and gaps.

The newest version is at the top, as in a change log. Only the manifests of the drawn versions are opened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lance_assets.diagrams.svg import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_ORANGE,
    PAPER,
    Picture,
    text_width,
)
from lance_assets.provenance.properties import ASSET_KEY, RUN_ID
from lance_core import LanceError, Table
from lance_core.operations import action_of

_BEFORE, _AFTER = 7, 3
_WIDTH, _ROW, _TOP = 640.0, 22.0, 40.0
_LINE_X, _NUMBER_X, _OPERATION_X, _WRITER_X, _WHEN_X, _NAMES_X = 20.0, 36.0, 88.0, 184.0, 316.0, 432.0
_NAMES_MAX = 3


@dataclass(frozen=True, slots=True)
class _VersionRow:
    """Text of one version."""

    version: int
    operation: str
    writer: str
    when: str


def draw_version_graph(table: Table) -> Picture:
    """Draw the branch around the version that the table is at."""
    numbers = list(table.version_numbers())
    position = numbers.index(table.version) if table.version in numbers else len(numbers)
    drawn = numbers[max(0, position - _BEFORE) : position + _AFTER + 1]
    rows = list(reversed(_with_gaps(drawn)))
    newer, older = len(numbers) - (position + _AFTER + 1), max(0, position - _BEFORE)
    tags, branches, root = _load_references(table)
    below = f"{older:,} older" if older else root
    picture = Picture(_WIDTH, _TOP + (len(rows) + (1.7 if below else 0.7)) * _ROW)
    branch = f"branch {table.branch}" if table.branch else "the main branch"
    count = f"{len(numbers):,} version{'' if len(numbers) == 1 else 's'}"
    picture.text(12, 20, f"version {table.version} on {branch}, which has {count}", bold=True, width=_WIDTH - 24)
    top, bottom = _TOP + _ROW, _TOP + _ROW * len(rows)
    picture.line((_LINE_X, top), (_LINE_X, max(top, bottom)), stroke=FAINT, width=2)
    if newer > 0:
        _draw_continuation(picture, _TOP, top, f"{newer:,} newer")
    for number, version in enumerate(rows):
        y = _TOP + _ROW * (number + 1)
        if isinstance(version, _Gap):
            _draw_gap(picture, y, version)
        else:
            _draw_version(picture, y, _load_version(table, version), is_this=version == table.version)
            _draw_names(picture, y, tags.get(version, []), branches.get(version, []))
    if below:
        _draw_continuation(picture, bottom + _ROW, bottom, below)
    return picture


@dataclass(frozen=True, slots=True)
class _Gap:
    """Run of consecutive versions that no longer exist."""

    count: int


def _with_gaps(drawn: Sequence[int]) -> list[int | _Gap]:
    """Return the versions, oldest first, with gaps where versions are missing."""
    rows: list[int | _Gap] = []
    last = None
    for number in drawn:
        if last is not None and number > last + 1:
            rows.append(_Gap(number - last - 1))
        rows.append(number)
        last = number
    return rows


def _load_version(table: Table, version: int) -> _VersionRow:
    try:
        table_at = table if version == table.version else table.at(version)
        transaction = table_at.transaction()
        when = f"{table_at.timestamp:%Y-%m-%d %H:%M}"
    except LanceError as error:  # it is damaged, or a cleanup has just removed it; the graph still shows the others
        return _VersionRow(version, type(error).__name__, "", "")
    properties = transaction.properties if transaction else {}
    asset = properties.get(ASSET_KEY, "")
    writer = asset.rpartition("/")[2] or ("a run" if RUN_ID in properties else table_at.manifest.library or "unknown")
    return _VersionRow(version, action_of(transaction, is_first=version == 1), writer, when)


def _load_references(table: Table) -> tuple[Mapping[int, list[str]], Mapping[int, list[str]], str]:
    """Return the tags and branches by version of this branch, and where the branch itself was created."""
    tags: dict[int, list[str]] = {}
    branches: dict[int, list[str]] = {}
    root = ""
    for name, tag in table.tags.list().items():
        if tag.branch == table.branch:
            tags.setdefault(tag.version, []).append(name)
    for name, branch in table.branches.list().items():
        if branch.parent_branch == table.branch:
            branches.setdefault(branch.parent_version, []).append(name)
        if name == table.branch:
            root = f"created at version {branch.parent_version} of {branch.parent_branch or 'the main branch'}"
    return tags, branches, root


def _draw_version(picture: Picture, y: float, row: _VersionRow, *, is_this: bool) -> None:
    if is_this:
        picture.rect(8, y - 10, _WIDTH - 16, 20, fill=PALE_BLUE, radius=4)
        picture.circle(_LINE_X, y, 6, fill=BLUE, stroke=PAPER)
    else:
        picture.circle(_LINE_X, y, 4.5, fill=PAPER, stroke=FAINT)
    ink = INK if is_this else FAINT
    picture.text(_NUMBER_X, y + 4, f"v{row.version}", bold=is_this, width=_OPERATION_X - _NUMBER_X - 6)
    picture.text(_OPERATION_X, y + 4, row.operation, width=_WRITER_X - _OPERATION_X - 6)
    picture.text(_WRITER_X, y + 4, row.writer, size=11, fill=ink, width=_WHEN_X - _WRITER_X - 6)
    picture.text(_WHEN_X, y + 4, row.when, size=11, fill=ink)


def _draw_names(picture: Picture, y: float, tags: Sequence[str], branches: Sequence[str]) -> None:
    x = _NAMES_X
    named = [(f"tag {name}", GREEN, PALE_GREEN) for name in tags]
    named += [(f"branch {name}", ORANGE, PALE_ORANGE) for name in branches]
    shown = named[:_NAMES_MAX]
    width_max = (_WIDTH - 14 - _NAMES_X - (24 if len(named) > len(shown) else 0)) / max(1, len(shown)) - 4
    for name, ink, paper in shown:
        width = min(width_max, text_width(name, 10) + 10)
        picture.rect(x, y - 8, width, 16, fill=paper, stroke=ink, radius=8)
        picture.text(x + 5, y + 3.5, name, size=10, width=width - 8)
        x += width + 4
    if len(named) > len(shown):
        picture.text(x, y + 4, f"+{len(named) - len(shown)}", size=10, fill=FAINT)


def _draw_gap(picture: Picture, y: float, gap: _Gap) -> None:
    picture.line((_LINE_X, y - _ROW / 2), (_LINE_X, y + _ROW / 2), stroke=PAPER, width=3)
    picture.line((_LINE_X, y - _ROW / 2), (_LINE_X, y + _ROW / 2), stroke=GREY, width=2, dashed=True)
    versions = "version" if gap.count == 1 else "versions"
    picture.text(_NUMBER_X, y + 4, f"{gap.count:,} {versions} removed", size=11, fill=FAINT)


def _draw_continuation(picture: Picture, y: float, line_from: float, text: str) -> None:
    picture.line((_LINE_X, y), (_LINE_X, line_from), stroke=GREY, width=2, dashed=True)
    picture.text(_NUMBER_X, y + 4, text, size=11, fill=FAINT)
