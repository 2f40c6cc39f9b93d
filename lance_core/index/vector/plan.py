"""Plan of a vector search: chooses the metric, the segments with the fragments of each, and the fragments to scan.

It opens index files only of segments that do not record their metric in the index section."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from lance_core.errors import LanceError
from lance_core.format import field_paths
from lance_core.format.vector_index import VectorDetails
from lance_core.index.coverage import Coverage, SegmentCoverage
from lance_core.index.scoped_segments import ScopedSegment, fragments_of, scope_segments
from lance_core.index.vector.graph_lists import GRAPH_ROWS_MIN
from lance_core.index.vector.vector_type import VectorIndexType, is_vector_segment
from lance_core.scan.explain import format_ranges
from lance_core.scan.vector_search import Metric, has_multivectors, resolve_metric, vector_type
from lance_core.versions.snapshot import Snapshot

MULTIVECTOR_CANDIDATES = 10
"""Vectors that are candidates for each row of the result, in a column of multivectors, as in pylance."""
NPROBES = 20
"""Partitions of each segment that are searched unless the caller chooses a number."""

MetricOf = Callable[[SegmentCoverage], Metric | None]


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """Arguments of a search other than its vectors, checked for their ranges."""

    column: str
    k: int
    metric: str | None = None
    nprobes: int | None = None
    refine: int | None = None
    ef: int | None = None
    filter: str | None = None
    columns: Sequence[str] | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Indices and fragments that a search reads."""

    request: SearchRequest
    metric: Metric
    segments: tuple[ScopedSegment, ...] = ()
    scanned: BitMap = field(default_factory=BitMap)
    """Fragments whose vectors are all compared."""
    reason: str | None = None
    """Reason why no index is searched; `None` if one is."""


def plan_search(base: Snapshot, coverage: Coverage | None, request: SearchRequest, metric_of: MetricOf) -> SearchPlan:
    """Choose the index with the largest coverage whose metric is the requested one, or any if none is requested.

    The metric of an index is also the default where that index is not searched, so that the answer is the same."""
    values = vector_type(base.manifest, request.column).value_type
    requested = None if request.metric is None else resolve_metric(request.metric, values, request.column)
    live = BitMap(fragment.id for fragment in base.manifest.message.fragments)
    indices = [] if coverage is None else list(_indices_on(base, coverage, request.column))
    by_metric = [(metric, segments) for segments in indices if (metric := _metric_of(segments, metric_of)) is not None]
    default = requested or next((each for each, _ in by_metric), None) or resolve_metric(None, values, request.column)
    if request.exact:
        return SearchPlan(request, default, scanned=live, reason="exact=True")
    for metric, segments in by_metric:
        if metric is not default:
            continue
        if scopes := scope_segments(each for each in segments if _is_usable(each, metric, metric_of)):
            return SearchPlan(request, metric, scopes, live - fragments_of(scopes))
    reason = _reason_for_scan(default, by_metric)
    return SearchPlan(request, default, scanned=live, reason=reason)


def _reason_for_scan(metric: Metric, indices: Sequence[tuple[Metric, Sequence[SegmentCoverage]]]) -> str:
    """Return why none of the indices on the column is searched."""
    reasons = (
        f"{segments[0].metadata.name} "
        + (f"has the metric {own.value}" if own is not metric else segments[0].unused_reason or "is not usable")
        for own, segments in indices
    )
    return "; ".join(reasons) or "the column has no vector index that can be used"


def _is_usable(segment: SegmentCoverage, metric: Metric, metric_of: MetricOf) -> bool:
    """Return whether a segment covers fragments and has this metric. The files of a segment that covers none are not
    read for its metric."""
    return isinstance(segment.kind, VectorIndexType) and bool(segment.covered) and metric_of(segment) is metric


def recorded_metric(segment: SegmentCoverage) -> Metric | None:
    """Return the metric in the index section; `None` if it is in the files alone."""
    details = VectorDetails.of(segment.metadata)
    return None if details is None else Metric(details.metric)


def explain_plan(base: Snapshot, plan: SearchPlan) -> Iterator[str]:
    """Yield the lines that describe a plan."""
    request = plan.request
    live = len(base.manifest.message.fragments)
    yield f"search {base.location.uri} at version {base.version}"
    yield f"  nearest   {request.k} rows to a vector by {plan.metric.value} distance of {request.column}"
    if request.filter is not None:
        yield f"  filter    {request.filter}, before the search: {request.k} rows are returned if as many match"
    if not plan.segments:
        yield f"  index     none, since {plan.reason}: every vector is compared"
        yield "  answer    exact"
        return
    for scope in plan.segments:
        index = scope.coverage.metadata
        assert scope.coverage.kind is not None
        yield (
            f"  index     {index.name} ({scope.coverage.kind.name}), segment {index.uuid}, "
            f"in {len(scope.fragments)} of {live} fragments"
        )
        if "HNSW" in scope.coverage.kind.name:
            yield f"            follows graphs in partitions of {GRAPH_ROWS_MIN:,} rows and more, and scans the others"
    probes = request.nprobes or NPROBES
    yield f"            {probes} partitions of each segment, more if they hold fewer than {request.k} matching rows"
    candidates, is_multivector = request.k * (request.refine or 1), has_multivectors(base.manifest, request.column)
    if is_multivector:
        candidates *= MULTIVECTOR_CANDIDATES
        each = "for each vector of a query"
        yield f"            {candidates} candidates of each segment {each}, more until {request.k} rows are found"
    else:
        yield f"            {candidates} candidates of each segment"
    if request.refine or is_multivector:
        yield "  refine    the distances of all candidates are computed from their vectors"
    else:
        yield "  refine    no: the distances of indices with compressed vectors are estimates; refine=10 corrects them"
    scanned = (
        f"{len(plan.scanned)} of {live} fragments ({format_ranges(plan.scanned)})" if plan.scanned else "no fragment"
    )
    yield f"  scanned   {scanned}"
    yield "  answer    approximate; exact=True compares every vector"


def _indices_on(base: Snapshot, coverage: Coverage, column: str) -> Iterator[Sequence[SegmentCoverage]]:
    """Yield the segments of each vector index on the column; the index with the largest coverage comes first."""
    field_id = field_paths.find_field(base.manifest.schema, column)[-1].id
    try:
        indices = [
            segments
            for segments in coverage.by_name.values()
            if all(is_vector_segment(each.metadata) and each.metadata.field_ids == (field_id,) for each in segments)
        ]
    except LanceError:  # `selector_of` has warned that the indices cannot be read
        return
    yield from sorted(indices, key=lambda each: (-sum(len(one.covered) for one in each), each[0].metadata.name))


def _metric_of(segments: Sequence[SegmentCoverage], metric_of: MetricOf) -> Metric | None:
    """Return the metric of an index: that of its first segment which can be used, or else is recorded."""
    usable = [segment for segment in segments if segment.kind is not None and segment.covered]
    return metric_of(usable[0]) if usable else recorded_metric(segments[0])
