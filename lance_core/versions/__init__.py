"""Table versions, read-only: snapshots, the history, references, locations and the file inventory.

Nothing in this package writes a version. Start with `snapshot.py`.
"""
