"""Consistency check (fsck): finds contradictions in a table, and says how severe they are and what to do about them.

    examine.py                  the examination of a table, which is imported on first use; start here
    report.py                   findings, repairs and the report
    manifests.py                one manifest, and the one before it; pure
    hash_chain.py               manifests against the hashes that later versions recorded
    files.py, blobs.py          the files that a version references, and their row counts and sizes
    contents.py                 the bytes of files against the checksums that commits recorded
    data_repair.py              copies that replace damaged files
    indices.py                  the contents of indices against the newest version
    damaged_head.py             a newest version that is damaged
    references.py               tags and branches
    manifest_store_entries.py   the entries of a manifest store
    auxiliary_records.py        intents, leases, transaction files, the version hint
    command.py                  the command line, and the repairs that are chosen there

An examination writes nothing. A finding may have an automatic repair (`Repair`), which runs only if a person chooses
it.
"""

from lance_core.fsck.data_check import DataCheck
from lance_core.fsck.report import Extent, Finding, Report, Severity

__all__ = ["DataCheck", "Extent", "Finding", "Report", "Severity"]
