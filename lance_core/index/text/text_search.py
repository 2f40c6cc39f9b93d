"""Full-text search: the best rows of a version by BM25, from its full-text indices and from texts they do not cover.

    words of the query  ->  terms of the partitions of each segment, and of scanned rows  ->  the best `k`

Covered and uncovered rows are scored with one set of statistics, so that the scores of an answer are comparable. A
filter is evaluated first and becomes a mask inside the search, so that `k` rows come back whenever as many match. Rows
with equal scores come in table order. The fragments of a segment that cannot be read are scanned, and one warning names
it. Start with `search`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_core import validation
from lance_core.errors import InvalidInput, MissingDependency, Unsupported
from lance_core.index.coverage import SegmentCoverage
from lance_core.index.filter_mask import select_positions
from lance_core.index.lookup import UNREADABLE_ERRORS, selector_of, warn_once, warn_unreadable
from lance_core.index.scoped_segments import ScopedSegment
from lance_core.index.text.analyzer import Analyzer
from lance_core.index.text.analyzers import analyzer_of
from lance_core.index.text.best_documents import Allowed
from lance_core.index.text.checked_partition import CheckedPartition, UnreadableSegment
from lance_core.index.text.combined_fields import WeightedColumn, find_combined
from lance_core.index.text.highlights import HIGHLIGHTS, Highlighter
from lance_core.index.text.list_elements import (
    DOCUMENT_INDEX,
    Elements,
    as_document_index,
    elements_of_keys,
    positions_of_keys,
)
from lance_core.index.text.parameters import TextParameters
from lance_core.index.text.posting_decoder import Ints
from lance_core.index.text.query import (
    ColumnQueries,
    Leaf,
    OpenColumn,
    ScoredRows,
    is_flat,
    merge_best,
    needed_terms,
    score_at,
)
from lance_core.index.text.scanned_texts import NeededTerms, ScannedPartition, scan_partitions
from lance_core.index.text.scoring import Floats, Mask
from lance_core.index.text.statistics import CorpusStatistics, PartitionView
from lance_core.index.text.text_lookup import TextLookup
from lance_core.index.text.text_plan import (
    ColumnPlan,
    bind_query,
    column_type,
    explain_columns,
    leaves_of,
    plan_column,
)
from lance_core.index.verification import may_list_old_values, missed_fragments
from lance_core.scan.executor import scan
from lance_core.scan.plan import plan_scan
from lance_core.scan.take import RowPositions, take_positions
from lance_core.text import BestOf, Boolean, Boost, CombinedFields, Granularity, Match, Phrase, Query, TextRequest
from lance_core.versions.snapshot import Snapshot

SCORE = "_score"
_SCORE_FIELD = pa.field(SCORE, pa.float32())
_SCANNED_BYTES_MAX = 64 << 20
"""Bytes of scanned texts of one column up to which the postings of all terms are kept for the next search."""


def search(base: Snapshot, request: TextRequest) -> pa.Table:
    """Return the rows that match a query best, with their scores."""
    request = check_request(request)
    searcher = TextSearcher(base, request)
    columns = _result_columns(base, request, searcher.granularity)
    rows = searcher.best()
    positions, elements = rows.positions, None
    if searcher.granularity == "list_element":
        positions, elements = positions_of_keys(rows.positions), elements_of_keys(rows.positions)
    located = searcher.lookup.order.locate(positions)
    return _read_rows(base, _Found(located, rows.scores, elements), columns, searcher.highlighter())


def explain_search(base: Snapshot, request: TextRequest) -> str:
    """Return the plan of a search as text. Nothing is searched."""
    request = check_request(request)
    lookup = TextLookup.of(base)
    query = bind_query(base, lookup.coverage, request)
    granularity = lookup.granularity_of(query)
    plans = [
        plan_column(base, lookup.coverage, column, exact=request.exact, granularity=granularity)
        for column in query.columns
    ]
    return "\n".join(explain_columns(base, request, query, plans, granularity))


def check_request(request: TextRequest) -> TextRequest:
    """Return the request with a plain integer."""
    validation.check_flag(request.exact, "exact")
    validation.check_flag(request.highlight, "highlight")
    k = validation.check_integer(request.k, "k", at_least=1, too_small="a search returns at least one row")
    return request if type(request.k) is int else replace(request, k=k)


class TextSearcher:
    """One search."""

    def __init__(self, base: Snapshot, request: TextRequest) -> None:
        self._base, self._request = base, request
        self.lookup = TextLookup.of(base)
        self.query = bind_query(base, self.lookup.coverage, request)
        self.granularity = self.lookup.granularity_of(self.query)
        """Unit of the documents. The positions of list elements are keys of `list_elements.py`."""
        self._unreadable: set[object] = set()
        self._columns: dict[str, ColumnQueries] = {}
        self._borrowed: dict[str, TextParameters] = {}
        """Parameters of columns without an index that are searched together with others."""

    def best(self) -> ScoredRows:
        """Return the best `k` rows, best first."""
        while True:
            try:
                return self._best(self.query, self._request.k)
            except UnreadableSegment as failure:
                warn_unreadable(self._base, failure.scope.coverage, failure.error)
                self._unreadable.add(failure.scope.coverage.metadata.uuid)
                self._columns.clear()

    def highlighter(self) -> Highlighter | None:
        """Return a highlighter of the words that matched; `None` if the request does not ask for one."""
        if not self._request.highlight:
            return None
        leaves = [(leaf, self._column(leaf.column or "").terms_of(leaf)) for leaf in _positive_leaves(self.query)]
        analyzers = {leaf.column or "": self._analyzer(leaf.column or "") for leaf, _ in leaves}
        return Highlighter(leaves, analyzers)

    # Evaluation

    def _best(self, query: Query, k: int) -> ScoredRows:
        match query:
            case Match() | Phrase():
                return self._column(query.column or "").find_best(query, k)
            case BestOf():
                return merge_best([self._best(each, k) for each in query.queries]).best(k)
            case Boolean() if is_flat(query):
                return self._column(query.columns[0]).find_best(query, k)
        return self._all(query).best(k)

    def _all(self, query: Query) -> ScoredRows:
        match query:
            case Match() | Phrase():
                return self._column(query.column or "").find_all(query)
            case BestOf():
                return merge_best([self._all(each) for each in query.queries])
            case CombinedFields():
                return self._all_combined(query)
            case Boost():
                positive, negative = self._all(query.positive), self._all(query.negative)
                scores, _ = score_at(negative, positive.positions)
                return ScoredRows(positive.positions, positive.scores - query.negative_boost * scores)
            case Boolean():
                return self._all_of_boolean(query)
        raise AssertionError(query)

    def _all_combined(self, query: CombinedFields) -> ScoredRows:
        indexed = [column for column in query.columns if self._plan(column).index is not None]
        if indexed:  # columns without an index are analyzed like the others
            parameters = self._analyzer(indexed[0]).parameters
            self._borrowed |= {column: parameters for column in query.columns if column not in indexed}
        analyzers = {column: self._analyzer(column) for column in query.columns}
        first, *others = ((column, _text_parameters(each)) for column, each in analyzers.items())
        for column, parameters in others:
            if parameters != first[1]:
                raise InvalidInput(
                    f"{self._base.location.uri}: columns {first[0]!r} and {column!r} cannot be combined, since their "
                    "indices analyze texts with other parameters; rebuild one of them, or use MultiMatch"
                )
        weights = query.boosts or (1.0,) * len(query.columns)
        pairs = zip(query.columns, weights, strict=True)
        columns = [WeightedColumn(self._column(column), weight) for column, weight in pairs]
        return find_combined(columns, query.text, needs_all=query.operator == "AND")

    def _all_of_boolean(self, query: Boolean) -> ScoredRows:
        must, should, must_not = (
            [self._all(clause) for clause in clauses]  # type: ignore[arg-type]
            for clauses in (query.must, query.should, query.must_not)
        )
        if must:
            positions = min((rows.positions for rows in must), key=len)
        else:
            positions = np.unique(np.concatenate([rows.positions for rows in should]))
        total, matches = np.zeros(len(positions)), np.ones(len(positions), dtype=np.bool_)
        for rows in must:
            scores, exists = score_at(rows, positions)
            total += scores
            matches &= exists
        for rows in should:
            total += score_at(rows, positions)[0]
        for rows in must_not:
            matches &= ~score_at(rows, positions)[1]
        return ScoredRows(positions[matches], total[matches])

    # Columns

    def _column(self, column: str) -> ColumnQueries:
        if column not in self._columns:
            opened = self._open_column(column)
            self._columns[column] = ColumnQueries(opened, self._allowed(opened.views))
        return self._columns[column]

    def _plan(self, column: str) -> ColumnPlan:
        return self.lookup.plan(column, exact=self._request.exact, granularity=self.granularity)

    def _analyzer(self, column: str) -> Analyzer:
        """Return the analyzer of the index on a column; without an index, that of pylance's defaults."""
        plan = self._plan(column)
        parameters = TextParameters(with_position=True, document_granularity=self.granularity)
        parameters = self._borrowed.get(column, parameters)
        name = None if plan.index is None else plan.index.metadata.name
        if plan.index is not None:
            parameters = self._recorded_parameters(plan.index)
        try:
            return analyzer_of(parameters.for_column(column_type(self._base, column)))
        except (Unsupported, MissingDependency) as error:
            where = f"full-text index {name!r} on column {column!r}" if name else f"column {column!r}"
            raise type(error)(f"{self._base.location.uri}: {where} cannot be searched: {error}") from error

    def _recorded_parameters(self, index: SegmentCoverage) -> TextParameters:
        """Return the parameters in the files of a segment, or else in its details, which lack custom stop words."""
        if index.kind is not None:
            try:
                return self.lookup.segment(index).recorded_parameters()
            except UNREADABLE_ERRORS:  # the search of the segment warns and scans
                pass
        return TextParameters.from_details(bytes(index.metadata.message.index_details.value))

    def _open_column(self, column: str) -> OpenColumn:
        """Return the partitions of a column, from the cache if they do not depend on the query."""
        borrowed = self._borrowed.get(column)
        key = (column, borrowed, self.granularity, self._request.exact, frozenset(self._unreadable))
        if (cached := self.lookup.columns.get(key)) is not None:
            return cached
        opened, is_complete = self._read_column(column)
        if is_complete:
            self.lookup.columns.put(key, opened, opened.size)
        return opened

    def _read_column(self, column: str) -> tuple[OpenColumn, bool]:
        """Return the partitions of a column, and whether they have all terms."""
        plan, analyzer = self._plan(column), self._analyzer(column)
        if plan.index is not None and plan.index.kind is None and not self._request.exact:
            _warn_unused(self._base, plan)
        uncovered, suspect = BitMap(plan.scanned), BitMap()
        views: list[PartitionView] = []
        for scope in plan.segments:
            if scope.coverage.metadata.uuid in self._unreadable:
                uncovered |= scope.fragments
                continue
            missed, changed = self._doubtful_fragments(scope)
            uncovered |= missed
            suspect |= changed
            views += self._views(replace(scope, fragments=scope.fragments - missed - changed))
        counts_live_rows, is_complete = bool(uncovered), True
        if suspect:  # the statistics of the index count the rows of these fragments already
            scanned, is_complete = self._scan(column, analyzer, suspect - uncovered)
            views += [replace(view, is_counted=counts_live_rows) for view in scanned]
        if uncovered:
            scanned, has_all_terms = self._scan(column, analyzer, uncovered)
            views += scanned
            is_complete &= has_all_terms
        statistics = CorpusStatistics.of(views, counts_live_rows=counts_live_rows)
        return OpenColumn(column, analyzer, tuple(views), statistics), is_complete

    def _doubtful_fragments(self, scope: ScopedSegment) -> tuple[BitMap, BitMap]:
        """Return the fragments of which a segment misses rows, and those of which it may list old texts."""
        try:
            missed = missed_fragments(self._base, self.lookup.lookup.coverage, scope.coverage) & scope.fragments
            if not may_list_old_values(self._base, scope.coverage):
                return missed, BitMap()
            return missed, _changed_fragments(self._base, scope.fragments) - missed
        except UNREADABLE_ERRORS as error:
            raise UnreadableSegment(scope, error) from error

    def _views(self, scope: ScopedSegment) -> list[PartitionView]:
        try:
            views = self.lookup.views(scope)
        except UNREADABLE_ERRORS as error:
            raise UnreadableSegment(scope, error) from error
        return [replace(view, partition=CheckedPartition(view.partition, scope)) for view in views]

    def _allowed(self, views: Sequence[PartitionView]) -> list[Allowed | None]:
        """Return the documents of each partition that the search may return; `None` for all of them."""
        selected = None
        if self._request.filter is not None:
            lookup = self.lookup
            selected = select_positions(
                self._base, lookup.order, self._request.filter, selector_of(self._base), lookup.filters
            )
        return [self._allowed_in(view, selected) for view in views]

    def _allowed_in(self, view: PartitionView, selected: Mask | None) -> Allowed | None:
        if selected is None:
            return view.live
        key = (id(view.positions), id(selected))
        cached = self.lookup.allowed.get(key)
        if cached is not None and cached[0].positions is view.positions and cached[1] is selected:
            return cached[2]
        positions = view.positions if self.granularity == "row" else positions_of_keys(view.positions)
        mask = selected[np.maximum(positions, 0)]
        allowed = Allowed.of(mask if view.live is None else mask & view.live.mask)
        self.lookup.allowed.put(key, (view, selected, allowed), allowed.size + selected.nbytes)
        return allowed

    # Scanned texts

    def _scan(self, column: str, analyzer: Analyzer, fragments: BitMap) -> tuple[list[PartitionView], bool]:
        """Return the texts of fragments as partitions, and whether these have all terms: only of few texts, so that
        the next search need not read them again. Otherwise they have the terms of the query."""
        views, size = [], 0
        for view in self._scan_partitions(column, analyzer, fragments, None):
            assert isinstance(view.partition, ScannedPartition)
            views.append(view)
            size += view.partition.size
            if size > _SCANNED_BYTES_MAX:
                break
        else:
            return views, True
        leaves = [leaf for leaf in leaves_of(self.query) if leaf.column == column]
        return list(self._scan_partitions(column, analyzer, fragments, needed_terms(analyzer, leaves))), False

    def _scan_partitions(
        self, column: str, analyzer: Analyzer, fragments: BitMap, needed: NeededTerms | None
    ) -> Iterator[PartitionView]:
        plan = plan_scan(self._base.manifest, columns=[column], with_row_address=True)
        plan = replace(plan, tasks=tuple(task for task in plan.tasks if task.fragment.id in fragments))

        def batches() -> Iterator[tuple[pa.Array, Ints]]:
            for batch in scan(self._base.location, plan):
                yield batch.column(0), self.lookup.order.positions(batch.column(1).to_numpy())

        by_element = self.granularity == "list_element"
        for partition in scan_partitions(batches(), analyzer.analyze_all, needed, by_element=by_element):
            yield PartitionView.of(partition, partition.positions)


def _text_parameters(analyzer: Analyzer) -> TextParameters:
    """Return the parameters that decide how texts become terms."""
    return replace(analyzer.parameters, with_position=False, block_size=128)


def _warn_unused(base: Snapshot, plan: ColumnPlan) -> None:
    warn_once(
        (base.location.uri, f"full-text index on {plan.column}"),
        f"{base.location.uri}: the full-text index on column {plan.column!r} is not used, so every text is read: "
        f"{plan.reason}. The result is complete",
    )


def _changed_fragments(base: Snapshot, fragments: BitMap) -> BitMap:
    return BitMap(
        fragment.id
        for fragment in base.manifest.fragments
        if fragment.id in fragments and fragment.created_at != fragment.last_updated_at
    )


def _positive_leaves(query: Query) -> Iterator[Leaf]:
    """Yield the leaves whose words a matching row has."""
    match query:
        case Boost():
            yield from _positive_leaves(query.positive)
        case Boolean():
            for clause in (*query.must, *query.should):
                yield from _positive_leaves(clause)  # type: ignore[arg-type]
        case _:
            yield from leaves_of(query)


def result_columns(base: Snapshot, request: TextRequest) -> list[str]:
    """Return the columns of the result. The score comes after the selected columns, and highlights come last. If
    elements of lists are scored, their places come before the score."""
    lookup = TextLookup.of(base)
    return _result_columns(base, request, lookup.granularity_of(bind_query(base, lookup.coverage, request)))


def _result_columns(base: Snapshot, request: TextRequest, granularity: Granularity) -> list[str]:
    names = base.manifest.schema.arrow.names
    added = [SCORE, *([HIGHLIGHTS] if request.highlight else [])]
    if granularity == "list_element":
        added.insert(0, DOCUMENT_INDEX)
    for name in added:
        if name in names:
            raise InvalidInput(
                f"the table has a column {name!r}, a name that a text search adds; rename it with "
                f"alter_column({name!r}, rename=...)"
            )
    requested = list(names if request.select is None else validation.check_names(request.select, "select"))
    return [*requested, *(name for name in added if name not in requested)]


@dataclass(frozen=True, slots=True)
class _Found:
    """Documents that a search returns."""

    positions: RowPositions
    scores: Floats
    elements: Elements | None
    """Places of the documents in lists; `None` if rows are documents."""


def _read_rows(base: Snapshot, found: _Found, columns: Sequence[str], highlighter: Highlighter | None) -> pa.Table:
    positions = found.positions
    computed: dict[str, pa.Array] = {SCORE: pa.array(found.scores.astype(np.float32))}
    if found.elements is not None:
        computed[DOCUMENT_INDEX] = as_document_index(found.elements)
    if highlighter is not None:
        texts = take_positions(base.location, base.manifest, positions, highlighter.columns)
        computed[HIGHLIGHTS] = highlighter.mark(texts, found.elements)
    stored = [name for name in columns if name not in computed]
    rows = take_positions(base.location, base.manifest, positions, stored) if stored else None
    if rows is not None and len(computed) == 1 and columns[-1] == SCORE:
        return rows.append_column(_SCORE_FIELD, computed[SCORE])
    by_name: Mapping[str, pa.ChunkedArray] = {} if rows is None else dict(zip(stored, rows.columns, strict=True))
    fields = {name: pa.field(name, array.type) for name, array in computed.items()}
    if rows is not None:
        fields |= dict(zip(stored, rows.schema, strict=True))
    schema = pa.schema([fields[name] for name in columns], None if rows is None else rows.schema.metadata)
    return pa.table([computed[name] if name in computed else by_name[name] for name in columns], schema)


__all__ = ["SCORE", "TextLookup", "TextSearcher", "check_request", "explain_search", "result_columns", "search"]
