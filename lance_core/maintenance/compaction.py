"""Compaction: rewrites small fragments, and those with many deleted rows, into full ones.

    plan the groups -> write their live rows -> reserve fragment ids (a commit) -> the Rewrite that names the fragments

Row ids and the created and last-updated versions of every row are preserved. An index that stores row addresses does
not follow the rows by itself: the caller chooses an action (`Remap`), or `compaction_indices.py` chooses the best one
for each segment. Start with `compact`, or with its steps if workers write the groups (`compaction_write.py`).
`commit/write_protocol.py` commits the operation that is returned.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from lance_core import validation
from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import Change, commit_with_retry
from lance_core.format import naming
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import ExternalContent, FragmentReuse, FragmentRewrite, content_of
from lance_core.format.ids import Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.manifest import Manifest, unassigned_id_error
from lance_core.format.operations import ReserveFragments, Rewrite, RewriteGroup
from lance_core.index.coverage import current_coverage
from lance_core.maintenance.compaction_indices import Remap, choose_actions, rebuild_segments
from lance_core.maintenance.compaction_plan import Group, plan_groups
from lance_core.maintenance.compaction_write import load_deleted_rows, write_group
from lance_core.progress import track
from lance_core.runtime import Runtime
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """Group of fragments, and the new fragments that contain its live rows."""

    old: Group
    new: tuple[Fragment, ...]


def compact(
    base: Snapshot,
    *,
    target_rows: int,
    materialize_deletions: bool,
    remap: Remap | None,
    properties: Mapping[str, str],
    runtime: Runtime,
) -> Rewrite | None:
    """Write a compaction and return its operation, or `None` if no group is worth a rewrite. When it returns, the
    files are written and the fragment ids reserved, by a version that has the `properties` too.

    Without `remap`, an index keeps its coverage if possible: it finds its rows by stable row ids, or it is rewritten.
    If it cannot be rewritten here, the compaction records the moves, provided that the index stays correct when another
    library rewrites it. The other indices no longer cover the new fragments.
    """
    groups = plan_compaction(base, target_rows=target_rows, materialize_deletions=materialize_deletions)
    if not groups:
        return None
    check_remap(base, groups, remap)
    rewritten = [
        RewrittenGroup(group, write_group(base, group, target_rows, runtime))
        for group in track(groups, "rewrite fragments", "groups")
    ]
    return build_rewrite(base, rewritten, remap, properties, runtime)


def plan_compaction(
    base: Snapshot, *, target_rows: int, materialize_deletions: bool, among: Sequence[Fragment] | None = None
) -> tuple[Group, ...]:
    """Return the groups that are worth a rewrite, of the whole version or of the fragments in `among`."""
    target_rows = validation.check_integer(
        target_rows, "target_rows", at_least=1, too_small="a fragment has at least one row"
    )
    materialize_deletions = validation.check_flag(materialize_deletions, "materialize_deletions")
    _check_ids(base.manifest)
    return plan_groups(
        base.manifest.fragments if among is None else among,
        current_coverage(base),
        target_rows=target_rows,
        materialize_deletions=materialize_deletions,
    )


def check_remap(base: Snapshot, groups: Sequence[Group], remap: Remap | None) -> None:
    """Raise, before a byte is written, if an index would have to be rewritten and cannot be."""
    choose_actions(base, _fragment_ids(groups), remap)


def build_rewrite(
    base: Snapshot,
    groups: Sequence[RewrittenGroup],
    remap: Remap | None,
    properties: Mapping[str, str],
    runtime: Runtime,
    *,
    remap_bytes_max: int | None = None,
) -> Rewrite:
    """Return the operation of groups whose files are written. When it returns, their fragment ids are reserved and
    indices are rewritten. Without `remap`, only index segments of at most `remap_bytes_max` bytes are rewritten."""
    actions = choose_actions(base, _fragment_ids([group.old for group in groups]), remap, bytes_max=remap_bytes_max)
    reserved = _reserve_ids(base, sum(len(group.new) for group in groups), properties, runtime)
    numbered = list(_assign_ids(groups, reserved))
    reuse, entry = actions.coverage.reuse, None
    moves = [FragmentRewrite(group.old, load_deleted_rows(base, group.old), group.new) for group in numbered]
    rebuilt = rebuild_segments(base, actions, moves, runtime)
    if actions.records_moves:
        entry = _record_moves(base, reuse or FragmentReuse.empty(), moves, reserved.version, runtime)
    must_survive_remap = remap is None
    return Rewrite(
        tuple(RewriteGroup(group.old, group.new) for group in numbered),
        rewritten_indices=rebuilt,
        fragment_reuse=entry,
        earlier_reuse=reuse,
        uncovers_fragile=must_survive_remap,
        uncovered=actions.uncovered_names(must_survive_remap=must_survive_remap),
        reserved_in=reserved.version,
    )


def _fragment_ids(groups: Sequence[Group]) -> BitMap:
    return BitMap(fragment.id for group in groups for fragment in group)


def _check_ids(manifest: Manifest) -> None:
    """Raise if a fragment id exceeds the recorded maximum: new ids follow the maximum and would be assigned twice."""
    manifest.check_ids()
    highest = max((fragment.id for fragment in manifest.message.fragments), default=-1)
    if highest > manifest.max_fragment_id:
        raise unassigned_id_error(highest, manifest.max_fragment_id, path=manifest.path)


def _reserve_ids(base: Snapshot, count: int, properties: Mapping[str, str], runtime: Runtime) -> Snapshot:
    """Commit a reservation of fragment ids, so that no other transaction assigns them. The rewrite is planned on the
    version before it."""
    if not count:
        return base
    change = Change("compact", lambda _base: ReserveFragments(count), can_replan=False)
    reserved = commit_with_retry(
        change, base.location, base, intent=None, properties=properties, retries=ATTEMPTS, runtime=runtime
    )
    return reserved.snapshot


def _assign_ids(groups: Sequence[RewrittenGroup], reserved: Snapshot) -> Iterator[RewrittenGroup]:
    """Yield the groups with reserved ids on their new fragments."""
    next_id = reserved.manifest.max_fragment_id + 1 - sum(len(group.new) for group in groups)
    for group in groups:
        new = []
        for fragment in group.new:
            new.append(fragment.with_id(next_id))
            next_id += 1
        yield RewrittenGroup(group.old, tuple(new))


def _record_moves(
    base: Snapshot, previous: FragmentReuse, moves: Sequence[FragmentRewrite], version: Version, runtime: Runtime
) -> IndexMetadata:
    """Return the fragment reuse index with this compaction added. A large one is written to a file of its own."""
    reuse = previous.with_compaction(version, moves)
    entry = reuse.as_index(runtime.new_uuid(), dataset_version=version, created_ms=runtime.now_ns() // 1_000_000)
    content = content_of(entry)
    if isinstance(content, ExternalContent):
        base.location.store.put(f"{naming.INDICES}/{entry.uuid}/{content.name}", reuse.encode())
    return entry
