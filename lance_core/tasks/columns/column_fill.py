"""Column fill: many workers write new columns, one file per fragment, and one version adds them as whole columns.

    filled fragment     a fragment as its worker saw it, with the file written for it as the last of its files

This module decides whether a filled fragment is still valid when others have changed the table. Its file covers every
physical row, so deletions and other columns do not invalidate it. Moved rows do, and so do changes of the values that
were read. The module does not decide which values belong in a file. Start with `still_matches`.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

import numpy as np
import pyarrow as pa

from lance_core.datafiles.column_layout import columns_of
from lance_core.datafiles.fragment_reader import load_deletions
from lance_core.dml.new_columns import define_new_fields, merge_operation
from lance_core.errors import Corrupt, NotFound
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.operations import Merge
from lance_core.format.schema import TableSchema
from lance_core.scan.system_columns import CREATED_AT, LAST_UPDATED_AT, ROW_ID
from lance_core.versions.snapshot import Snapshot

_FRAGMENT_METADATA_COLUMNS = frozenset((ROW_ID, CREATED_AT, LAST_UPDATED_AT))


def plan_merge(base: Snapshot, columns: pa.Schema, filled: Mapping[int, Fragment]) -> Merge:
    """Return the operation that adds the columns. Fragments that are not filled have nulls."""
    new = define_new_fields(base, columns)
    version = base.manifest.storage_version
    fragments = [
        _with_filled_file(filled[fragment.id], fragment, new, version) if fragment.id in filled else fragment
        for fragment in base.manifest.fragments
    ]
    return merge_operation(base, fragments, new.fields)


def without_filled_file(filled: Fragment) -> Fragment:
    """Return the fragment as its worker saw it."""
    return filled.with_files(filled.files[:-1])


def still_matches(base: Snapshot, then: Fragment, now: Fragment, read: Collection[str]) -> bool:
    """Return whether the columns `read` of a fragment have the same values for the same rows `now` as they had
    `then`."""
    if then.physical_rows != now.physical_rows:
        return False
    before, after = _paths_by_field(then.files), _paths_by_field(now.files)
    if not set(before.values()) & set(after.values()):  # the same id in a recreated table
        return False
    field_ids = [node.id for field in base.manifest.schema.fields if field.name in read for node in field.walk()]
    if any(before.get(field_id) != after.get(field_id) for field_id in field_ids):
        return False
    if _FRAGMENT_METADATA_COLUMNS & set(read) and _row_metadata(then) != _row_metadata(now):
        return False
    return _no_row_restored(base, then, now)


def _with_filled_file(filled: Fragment, now: Fragment, new: TableSchema, version: StorageVersion) -> Fragment:
    """Return the fragment `now` with the filled file. A file names its columns by field ids, which other commits may
    have taken meanwhile, so it gets the ids of this version."""
    file, stored = filled.files[-1], columns_of(new, version)
    assert file.size is not None
    renumbered = DataFile.of(
        path=file.path,
        field_ids=stored.field_ids,
        column_indices=stored.column_indices,
        version=version,
        size=file.size,
        xxh3=file.checksum.xxh3 if file.checksum else None,
    )
    return now.with_files([*now.files, renumbered])


def _paths_by_field(files: Iterable[DataFile]) -> dict[int, str]:
    return {field_id: file.qualified_path for file in files for field_id in file.field_ids if field_id >= 0}


def _row_metadata(fragment: Fragment) -> tuple[bytes | None, ...]:
    return fragment.row_ids, fragment.created_at, fragment.last_updated_at


def _no_row_restored(base: Snapshot, then: Fragment, now: Fragment) -> bool:
    """Return whether every row that was deleted `then` still is. Such a row has no value, and a restore can bring it
    back."""
    if then.deletion_file is None or then.has_same_deletions(now):
        return True
    if now.deletion_file is None:
        return False
    with suppress(NotFound, Corrupt):
        before, after = load_deletions(base.location.store, then), load_deletions(base.location.store, now)
        if before is None or after is None:
            return before is None
        return bool(np.isin(before.offsets, after.offsets, assume_unique=True).all())
    return False
