"""Where Spark looks for the format `lance`: it imports every package whose name begins with `pyspark_`, and takes what
is called `DefaultSource`. Nothing else lives here; the format is in `lance_assets/spark/source.py`."""

from lance_assets.spark.source import LanceDataSource as DefaultSource

__all__ = ["DefaultSource"]
