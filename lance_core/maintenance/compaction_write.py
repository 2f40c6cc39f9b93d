"""Compaction write: writes the live rows of a group of fragments as full fragments.

Row ids and the created and last-updated versions of every row are preserved if the table has stable row ids. The new
fragments have no ids yet. Start with `write_group`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.coalesce_batches import coalesce
from lance_core.datafiles.conform import Conversion
from lance_core.datafiles.fragment_reader import load_deletions
from lance_core.datafiles.fragment_writer import FileLimits, write_fragments
from lance_core.format.fragment import Fragment
from lance_core.format.row_lineage import RowIdSequence, RowVersions
from lance_core.maintenance.compaction_plan import Group, rows_per_fragment
from lance_core.runtime import Runtime
from lance_core.scan.executor import scan_fragments
from lance_core.versions.snapshot import Snapshot

Deleted = tuple[npt.NDArray[np.uint32] | None, ...]
"""For each fragment of a group, the offsets of its deleted rows; `None` if it has no deletion file."""


def write_group(base: Snapshot, group: Group, target_rows: int, runtime: Runtime) -> tuple[Fragment, ...]:
    """Return the new fragments; none if the group has no live row."""
    location, manifest = base.location, base.manifest
    deleted = load_deleted_rows(base, group)
    deleted_count = sum(len(offsets) for offsets in deleted if offsets is not None)
    live_count = sum(fragment.physical_rows for fragment in group) - deleted_count
    rows = _GroupRows(base, group)
    new: tuple[Fragment, ...] = ()
    for count in rows_per_fragment(live_count, target_rows):
        new += write_fragments(
            location.codec,
            coalesce(rows.take(count)),
            schema=manifest.schema,
            version=manifest.storage_version,
            limits=FileLimits(rows_max=count),
            conversion=Conversion.EXACT,
            new_uuid=runtime.new_uuid,
            what=location.uri,
        )
    assert sum(fragment.physical_rows for fragment in new) == live_count, "every live row, and no other"
    if not manifest.has_stable_row_ids:
        return new
    return tuple(_with_lineage(new, group, deleted, path=f"{location.uri}/{manifest.path}"))


def load_deleted_rows(base: Snapshot, group: Group) -> Deleted:
    """Return the offsets of the deleted rows of each fragment; `None` if it has no deletion file."""
    vectors = [load_deletions(base.location.store, fragment) for fragment in group]
    return tuple(None if vector is None else vector.offsets for vector in vectors)


class _GroupRows:
    """Live rows of a group in order, read in portions."""

    def __init__(self, base: Snapshot, group: Group) -> None:
        columns = base.manifest.schema.arrow.names
        self._batches = scan_fragments(base.location, base.manifest, group, columns)
        self._rest: pa.RecordBatch | None = None

    def take(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield the next `count` rows."""
        while count:
            batch = next(self._batches, None) if self._rest is None else self._rest
            if batch is None:
                return
            self._rest = batch.slice(count) if batch.num_rows > count else None
            batch = batch.slice(0, count)
            count -= batch.num_rows
            yield batch


def _with_lineage(new: Sequence[Fragment], group: Group, deleted: Deleted, *, path: str) -> Iterator[Fragment]:
    """Yield the new fragments with the row ids and row versions of their rows. Rows without recorded versions get
    explicit ones."""
    ids, created, updated = [], [], []
    for fragment, deleted_offsets in zip(group, deleted, strict=True):
        rows = fragment.physical_rows
        offsets = np.empty(0, dtype=np.uint32) if deleted_offsets is None else deleted_offsets
        assert fragment.row_ids is not None, "the table has stable row ids"
        ids.append(RowIdSequence.decode(fragment.row_ids, rows=rows, path=path).delete(offsets))
        created.append(
            RowVersions.decode(fragment.created_at, rows=rows, path=path, field="created_at").delete(offsets)
        )
        versions = RowVersions.decode(fragment.last_updated_at, rows=rows, path=path, field="last_updated_at")
        updated.append(versions.delete(offsets))
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
