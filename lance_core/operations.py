"""The operations that `Table.commit` takes, and the parts they are made of; `Clone`, which only histories show; and the
appends that one transaction may hold. And what one of them wrote, in files.
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
from lance_core.transactions.change_stats import deletion_files_written, files_written
from lance_core.transactions.fold import Part, parts_of

__all__ = [
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
    "deletion_files_written",
    "files_written",
    "parts_of",
]
