"""Discovery: a sensor that records the versions which writers outside of Dagster commit.

`sensor.py` runs a tick, `leader.py` elects the sensor and the tick that may record, and `reconcile.py` compares a table
with its ledger.
"""
