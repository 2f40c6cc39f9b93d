"""Scans: read the rows of a version. `plan.py` decides what to read, without I/O; `executor.py` reads it.
Neither ever writes."""
