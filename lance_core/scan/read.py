"""Doing a scan: a planned task into batches."""

from collections.abc import Iterator

import pyarrow as pa

from lance_core.data.read import read_fragment
from lance_core.location import Location
from lance_core.scan.plan import ScanPlan, ScanTask


def scan_schema(plan: ScanPlan) -> pa.Schema:
    arrow = plan.manifest.schema.arrow
    return pa.schema([arrow.field(name) for name in plan.columns], arrow.metadata)


def scan(location: Location, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    for task in plan.tasks:
        yield from read_task(location, plan, task)


def read_task(location: Location, plan: ScanPlan, task: ScanTask) -> Iterator[pa.RecordBatch]:
    to_skip, to_take = task.skip, task.take
    for batch in read_fragment(
        location.store,
        location.codec,
        task.fragment,
        plan.manifest.schema,
        columns=plan.columns,
        path=f"{location.uri}/{plan.manifest.path}",
    ):
        if to_skip >= batch.num_rows:
            to_skip -= batch.num_rows
            continue
        wanted = batch.slice(to_skip, to_take)
        to_skip = 0
        if wanted.num_rows:
            yield wanted
        if to_take is not None:
            to_take -= wanted.num_rows
            if to_take == 0:
                return
