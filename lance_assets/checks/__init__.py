"""Checks of versions: what each may look at, and what it finds.

check.py        what a check is; start here
schema.py  figures.py  indices.py  origin.py      those that a manifest answers
contents.py     those that read rows; duplicates.py: which keys are there twice
custom.py       a project's own, as a query or a function
judging.py      asking them about a version, and putting down what they found
asset.py        asking them by hand, from Dagster's pages
"""

from lance_assets.checks.check import Check, Finding, Seen, Severity
from lance_assets.checks.contents import KeysUnique, Nulls
from lance_assets.checks.custom import FunctionCheck, SqlCheck, lance_check
from lance_assets.checks.figures import Fresh, RowChange, RowCount, SmallFiles
from lance_assets.checks.indices import IndexCoverage
from lance_assets.checks.origin import ForeignWriters
from lance_assets.checks.schema import SchemaStable

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
