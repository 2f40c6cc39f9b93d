"""Writing small fragments, and those with many deleted rows, anew as full ones.

    plan the groups -> write their live rows -> reserve ids (a commit) -> the Rewrite that names them

Row ids and both versions of every row go with it. An index that stores where rows are does not: what becomes of those
is the caller's choice (`Remap`), or what is best for each of them (`compaction_indices.py`). Start with `compact`, or
with its steps where others write the groups (`compaction_write.py`); the commit of what it returns is
`commit/write_protocol.py`'s.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from lance_core import validation
from lance_core.commit.change import Change, commit_with_retry
from lance_core.commit.loop import ATTEMPTS
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
from lance_core.runtime import Runtime
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """A group, and the fragments that hold its live rows now."""

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
    """None where the table is in shape. When it returns, the files are written and the ids reserved, by a version that
    has the `properties` too.

    Without `remap`, an index covers on where it can: by stable row ids, or written anew; one of a kind that nobody here
    can write, by a note on where its rows went if it outlives that. The others cover the new fragments no more.
    """
    groups = plan_compaction(base, target_rows=target_rows, materialize_deletions=materialize_deletions)
    if not groups:
        return None
    check_remap(base, groups, remap)
    done = [RewrittenGroup(group, write_group(base, group, target_rows, runtime)) for group in groups]
    return build_rewrite(base, done, remap, properties, runtime)


def plan_compaction(
    base: Snapshot, *, target_rows: int, materialize_deletions: bool, among: Sequence[Fragment] | None = None
) -> tuple[Group, ...]:
    """What is worth being written anew, of the whole version or `among` some of its fragments."""
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
    """Before a byte is written: an index that would have to be written anew, and cannot be."""
    choose_actions(base, _moving(groups), remap)


def build_rewrite(
    base: Snapshot,
    groups: Sequence[RewrittenGroup],
    remap: Remap | None,
    properties: Mapping[str, str],
    runtime: Runtime,
    *,
    remap_bytes_max: int | None = None,
) -> Rewrite:
    """Of groups that are written. Their ids are reserved when it returns, and indices are written anew, those of at
    most so many bytes where that was not asked for."""
    what_becomes = choose_actions(base, _moving([each.old for each in groups]), remap, bytes_max=remap_bytes_max)
    reserved = _reserve(base, sum(len(each.new) for each in groups), properties, runtime)
    numbered = list(_numbered(groups, reserved))
    reuse, entry = what_becomes.coverage.reuse, None
    moved = [FragmentRewrite(each.old, load_deleted_rows(base, each.old), each.new) for each in numbered]
    anew = rebuild_segments(base, what_becomes, moved, runtime)
    if what_becomes.records_moves:
        entry = _noted(base, reuse or FragmentReuse.empty(), moved, reserved.version, runtime)
    lasting = remap is None
    return Rewrite(
        tuple(RewriteGroup(each.old, each.new) for each in numbered),
        rewritten_indices=anew,
        fragment_reuse=entry,
        earlier_reuse=reuse,
        uncovers_fragile=lasting,
        uncovered=what_becomes.uncovered_names(lasting=lasting),
        reserved_in=reserved.version,
    )


def _moving(groups: Sequence[Group]) -> BitMap:
    return BitMap(fragment.id for group in groups for fragment in group)


def _check_ids(manifest: Manifest) -> None:
    """New ids are given out above all others; where the count of them is damaged, they would be given out twice."""
    manifest.check_ids()
    highest = max((fragment.id for fragment in manifest.message.fragments), default=-1)
    if highest > manifest.max_fragment_id:
        raise unassigned_id_error(highest, manifest.max_fragment_id, path=manifest.path)


def _reserve(base: Snapshot, count: int, properties: Mapping[str, str], runtime: Runtime) -> Snapshot:
    """A commit of its own, so that nobody else gives these ids out; the rewrite is planned on the version before it."""
    if not count:
        return base
    change = Change("compact", lambda _base: ReserveFragments(count), can_replan=False)
    reserved = commit_with_retry(
        change, base.location, base, intent=None, properties=properties, retries=ATTEMPTS, runtime=runtime
    )
    return reserved.snapshot


def _numbered(groups: Sequence[RewrittenGroup], reserved: Snapshot) -> Iterator[RewrittenGroup]:
    number = reserved.manifest.max_fragment_id + 1 - sum(len(each.new) for each in groups)
    for each in groups:
        new = []
        for fragment in each.new:
            new.append(fragment.with_id(number))
            number += 1
        yield RewrittenGroup(each.old, tuple(new))


def _noted(
    base: Snapshot, before: FragmentReuse, groups: Sequence[FragmentRewrite], version: Version, runtime: Runtime
) -> IndexMetadata:
    reuse = before.with_compaction(version, groups)
    entry = reuse.as_index(runtime.new_uuid(), dataset_version=version, created_ms=runtime.now_ns() // 1_000_000)
    content = content_of(entry)
    if isinstance(content, ExternalContent):
        base.location.store.put(f"{naming.INDICES}/{entry.uuid}/{content.name}", reuse.encode())
    return entry
