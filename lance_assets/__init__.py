"""Lance tables in Dagster, written by Spark: every committed version is a visible partition of an asset.

    from lance_assets import SparkAppend, SparkSessionResource, lance_table

Names are loaded on first use: Spark's workers import `lance_assets.spark` and must not load Dagster.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lance_assets.checks import (
        Check,
        CheckContext,
        CheckResult,
        ColumnFresh,
        Finding,
        ForeignWriters,
        Fresh,
        FunctionCheck,
        IndexCoverage,
        KeysUnique,
        Nulls,
        RecallCheck,
        RowChange,
        RowCount,
        SchemaStable,
        SearchCheck,
        Seen,
        Severity,
        SmallFiles,
        SqlCheck,
        lance_check,
    )
    from lance_assets.components import LanceTableComponent, LanceViewComponent, SparkSessionComponent
    from lance_assets.definitions.lance_table import LanceTable, lance_discovery, lance_table
    from lance_assets.definitions.lance_view import lance_view
    from lance_assets.fleet.fleet import LanceFleet, lance_fleet
    from lance_assets.io_manager.manager import LanceIOManager
    from lance_assets.maintenance import Maintenance, Scrub
    from lance_assets.profiles import Profile
    from lance_assets.resources.lance import LanceResource
    from lance_assets.resources.spark import SparkSessionResource
    from lance_assets.writes import (
        RemoteWrite,
        SparkAppend,
        SparkBuildIndex,
        SparkCompact,
        SparkComputedColumn,
        SparkDelete,
        SparkIngest,
        SparkMapColumns,
        SparkMergeColumns,
        SparkOptimizeIndices,
        SparkOverwrite,
        SparkRefreshView,
        SparkUpdate,
        SparkUpsert,
        WriteContext,
        lance_write,
    )

__all__ = [
    "Check",
    "CheckContext",
    "CheckResult",
    "ColumnFresh",
    "Finding",
    "ForeignWriters",
    "Fresh",
    "FunctionCheck",
    "IndexCoverage",
    "KeysUnique",
    "LanceFleet",
    "LanceIOManager",
    "LanceResource",
    "LanceTable",
    "LanceTableComponent",
    "LanceViewComponent",
    "Maintenance",
    "Nulls",
    "Profile",
    "RecallCheck",
    "RemoteWrite",
    "RowChange",
    "RowCount",
    "SchemaStable",
    "Scrub",
    "SearchCheck",
    "Seen",
    "Severity",
    "SmallFiles",
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
    "SparkSessionComponent",
    "SparkSessionResource",
    "SparkUpdate",
    "SparkUpsert",
    "SqlCheck",
    "WriteContext",
    "lance_check",
    "lance_discovery",
    "lance_fleet",
    "lance_table",
    "lance_view",
    "lance_write",
]

_MODULES = {
    "Check": "lance_assets.checks",
    "CheckContext": "lance_assets.checks",
    "CheckResult": "lance_assets.checks",
    "ColumnFresh": "lance_assets.checks",
    "Finding": "lance_assets.checks",
    "ForeignWriters": "lance_assets.checks",
    "Fresh": "lance_assets.checks",
    "FunctionCheck": "lance_assets.checks",
    "IndexCoverage": "lance_assets.checks",
    "KeysUnique": "lance_assets.checks",
    "Nulls": "lance_assets.checks",
    "RecallCheck": "lance_assets.checks",
    "RowChange": "lance_assets.checks",
    "RowCount": "lance_assets.checks",
    "SchemaStable": "lance_assets.checks",
    "SearchCheck": "lance_assets.checks",
    "Seen": "lance_assets.checks",
    "Severity": "lance_assets.checks",
    "SmallFiles": "lance_assets.checks",
    "SqlCheck": "lance_assets.checks",
    "lance_check": "lance_assets.checks",
    "Profile": "lance_assets.profiles",
    "LanceIOManager": "lance_assets.io_manager.manager",
    "LanceResource": "lance_assets.resources.lance",
    "LanceTable": "lance_assets.definitions.lance_table",
    "LanceTableComponent": "lance_assets.components",
    "LanceViewComponent": "lance_assets.components",
    "SparkSessionComponent": "lance_assets.components",
    "SparkSessionResource": "lance_assets.resources.spark",
    "LanceFleet": "lance_assets.fleet.fleet",
    "Maintenance": "lance_assets.maintenance",
    "Scrub": "lance_assets.maintenance",
    "lance_fleet": "lance_assets.fleet.fleet",
    "RemoteWrite": "lance_assets.writes",
    "SparkAppend": "lance_assets.writes",
    "SparkBuildIndex": "lance_assets.writes",
    "SparkCompact": "lance_assets.writes",
    "SparkComputedColumn": "lance_assets.writes",
    "SparkDelete": "lance_assets.writes",
    "SparkIngest": "lance_assets.writes",
    "SparkMapColumns": "lance_assets.writes",
    "SparkMergeColumns": "lance_assets.writes",
    "SparkOptimizeIndices": "lance_assets.writes",
    "SparkOverwrite": "lance_assets.writes",
    "SparkRefreshView": "lance_assets.writes",
    "SparkUpdate": "lance_assets.writes",
    "SparkUpsert": "lance_assets.writes",
    "WriteContext": "lance_assets.writes",
    "lance_discovery": "lance_assets.definitions.lance_table",
    "lance_table": "lance_assets.definitions.lance_table",
    "lance_view": "lance_assets.definitions.lance_view",
    "lance_write": "lance_assets.writes",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"lance_assets has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
