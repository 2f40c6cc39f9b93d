"""The indices of a version, by its metadata alone: what they cover, in how many segments, how large and how old."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from lance_core import Corrupt, IndexStatistics, Table
from lance_core.operations import Fragment, IndexMetadata


@dataclass(frozen=True, slots=True)
class IndexState:
    name: str
    kind: str
    columns: tuple[str, ...]
    segments: int
    covered: int | None
    """Fragments that are there; None where nobody can tell."""
    uncovered: int
    uncovered_rows: int
    bytes: int | None
    """None where its writer did not note the sizes of its files."""
    created_at: datetime | None
    """When its newest segment was made, as far as they tell."""
    why_unused: str | None
    """Why nobody here uses it: the end of a sentence that begins with its name. None where it is used."""
    is_known: bool
    """Whether its kind is."""


def index_states(table: Table) -> list[IndexState]:
    """By name, without those that the format keeps for itself."""
    fragments = list(table.fragments)
    found = sorted(table.index_statistics(), key=lambda each: each.name)
    return [_state_of_used(table, each) if each.is_used else _state_of_unused(table, each, fragments) for each in found]


def _state_of_used(table: Table, found: IndexStatistics) -> IndexState:
    return _build_state(table, found, found.covered_fragments, found.uncovered_fragments, found.uncovered_live_rows)


def _state_of_unused(table: Table, found: IndexStatistics, fragments: list[Fragment]) -> IndexState:
    """What it says that it covers, which others can use."""
    try:
        told = [each.covers for each in _segments(table, found.name)]
    except Corrupt:
        told = [None]
    known = [covers for covers in told if covers is not None]
    outside = [each for each in fragments if not any(each.id in covers for covers in known)] if known else []
    covered = len(fragments) - len(outside) if known else None
    return _build_state(table, found, covered, len(outside), sum(each.live_rows for each in outside))


def _build_state(table: Table, found: IndexStatistics, covered: int | None, uncovered: int, rows: int) -> IndexState:
    return IndexState(
        name=found.name,
        kind=found.kind.removesuffix("IndexDetails").removesuffix("Details"),
        columns=tuple(_column_paths(table, _segments(table, found.name)[0].field_ids)),
        segments=len(found.segments),
        covered=covered,
        uncovered=uncovered,
        uncovered_rows=rows,
        bytes=found.bytes,
        created_at=found.created_at,
        why_unused=found.why_unused,
        is_known=found.is_known,
    )


def _segments(table: Table, name: str) -> list[IndexMetadata]:
    return [each for each in table.indices if each.name == name]


def _column_paths(table: Table, field_ids: tuple[int, ...]) -> Iterator[str]:
    paths = {field_id: path for path, field_id in _field_paths(table)}
    for field_id in field_ids:
        yield paths.get(field_id, f"field {field_id}")


def _field_paths(table: Table) -> Iterator[tuple[str, int]]:
    """Every field with its path, `a.b` for one within another."""
    waiting = [(field.name, field) for field in reversed(table.manifest.schema.fields)]
    while waiting:
        path, field = waiting.pop()
        yield path, field.id
        waiting += [(f"{path}.{child.name}", child) for child in reversed(field.children)]
