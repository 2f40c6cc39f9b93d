"""Discovery: a sensor that records the versions which other engines commit.

`sensor.py` runs a tick, `leader.py` elects the daemon that runs it, `reconcile.py` compares a table with its ledger.
"""
