"""Write assets: a declared write becomes a Dagster asset, from the intent to the recorded version.

    intent -> execute(ctx, make_options) of the write -> commit -> record on the ledger -> result

Each write class defines what it changes: `row_writes.py`, `dml_writes.py`, `column_writes.py`,
`computed_writes.py`, `index_writes.py`, `view_writes.py` and `remote_write.py`, which launches a process.
`write_step.py` commits, records and retries for all of them, so that no write can omit the properties that tie a
version to its run. `write.py` is the base class, `write_list.py` the registry of writes by name. Start with
`write.py`.
"""

from lance_assets.writes.column_writes import SparkMapColumns, SparkMergeColumns
from lance_assets.writes.computed_writes import SparkComputedColumn
from lance_assets.writes.context import TableReference, WriteContext
from lance_assets.writes.decorator import lance_write
from lance_assets.writes.dml_writes import SparkCompact, SparkDelete, SparkUpdate
from lance_assets.writes.index_writes import SparkBuildIndex, SparkOptimizeIndices
from lance_assets.writes.remote_write import RemoteWrite
from lance_assets.writes.row_writes import SparkAppend, SparkIngest, SparkOverwrite, SparkUpsert
from lance_assets.writes.view_writes import SparkRefreshView
from lance_assets.writes.write import SparkWriteOptions, Write
from lance_assets.writes.write_list import WRITES, Writes
from lance_assets.writes.write_step import write_asset, write_key

__all__ = [
    "WRITES",
    "RemoteWrite",
    "SparkAppend",
    "SparkBuildIndex",
    "SparkCompact",
    "SparkComputedColumn",
    "SparkDelete",
    "SparkIngest",
    "SparkMapColumns",
    "SparkMergeColumns",
    "SparkOptimizeIndices",
    "SparkOverwrite",
    "SparkRefreshView",
    "SparkUpdate",
    "SparkUpsert",
    "SparkWriteOptions",
    "TableReference",
    "Write",
    "WriteContext",
    "Writes",
    "lance_write",
    "write_asset",
    "write_key",
]
