"""Fleets: maintenance of all tables below a prefix, by one job with one report.

fleet.py        declaration `lance_fleet`, asset, schedule and asset check; start here
fleet_run.py    one run over all tables
report.py       the result as Dagster metadata
"""
