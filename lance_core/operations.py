"""Public operations: the arguments of `Table.commit` and the values they are made of.

`Clone` cannot be committed; it only appears in histories. `Part` and `parts_of` describe the appends that a group
commit combined into one transaction. `files_written` and `deletion_files_written` return the files that a transaction
added.
"""

from lance_core.format.base_path import BasePath
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import (
    Append,
    Clone,
    CreateIndex,
    DataReplacement,
    Delete,
    MapUpdate,
    Merge,
    Operation,
    Other,
    Overwrite,
    Progress,
    Project,
    ReserveFragments,
    Restore,
    Rewrite,
    RewriteGroup,
    Update,
    UpdateBases,
    UpdateConfig,
    UpdateMemWalState,
    UpdateMode,
)
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from lance_core.transactions.change_summary import action_of, deletion_files_written, files_written
from lance_core.transactions.fold import PARTS_PROPERTY, Part, parts_of

__all__ = [
    "PARTS_PROPERTY",
    "Append",
    "BasePath",
    "Clone",
    "CreateIndex",
    "DataFile",
    "DataReplacement",
    "Delete",
    "Fragment",
    "IndexMetadata",
    "MapUpdate",
    "Merge",
    "Operation",
    "Other",
    "Overwrite",
    "Part",
    "Progress",
    "Project",
    "ReserveFragments",
    "Restore",
    "Rewrite",
    "RewriteGroup",
    "StorageVersion",
    "TableSchema",
    "Transaction",
    "Update",
    "UpdateBases",
    "UpdateConfig",
    "UpdateMemWalState",
    "UpdateMode",
    "action_of",
    "deletion_files_written",
    "files_written",
    "parts_of",
]
