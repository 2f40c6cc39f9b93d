"""Deleted rows of a fragment, put on disk: the complete set in a file of a fresh name, and the fragment that names it.

Shared by every verb that removes rows from where they are.
"""

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from lance_core.datafiles.fragment_reader import load_deletions
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.runtime import Runtime
from lance_core.versions.location import Location


def add_deletions(
    location: Location, fragment: Fragment, offsets: npt.NDArray[np.int64], *, read_version: Version, runtime: Runtime
) -> Fragment | None:
    """The fragment without these live rows too; None where none is left, and then no file is written."""
    gone = DeletionVector.of(offsets)
    before = load_deletions(location.store, fragment)
    deleted = gone if before is None else before.union(gone)
    if len(deleted) == fragment.physical_rows:
        return None
    old = fragment.deletion_file
    as_bitmap = deleted.should_use_bitmap(was_bitmap=None if old is None else old.is_bitmap)
    number = runtime.new_uuid().int >> 64
    after = fragment.with_deletion_file(
        is_bitmap=as_bitmap, read_version=read_version, number=number, rows=len(deleted)
    )
    assert after.deletion_file is not None
    location.store.put(after.deletion_file.path, deleted.encode(as_bitmap=as_bitmap))
    return after


def encode_offsets(offsets: npt.NDArray[np.int64]) -> bytes:
    """Rows of a fragment as an operation names those that it affects."""
    return bytes(BitMap(offsets.astype(np.uint32)).serialize())
