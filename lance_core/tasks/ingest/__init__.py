"""File ingest: workers load files of other formats into a table, each file exactly once.

This package lists the files and selects the new ones, converts their records into rows, and diverts those that do not
fit. It never imports Spark. Start with `coordinator.py`; the reasons are in `001-atomic-file-ingest.md`.
"""
