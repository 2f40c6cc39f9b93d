"""Verification in Spark: the workers find damaged files, and a read can compare files with their checksums."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_assets.spark import read, verify_files
from lance_core import Table


def test_damage_is_found_by_workers_and_by_reads(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.table({"id": list(range(1000))}), max_rows_per_file=250, durable=False)
    assert verify_files(spark, table.uri).is_clean
    file = sorted(Path(table.uri, "data").iterdir())[1]
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (finding,) = verify_files(spark, table.uri, versions="all").errors
    assert finding.path == f"data/{file.name}"
    with pytest.raises(Exception, match="has the hash"):
        read(spark, table.uri, verify="read").collect()
    with pytest.raises(Exception, match="has the hash"):
        spark.read.format("lance").option("verify", "read").load(table.uri).collect()
