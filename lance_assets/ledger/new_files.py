"""New files: counts the files that a version added, from its transaction and, if necessary, the previous version.

This module reads manifests only. Start with `new_files_of`.
"""

from dataclasses import dataclass

from lance_core import LanceError, Table
from lance_core.operations import (
    Append,
    CreateIndex,
    DataReplacement,
    Delete,
    Merge,
    Overwrite,
    Project,
    ReserveFragments,
    Restore,
    Rewrite,
    Transaction,
    Update,
    UpdateBases,
    UpdateConfig,
    deletion_files_written,
    files_written,
)

_NO_DATA_FILES = (CreateIndex, Project, ReserveFragments, Restore, UpdateBases, UpdateConfig)
"""Operations that add no data files."""
_NAMES_NEW_FILES = (Append, DataReplacement, Overwrite)
"""Operations that list new files only."""
_NAMES_ALL_FILES = (Delete, Merge, Rewrite, Update)
"""Operations that list existing files together with new ones."""


@dataclass(frozen=True, slots=True)
class NewFiles:
    """Number and size of the data files that a version added, and number of its deletion files; `None` if unknown."""

    files: int | None = None
    bytes: int | None = None
    deletion_files: int | None = None


def new_files_of(table: Table, transaction: Transaction | None) -> NewFiles:
    """Return the files that the version of `table` added with `transaction`.

    Some operations also list existing files. The previous version is then read to subtract them.
    """
    operation = transaction.operation if transaction else None
    if isinstance(operation, _NO_DATA_FILES):
        return NewFiles(0, 0)
    if not isinstance(operation, (*_NAMES_NEW_FILES, *_NAMES_ALL_FILES)):
        return NewFiles()
    previous_table = _previous_version(table) if isinstance(operation, _NAMES_ALL_FILES) else None
    previous = previous_table.manifest if previous_table else None
    deletion_files = deletion_files_written(operation, previous) if isinstance(operation, Delete | Update) else None
    if previous is None and not isinstance(operation, _NAMES_NEW_FILES):
        return NewFiles(deletion_files=deletion_files)
    sizes = [file.size for file in files_written(operation, previous)]
    return NewFiles(len(sizes), None if None in sizes else sum(filter(None, sizes)), deletion_files)


def _previous_version(table: Table) -> Table | None:
    """Return the table at the previous version; `None` if it cannot be read.

    An unreadable version must not turn a successful commit into a failure, since only a statistic needs it.
    """
    try:
        return table.at(table.version - 1) if table.version > 1 else None
    except LanceError:
        return None
