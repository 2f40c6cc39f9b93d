"""Compaction on workers: of one table, and of many tables in one job. Start with `compact.py`."""
