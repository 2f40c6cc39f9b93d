"""Distributed aggregation: workers compute partial aggregates of the rows they read, and the driver combines them.

`expressions/aggregate_queries.py` parses the query; `expressions/aggregation.py` computes and combines groups. The
manifest alone answers a query that counts the rows of a whole table.
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
from lance_core.tasks.scan.read import RowRanges, ScanSpec, map_scan_partitions
from lance_core.versions.snapshot import Snapshot


def aggregate(base: Snapshot, sql: str, *, runner: Callable[[], Runner]) -> pa.Table:
    """Return the result of an aggregate query on this version. `runner` is called only if a job is needed."""
    query = AggregateQuery.parse(sql, filterable_schema(base.manifest))
    aggregation = query.aggregation
    if aggregation.only_counts_rows and query.where is None:
        return query.finish(aggregation.count_groups(base.manifest.row_count()))
    plan = plan_scan(base.manifest, columns=aggregation.columns, filter=query.where, select=lookup.selector_of(base))
    results = map_scan_partitions(
        base, plan, _PartialAggregateTask(ScanSpec(aggregation.columns, query.where), aggregation), runner()
    )
    partials = [_decode_table(encoded) for _, tables in sorted(results.items()) for encoded in tables]
    return query.finish(aggregation.merge_groups([aggregation.empty_groups(), *partials]))


@dataclass(frozen=True, slots=True)
class _PartialAggregateTask:
    """Computes the partial aggregates of one partition."""

    scan_spec: ScanSpec
    aggregation: Aggregation

    def __call__(self, partition: Snapshot, ranges: RowRanges) -> Iterator[bytes]:
        return map(
            _encode_table,
            aggregate_partials(
                scan(partition.location, self.scan_spec.plan_partition(partition, ranges)), self.aggregation
            ),
        )


def _encode_table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _decode_table(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()
