"""A verb whose planning is spread over workers, from its beginning to its version.

    changed(where, how, "delete", plan)      as the methods of `Table` do it: intent, plan, commit, plan again

`plan` is given a version and runs its tasks on it; when somebody was in the way, it is given a newer one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lance_core import validation
from lance_core.commit.change import Change, commit_with_retry
from lance_core.commit.loop import ATTEMPTS
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Operation
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.table.committed import Committed
from lance_core.table.table import audit_of, committed_of
from lance_core.table.write_options import Audit, WriteOptions
from lance_core.tasks.partitioning import (
    PartitionFunction,
    PartitionTask,
    Runner,
    VersionHeader,
    collect_results,
    partition_fragments,
)
from lance_core.versions.location import locate
from lance_core.versions.refs import resolve_version
from lance_core.versions.snapshot import Snapshot, load_latest

TASKS_PER_SLOT = 4
_ROWS_WORTH_A_TASK = 1 << 22
"""Few columns of so many rows are read in about the time that a task takes to start."""


@dataclass(frozen=True, slots=True)
class TableRef:
    """The table, or one of its branches, that is to be changed."""

    uri: str
    branch: str | None = None
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    manifest_store: ManifestStore | str | None = field(default=None, repr=False)
    durable: bool = True

    def newest(self) -> Snapshot:
        location = locate(
            self.uri,
            storage_options=self.storage_options,
            manifest_store=self.manifest_store,
            durable=self.durable,
        )
        return load_latest(location) if self.branch is None else resolve_version(location, branch=self.branch)


def run_change(
    table: TableRef,
    options: WriteOptions,
    verb: str,
    plan: Callable[[Snapshot], Operation | None],
    *,
    operation: str,
    can_replan: bool = True,
) -> Committed:
    """Run a change whose plan runs tasks. `operation` is the name in the result if there is nothing to change;
    `can_replan` says that the change means the same on a newer version."""
    validation.check_intent_and_retries(intent=options.intent, retries=options.retries)
    noted = validation.check_properties(options.properties)
    base = table.newest()
    base.manifest.check_writable()
    change = Change(verb, plan, operation, can_replan, audit=audit_of(options.audit))
    return committed_of(
        commit_with_retry(
            change,
            base.location,
            base,
            intent=options.intent,
            properties=noted,
            retries=options.retries,
            runtime=SYSTEM_RUNTIME,
        )
    )


def run_over_fragments(
    base: Snapshot, fragments: Sequence[Fragment], work: PartitionFunction, runner: Runner
) -> Mapping[int, list[bytes]]:
    """What `work` gave back for each part of these fragments, by the number of the part."""
    return run_over_partitions(
        base, partition_fragments(fragments, partition_count(fragments, runner.slots)), work, runner
    )


def partition_count(fragments: Iterable[Fragment], slots: int) -> int:
    """So many that every slot has something to do, and a few, where there is that much."""
    rows = sum(fragment.physical_rows for fragment in fragments)
    return max(slots, min(slots * TASKS_PER_SLOT, rows // _ROWS_WORTH_A_TASK))


def run_over_partitions(
    base: Snapshot, parts: tuple[tuple[bytes, ...], ...], work: PartitionFunction, runner: Runner
) -> Mapping[int, list[bytes]]:
    """For parts that are cut already: encoded fragments of each."""
    if not parts:
        return {}
    came_back = runner.run(PartitionTask(VersionHeader.of(base), parts, work), len(parts))
    return collect_results(came_back, len(parts), uri=base.location.uri)


__all__ = [
    "ATTEMPTS",
    "Audit",
    "ManifestStore",
    "TableRef",
    "WriteOptions",
    "partition_count",
    "run_change",
    "run_over_fragments",
    "run_over_partitions",
]
