"""Lance table format in Python: versioned tables with idempotent commits, scans and maintenance.

    from lance_core import Table

The names in `__all__` are the public API; everything else may move. Start at `Table`.
"""

from lance_core.coordination.idempotency import FOR_GOOD, PERMANENT_PREFIX
from lance_core.errors import (
    AlreadyExists,
    AuditFailed,
    CommitUndecided,
    ConflictError,
    Corrupt,
    CorruptHead,
    IncompatibleConflict,
    IndexIgnored,
    InvalidInput,
    LanceError,
    MissingDependency,
    MissingPiece,
    NotFound,
    RetryableConflict,
    SchemaMismatch,
    StorageError,
    Unsupported,
)
from lance_core.index.statistics import IndexStatistics, SegmentStatistics
from lance_core.maintenance.cleanup import CleanupReport
from lance_core.maintenance.index_survey import IndexSurvey
from lance_core.maintenance.survey import Survey
from lance_core.storage.lru_cache import CacheStatistics, cache_statistics, resize_cache
from lance_core.storage.request_limiter import RequestStatistics, request_statistics
from lance_core.table.base import Audit, Committed
from lance_core.table.table import Table
from lance_core.versions.history import VersionInfo
from lance_core.versions.table_listing import FoundTables, find_tables
from lance_core.versions.version_watch import VersionListing, VersionWatch

__all__ = [
    "FOR_GOOD",
    "PERMANENT_PREFIX",
    "AlreadyExists",
    "Audit",
    "AuditFailed",
    "CacheStatistics",
    "CleanupReport",
    "CommitUndecided",
    "Committed",
    "ConflictError",
    "Corrupt",
    "CorruptHead",
    "FoundTables",
    "IncompatibleConflict",
    "IndexIgnored",
    "IndexStatistics",
    "IndexSurvey",
    "InvalidInput",
    "LanceError",
    "MissingDependency",
    "MissingPiece",
    "NotFound",
    "RequestStatistics",
    "RetryableConflict",
    "SchemaMismatch",
    "SegmentStatistics",
    "StorageError",
    "Survey",
    "Table",
    "Unsupported",
    "VersionInfo",
    "VersionListing",
    "VersionWatch",
    "cache_statistics",
    "find_tables",
    "request_statistics",
    "resize_cache",
]
