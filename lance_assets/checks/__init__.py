"""Checks: rules that are evaluated on each version of a table.

check.py            base class, context and result; start here
schema_checks.py    checks that read metadata only, and so do manifest_checks.py, index_checks.py, writer_checks.py
row_checks.py       checks that read rows, with duplicates.py; recall_check.py (recall.py) and search_check.py measure
                    searches, and computed_check.py the share of fresh rows in a computed column
custom_checks.py    checks of a project: a query or a function
evaluate.py         evaluation of checks on a version, as values and as Dagster events
asset_checks.py     the checks as Dagster asset checks, launched by hand
"""

from lance_assets.checks.check import Check, CheckContext, CheckResult, Severity
from lance_assets.checks.computed_check import ColumnFresh
from lance_assets.checks.custom_checks import FunctionCheck, SqlCheck, lance_check
from lance_assets.checks.index_checks import IndexCoverage
from lance_assets.checks.manifest_checks import Fresh, RowChange, RowCount, SmallFiles
from lance_assets.checks.recall_check import RecallCheck
from lance_assets.checks.row_checks import KeysUnique, Nulls
from lance_assets.checks.schema_checks import SchemaStable
from lance_assets.checks.search_check import SearchCheck
from lance_assets.checks.writer_checks import ForeignWriters

Seen = CheckContext
"""The name of `CheckContext` before version 0.2.0. Deprecated; removed in 0.3.0."""
Finding = CheckResult
"""The name of `CheckResult` before version 0.2.0. Deprecated; removed in 0.3.0."""

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
    "Nulls",
    "RecallCheck",
    "RowChange",
    "RowCount",
    "SchemaStable",
    "SearchCheck",
    "Seen",
    "Severity",
    "SmallFiles",
    "SqlCheck",
    "lance_check",
]
