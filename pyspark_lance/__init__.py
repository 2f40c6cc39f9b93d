"""Spark registration: makes the format `lance` known to Spark.

Spark imports every package whose name begins with `pyspark_` and registers its `DefaultSource`. This package holds
nothing else; the format is implemented in `lance_assets/spark/source.py`.
"""

from lance_assets.spark.source import LanceDataSource as DefaultSource

__all__ = ["DefaultSource"]
