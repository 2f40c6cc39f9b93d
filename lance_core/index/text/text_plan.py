"""Plan of a full-text search: for each column the segments that are searched, and the fragments whose texts are read.

Planning opens no index file.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import InvalidInput, LanceError
from lance_core.format import field_paths
from lance_core.format.index_metadata import IndexMetadata
from lance_core.index.coverage import Coverage, SegmentCoverage
from lance_core.index.scoped_segments import ScopedSegment, fragments_of, scope_segments
from lance_core.index.supported_types import is_json, is_list, is_text
from lance_core.index.text.parameters import granularity_of
from lance_core.scan.column_resolution import resolve_columns
from lance_core.scan.explain import format_ranges
from lance_core.text import (
    BestOf,
    Boolean,
    Boost,
    CombinedFields,
    Granularity,
    Match,
    Phrase,
    Query,
    TextRequest,
    bind_columns,
    names_every_column,
)
from lance_core.versions.snapshot import Snapshot

INVERTED_MESSAGE = "InvertedIndexDetails"


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """Index segments and fragments that a search of one column reads."""

    column: str
    index: SegmentCoverage | None
    """First segment of the index on the column, whose analyzer is used, even if its files cannot be read; `None`
    without an index."""
    segments: tuple[ScopedSegment, ...] = ()
    scanned: BitMap = field(default_factory=BitMap)
    """Fragments whose texts are all read."""
    reason: str | None = None
    """Reason why no index is searched; `None` if one is."""


def bind_query(base: Snapshot, coverage: Coverage | None, request: TextRequest) -> Query:
    """Return the query with a column in each part, spelled as in the schema."""
    columns: tuple[str, ...] = ()
    if not names_every_column(request.query):
        columns = request.columns or ()
        if request.columns is None:
            columns = _default_columns(base, coverage)
        if not columns:
            raise InvalidInput(
                f"{base.location.uri}: the query names no column, and no column has a full-text index; pass columns=, "
                'or build an index with create_index(column, "INVERTED")'
            )
    return _canonical(bind_columns(request.query, columns), base, highlight=request.highlight)


def _canonical(query: Query, base: Snapshot, *, highlight: bool) -> Query:
    """Return the query with the paths of its columns, checked to be texts."""
    match query:
        case Match() | Phrase():
            assert query.column is not None
            path = field_paths.format_path(field_paths.find_field(base.manifest.schema, query.column))
            _check_leaf(base, query, path, highlight=highlight)
            return _with_column(query, path)
        case CombinedFields():
            parts = [_canonical(Match(query.text, each), base, highlight=highlight) for each in query.columns]
            return replace(query, columns=[column for part in parts for column in part.columns])
        case Boost():
            positive, negative = (
                _canonical(each, base, highlight=highlight) for each in (query.positive, query.negative)
            )
            return Boost(positive, negative, negative_boost=query.negative_boost)
        case Boolean():
            must, should, must_not = (
                [_canonical(bind_columns(clause, ()), base, highlight=highlight) for clause in clauses]  # type: ignore[arg-type]
                for clauses in (query.must, query.should, query.must_not)
            )
            return Boolean(must, should, must_not)
    queries = (_canonical(each, base, highlight=highlight) for each in query.queries)  # type: ignore[union-attr]
    return type(query)(tuple(queries))  # type: ignore[arg-type]


def _with_column(query: Match | Phrase, column: str) -> Match | Phrase:
    return query if query.column == column else replace(query, column=column)


def column_type(base: Snapshot, column: str) -> pa.DataType:
    """Return the type of a column. Raise `InvalidInput` unless it is text, a list of texts, or JSON."""
    (resolved,) = resolve_columns(base.manifest.schema, [column])
    found = resolved.arrow.type
    if not is_text(found) and not is_json(found) and not (is_list(found) and is_text(found.value_type)):
        raise InvalidInput(
            f"{base.location.uri}: column {column!r} has the type {found}, but a full-text search needs texts, lists "
            "of texts or JSON"
        )
    return found


def _check_leaf(base: Snapshot, query: Match | Phrase, column: str, *, highlight: bool) -> None:
    """Raise `InvalidInput` unless the type of the column supports the query and its highlights."""
    if not is_json(column_type(base, column)):
        return
    if isinstance(query, Match) and query.fuzziness:
        raise InvalidInput(
            f"{base.location.uri}: the JSON column {column!r} cannot be searched with fuzziness; leave fuzziness= out"
        )
    if highlight:
        raise InvalidInput(
            f"{base.location.uri}: highlights are not supported for the JSON column {column!r}; "
            "search it without highlight=True"
        )


def granularity_of_query(
    base: Snapshot, query: Query, granularities_on: Callable[[str], Collection[str]]
) -> Granularity:
    """Return the unit that a bound query scores: that of its parts, or else that of the indices on their columns, which
    `granularities_on` returns. A column without an index is scored by rows."""
    found = {_granularity_of_leaf(base, leaf, granularities_on) for leaf in leaves_of(query)}
    if found <= {"row"}:
        return "row"
    if len(found) > 1:
        raise InvalidInput(
            f"{base.location.uri}: the query scores rows in one part and elements of lists in another; choose columns "
            "whose indices have the same document_granularity, or name it in each part"
        )
    if len(set(query.columns)) > 1:
        raise InvalidInput(
            f"{base.location.uri}: a query that scores elements of lists searches one column, not "
            f"{', '.join(query.columns)}; choose one with columns="
        )
    return "list_element"


def _granularity_of_leaf(
    base: Snapshot, leaf: Match | Phrase, granularities_on: Callable[[str], Collection[str]]
) -> Granularity:
    assert leaf.column is not None
    if leaf.document_granularity is not None:
        if leaf.document_granularity == "list_element" and not is_list(column_type(base, leaf.column)):
            raise InvalidInput(
                f"{base.location.uri}: document_granularity='list_element' needs a column of lists, which "
                f"{leaf.column!r} is not; leave the argument out to score rows"
            )
        return leaf.document_granularity
    recorded = granularities_on(leaf.column)
    if len(recorded) > 1:
        raise InvalidInput(
            f"{base.location.uri}: column {leaf.column!r} has full-text indices of rows and of list elements; name "
            "document_granularity= in the Match or Phrase"
        )
    return "list_element" if "list_element" in recorded else "row"


def granularities_on(base: Snapshot, coverage: Coverage | None, column: str) -> set[str]:
    """Return the units that the indices on a column score."""
    indices = [] if coverage is None else list(_indices_on(base, coverage, column))
    return {granularity_of(segments[0].metadata) for segments in indices}


def plan_column(
    base: Snapshot, coverage: Coverage | None, column: str, *, exact: bool, granularity: Granularity = "row"
) -> ColumnPlan:
    """Choose the index on a column with the largest coverage, among those that score this unit."""
    live = BitMap(fragment.id for fragment in base.manifest.message.fragments)
    indices = [] if coverage is None else list(_indices_on(base, coverage, column))
    indices = [segments for segments in indices if granularity_of(segments[0].metadata) == granularity]
    usable = [segments for segments in indices if any(segment.kind is not None for segment in segments)]
    first = _first_segment(usable or indices)
    if exact:
        return ColumnPlan(column, first, scanned=live, reason="exact=True")
    for segments in usable:
        if scopes := scope_segments(segment for segment in segments if segment.kind is not None):
            return ColumnPlan(column, scopes[0].coverage, scopes, live - fragments_of(scopes))
    reasons = (f"{segments[0].metadata.name} {segments[0].unused_reason or 'is not usable'}" for segments in indices)
    return ColumnPlan(
        column, first, scanned=live, reason="; ".join(reasons) or "the column has no full-text index that can be used"
    )


def _first_segment(indices: Sequence[Sequence[SegmentCoverage]]) -> SegmentCoverage | None:
    """Return a segment of the first index, one that can be read if there is one. The parameters of the others are
    known, too."""
    segments = [segment for segments in indices for segment in segments]
    return next((segment for segment in segments if segment.kind is not None), segments[0] if segments else None)


def is_text_segment(metadata: IndexMetadata) -> bool:
    """Return whether a segment belongs to a full-text index, whether or not it can be read."""
    return metadata.kind == INVERTED_MESSAGE


def explain_columns(
    base: Snapshot, request: TextRequest, query: Query, plans: Sequence[ColumnPlan], granularity: Granularity
) -> Iterator[str]:
    """Yield the lines that describe a search."""
    live = len(base.manifest.message.fragments)
    yield f"text search {base.location.uri} at version {base.version}"
    yield f"  query     {_describe(query)}"
    unit = "rows" if granularity == "row" else "elements of lists"
    yield f"  best      {request.k} {unit} by BM25 score; equal scores in table order"
    if request.filter is not None:
        yield f"  filter    {request.filter}, before the search: {request.k} rows are returned if as many match"
    for plan in plans:
        yield f"  column    {plan.column}"
        if not plan.segments:
            yield f"    index     none, since {plan.reason}: every text is read"
            continue
        for scope in plan.segments:
            index = scope.coverage.metadata
            yield (
                f"    index     {index.name} (INVERTED), segment {index.uuid}, in {len(scope.fragments)} of {live} "
                "fragments"
            )
        scanned = (
            f"{len(plan.scanned)} of {live} fragments ({format_ranges(plan.scanned)}), whose rows are scored with the "
            "same statistics"
            if plan.scanned
            else "no fragment"
        )
        yield f"    scanned   {scanned}"
    yield "  answer    exact: the best of all rows that match"


def leaves_of(query: Query) -> Iterator[Match | Phrase]:
    """Yield the leaves of a bound query."""
    match query:
        case Match() | Phrase():
            yield query
        case CombinedFields():
            yield from (Match(query.text, column) for column in query.columns)
        case BestOf():
            yield from query.queries
        case Boost():
            yield from leaves_of(query.positive)
            yield from leaves_of(query.negative)
        case Boolean():
            for clause in query.clauses:
                yield from leaves_of(clause)


def _describe(query: Query) -> str:
    match query:
        case Match():
            fuzzy = f", fuzziness {query.fuzziness}" if query.fuzziness else ""
            return f"{query.column} matches {query.text!r} ({query.operator}{fuzzy})"
        case Phrase():
            return f"{query.column} has the phrase {query.text!r}" + (f" (slop {query.slop})" if query.slop else "")
        case CombinedFields():
            return f"{' and '.join(query.columns)} together match {query.text!r} ({query.operator})"
        case Boost():
            return f"({_describe(query.positive)}) lowered by ({_describe(query.negative)})"
        case Boolean():
            parts = (("must", query.must), ("should", query.should), ("must not", query.must_not))
            return "; ".join(
                f"{name} {', '.join(_describe(each) for each in clauses)}"  # type: ignore[arg-type]
                for name, clauses in parts
                if clauses
            )
    return "best of " + ", ".join(_describe(each) for each in query.queries)  # type: ignore[union-attr]


def _default_columns(base: Snapshot, coverage: Coverage | None) -> tuple[str, ...]:
    """Return the columns that are searched by default: the text columns with a full-text index of rows, or else those
    with one of list elements, or else the JSON columns with one. These are never searched together, since a query of
    JSON columns has another form, and elements are no rows."""
    columns = tuple(_indexed_columns(base, coverage))
    texts = tuple(column for column in columns if not is_json(column_type(base, column)))
    by_row = tuple(column for column in texts if "row" in granularities_on(base, coverage, column))
    return by_row or texts or columns


def _indexed_columns(base: Snapshot, coverage: Coverage | None) -> Iterator[str]:
    """Yield the columns that have a full-text index, in the order of the schema."""
    if coverage is None:
        return
    ids = {
        id for segment in coverage.segments if is_text_segment(segment.metadata) for id in segment.metadata.field_ids
    }
    for path in _leaf_paths(base):
        chain = field_paths.find_field(base.manifest.schema, path)
        if chain[-1].id in ids:
            yield path


def _leaf_paths(base: Snapshot) -> Iterator[str]:
    def visit(prefix: str, arrow: pa.Field) -> Iterator[str]:
        path = f"{prefix}{arrow.name}" if "." not in arrow.name else f"{prefix}`{arrow.name}`"
        yield path
        if pa.types.is_struct(arrow.type):
            for child in arrow.type:
                yield from visit(f"{path}.", child)

    for top in base.manifest.schema.arrow:
        yield from visit("", top)


def _indices_on(base: Snapshot, coverage: Coverage, column: str) -> Iterator[Sequence[SegmentCoverage]]:
    """Yield the segments of each full-text index on the column; the index with the largest coverage comes first."""
    field_id = field_paths.find_field(base.manifest.schema, column)[-1].id
    try:
        indices = [
            segments
            for segments in coverage.by_name.values()
            if all(is_text_segment(each.metadata) and each.metadata.field_ids == (field_id,) for each in segments)
        ]
    except LanceError:  # `selector_of` has warned that the indices cannot be read
        return
    yield from sorted(indices, key=lambda each: (-sum(len(one.covered) for one in each), each[0].metadata.name))
