"""Write assets: what a user declares, and what becomes of it, from intention to recorded version.

    intent -> the write's own change(ctx, how) -> committed -> recorded on the ledger -> result

A write says what changes: `rows.py`, `changes.py`, `columns.py` and `indices.py` have them. Committing, recording and
retrying are in `asset.py`, so that no write can forget the properties that tie a version to its run. `write.py` is what
all share, `declared.py` which there are by name.
"""

from lance_assets.writes.asset import write_asset, write_key
from lance_assets.writes.changes import SparkCompact, SparkDelete, SparkUpdate
from lance_assets.writes.columns import SparkMapColumns, SparkMergeColumns
from lance_assets.writes.context import TableReference, WriteContext
from lance_assets.writes.declared import WRITES, Writes
from lance_assets.writes.decorator import lance_write
from lance_assets.writes.indices import SparkBuildIndex, SparkOptimizeIndices
from lance_assets.writes.rows import SparkAppend, SparkIngest, SparkOverwrite, SparkUpsert
from lance_assets.writes.write import How, Write

__all__ = [
    "WRITES",
    "How",
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
    "TableReference",
    "Write",
    "WriteContext",
    "Writes",
    "lance_write",
    "write_asset",
    "write_key",
]
