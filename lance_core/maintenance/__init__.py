"""Maintenance: compaction into fewer and fuller fragments, index maintenance, and cleanup of unneeded versions and
files.

Compaction (`compaction.py`) and index maintenance (`index_maintenance.py`) are pure plans followed by their
execution, and so is cleanup (`cleanup.py`). This package contains no retry loops: a compaction is committed like
every other write, and an interrupted cleanup is started again.
"""
