"""Writing small fragments, and those with many deleted rows, anew as full ones.

    plan the groups -> write their live rows -> reserve ids (a commit) -> the Rewrite that names them

Row ids and both versions of every row go with it. An index that stores where rows are does not: what becomes of those
is the caller's choice (`Remap`), or what is best for each of them. Start with `compact`, or with its steps where others
write the groups (`compaction_write.py`); the commit of what it returns is `writes.py`'s.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from lance_core import given, writes
from lance_core.commit import ATTEMPTS
from lance_core.errors import Unsupported
from lance_core.format import naming
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import ExternalContent, FragmentReuse, Reused, content_of
from lance_core.format.ids import Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.manifest import Manifest, not_given_out
from lance_core.format.operations import ReserveFragments, Rewrite, RewriteGroup
from lance_core.index.coverage import covered_today, led_on, load_reuse
from lance_core.maintenance.compaction_plan import Group, plan_groups
from lance_core.maintenance.compaction_write import deleted_rows, written
from lance_core.ports import Ports
from lance_core.snapshot import Snapshot


class Remap(enum.Enum):
    """What becomes of an index whose rows get other addresses."""

    NOW = "now"
    """It covers the new fragments at once; refused where that would take rewriting the index."""
    REUSE = "reuse"
    """It stays as it is, and the table notes where the rows went. A kind whose readers do not follow such a note covers
    the new fragments no more."""
    NONE = "none"
    """It stays as it is and covers the new fragments no more: queries scan them."""

    @classmethod
    def of(cls, text: str) -> "Remap":
        return given.choice(cls, text, "remap")


@dataclass(frozen=True, slots=True)
class Written:
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
    ports: Ports,
) -> Rewrite | None:
    """None where the table is in shape. When it returns, the files are written and the ids reserved, by a version that
    has the `properties` too.

    Without `remap`, an index covers on where nothing can make it answer wrongly: by stable row ids, or by a note on
    where its rows went if it outlives that. The others cover the new fragments no more.
    """
    groups = planned(base, target_rows=target_rows, materialize_deletions=materialize_deletions)
    if not groups:
        return None
    check(base, groups, remap)
    done = [Written(group, written(base, group, target_rows, ports)) for group in groups]
    return rewrite(base, done, remap, properties, ports)


def planned(
    base: Snapshot, *, target_rows: int, materialize_deletions: bool, among: Sequence[Fragment] | None = None
) -> tuple[Group, ...]:
    """What is worth being written anew, of the whole version or `among` some of its fragments."""
    target_rows = given.whole_number(
        target_rows, "target_rows", at_least=1, too_small="a fragment has at least one row"
    )
    materialize_deletions = given.flag(materialize_deletions, "materialize_deletions")
    _check_ids(base.manifest)
    return plan_groups(
        base.manifest.fragments if among is None else among,
        covered_today(base),
        target_rows=target_rows,
        materialize_deletions=materialize_deletions,
    )


def check(base: Snapshot, groups: Sequence[Group], remap: Remap | None) -> None:
    """Before a byte is written: an index that would have to be written anew, and cannot be."""
    indices = base.manifest.indices
    _check_indices(base, indices, load_reuse(base), groups, remap)


def rewrite(
    base: Snapshot, groups: Sequence[Written], remap: Remap | None, properties: Mapping[str, str], ports: Ports
) -> Rewrite:
    """Of groups that are written. Their ids are reserved when it returns."""
    manifest = base.manifest
    indices = manifest.indices
    reuse = load_reuse(base)
    old = [each.old for each in groups]
    reserved = _reserve(base, sum(len(each.new) for each in groups), properties, ports)
    numbered = list(_numbered(groups, reserved))
    entry = None
    if not manifest.has_stable_row_ids and _gains_by_notes(indices, reuse, old, remap):
        entry = _noted(base, reuse or FragmentReuse.empty(), numbered, reserved.version, ports)
    lasting = remap is None
    return Rewrite(
        tuple(RewriteGroup(each.old, each.new) for each in numbered),
        fragment_reuse=entry,
        uncovers_fragile=lasting,
        uncovered=_uncovered(base, reuse, old, noted=entry is not None, lasting=lasting),
        reserved_in=reserved.version,
    )


def _uncovered(
    base: Snapshot, reuse: FragmentReuse | None, groups: Sequence[Group], *, noted: bool, lasting: bool
) -> tuple[str, ...]:
    """The names of those that do not go on over what moves. With a new note, they leave what earlier ones led to."""
    moving, stable = _moving(groups), base.manifest.has_stable_row_ids
    alive = BitMap(fragment.id for fragment in base.manifest.fragments)
    names = set()
    for index in base.manifest.indices:
        covered = led_on(index, reuse)
        follows = noted and (index.outlives_notes if lasting else index.follows_notes)
        if covered is None or (not index.holds_addresses if stable else follows):
            continue
        left = covered & moving if not noted else (covered & alive) - ((index.covers or BitMap()) - moving)
        if left:
            names.add(index.name)
    return tuple(sorted(names))


def _gains_by_notes(
    indices: Sequence[IndexMetadata], reuse: FragmentReuse | None, groups: Sequence[Group], remap: Remap | None
) -> bool:
    if remap is Remap.REUSE:
        return any(not index.is_system for index in indices)
    if remap is not None:
        return False
    moving = _moving(groups)
    return any(index.outlives_notes and (led_on(index, reuse) or BitMap()) & moving for index in indices)


def _moving(groups: Sequence[Group]) -> BitMap:
    return BitMap(fragment.id for group in groups for fragment in group)


def _check_ids(manifest: Manifest) -> None:
    """New ids are given out above all others; where the count of them is damaged, they would be given out twice."""
    manifest.check_ids()
    highest = max((fragment.id for fragment in manifest.message.fragments), default=-1)
    if highest > manifest.max_fragment_id:
        raise not_given_out(highest, manifest.max_fragment_id, path=manifest.path)


def _check_indices(
    base: Snapshot,
    indices: Sequence[IndexMetadata],
    reuse: FragmentReuse | None,
    groups: Sequence[Group],
    remap: Remap | None,
) -> None:
    stable = base.manifest.has_stable_row_ids
    if remap in {None, Remap.NONE} or (remap is Remap.REUSE and not stable):
        return
    moving = _moving(groups)
    for index in indices:
        follows = index.is_system or index.is_of_zones or (stable and not index.holds_addresses)
        covered = led_on(index, reuse)
        if follows or (covered is not None and not covered & moving):
            continue
        choices = "remap='none' to leave what is compacted uncovered until the index is built again"
        if not stable:
            choices = f"remap='reuse' to note where its rows went, which keeps it in use, or {choices}"
        raise Unsupported(
            f"{base.location.uri}: index {index.name!r} ({index.kind}) stores the addresses of rows that a compaction "
            f"would move, and this version cannot rewrite it. Compact without "
            f"remap to keep what can be kept, or with {choices}"
        )


def _reserve(base: Snapshot, count: int, properties: Mapping[str, str], ports: Ports) -> Snapshot:
    """A commit of its own, so that nobody else gives these ids out; the rewrite is planned on the version before it."""
    if not count:
        return base
    begun = writes.begin(base.location, base, verb="compact", intent=None, ports=ports)
    assert isinstance(begun, writes.Begun)
    return writes.finish(begun, ReserveFragments(count), properties=properties, attempts=ATTEMPTS).snapshot


def _numbered(groups: Sequence[Written], reserved: Snapshot) -> Iterator[Written]:
    number = reserved.manifest.max_fragment_id + 1 - sum(len(each.new) for each in groups)
    for each in groups:
        new = []
        for fragment in each.new:
            new.append(fragment.with_id(number))
            number += 1
        yield Written(each.old, tuple(new))


def _noted(
    base: Snapshot, before: FragmentReuse, groups: Sequence[Written], version: Version, ports: Ports
) -> IndexMetadata:
    reuse = before.followed_by(version, [Reused(each.old, deleted_rows(base, each.old), each.new) for each in groups])
    entry = reuse.as_index(ports.new_uuid(), dataset_version=version, created_ms=ports.now_ns() // 1_000_000)
    content = content_of(entry)
    if isinstance(content, ExternalContent):
        base.location.store.put(f"{naming.INDICES}/{entry.uuid}/{content.name}", reuse.encode())
    return entry
