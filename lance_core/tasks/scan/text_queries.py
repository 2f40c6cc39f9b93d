"""Text queries: workers answer the full-text queries of a frame on a pinned version of a table.

    driver    plan_text_queries(base, request, left, query) -> request, schema    checks the arguments
    workers   TextQueries(batches)                                                each query with its best rows

A worker opens the version once. Parts of the index that its queries read stay in its page cache.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lance_core.datafiles.conform import Conversion, conform
from lance_core.errors import InvalidInput
from lance_core.index.text.highlights import HIGHLIGHTS, HIGHLIGHTS_TYPE
from lance_core.index.text.list_elements import DOCUMENT_INDEX, DOCUMENT_INDEX_TYPE
from lance_core.index.text.text_search import SCORE, check_request, explain_search, result_columns, search
from lance_core.scan.plan import plan_scan
from lance_core.tasks.partitioning import VersionHeader
from lance_core.tasks.scan.nearest import open_version
from lance_core.text import Match, TextRequest, column_names, parse_query
from lance_core.versions.snapshot import Snapshot

ROWS_MAX = 16_384
"""Rows of the result that a worker returns at a time."""


@dataclass(frozen=True, slots=True)
class TextQueries:
    """Runs in a worker: batches of queries in, their best rows of the table out."""

    header: VersionHeader
    request: TextRequest
    query: str
    """Column of the frame that has the queries: texts, or queries in JSON."""
    right: pa.Schema
    """Columns of the table in the result, in types that the receiver can hold."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        base: Snapshot | None = None
        for batch in batches:
            if base is None:
                self.header.stamp.check()
                base = open_version(self.header)
            yield from self._answer(base, batch)

    def _answer(self, base: Snapshot, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows: list[int] = []
        found: list[pa.RecordBatch] = []
        for row, text in enumerate(batch.column(self.query).to_pylist()):
            if text is None:
                continue
            answer = search(base, replace(self.request, query=parse_query(text))).combine_chunks()
            rows += [row] * answer.num_rows
            found += answer.to_batches()
            if len(rows) >= ROWS_MAX:
                yield from self._joined(batch, rows, found)
                rows, found = [], []
        yield from self._joined(batch, rows, found)

    def _joined(
        self, batch: pa.RecordBatch, rows: Sequence[int], found: Sequence[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        if not rows:
            return
        conformed = [conform(each, self.right, conversion=Conversion.OUTWARD, what=self.header.uri) for each in found]
        right = pa.Table.from_batches(conformed, self.right)
        left = batch.take(pa.array(np.array(rows)))
        names = [*left.schema.names, *right.column_names]
        yield from pa.table([*left.columns, *right.columns], names=names).combine_chunks().to_batches()


def plan_text_queries(
    base: Snapshot, request: TextRequest, left: Sequence[str], query: str
) -> tuple[TextRequest, pa.Schema]:
    """Check the arguments, and return the request with the columns to read and their stored schema."""
    uri = base.location.uri
    if query not in left:
        raise InvalidInput(f"query={query!r} is not a column of the frame, which has {', '.join(left)}")
    request = check_request(request)
    explain_search(base, request)  # raises if the columns cannot be searched
    if request.filter is not None:
        plan_scan(base.manifest, columns=(), filter=request.filter)
    names = result_columns(base, request)
    if common := [name for name in names if name in left]:
        raise InvalidInput(
            f"{uri}: both sides have a column {common[0]!r}; rename that of the frame, or choose select= of the table"
        )
    added = {SCORE: pa.float32(), HIGHLIGHTS: HIGHLIGHTS_TYPE, DOCUMENT_INDEX: DOCUMENT_INDEX_TYPE}
    fields = [pa.field(name, added[name]) if name in added else _stored_field(base, name) for name in names]
    return replace(request, select=names), pa.schema(fields)


def request_of(
    k: int,
    columns: str | Sequence[str] | None,
    filter: str | None,
    select: Sequence[str] | None,
    *,
    highlight: bool,
    exact: bool,
) -> TextRequest:
    """Return a request whose query each row of a frame replaces."""
    searched = None if columns is None else column_names(columns, "columns")
    return TextRequest(Match(""), k, searched, filter, select, highlight, exact)


def _stored_field(base: Snapshot, name: str) -> pa.Field:
    (column,) = plan_scan(base.manifest, columns=[name]).output
    return column.arrow if column.is_stored else column.arrow.with_type(pa.int64())


__all__ = ["TextQueries", "TextRequest", "plan_text_queries", "request_of"]
