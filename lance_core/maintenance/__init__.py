"""Maintenance: compaction into fewer and fuller fragments, index maintenance, and cleanup of unneeded versions and
files.

Compaction (`compaction.py`), index maintenance (`index_maintenance.py`) and cleanup (`cleanup.py`) each make a plan
first and then execute it. This package contains no retry loops: a compaction is committed like every other write, and
an interrupted cleanup is started again.
"""
