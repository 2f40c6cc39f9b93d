"""Which files a version brought: by what its transaction says and, where that names files that stay as well, by the
version before it. Nothing is read but manifests.
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
"""No data files, that is."""
_NAMES_NEW_FILES = (Append, DataReplacement, Overwrite)
_NAMES_ALL_FILES = (Delete, Merge, Rewrite, Update)
"""They name the files that stay as well as those that they bring."""


@dataclass(frozen=True, slots=True)
class NewFiles:
    """The files that a version brought; None where nobody can tell."""

    files: int | None = None
    bytes: int | None = None
    deletion_files: int | None = None


def new_files_of(table: Table, transaction: Transaction | None) -> NewFiles:
    """Some operations name the files that stay, too, so that it takes the version before to tell."""
    operation = transaction.operation if transaction else None
    if isinstance(operation, _NO_DATA_FILES):
        return NewFiles(0, 0)
    if not isinstance(operation, (*_NAMES_NEW_FILES, *_NAMES_ALL_FILES)):
        return NewFiles()
    at_before = _previous_version(table) if isinstance(operation, _NAMES_ALL_FILES) else None
    before = at_before.manifest if at_before else None
    sets = deletion_files_written(operation, before) if isinstance(operation, Delete | Update) else None
    if before is None and not isinstance(operation, _NAMES_NEW_FILES):
        return NewFiles(deletion_files=sets)
    sizes = [file.size for file in files_written(operation, before)]
    return NewFiles(len(sizes), None if None in sizes else sum(filter(None, sizes)), sets)


def _previous_version(table: Table) -> Table | None:
    """None where nobody can read it: what has landed is not called a failure for a count."""
    try:
        return table.at(table.version - 1) if table.version > 1 else None
    except LanceError:
        return None
