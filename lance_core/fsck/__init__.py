"""Looking a table over: what in it contradicts the format or itself, how bad that is, and what to do about it.

    report.py      what comes out
    manifests.py   what a version says, looked at by itself and beside the one before; pure
    files.py       what it names: are the files there, do they say what the version says of them
    examine.py     the round through a table; start here

Nothing is written, and nothing is repaired: which repair is right, a person decides.
"""

from lance_core.fsck.examine import Extent, examine
from lance_core.fsck.report import Finding, Report, Severity

__all__ = ["Extent", "Finding", "Report", "Severity", "examine"]
