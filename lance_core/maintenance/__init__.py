"""Keeping a table in shape: fewer and fuller fragments (`compaction.py`), and nothing on the store that no version
needs any more (`cleanup.py`).

Each is a pure plan, then doing it. No retry loops live here: a compaction is committed like every other write, and a
cleanup that was interrupted is begun again.
"""
