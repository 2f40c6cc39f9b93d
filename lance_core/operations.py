"""The operations that `Table.commit` takes, and the parts they are made of."""

from lance_core.format.base_path import BasePath
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.operations import Append, Operation, Other, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction

__all__ = [
    "Append",
    "BasePath",
    "DataFile",
    "Fragment",
    "Operation",
    "Other",
    "Overwrite",
    "StorageVersion",
    "TableSchema",
    "Transaction",
]
