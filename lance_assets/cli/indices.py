"""Index states: coverage, segments, size and age of the indices of a version, from its metadata alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from lance_core import Corrupt, IndexStatistics, Table
from lance_core.operations import Fragment, IndexMetadata


@dataclass(frozen=True, slots=True)
class IndexState:
    """State of one index."""

    name: str
    kind: str
    columns: tuple[str, ...]
    segments: int
    covered: int | None
    """Existing fragments that the index covers; `None` if unknown."""
    uncovered: int
    uncovered_rows: int
    bytes: int | None
    """`None` if its writer did not record the sizes of its files."""
    created_at: datetime | None
    """Creation time of its newest segment, if recorded."""
    why_unused: str | None
    """Reason for not using the index, as the end of a sentence that begins with its name; `None` if it is used."""
    is_known: bool
    """True if this library knows the index type."""


def index_states(table: Table) -> list[IndexState]:
    """Return the states of all indices by name, except the internal ones of the format."""
    fragments = list(table.fragments)
    indices = sorted(table.index_statistics(), key=lambda index: index.name)
    return [
        _state_of_used(table, index) if index.is_used else _state_of_unused(table, index, fragments)
        for index in indices
    ]


def _state_of_used(table: Table, index: IndexStatistics) -> IndexState:
    return _build_state(table, index, index.covered_fragments, index.uncovered_fragments, index.uncovered_live_rows)


def _state_of_unused(table: Table, index: IndexStatistics, fragments: list[Fragment]) -> IndexState:
    """Return the state of an index that this library does not use, by the coverage that its segments record: other
    libraries may use it."""
    try:
        recorded = [segment.covers for segment in _segments(table, index.name)]
    except Corrupt:
        recorded = [None]
    known = [covers for covers in recorded if covers is not None]
    outside = (
        [fragment for fragment in fragments if not any(fragment.id in covers for covers in known)] if known else []
    )
    covered = len(fragments) - len(outside) if known else None
    return _build_state(table, index, covered, len(outside), sum(fragment.live_rows for fragment in outside))


def _build_state(table: Table, index: IndexStatistics, covered: int | None, uncovered: int, rows: int) -> IndexState:
    return IndexState(
        name=index.name,
        kind=index.kind.removesuffix("IndexDetails").removesuffix("Details"),
        columns=tuple(_column_paths(table, _segments(table, index.name)[0].field_ids)),
        segments=len(index.segments),
        covered=covered,
        uncovered=uncovered,
        uncovered_rows=rows,
        bytes=index.bytes,
        created_at=index.created_at,
        why_unused=index.why_unused,
        is_known=index.is_known,
    )


def _segments(table: Table, name: str) -> list[IndexMetadata]:
    return [each for each in table.indices if each.name == name]


def _column_paths(table: Table, field_ids: tuple[int, ...]) -> Iterator[str]:
    paths = {field_id: path for path, field_id in _field_paths(table)}
    for field_id in field_ids:
        yield paths.get(field_id, f"field {field_id}")


def _field_paths(table: Table) -> Iterator[tuple[str, int]]:
    """Yield the path and id of every field; a nested field has a path such as `a.b`."""
    pending = [(field.name, field) for field in reversed(table.manifest.schema.fields)]
    while pending:
        path, field = pending.pop()
        yield path, field.id
        pending += [(f"{path}.{child.name}", child) for child in reversed(field.children)]
