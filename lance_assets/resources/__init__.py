"""Dagster resources: how a project reaches its tables (`lance.py`) and its Spark session (`spark.py`)."""
