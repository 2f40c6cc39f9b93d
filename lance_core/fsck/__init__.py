"""Looking a table over: what in it contradicts the format or itself, how bad that is, and what to do about it.

    report.py      what comes out
    manifests.py   what a version says, looked at by itself and beside the one before; pure
    hash_chain.py       are versions still what later ones were made upon, bit by bit
    files.py       what a version names: are the files there, do they say what the version says of them; blobs.py
    indices.py     do indices hold what the newest version says of them
    damaged_head.py       a newest version that is damaged    references.py  tags and branches
    manifest_store_entries.py     what a manifest store knows         auxiliary_records.py     intents, transaction
    files, the hint
    examine.py     the round through a table; start here
    command.py     the same from a shell, and the repairs that are chosen there

To look is not to write. A finding may bring its repair along (`Mend`), which is done only if a person chooses it.
"""

from lance_core.fsck.examine import Extent, examine
from lance_core.fsck.report import Finding, Report, Severity

__all__ = ["Extent", "Finding", "Report", "Severity", "examine"]
