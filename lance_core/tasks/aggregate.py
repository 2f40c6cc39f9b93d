"""A query with aggregates whose groups are made by workers, each of the rows it reads, and put together by the driver.

What the query asks for is told by `expressions/queries.py`, how groups are made and put together by
`expressions/aggregation.py`. A query that counts the rows of a whole table is answered by its manifest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from lance_core.expressions.aggregation import Aggregation
from lance_core.expressions.queries import Query
from lance_core.scan.columns import conditional
from lance_core.scan.plan import plan_scan
from lance_core.scan.read import scan
from lance_core.snapshot import Snapshot
from lance_core.tasks.parts import Runner
from lance_core.tasks.read import Ranges, Wanted, over_cut

_ROWS_AT_ONCE = 1_048_576
_BYTES_AT_ONCE = 64 * 1024**2
_PARTIALS_AT_ONCE = 16


def aggregate(base: Snapshot, sql: str, *, runner: Callable[[], Runner]) -> pa.Table:
    query = Query.parse(sql, conditional(base.manifest))
    grouped = query.aggregation
    if grouped.only_counts_rows and query.where is None:
        return query.answer(grouped.counted(base.manifest.row_count()))
    plan = plan_scan(base.manifest, columns=grouped.columns, filter=query.where)
    results = over_cut(base, plan, _Grouped(Wanted(grouped.columns, query.where), grouped), runner())
    partials = [_decoded(each) for _number, part in sorted(results.items()) for each in part]
    return query.answer(grouped.together([grouped.nothing(), *partials]))


@dataclass(frozen=True, slots=True)
class _Grouped:
    wanted: Wanted
    aggregation: Aggregation

    def __call__(self, part: Snapshot, ranges: Ranges) -> Iterator[bytes]:
        partials: list[pa.Table] = []
        for batches in _bunches(scan(part.location, self.wanted.of(part, ranges))):
            partials.append(self.aggregation.of(batches))
            if len(partials) == _PARTIALS_AT_ONCE:
                partials = [self.aggregation.together(partials)]
        if partials:
            yield _encoded(self.aggregation.together(partials))


def _bunches(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """So many that a call of the engine is worth it, and no more than fit in memory."""
    bunch: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        bunch.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield bunch
            bunch, rows, size = [], 0, 0
    if bunch:
        yield bunch


def _encoded(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _decoded(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()
