"""Distributed compaction: workers rewrite groups of fragments, and the driver commits them in batches.

The driver plans once. A committed batch stays, whatever happens to the next one. After a conflict, groups whose
fragments are unchanged keep their files; what remains of the other groups is planned and written again. Fragments
that are added meanwhile wait for the next compaction.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lance_core import validation
from lance_core.commit import write_protocol
from lance_core.datafiles.fragment_writer import ROWS_PER_FILE_MAX
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Rewrite
from lance_core.format.schema import TableSchema
from lance_core.index.coverage import current_coverage
from lance_core.maintenance import compaction
from lance_core.maintenance.compaction import RewrittenGroup
from lance_core.maintenance.compaction_indices import Remap
from lance_core.maintenance.compaction_plan import Group, mixes_coverage
from lance_core.maintenance.compaction_write import write_group
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.table.base import Committed
from lance_core.table.table import Table
from lance_core.tasks.driver import TableRef, WriteOptions, run_change, run_over_partitions
from lance_core.tasks.partitioning import Runner
from lance_core.versions.snapshot import Snapshot

GROUPS_PER_COMMIT = 64
REMAP_BYTES_MAX = 256 * 1024**2
"""Maximum size of an index segment that is rewritten if the caller sets no `remap`. The driver rewrites the segment
once per batch."""
VERB = "compact"


def compact(
    table: TableRef,
    *,
    target_rows: int,
    materialize_deletions: bool,
    remap: str | None,
    batch: int,
    options: WriteOptions,
    runner: Runner,
) -> Committed:
    """Compact the table, with up to `batch` groups per commit. Only the last batch carries the intent, so repeating
    an interrupted run continues it."""
    request = CompactionRequest(target_rows, materialize_deletions, None if remap is None else Remap.of(remap))
    batch = validation.check_integer(batch, "batch", at_least=1, too_small="a commit has at least one group")
    validation.check_intent_and_retries(intent=options.intent, retries=options.retries)
    base = table.newest()
    base.manifest.check_writable()
    groups = request.plan_groups(base)
    batches = [groups[start : start + batch] for start in range(0, len(groups), batch)] or [()]
    if len(batches) > 1:
        started = write_protocol.begin(base.location, base, verb=VERB, intent=options.intent, runtime=SYSTEM_RUNTIME)
        if isinstance(started, write_protocol.WriteResult):
            return Committed.of(started, Table)
        compaction.check_remap(base, groups, request.remap)  # all groups, before the first batch is committed
    committed: list[Committed] = []
    for number, batch_groups in enumerate(batches):
        batch_options = options if number == len(batches) - 1 else replace(options, intent=None)
        plan = GroupBatch(batch_groups, request, validation.check_properties(options.properties), runner).plan
        committed.append(run_change(table, batch_options, VERB, plan, operation=Rewrite.name))
    return _total(committed)


def groups_to_compact(
    table: TableRef, *, target_rows: int = ROWS_PER_FILE_MAX, materialize_deletions: bool = True
) -> tuple[Group, ...]:
    """Return the groups of fragments that `compact` would rewrite, by the manifest alone."""
    return CompactionRequest(target_rows, materialize_deletions, None).plan_groups(table.newest())


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """Parameters of a compaction."""

    target_rows: int
    materialize_deletions: bool
    remap: Remap | None

    def plan_groups(self, base: Snapshot, among: Sequence[Fragment] | None = None) -> tuple[Group, ...]:
        return compaction.plan_compaction(
            base, target_rows=self.target_rows, materialize_deletions=self.materialize_deletions, among=among
        )


@dataclass(slots=True)
class GroupBatch:
    """Groups that are committed together."""

    groups: tuple[Group, ...]
    request: CompactionRequest
    properties: Mapping[str, str]
    runner: Runner | None
    """`None` leaves groups that are not written yet to the next compaction."""
    _files_schema: TableSchema | None = None
    _files: dict[tuple[bytes, ...], tuple[Fragment, ...]] = field(default_factory=dict)
    """Fragments written for each group. The key is the encoded fragments of the group, with everything that the
    manifest records about them."""

    def add_rewritten(self, schema: TableSchema, rewritten: Sequence[RewrittenGroup]) -> None:
        """Register fragments that another job wrote for these groups, on a version with this schema."""
        self._files_schema, self._files = schema, {group_key(group.old): group.new for group in rewritten}

    def plan(self, base: Snapshot) -> Rewrite | None:
        """Rewrite the groups that have no files yet and return the operation; `None` if no group is left."""
        self.groups = tuple(self._current_groups(base))
        if not self.groups:
            return None
        compaction.check_remap(base, self.groups, self.request.remap)
        known = self._files if self._files_schema == base.manifest.schema else {}
        if self.runner is None:
            self.groups = tuple(group for group in self.groups if group_key(group) in known)
            if not self.groups:
                return None
        else:
            unwritten = [group for group in self.groups if group_key(group) not in known]
            partitions = tuple(group_key(group) for group in unwritten)
            results = run_over_partitions(base, partitions, _RewriteGroupTask(self.request.target_rows), self.runner)
            known |= {
                partition: tuple(map(Fragment.decode, results.get(number, ())))
                for number, partition in enumerate(partitions)
            }
        self._files_schema, self._files = base.manifest.schema, known
        groups = [RewrittenGroup(group, self._files[group_key(group)]) for group in self.groups]
        return compaction.build_rewrite(
            base, groups, self.request.remap, self.properties, SYSTEM_RUNTIME, remap_bytes_max=REMAP_BYTES_MAX
        )

    def _current_groups(self, base: Snapshot) -> Iterator[Group]:
        """Yield the groups that are unchanged in this version, and new groups of the remaining fragments of the
        others."""
        current = {fragment.id: fragment for fragment in base.manifest.fragments}
        coverage = current_coverage(base)
        for group in self.groups:
            remaining = tuple(current[fragment.id] for fragment in group if fragment.id in current)
            if group_key(remaining) == group_key(group) and not mixes_coverage(group, coverage):
                yield group
            else:
                yield from self.request.plan_groups(base, remaining)


def group_key(group: Group) -> tuple[bytes, ...]:
    """Return the encoded fragments of the group. A group with an equal key is unchanged."""
    return tuple(fragment.encode() for fragment in group)


def _total(committed: Sequence[Committed]) -> Committed:
    """Return the last commit, with the counters of all of them."""
    return replace(
        committed[-1],
        rows_added=sum(commit.rows_added for commit in committed),
        rows_removed=sum(commit.rows_removed for commit in committed),
        files=sum(commit.files for commit in committed),
        bytes=sum(commit.bytes for commit in committed),
        attempts=sum(commit.attempts for commit in committed),
        rebased_over=tuple(version for commit in committed for version in commit.rebased_over),
        uncovered=tuple(sorted({name for commit in committed for name in commit.uncovered})),
    )


@dataclass(frozen=True, slots=True)
class _RewriteGroupTask:
    """Rewrites the fragments of one group."""

    target_rows: int

    def __call__(self, snapshot: Snapshot, _number: int) -> Iterator[bytes]:
        for fragment in write_group(snapshot, tuple(snapshot.manifest.fragments), self.target_rows, SYSTEM_RUNTIME):
            yield fragment.encode()
