"""A query over one version, answered in this process: rows go through it in bunches, and none of them is kept.

With aggregates only the groups are held; a query that counts the rows of a whole table is answered by its manifest.
Workers make groups of their parts by `partials` (`tasks/aggregate.py`).
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions import METADATA_COLUMNS
from lance_core.expressions.aggregate_queries import TABLE, AggregateQuery
from lance_core.expressions.aggregation import Aggregation
from lance_core.expressions.row_queries import RowQuery, aggregates
from lance_core.format.manifest import Manifest
from lance_core.scan.column_resolution import conditional
from lance_core.scan.executor import scan, window
from lance_core.scan.plan import plan_scan
from lance_core.scan.selection import Select
from lance_core.versions.location import Location

_ROWS_AT_ONCE = 1_048_576
_BYTES_AT_ONCE = 64 * 1024**2
_PARTIALS_AT_ONCE = 16


def query(
    location: Location, manifest: Manifest, sql: str, *, limit: int | None = None, select: Select | None = None
) -> pa.Table:
    """At most `limit` rows of the answer; nothing is read that they do not need."""
    if not isinstance(sql, str):
        raise InvalidInput(f"a query is a text of SQL, such as 'select count(*) from {TABLE}', not {sql!r}")
    schema = _told(manifest, sql)
    if aggregates(sql, schema):
        return _groups(location, manifest, AggregateQuery.parse(sql, schema), limit, select)
    return _rows(location, manifest, RowQuery.parse(sql, schema), limit, select)


def partials(batches: Iterable[pa.RecordBatch], aggregation: Aggregation) -> Iterator[pa.Table]:
    """The groups of these rows, put together as they come: none of no rows, else one table."""
    found: list[pa.Table] = []
    for bunch in _bunches(batches):
        found.append(aggregation.of(bunch))
        if len(found) == _PARTIALS_AT_ONCE:
            found = [aggregation.together(found)]
    if found:
        yield aggregation.together(found)


def _groups(
    location: Location, manifest: Manifest, asked: AggregateQuery, limit: int | None, select: Select | None
) -> pa.Table:
    grouped = asked.aggregation
    if grouped.only_counts_rows and asked.where is None:
        return asked.answer(grouped.counted(manifest.row_count())).slice(0, limit)
    plan = plan_scan(manifest, columns=grouped.columns, filter=asked.where, select=select)
    found = partials(scan(location, plan), grouped)
    return asked.answer(grouped.together([grouped.nothing(), *found])).slice(0, limit)


def _rows(
    location: Location, manifest: Manifest, asked: RowQuery, limit: int | None, select: Select | None
) -> pa.Table:
    take = min((each for each in (asked.take, limit) if each is not None), default=None)
    skip = asked.skip or None
    plan = plan_scan(manifest, columns=asked.columns, filter=asked.where, limit=take, offset=skip, select=select)
    batches = list(asked.of(window(scan(location, plan), 0, take)))
    return pa.Table.from_batches(batches).cast(asked.schema) if batches else asked.schema.empty_table()


def _told(manifest: Manifest, sql: str) -> pa.Schema:
    """Columns of the table; of those that every table has besides only what is named, or `*` would mean them too."""
    names = [name for name in METADATA_COLUMNS.names if name not in sql]
    asked = conditional(manifest)
    own = manifest.schema.arrow.names
    return pa.schema([field for field in asked if field.name in own or field.name not in names])


def _bunches(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
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
