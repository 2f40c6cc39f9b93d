"""Doing a scan: planned tasks into batches, rows that do not match left out."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from lance_core.data.read import read_fragment
from lance_core.expressions import with_metadata_columns
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.location import Location
from lance_core.scan.plan import ScanPlan, ScanTask
from lance_core.scan.row_columns import ROW_COLUMNS, RowFacts


def scan_schema(plan: ScanPlan) -> pa.Schema:
    arrow = with_metadata_columns(plan.manifest.schema.arrow)
    return pa.schema([arrow.field(name) for name in plan.columns], arrow.metadata)


def scan(location: Location, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    rows = (batch for task in plan.tasks for batch in read_task(location, plan, task))
    return rows if plan.predicate is None else window(rows, plan.offset, plan.limit)


def read_task(location: Location, plan: ScanPlan, task: ScanTask) -> Iterator[pa.RecordBatch]:
    rows = rows_of(location, plan.manifest, task.fragment, plan.columns_read)
    if plan.predicate is None:
        return window(rows, task.skip, task.take)
    matching = plan.predicate.filter(rows)
    if plan.columns_read == plan.columns:
        return matching
    return (batch.select(list(plan.columns)) for batch in matching)


def rows_of(
    location: Location, manifest: Manifest, fragment: Fragment, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """A fragment's live rows with these columns, in this order, those that every table has besides included."""
    stored = [name for name in columns if name not in ROW_COLUMNS]
    wanted = [name for name in columns if name in ROW_COLUMNS]
    path = f"{location.uri}/{manifest.path}"
    found = read_fragment(location.store, location.codec, fragment, manifest.schema, columns=stored, path=path)
    if not wanted:
        return (rows.batch for rows in found)
    facts = RowFacts(manifest, fragment, path=path)
    return (facts.joined(rows, columns) for rows in found)


def count(location: Location, plan: ScanPlan) -> int:
    """Rows that match; nothing but the predicate's columns is read."""
    return sum(batch.num_rows for batch in scan(location, plan))


def window(batches: Iterable[pa.RecordBatch], skip: int, take: int | None) -> Iterator[pa.RecordBatch]:
    """Rows `skip` to `skip + take` of a stream; it is read no further than that."""
    if take == 0:
        return
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        wanted = batch.slice(skip, take)
        skip = 0
        if wanted.num_rows:
            yield wanted
        if take is not None:
            take -= wanted.num_rows
            if take == 0:
                return
