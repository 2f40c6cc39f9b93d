"""Writing small fragments, and those with many deleted rows, anew as full ones.

    plan the groups -> write their live rows -> reserve ids (a commit) -> the Rewrite that names them

Row ids and both versions of every row go with it. An index that stores where rows are does not: what becomes of those
is the caller's choice (`Remap`). Start with `compact`; the commit of what it returns is `writes.py`'s.
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core import writes
from lance_core.commit import ATTEMPTS
from lance_core.data.conform import Conversion
from lance_core.data.read import load_deletions
from lance_core.data.write import FileLimits, write_fragments
from lance_core.errors import InvalidInput, Unsupported
from lance_core.format import naming
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import ExternalContent, FragmentReuse, Reused, content_of, reuse_entry
from lance_core.format.ids import Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import ReserveFragments, Rewrite, RewriteGroup
from lance_core.format.row_versions import RowVersions
from lance_core.format.rowids import RowIdSequence
from lance_core.maintenance.compaction_plan import Group, plan_groups, row_counts
from lance_core.ports import Ports
from lance_core.scan.read import rows_of
from lance_core.snapshot import Snapshot


class Remap(enum.Enum):
    """What becomes of an index whose rows get other addresses."""

    NOW = "now"
    """It covers the new fragments at once; refused where that would take rewriting the index."""
    REUSE = "reuse"
    """It stays as it is, and the table notes where the rows went."""
    NONE = "none"
    """It stays as it is and covers the new fragments no more: queries scan them."""

    @classmethod
    def of(cls, text: str) -> "Remap":
        if text not in {each.value for each in cls}:
            raise InvalidInput(f"remap={text!r}: it is one of {', '.join(repr(each.value) for each in cls)}")
        return cls(text)


@dataclass(frozen=True, slots=True)
class _Written:
    """A group, and the fragments that hold its live rows now."""

    old: Group
    deleted: tuple[npt.NDArray[np.uint32] | None, ...]
    new: tuple[Fragment, ...]


def compact(
    base: Snapshot, *, target_rows: int, materialize_deletions: bool, remap: Remap, ports: Ports
) -> Rewrite | None:
    """None where the table is in shape. When it returns, the files are written and the ids reserved."""
    if target_rows < 1:
        raise InvalidInput(f"target_rows={target_rows}: a fragment has at least one row")
    manifest = base.manifest
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
    if remap is Remap.REUSE and not manifest.has_stable_row_ids and _follow_addresses(indices):
        entry = _noted(base, reuse or FragmentReuse.empty(), written, reserved.version, ports)
    return Rewrite(tuple(RewriteGroup(each.old, each.new) for each in written), fragment_reuse=entry)


def _follow_addresses(indices: Sequence[IndexMetadata]) -> bool:
    return any(not index.is_system for index in indices)


def _load_reuse(base: Snapshot, indices: Sequence[IndexMetadata]) -> FragmentReuse | None:
    entry = reuse_entry(indices)
    if entry is None:
        return None
    content = content_of(entry)
    if isinstance(content, ExternalContent):
        if not naming.is_confined(content.name) or entry.message.HasField("base_id"):
            raise Unsupported(f"{base.location.uri}: index {entry.name} keeps its content outside this table")
        path = f"{naming.INDICES}/{entry.uuid}/{content.name}"
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
    remap: Remap,
) -> None:
    """Before a byte is written: an index that would have to be written anew, and cannot be."""
    stable = base.manifest.has_stable_row_ids
    if remap is Remap.NONE or (remap is Remap.REUSE and not stable):
        return
    moving = BitMap(fragment.id for group in groups for fragment in group)
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
            f"would move, and this version cannot rewrite it. Compact with {choices}"
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
