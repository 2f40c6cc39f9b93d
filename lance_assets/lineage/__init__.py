"""Lineage: finds the run and the source versions of a version, and the versions of a run.

    model.py              origin of one version, as values
    graph.py              ancestry of a version as a graph and as a tree; pure
    ancestry_reader.py    origins, read from tables; start here
    runs.py               versions of a run, read from tables
    dagster_events.py     versions of a run, read from a Dagster instance
    render.py             origins as text, JSON and Markdown; pure

Only `dagster_events.py` imports Dagster.
"""

from lance_assets.lineage.ancestry_reader import ancestry_of
from lance_assets.lineage.graph import Ancestry, LineKind, TreeLine
from lance_assets.lineage.model import AncestryKind, InputVersion, Origin, Unknown, VersionName

__all__ = [
    "Ancestry",
    "AncestryKind",
    "InputVersion",
    "LineKind",
    "Origin",
    "TreeLine",
    "Unknown",
    "VersionName",
    "ancestry_of",
]
