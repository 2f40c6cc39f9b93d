"""Write assets: what a user declares, and what becomes of it, from intention to recorded version.

    intent -> the write's own change(ctx, how) -> committed -> recorded on the ledger -> result

A write says what changes: `row_writes.py`, `dml_writes.py`, `column_writes.py` and `index_writes.py` have them.
Committing, recording and retrying are in `write_step.py`, so that no write can forget the properties that tie a version
to its run. `write.py` is what all share, `write_list.py` which there are by name.
"""

from lance_assets.writes.column_writes import SparkMapColumns, SparkMergeColumns
from lance_assets.writes.context import TableReference, WriteContext
from lance_assets.writes.decorator import lance_write
from lance_assets.writes.dml_writes import SparkCompact, SparkDelete, SparkUpdate
from lance_assets.writes.index_writes import SparkBuildIndex, SparkOptimizeIndices
from lance_assets.writes.row_writes import SparkAppend, SparkIngest, SparkOverwrite, SparkUpsert
from lance_assets.writes.write import SparkWriteOptions, Write
from lance_assets.writes.write_list import WRITES, Writes
from lance_assets.writes.write_step import write_asset, write_key

__all__ = [
    "WRITES",
    "SparkAppend",
    "SparkBuildIndex",
    "SparkCompact",
    "SparkDelete",
    "SparkIngest",
    "SparkMapColumns",
    "SparkMergeColumns",
    "SparkOptimizeIndices",
    "SparkOverwrite",
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
