"""Query execution: answers one SQL query over a version in this process. Rows stream through in bounded batches.

An aggregation holds only its groups in memory; counting the rows of a whole table needs only the manifest. Workers
aggregate their partitions with `aggregate_partials` (`tasks/scan/aggregate.py`). Start with `run_query`.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions import METADATA_COLUMNS
from lance_core.expressions.aggregate_queries import TABLE_NAME, AggregateQuery
from lance_core.expressions.aggregation import Aggregation
from lance_core.expressions.row_queries import RowQuery, is_aggregate_query
from lance_core.format.manifest import Manifest
from lance_core.scan.column_resolution import filterable_schema
from lance_core.scan.executor import scan, slice_batches
from lance_core.scan.plan import plan_scan
from lance_core.scan.selection import RowSelector
from lance_core.versions.location import Location

GROUP_ROWS = 1_048_576
_GROUP_BYTES = 64 * 1024**2
PARTIALS_MAX = 16


def run_query(
    location: Location, manifest: Manifest, sql: str, *, limit: int | None = None, select: RowSelector | None = None
) -> pa.Table:
    """Return at most `limit` rows of the result. Rows that do not contribute to them are not read."""
    if not isinstance(sql, str):
        raise InvalidInput(f"a query must be an SQL string, such as 'select count(*) from {TABLE_NAME}', not {sql!r}")
    schema = _queryable_schema(manifest, sql)
    if is_aggregate_query(sql, schema):
        return _run_aggregation(location, manifest, AggregateQuery.parse(sql, schema), limit, select)
    return _run_selection(location, manifest, RowQuery.parse(sql, schema), limit, select)


def aggregate_partials(batches: Iterable[pa.RecordBatch], aggregation: Aggregation) -> Iterator[pa.Table]:
    """Aggregate rows into partial groups as they arrive, and yield them as one table; nothing if there are no rows."""
    partials: list[pa.Table] = []
    for group in _rebatch(batches):
        partials.append(aggregation.group_rows(group))
        if len(partials) == PARTIALS_MAX:
            partials = [aggregation.merge_groups(partials)]
    if partials:
        yield aggregation.merge_groups(partials)


def _run_aggregation(
    location: Location, manifest: Manifest, query: AggregateQuery, limit: int | None, select: RowSelector | None
) -> pa.Table:
    aggregation = query.aggregation
    if aggregation.only_counts_rows and query.where is None:
        return query.finish(aggregation.count_groups(manifest.row_count())).slice(0, limit)
    plan = plan_scan(manifest, columns=aggregation.columns, filter=query.where, select=select)
    partials = aggregate_partials(scan(location, plan), aggregation)
    return query.finish(aggregation.merge_groups([aggregation.empty_groups(), *partials])).slice(0, limit)


def _run_selection(
    location: Location, manifest: Manifest, query: RowQuery, limit: int | None, select: RowSelector | None
) -> pa.Table:
    take = min((each for each in (query.limit, limit) if each is not None), default=None)
    skip = query.offset or None
    plan = plan_scan(manifest, columns=query.columns, filter=query.where, limit=take, offset=skip, select=select)
    batches = list(query.project(slice_batches(scan(location, plan), 0, take)))
    return pa.Table.from_batches(batches).cast(query.schema) if batches else query.schema.empty_table()


def _queryable_schema(manifest: Manifest, sql: str) -> pa.Schema:
    """Return the columns of the table, and the system columns that the query names; `*` must not include the other
    system columns."""
    unused = [name for name in METADATA_COLUMNS.names if name not in sql]
    fields = filterable_schema(manifest)
    own_names = manifest.schema.arrow.names
    return pa.schema([field for field in fields if field.name in own_names or field.name not in unused])


def _rebatch(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Group batches so that each group is worth a call of the query engine, and fits in memory."""
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GROUP_ROWS or size >= _GROUP_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group
