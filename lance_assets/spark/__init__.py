"""Spark ops over Lance tables, and the sessions they run in: PySpark, no Dagster.

Every op that makes one version takes `audit=`: a function that is shown, on the driver, the table with the change and
the one it was made upon (None for a first version), before anybody else can see it. If it raises, nothing is published.
So does `upsert_batches`, of each batch of a stream; the format `lance` has options only, which are text.

Executors write and read files through `lance_core.tasks`; the driver plans, and commits once. Names are loaded when
they are used, so that importing this package costs nothing. Start with `writing.py`, or with `session.py`. (A module
must not be called like a function that is exported here: importing it would hide the function.)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lance_assets.spark.changing import compact, delete, update, upsert
    from lance_assets.spark.columns import map_columns, merge_columns
    from lance_assets.spark.indexing import build_index, optimize_indices
    from lance_assets.spark.ingesting import CsvFormat, ingest
    from lance_assets.spark.reading import aggregate, count_rows, read
    from lance_assets.spark.session import live_session, open_session
    from lance_assets.spark.settings import SparkSettings
    from lance_assets.spark.source import LanceDataSource
    from lance_assets.spark.streaming_sink import upsert_batches
    from lance_assets.spark.writing import append, overwrite

__all__ = [
    "CsvFormat",
    "LanceDataSource",
    "SparkSettings",
    "aggregate",
    "append",
    "build_index",
    "compact",
    "count_rows",
    "delete",
    "ingest",
    "live_session",
    "map_columns",
    "merge_columns",
    "open_session",
    "optimize_indices",
    "overwrite",
    "read",
    "update",
    "upsert",
    "upsert_batches",
]

_HOMES = {
    "CsvFormat": "lance_assets.spark.ingesting",
    "build_index": "lance_assets.spark.indexing",
    "optimize_indices": "lance_assets.spark.indexing",
    "ingest": "lance_assets.spark.ingesting",
    "SparkSettings": "lance_assets.spark.settings",
    "live_session": "lance_assets.spark.session",
    "open_session": "lance_assets.spark.session",
    "append": "lance_assets.spark.writing",
    "compact": "lance_assets.spark.changing",
    "delete": "lance_assets.spark.changing",
    "update": "lance_assets.spark.changing",
    "upsert": "lance_assets.spark.changing",
    "upsert_batches": "lance_assets.spark.streaming_sink",
    "map_columns": "lance_assets.spark.columns",
    "merge_columns": "lance_assets.spark.columns",
    "overwrite": "lance_assets.spark.writing",
    "read": "lance_assets.spark.reading",
    "aggregate": "lance_assets.spark.reading",
    "count_rows": "lance_assets.spark.reading",
    "LanceDataSource": "lance_assets.spark.source",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"lance_assets.spark has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
