"""Driver: runs a change whose plan is spread over workers, through the write protocol of every verb.

    run_change(table, options, "delete", plan)

`plan` receives a version and runs its tasks on it. After a conflict it receives a newer version
(`commit/write_protocol.py`). `run_over_fragments` runs tasks over partitions of fragments. Start with `run_change`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import Change, Planned, commit_with_retry
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Operation
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.table.base import Audit, Committed, NewTableOptions, WriteOptions
from lance_core.table.table import Table
from lance_core.tasks.partitioning import (
    PartitionFunction,
    PartitionTask,
    Runner,
    VersionHeader,
    collect_results,
    partition_fragments,
)
from lance_core.versions.location import Location, check_opened_with_own_manifest_store, locate
from lance_core.versions.refs import resolve_version
from lance_core.versions.snapshot import Snapshot

TASKS_PER_SLOT = 4
ROWS_PER_TASK_MIN = 1 << 22
"""Number of rows of which a few columns are read in about the time that a task takes to start."""


@dataclass(frozen=True, slots=True)
class TableRef:
    """Reference to a table, or to one of its branches, with the options to access it."""

    uri: str
    branch: str | None = None
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    manifest_store: ManifestStore | str | None = field(default=None, repr=False)
    durable: bool = True
    verify: str = "off"
    trusted: bool = True

    def locate(self) -> Location:
        """Return the location of the table. No manifest is read."""
        return locate(
            self.uri,
            storage_options=self.storage_options,
            manifest_store=self.manifest_store,
            durable=self.durable,
            verify=self.verify,
            trusted=self.trusted,
        )

    def newest(self) -> Snapshot:
        """Load the newest version."""
        snapshot = resolve_version(self.locate(), branch=self.branch)
        check_opened_with_own_manifest_store(snapshot.location, snapshot.manifest)
        return snapshot


def run_change(
    table: TableRef,
    options: WriteOptions,
    verb: str,
    plan: Callable[[Snapshot], Operation | Planned | None],
    *,
    operation: str,
    can_replan: bool = True,
) -> Committed:
    """Run a change of an existing table. If there is nothing to change, the result names `operation`. `can_replan`
    states that the change has the same meaning on a newer version."""
    properties = options.check()
    base = table.newest()
    base.manifest.check_writable()
    change = Change(verb, plan, operation, can_replan, audit=options.audit_function(Table))
    return Committed.of(
        commit_with_retry(
            change,
            base.location,
            base,
            intent=options.intent,
            properties=properties,
            retries=options.retries,
            runtime=SYSTEM_RUNTIME,
        ),
        Table,
    )


def run_over_fragments(
    base: Snapshot, fragments: Sequence[Fragment], work: PartitionFunction, runner: Runner
) -> Mapping[int, list[bytes]]:
    """Partition the fragments, and return the results of `work` by the number of the partition."""
    return run_over_partitions(
        base, partition_fragments(fragments, partition_count(fragments, runner.slots)), work, runner
    )


def partition_count(fragments: Iterable[Fragment], slots: int) -> int:
    """Return the number of partitions: every slot gets at least one, and a few if there are enough rows."""
    rows = sum(fragment.physical_rows for fragment in fragments)
    return max(slots, min(slots * TASKS_PER_SLOT, rows // ROWS_PER_TASK_MIN))


def run_over_partitions(
    base: Snapshot, partitions: tuple[tuple[bytes, ...], ...], work: PartitionFunction, runner: Runner
) -> Mapping[int, list[bytes]]:
    """Run `work` over partitions of encoded fragments, and return its results by the number of the partition."""
    if not partitions:
        return {}
    results = runner.run(PartitionTask(VersionHeader.of(base), partitions, work), len(partitions))
    return collect_results(results, len(partitions), uri=base.location.uri)


__all__ = [
    "ATTEMPTS",
    "Audit",
    "ManifestStore",
    "NewTableOptions",
    "TableRef",
    "WriteOptions",
    "partition_count",
    "run_change",
    "run_over_fragments",
    "run_over_partitions",
]
