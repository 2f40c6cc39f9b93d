"""Deletion files: write the complete set of deleted rows of a fragment under a new name, and return the fragment with
it.

Shared by every verb that deletes or moves rows.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from lance_core.datafiles.fragment_reader import load_deletions
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.row_sets import bitmap_of
from lance_core.runtime import Runtime
from lance_core.storage.concurrency import map_requests
from lance_core.versions.location import Location


def add_deletions(
    location: Location, fragment: Fragment, offsets: npt.NDArray[np.int64], *, read_version: Version, runtime: Runtime
) -> Fragment | None:
    """Delete more rows of a fragment. `None` if no row is left; no file is written then."""
    added = DeletionVector.of(offsets)
    before = load_deletions(location.store, fragment)
    deleted = added if before is None else before.union(added)
    if len(deleted) == fragment.physical_rows:
        return None
    old_file = fragment.deletion_file
    as_bitmap = deleted.should_use_bitmap(was_bitmap=None if old_file is None else old_file.is_bitmap)
    number = runtime.new_uuid().int >> 64
    data = deleted.encode(as_bitmap=as_bitmap)
    after = fragment.with_deletion_file(
        is_bitmap=as_bitmap,
        read_version=read_version,
        number=number,
        rows=len(deleted),
        checksum=FileChecksum.of(data),
    )
    assert after.deletion_file is not None
    location.store.put(after.deletion_file.path, data)
    return after


def add_all_deletions(
    location: Location,
    changes: Iterable[tuple[Fragment, npt.NDArray[np.int64]]],
    *,
    read_version: Version,
    runtime: Runtime,
) -> Iterator[tuple[Fragment, npt.NDArray[np.int64], Fragment | None]]:
    """Delete more rows of several fragments, and yield each change with the result of `add_deletions`. Files of an
    object store are written concurrently."""

    def add(
        change: tuple[Fragment, npt.NDArray[np.int64]],
    ) -> tuple[Fragment, npt.NDArray[np.int64], Fragment | None]:
        fragment, offsets = change
        return fragment, offsets, add_deletions(location, fragment, offsets, read_version=read_version, runtime=runtime)

    return map_requests(location.store, add, changes, size_of=lambda change: change[1].nbytes)


def encode_offsets(offsets: npt.NDArray[np.int64]) -> bytes:
    """Encode the offsets of rows as an operation stores the rows that it affects."""
    return bytes(bitmap_of(offsets.astype(np.uint32)).serialize())
