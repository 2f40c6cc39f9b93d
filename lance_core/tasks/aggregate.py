"""A query with aggregates whose groups are made by workers, each of the rows it reads, and put together by the driver.

What the query asks for is told by `expressions/aggregate_queries.py`, how groups are made and put together by
`expressions/aggregation.py`. A query that counts the rows of a whole table is answered by its manifest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from lance_core.expressions.aggregate_queries import AggregateQuery
from lance_core.expressions.aggregation import Aggregation
from lance_core.index import lookup
from lance_core.scan.column_resolution import filterable_schema
from lance_core.scan.executor import scan
from lance_core.scan.plan import plan_scan
from lance_core.scan.query import aggregate_partials
from lance_core.tasks.partitioning import Runner
from lance_core.tasks.read import RowRanges, ScanSpec, map_scan_partitions
from lance_core.versions.snapshot import Snapshot


def aggregate(base: Snapshot, sql: str, *, runner: Callable[[], Runner]) -> pa.Table:
    query = AggregateQuery.parse(sql, filterable_schema(base.manifest))
    grouped = query.aggregation
    if grouped.only_counts_rows and query.where is None:
        return query.finish(grouped.count_groups(base.manifest.row_count()))
    plan = plan_scan(base.manifest, columns=grouped.columns, filter=query.where, select=lookup.selector_of(base))
    results = map_scan_partitions(base, plan, _Grouped(ScanSpec(grouped.columns, query.where), grouped), runner())
    partials = [_decoded(each) for _number, part in sorted(results.items()) for each in part]
    return query.finish(grouped.merge_groups([grouped.empty_groups(), *partials]))


@dataclass(frozen=True, slots=True)
class _Grouped:
    wanted: ScanSpec
    aggregation: Aggregation

    def __call__(self, part: Snapshot, ranges: RowRanges) -> Iterator[bytes]:
        return map(_encoded, aggregate_partials(scan(part.location, self.wanted.plan_partition(part, ranges)), self.aggregation))


def _encoded(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _decoded(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()
