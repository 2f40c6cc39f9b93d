"""Checks of versions: what each may look at, and what it finds.

check.py        what a check is; start here
schema.py  figures.py  indices.py  origin.py      those that a manifest answers
contents.py     those that read rows; duplicates.py: which keys are there twice
custom.py       a project's own, as a query or a function
judging.py      asking them about a version, and putting down what they found
asset.py        asking them by hand, from Dagster's pages
"""

from lance_assets.checks.check import Check, Finding, Seen, Severity
from lance_assets.checks.custom_checks import FunctionCheck, SqlCheck, lance_check
from lance_assets.checks.index_checks import IndexCoverage
from lance_assets.checks.manifest_checks import Fresh, RowChange, RowCount, SmallFiles
from lance_assets.checks.row_checks import KeysUnique, Nulls
from lance_assets.checks.schema_checks import SchemaStable
from lance_assets.checks.writer_checks import ForeignWriters

__all__ = [
    "Check",
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
