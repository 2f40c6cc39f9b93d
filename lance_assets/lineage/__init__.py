"""Where versions come from: from a version to what made it and to what that read, and from a run to its versions.

    facts.py      what one version says of where it comes from
    graph.py      from that to the ancestry of a version, and to a tree; pure
    reading.py    the facts of tables, read from them; start here
    runs.py       the versions of a run, by the tables
    instance.py   the same, by what Dagster remembers

All but `instance.py` do without Dagster.
"""

from lance_assets.lineage.ancestry_reader import ancestry_of
from lance_assets.lineage.graph import Ancestry, Line, Mark
from lance_assets.lineage.model import Bond, Origin, Source, Unknown, VersionName

__all__ = ["Ancestry", "Bond", "Line", "Mark", "Origin", "Source", "Unknown", "VersionName", "ancestry_of"]
