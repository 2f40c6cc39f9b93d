"""Lance tables in Dagster, written by Spark: every committed version is a partition you can see.

    from lance_assets import SparkAppend, SparkSessionResource, lance_table

Names are loaded when they are used: Spark's workers import `lance_assets.spark` and must not pay for Dagster.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lance_assets.assets import LanceTable, lance_discovery, lance_table
    from lance_assets.io_manager import LanceIOManager
    from lance_assets.resources import SparkSessionResource
    from lance_assets.storage import LanceResource
    from lance_assets.writes import (
        SparkAppend,
        SparkCompact,
        SparkDelete,
        SparkIngest,
        SparkMapColumns,
        SparkMergeColumns,
        SparkOverwrite,
        SparkUpdate,
        SparkUpsert,
        WriteContext,
    )

__all__ = [
    "LanceIOManager",
    "LanceResource",
    "LanceTable",
    "SparkAppend",
    "SparkCompact",
    "SparkDelete",
    "SparkIngest",
    "SparkMapColumns",
    "SparkMergeColumns",
    "SparkOverwrite",
    "SparkSessionResource",
    "SparkUpdate",
    "SparkUpsert",
    "WriteContext",
    "lance_discovery",
    "lance_table",
]

_HOMES = {
    "LanceIOManager": "lance_assets.io_manager",
    "LanceResource": "lance_assets.storage",
    "LanceTable": "lance_assets.assets",
    "SparkSessionResource": "lance_assets.resources",
    "SparkAppend": "lance_assets.writes",
    "SparkCompact": "lance_assets.writes",
    "SparkDelete": "lance_assets.writes",
    "SparkIngest": "lance_assets.writes",
    "SparkMapColumns": "lance_assets.writes",
    "SparkMergeColumns": "lance_assets.writes",
    "SparkOverwrite": "lance_assets.writes",
    "SparkUpdate": "lance_assets.writes",
    "SparkUpsert": "lance_assets.writes",
    "WriteContext": "lance_assets.writes",
    "lance_discovery": "lance_assets.assets",
    "lance_table": "lance_assets.assets",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"lance_assets has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
