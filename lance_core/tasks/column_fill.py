"""New columns by many workers: a file for each fragment, and one version in which the columns are there as a whole.

    filled fragment     a fragment as its worker saw it, with the file written for it as the last of its files

What a filled fragment is worth later, when others have changed the table, is decided here: its file covers every
physical row, so deletions do no harm to it, and no more do other columns; rows that moved, and values that were read
and have changed since, do. Which values belong into a file is not decided here. Start with `still_matches`.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

import numpy as np
import pyarrow as pa

from lance_core.datafiles.column_layout import columns_of
from lance_core.datafiles.fragment_reader import load_deletions
from lance_core.dml.new_columns import merged, new_fields
from lance_core.errors import Corrupt, NotFound
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.operations import Merge
from lance_core.format.schema import TableSchema
from lance_core.scan.system_columns import CREATED_AT, LAST_UPDATED_AT, ROW_ID
from lance_core.versions.snapshot import Snapshot

_NOTED_IN_FRAGMENTS = frozenset((ROW_ID, CREATED_AT, LAST_UPDATED_AT))


def plan_merge(base: Snapshot, columns: pa.Schema, filled: Mapping[int, Fragment]) -> Merge:
    """The version that has the columns. What is not filled is null."""
    new = new_fields(base, columns)
    version = base.manifest.storage_version
    fragments = [
        _with_file_of(filled[each.id], each, new, version) if each.id in filled else each
        for each in base.manifest.fragments
    ]
    return merged(base, fragments, new.fields)


def without_filled_file(filled: Fragment) -> Fragment:
    """As its worker saw it."""
    return filled.with_files(filled.files[:-1])


def still_matches(base: Snapshot, then: Fragment, now: Fragment, read: Collection[str]) -> bool:
    """Whether a fragment whose columns were read as it was `then` gives the same values `now`, for the same rows."""
    if then.physical_rows != now.physical_rows:
        return False
    before, after = _paths(then.files), _paths(now.files)
    if not set(before.values()) & set(after.values()):  # the same number, in a table that was made anew
        return False
    wanted = [node.id for field in base.manifest.schema.fields if field.name in read for node in field.walk()]
    if any(before.get(field_id) != after.get(field_id) for field_id in wanted):
        return False
    if _NOTED_IN_FRAGMENTS & set(read) and _lineage(then) != _lineage(now):
        return False
    return _none_came_back(base, then, now)


def _with_file_of(filled: Fragment, now: Fragment, new: TableSchema, version: StorageVersion) -> Fragment:
    """Its file says which column is which by numbers, and others may have been given those meanwhile."""
    file, stored = filled.files[-1], columns_of(new, version)
    assert file.size is not None
    same = DataFile.of(
        path=file.path,
        field_ids=stored.field_ids,
        column_indices=stored.column_indices,
        version=version,
        size=file.size,
    )
    return now.with_files([*now.files, same])


def _paths(files: Iterable[DataFile]) -> dict[int, str]:
    return {field_id: file.qualified_path for file in files for field_id in file.field_ids if field_id >= 0}


def _lineage(fragment: Fragment) -> tuple[bytes | None, ...]:
    return fragment.row_ids, fragment.created_at, fragment.last_updated_at


def _none_came_back(base: Snapshot, then: Fragment, now: Fragment) -> bool:
    """Rows that were deleted then have no values; a restored version could have them live again."""
    if then.deletion_file is None or then.message.deletion_file == now.message.deletion_file:
        return True
    if now.deletion_file is None:
        return False
    with suppress(NotFound, Corrupt):
        before, after = load_deletions(base.location.store, then), load_deletions(base.location.store, now)
        if before is None or after is None:
            return before is None
        return bool(np.isin(before.offsets, after.offsets, assume_unique=True).all())
    return False
