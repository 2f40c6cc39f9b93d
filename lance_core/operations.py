"""The operations that `Table.commit` takes, and the parts they are made of."""

from lance_core.format.base_path import BasePath
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import (
    Append,
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

__all__ = [
    "Append",
    "BasePath",
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
]
