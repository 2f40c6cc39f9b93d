"""Where versions come from: from a version to what made it and to what that read, and from a run to its versions.

    model.py      what one version says of where it comes from
    graph.py      from that to the ancestry of a version, and to a tree; pure
    ancestry_reader.py    the facts of tables, read from them; start here
    runs.py       the versions of a run, by the tables
    dagster_events.py   the same, by what Dagster remembers

All but `dagster_events.py` do without Dagster.
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
