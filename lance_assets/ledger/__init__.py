"""The ledger: the Dagster asset whose dynamic partitions are the versions of one branch.

This module imports nothing, because `cli/` reads `partition_keys.py` without Dagster. Start with `recording.py`.
"""
