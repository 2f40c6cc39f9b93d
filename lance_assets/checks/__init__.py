"""Checks of versions: what each may look at, and what it finds.

check.py        what a check is; start here
schema_checks.py  manifest_checks.py  index_checks.py  writer_checks.py      those that a manifest answers
row_checks.py     those that read rows; duplicates.py: which keys are there twice
custom_checks.py       a project's own, as a query or a function
evaluate.py      asking them about a version, and putting down what they found
asset_checks.py        asking them by hand, from Dagster's pages
"""

from lance_assets.checks.check import Check, CheckContext, CheckResult, Severity
from lance_assets.checks.custom_checks import FunctionCheck, SqlCheck, lance_check
from lance_assets.checks.index_checks import IndexCoverage
from lance_assets.checks.manifest_checks import Fresh, RowChange, RowCount, SmallFiles
from lance_assets.checks.row_checks import KeysUnique, Nulls
from lance_assets.checks.schema_checks import SchemaStable
from lance_assets.checks.writer_checks import ForeignWriters

Seen = CheckContext
"""The name of `CheckContext` before version 0.2.0. Deprecated; removed in 0.3.0."""
Finding = CheckResult
"""The name of `CheckResult` before version 0.2.0. Deprecated; removed in 0.3.0."""

__all__ = [
    "Check",
    "CheckContext",
    "CheckResult",
    "Finding",
    "ForeignWriters",
    "Fresh",
    "FunctionCheck",
    "IndexCoverage",
    "KeysUnique",
    "Nulls",
    "RowChange",
    "RowCount",
    "SchemaStable",
    "Seen",
    "Severity",
    "SmallFiles",
    "SqlCheck",
    "lance_check",
]
