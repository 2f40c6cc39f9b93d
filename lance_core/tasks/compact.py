"""A compaction whose groups are written by workers, and committed a batch at a time.

The plan is made once, on the driver. What a batch has committed stays, whatever becomes of the next one. When somebody
was in the way of a batch, groups whose fragments are as they were keep their files; of the others what is left is
planned and written once more. Fragments that come meanwhile are left for the next compaction.
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
from lance_core.table.committed import Committed
from lance_core.table.table import committed_of
from lance_core.tasks.driver import TableRef, WriteOptions, over_partitions, run_change
from lance_core.tasks.partitioning import Runner
from lance_core.versions.snapshot import Snapshot

GROUPS_PER_COMMIT = 64
REMAP_BYTES_MAX = 256 * 1024**2
"""A segment is written anew by the driver, for each batch. A larger one only where that is asked for."""
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
    """The intent is that of the last batch: a run that was cut short is gone on with by repeating it."""
    shape = CompactionRequest(target_rows, materialize_deletions, None if remap is None else Remap.of(remap))
    batch = validation.check_integer(batch, "batch", at_least=1, too_small="a commit has at least one group")
    validation.check_intent_and_retries(intent=options.intent, retries=options.retries)
    base = table.newest()
    base.manifest.check_writable()
    groups = shape.plan_groups(base)
    batches = [groups[start : start + batch] for start in range(0, len(groups), batch)] or [()]
    if len(batches) > 1:
        begun = write_protocol.begin(base.location, base, verb=VERB, intent=options.intent, runtime=SYSTEM_RUNTIME)
        if isinstance(begun, write_protocol.WriteResult):
            return committed_of(begun)
        compaction.check_remap(base, groups, shape.remap)  # of all, before the first of them is committed
    done: list[Committed] = []
    for number, some in enumerate(batches):
        its = options if number == len(batches) - 1 else replace(options, intent=None)
        plan = GroupBatch(some, shape, validation.check_properties(options.properties), runner).plan
        done.append(run_change(table, its, VERB, plan, operation=Rewrite.name))
    return _together(done)


def groups_to_compact(
    table: TableRef, *, target_rows: int = ROWS_PER_FILE_MAX, materialize_deletions: bool = True
) -> tuple[Group, ...]:
    """The groups of fragments that `compact` would write anew, by the manifest alone."""
    return CompactionRequest(target_rows, materialize_deletions, None).plan_groups(table.newest())


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """What was asked for."""

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
    """None: what is not written yet is left for the next compaction."""
    _under: TableSchema | None = None
    _files: dict[tuple[bytes, ...], tuple[Fragment, ...]] = field(default_factory=dict)
    """What was written for a group, by its fragments with all that the manifest said of them."""

    def add_rewritten(self, under: TableSchema, done: Sequence[RewrittenGroup]) -> None:
        """What others have written for these groups, of a version of this schema."""
        self._under, self._files = under, {group_key(each.old): each.new for each in done}

    def plan(self, base: Snapshot) -> Rewrite | None:
        self.groups = tuple(self._still(base))
        if not self.groups:
            return None
        compaction.check_remap(base, self.groups, self.request.remap)
        known = self._files if self._under == base.manifest.schema else {}
        if self.runner is None:
            self.groups = tuple(group for group in self.groups if group_key(group) in known)
            if not self.groups:
                return None
        else:
            todo = [group for group in self.groups if group_key(group) not in known]
            parts = tuple(group_key(group) for group in todo)
            results = over_partitions(base, parts, _Group(self.request.target_rows), self.runner)
            known |= {part: tuple(map(Fragment.decode, results.get(number, ()))) for number, part in enumerate(parts)}
        self._under, self._files = base.manifest.schema, known
        groups = [RewrittenGroup(group, self._files[group_key(group)]) for group in self.groups]
        return compaction.build_rewrite(
            base, groups, self.request.remap, self.properties, SYSTEM_RUNTIME, remap_bytes_max=REMAP_BYTES_MAX
        )

    def _still(self, base: Snapshot) -> Iterator[Group]:
        """The groups as they are in this version; of those that it has changed, what is worth it."""
        alive = {fragment.id: fragment for fragment in base.manifest.fragments}
        covered = current_coverage(base)
        for group in self.groups:
            now = tuple(alive[fragment.id] for fragment in group if fragment.id in alive)
            if group_key(now) == group_key(group) and not mixes_coverage(group, covered):
                yield group
            else:
                yield from self.request.plan_groups(base, now)


def group_key(group: Group) -> tuple[bytes, ...]:
    return tuple(fragment.encode() for fragment in group)


def _together(done: Sequence[Committed]) -> Committed:
    return replace(
        done[-1],
        rows_added=sum(each.rows_added for each in done),
        rows_removed=sum(each.rows_removed for each in done),
        files=sum(each.files for each in done),
        bytes=sum(each.bytes for each in done),
        attempts=sum(each.attempts for each in done),
        rebased_over=tuple(version for each in done for version in each.rebased_over),
        uncovered=tuple(sorted({name for each in done for name in each.uncovered})),
    )


@dataclass(frozen=True, slots=True)
class _Group:
    target_rows: int

    def __call__(self, part: Snapshot, _number: int) -> Iterator[bytes]:
        for fragment in write_group(part, tuple(part.manifest.fragments), self.target_rows, SYSTEM_RUNTIME):
            yield fragment.encode()
