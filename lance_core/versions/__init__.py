"""Table versions, read-only: the snapshot of one version, the history, references, locations and file inventory.

Nothing in here writes to a branch. Start with `snapshot.py`.
"""
