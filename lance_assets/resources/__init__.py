"""Dagster resources: access to tables (`lance.py`) and to a Spark session (`spark.py`)."""
