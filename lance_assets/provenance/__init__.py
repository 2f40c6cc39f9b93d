"""Provenance: the intent and the properties that a Dagster run writes into the version it commits.

`properties.py` holds the keys and reads them back without Dagster; `run_provenance.py` needs a run.
"""
