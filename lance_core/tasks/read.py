"""A scan whose fragments are read by workers, all of them at the version that the driver pinned.

driver    plan_read(table, ...) -> ReadPlan, with its fragments in groups
workers   ReadTask(plan)(batches with a column of group numbers) -> rows, in the types of `transport`
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from lance_core.data.conform import Conversion, conform
from lance_core.data.read import read_fragment
from lance_core.format.base_path import BasePath
from lance_core.format.fragment import Fragment
from lance_core.format.schema import TableSchema
from lance_core.location import locate
from lance_core.scan.plan import plan_scan
from lance_core.table import Table
from lance_core.tasks.stamp import Stamp


@dataclass(frozen=True, slots=True)
class ReadPlan:
    uri: str
    manifest: str
    """Path of the manifest that was planned on, for messages."""
    schema: TableSchema
    columns: tuple[str, ...]
    arrow: pa.Schema
    """What the table stores in these columns."""
    transport: pa.Schema
    """What the batches look like on their way: the types that the other side can hold."""
    groups: tuple[tuple[bytes, ...], ...]
    """Encoded fragments, for one task each."""
    stamp: Stamp
    branch: str | None = None
    base_paths: tuple[BasePath, ...] = ()
    """Other places where files of this version lie."""
    bases: tuple[str, ...] = ()
    """Which of them the caller allowed."""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Runs in a worker: numbers of groups in, their rows out."""

    plan: ReadPlan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        plan = self.plan
        plan.stamp.check()
        location = locate(plan.uri, storage_options=plan.storage_options, bases=plan.bases)
        location = location.with_bases(plan.base_paths, plan.branch, path=plan.manifest)
        for batch in batches:
            for group in batch.column(0).to_pylist():
                for encoded in plan.groups[group]:
                    for rows in read_fragment(
                        location.store,
                        location.codec,
                        Fragment.decode(encoded),
                        plan.schema,
                        columns=plan.columns,
                        path=f"{plan.uri}/{plan.manifest}",
                        describe_blobs=True,
                    ):
                        if rows.batch.num_rows:
                            yield conform(rows.batch, plan.transport, conversion=Conversion.CAST, what=plan.uri)


def plan_read(
    table: Table,
    *,
    columns: Sequence[str] | None,
    transport: Callable[[pa.Schema], pa.Schema],
    groups_max: int,
    storage_options: Mapping[str, str] | None = None,
) -> ReadPlan:
    """Fragments in scan order, in at most `groups_max` groups of about equally many rows. `transport` says which
    types the other side can hold, for the types that are stored. Of blobs comes where they are, as in `to_table`."""
    plan = plan_scan(table.manifest, columns=columns)
    arrow = plan.schema
    fragments = [task.fragment for task in plan.tasks]
    rows_per_group = max(1, -(-sum(fragment.physical_rows for fragment in fragments) // groups_max))
    groups: list[list[bytes]] = []
    room = 0
    for fragment in fragments:
        if room <= 0:
            groups.append([])
            room = rows_per_group
        groups[-1].append(fragment.encode())
        room -= fragment.physical_rows
    return ReadPlan(
        uri=table.uri,
        manifest=table.manifest.path,
        schema=table.manifest.schema,
        columns=plan.columns,
        arrow=arrow,
        transport=transport(arrow),
        groups=tuple(map(tuple, groups)),
        stamp=Stamp.of_this_process(),
        branch=table.branch,
        base_paths=table.manifest.base_paths,
        bases=table.bases,
        storage_options=dict(storage_options or {}),
    )
