"""Writing small fragments, and those with many deleted rows, anew as full ones.

    plan the groups -> write their live rows -> reserve ids (a commit) -> the Rewrite that names them

Row ids and both versions of every row go with it. An index that stores where rows are does not: what becomes of those
is the caller's choice (`Remap`), or what is best for each of them. Start with `compact`; the commit of what it returns
is `writes.py`'s.
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core import given, writes
from lance_core.commit import ATTEMPTS
from lance_core.data.conform import Conversion
from lance_core.data.lineage import OFFSET_MAX
from lance_core.data.read import load_deletions
from lance_core.data.write import FileLimits, write_fragments
from lance_core.errors import Corrupt, Unsupported
from lance_core.format import naming
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import ExternalContent, FragmentReuse, Reused, content_of, reuse_entry
from lance_core.format.ids import Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.manifest import Manifest, not_given_out
from lance_core.format.operations import ReserveFragments, Rewrite, RewriteGroup
from lance_core.format.row_versions import RowVersions
from lance_core.format.rowids import RowIdSequence
from lance_core.limits import INDEX_DETAILS_BYTES
from lance_core.maintenance.compaction_plan import Group, plan_groups, row_counts
from lance_core.ports import Ports
from lance_core.scan.read import rows_of
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
class _Written:
    """A group, and the fragments that hold its live rows now."""

    old: Group
    deleted: tuple[npt.NDArray[np.uint32] | None, ...]
    new: tuple[Fragment, ...]


def compact(
    base: Snapshot, *, target_rows: int, materialize_deletions: bool, remap: Remap | None, ports: Ports
) -> Rewrite | None:
    """None where the table is in shape. When it returns, the files are written and the ids reserved.

    Without `remap`, an index covers on where nothing can make it answer wrongly: by stable row ids, or by a note on
    where its rows went if it outlives that. The others cover the new fragments no more.
    """
    target_rows = given.whole_number(
        target_rows, "target_rows", at_least=1, too_small="a fragment has at least one row"
    )
    materialize_deletions = given.flag(materialize_deletions, "materialize_deletions")
    manifest = base.manifest
    _check_ids(manifest)
    indices = manifest.indices
    reuse = _load_reuse(base, indices)
    groups = plan_groups(
        manifest.fragments,
        [covered for index in indices if (covered := _covered(index, reuse)) is not None],
        target_rows=target_rows,
        materialize_deletions=materialize_deletions,
    )
    if not groups:
        return None
    _check_indices(base, indices, reuse, groups, remap)
    written = [_write(base, group, target_rows, ports) for group in groups]
    reserved = _reserve(base, sum(len(each.new) for each in written), ports)
    written = list(_numbered(written, reserved))
    entry = None
    if not manifest.has_stable_row_ids and _gains_by_notes(indices, reuse, groups, remap):
        entry = _noted(base, reuse or FragmentReuse.empty(), written, reserved.version, ports)
    rewritten = tuple(RewriteGroup(each.old, each.new) for each in written)
    lasting = remap is None
    return Rewrite(
        rewritten,
        fragment_reuse=entry,
        uncovers_fragile=lasting,
        uncovered=_uncovered(base, reuse, groups, noted=entry is not None, lasting=lasting),
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
        covered = _covered(index, reuse)
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
    return any(index.outlives_notes and (_covered(index, reuse) or BitMap()) & moving for index in indices)


def _moving(groups: Sequence[Group]) -> BitMap:
    return BitMap(fragment.id for group in groups for fragment in group)


def _check_ids(manifest: Manifest) -> None:
    """New ids are given out above all others; where the count of them is damaged, they would be given out twice."""
    manifest.check_ids()
    highest = max((fragment.id for fragment in manifest.message.fragments), default=-1)
    if highest > manifest.max_fragment_id:
        raise not_given_out(highest, manifest.max_fragment_id, path=manifest.path)


def _load_reuse(base: Snapshot, indices: Sequence[IndexMetadata]) -> FragmentReuse | None:
    entry = reuse_entry(indices)
    if entry is None:
        return None
    content = content_of(entry)
    if isinstance(content, ExternalContent):
        if not naming.is_confined(content.name) or entry.message.HasField("base_id"):
            raise Unsupported(f"{base.location.uri}: index {entry.name} keeps its content outside this table")
        path = f"{naming.INDICES}/{entry.uuid}/{content.name}"
        INDEX_DETAILS_BYTES.check(content.size, path=path)
        if content.offset > OFFSET_MAX:
            raise Corrupt(f"has no byte {content.offset}", path=path, field="index_details")
        return FragmentReuse.decode(base.location.store.read(path, content.offset, content.size), path=path)
    return content


def _covered(index: IndexMetadata, reuse: FragmentReuse | None) -> BitMap | None:
    """In fragments of today; None for what covers none, or nobody knows which."""
    covered = index.covers
    if covered is None or index.is_system:
        return None
    return covered if reuse is None else reuse.now_covered(covered)


def _check_indices(
    base: Snapshot,
    indices: Sequence[IndexMetadata],
    reuse: FragmentReuse | None,
    groups: Sequence[Group],
    remap: Remap | None,
) -> None:
    """Before a byte is written: an index that would have to be written anew, and cannot be."""
    stable = base.manifest.has_stable_row_ids
    if remap in {None, Remap.NONE} or (remap is Remap.REUSE and not stable):
        return
    moving = _moving(groups)
    for index in indices:
        follows = index.is_system or index.is_of_zones or (stable and not index.holds_addresses)
        covered = _covered(index, reuse)
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


def _write(base: Snapshot, group: Group, target_rows: int, ports: Ports) -> _Written:
    location, manifest = base.location, base.manifest
    vectors = [load_deletions(location.store, fragment) for fragment in group]
    deleted = tuple(None if vector is None else vector.offsets for vector in vectors)
    alive = sum(fragment.physical_rows for fragment in group) - sum(len(vector or ()) for vector in vectors)
    rows = _Rows(base, group)
    new: tuple[Fragment, ...] = ()
    for count in row_counts(alive, target_rows):
        new += write_fragments(
            location.codec,
            rows.take(count),
            schema=manifest.schema,
            version=manifest.storage_version,
            limits=FileLimits(rows_max=count),
            conversion=Conversion.EXACT,
            new_uuid=ports.new_uuid,
            what=location.uri,
        )
    assert sum(fragment.physical_rows for fragment in new) == alive, "every live row, and no other"
    if manifest.has_stable_row_ids:
        new = tuple(_with_lineage(new, group, deleted, path=f"{location.uri}/{manifest.path}"))
    return _Written(group, deleted, new)


class _Rows:
    """The live rows of a group, one after another, a portion at a time."""

    def __init__(self, base: Snapshot, group: Group) -> None:
        columns = base.manifest.schema.arrow.names
        self._batches = (
            batch for fragment in group for batch in rows_of(base.location, base.manifest, fragment, columns)
        )
        self._left: pa.RecordBatch | None = None

    def take(self, count: int) -> Iterator[pa.RecordBatch]:
        while count:
            batch = next(self._batches, None) if self._left is None else self._left
            if batch is None:
                return
            self._left = batch.slice(count) if batch.num_rows > count else None
            batch = batch.slice(0, count)
            count -= batch.num_rows
            yield batch


def _with_lineage(
    new: Sequence[Fragment], group: Group, deleted: Sequence[npt.NDArray[np.uint32] | None], *, path: str
) -> Iterator[Fragment]:
    """What the rows were called, and since when, cut anew. Where no versions were noted, they are now."""
    ids, created, updated = [], [], []
    for fragment, gone in zip(group, deleted, strict=True):
        rows = fragment.physical_rows
        none = np.empty(0, dtype=np.uint32) if gone is None else gone
        assert fragment.row_ids is not None, "the table has stable row ids"
        ids.append(RowIdSequence.decode(fragment.row_ids, rows=rows, path=path).delete(none))
        created.append(RowVersions.decode(fragment.created_at, rows=rows, path=path, field="created_at").delete(none))
        versions = RowVersions.decode(fragment.last_updated_at, rows=rows, path=path, field="last_updated_at")
        updated.append(versions.delete(none))
    all_ids, all_created, all_updated = (
        RowIdSequence.concat(ids),
        RowVersions.concat(created),
        RowVersions.concat(updated),
    )
    start = 0
    for fragment in new:
        stop = start + fragment.physical_rows
        yield fragment.with_lineage(
            row_ids=all_ids.slice(start, stop).encode(),
            created_at=all_created.slice(start, stop).encode(),
            last_updated_at=all_updated.slice(start, stop).encode(),
        )
        start = stop


def _reserve(base: Snapshot, count: int, ports: Ports) -> Snapshot:
    """A commit of its own, so that nobody else gives these ids out; the rewrite is planned on the version before it."""
    if not count:
        return base
    begun = writes.begin(base.location, base, verb="compact", intent=None, ports=ports)
    assert isinstance(begun, writes.Begun)
    return writes.finish(begun, ReserveFragments(count), properties={}, attempts=ATTEMPTS).snapshot


def _numbered(written: Sequence[_Written], reserved: Snapshot) -> Iterator[_Written]:
    number = reserved.manifest.max_fragment_id + 1 - sum(len(each.new) for each in written)
    for each in written:
        new = []
        for fragment in each.new:
            new.append(fragment.with_id(number))
            number += 1
        yield _Written(each.old, each.deleted, tuple(new))


def _noted(
    base: Snapshot, before: FragmentReuse, written: Sequence[_Written], version: Version, ports: Ports
) -> IndexMetadata:
    reuse = before.followed_by(version, [Reused(each.old, each.deleted, each.new) for each in written])
    entry = reuse.as_index(ports.new_uuid(), dataset_version=version, created_ms=ports.now_ns() // 1_000_000)
    content = content_of(entry)
    if isinstance(content, ExternalContent):
        base.location.store.put(f"{naming.INDICES}/{entry.uuid}/{content.name}", reuse.encode())
    return entry
