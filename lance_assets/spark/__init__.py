"""Spark operations: read and write Lance tables in Spark jobs, and open the sessions for them, without Dagster.

Executors write and read files through `lance_core.tasks`; the driver plans and commits once. Every operation that
commits one version takes `audit=`: a function that the driver calls before the version is published, with the table
after the change and the table before it (`None` for a first version). If it raises, nothing is published.
`upsert_batches` takes one for each micro-batch of a stream. The format `lance` cannot, since its options are text.

Names are loaded on first use, so importing this package costs nothing. A module must not have the name of a function
that is exported here, since importing the module would hide the function. Start with `writer.py` or `session.py`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lance_assets.spark.change_reader import read_changes
    from lance_assets.spark.column_ops import map_columns, merge_columns
    from lance_assets.spark.computed_column_fill import compute_columns
    from lance_assets.spark.dml import compact, delete, update, upsert
    from lance_assets.spark.file_export import export
    from lance_assets.spark.file_ingest import CsvFormat, ingest
    from lance_assets.spark.index_ops import build_index, optimize_indices
    from lance_assets.spark.nearest_rows import explain_nearest_join, nearest_join
    from lance_assets.spark.reader import aggregate, count_rows, read
    from lance_assets.spark.session import live_session, open_session
    from lance_assets.spark.settings import SparkSettings
    from lance_assets.spark.source import LanceDataSource
    from lance_assets.spark.stream_upsert import upsert_batches
    from lance_assets.spark.text_rows import text_search
    from lance_assets.spark.verification import verify_files
    from lance_assets.spark.view_refresh import refresh_view
    from lance_assets.spark.writer import append, overwrite
    from lance_core.tasks.columns.computed_fill import ComputedColumn, device_addresses

__all__ = [
    "ComputedColumn",
    "CsvFormat",
    "LanceDataSource",
    "SparkSettings",
    "aggregate",
    "append",
    "build_index",
    "compact",
    "compute_columns",
    "count_rows",
    "delete",
    "device_addresses",
    "explain_nearest_join",
    "export",
    "ingest",
    "live_session",
    "map_columns",
    "merge_columns",
    "nearest_join",
    "open_session",
    "optimize_indices",
    "overwrite",
    "read",
    "read_changes",
    "refresh_view",
    "text_search",
    "update",
    "upsert",
    "upsert_batches",
    "verify_files",
]

_MODULES = {
    "CsvFormat": "lance_assets.spark.file_ingest",
    "build_index": "lance_assets.spark.index_ops",
    "optimize_indices": "lance_assets.spark.index_ops",
    "export": "lance_assets.spark.file_export",
    "ingest": "lance_assets.spark.file_ingest",
    "SparkSettings": "lance_assets.spark.settings",
    "live_session": "lance_assets.spark.session",
    "open_session": "lance_assets.spark.session",
    "append": "lance_assets.spark.writer",
    "compact": "lance_assets.spark.dml",
    "ComputedColumn": "lance_core.tasks.columns.computed_fill",
    "compute_columns": "lance_assets.spark.computed_column_fill",
    "delete": "lance_assets.spark.dml",
    "device_addresses": "lance_core.tasks.columns.computed_fill",
    "update": "lance_assets.spark.dml",
    "upsert": "lance_assets.spark.dml",
    "upsert_batches": "lance_assets.spark.stream_upsert",
    "map_columns": "lance_assets.spark.column_ops",
    "merge_columns": "lance_assets.spark.column_ops",
    "explain_nearest_join": "lance_assets.spark.nearest_rows",
    "nearest_join": "lance_assets.spark.nearest_rows",
    "text_search": "lance_assets.spark.text_rows",
    "overwrite": "lance_assets.spark.writer",
    "read": "lance_assets.spark.reader",
    "read_changes": "lance_assets.spark.change_reader",
    "refresh_view": "lance_assets.spark.view_refresh",
    "aggregate": "lance_assets.spark.reader",
    "count_rows": "lance_assets.spark.reader",
    "LanceDataSource": "lance_assets.spark.source",
    "verify_files": "lance_assets.spark.verification",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"lance_assets.spark has no {name!r}; it has {', '.join(__all__)}")
    if name == "LanceDataSource":
        from lance_assets.spark.release import DATA_SOURCE_RELEASE, require_release

        require_release(DATA_SOURCE_RELEASE, "the format lance", "call read and append of lance_assets.spark")
    return getattr(import_module(_MODULES[name]), name)
