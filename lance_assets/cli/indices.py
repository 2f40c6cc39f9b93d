"""Which rows of a version its indices cover, by the manifest alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from lance_core import Corrupt, Table
from lance_core.operations import Fragment, IndexMetadata


@dataclass(frozen=True, slots=True)
class IndexState:
    name: str
    kind: str
    columns: tuple[str, ...]
    segments: int
    covered: int | None
    """Fragments that are there; None where nobody noted them."""
    uncovered: int
    uncovered_rows: int


def index_states(table: Table) -> list[IndexState]:
    """Without those that the format keeps for itself."""
    fragments = list(table.fragments)
    segments = sorted((each for each in table.indices if not each.is_system), key=lambda each: each.name)
    return [_state(table, name, [*group], fragments) for name, group in groupby(segments, key=lambda each: each.name)]


def _state(table: Table, name: str, segments: list[IndexMetadata], fragments: list[Fragment]) -> IndexState:
    try:
        told = [each.covers for each in segments]
    except Corrupt:
        told = [None]
    known = [covers for covers in told if covers is not None]
    outside = [each for each in fragments if not any(each.id in covers for covers in known)] if known else []
    return IndexState(
        name=name,
        kind=segments[0].kind.removesuffix("IndexDetails").removesuffix("Details") or "unknown",
        columns=tuple(columns_of(table, segments[0].field_ids)),
        segments=len(segments),
        covered=len(fragments) - len(outside) if known else None,
        uncovered=len(outside),
        uncovered_rows=sum(each.live_rows for each in outside),
    )


def columns_of(table: Table, field_ids: tuple[int, ...]) -> Iterator[str]:
    paths = {field_id: path for path, field_id in field_paths(table)}
    for field_id in field_ids:
        yield paths.get(field_id, f"field {field_id}")


def field_paths(table: Table) -> Iterator[tuple[str, int]]:
    """Every field with its path, `a.b` for one within another."""
    waiting = [(field.name, field) for field in reversed(table.manifest.schema.fields)]
    while waiting:
        path, field = waiting.pop()
        yield path, field.id
        waiting += [(f"{path}.{child.name}", child) for child in reversed(field.children)]
