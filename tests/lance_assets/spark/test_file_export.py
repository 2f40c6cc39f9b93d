"""File export by real executors: each row once, from the version that was asked for."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from lance_assets.spark import export
from lance_core import Table
from tests.lance_core.tasks.source_servers import PASSWORD, USER, sftp_server


def test_workers_write_files(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "table"), pa.table({"id": range(1000), "half": range(1000)}), durable=False)
    table.append(pa.table({"id": range(1000, 1100), "half": range(100)}))
    served = tmp_path / "served"
    served.mkdir()
    with sftp_server(served) as uri:
        options = {"username": USER, "password": PASSWORD}
        written = export(spark, table.uri, f"{uri}/out", columns=["id"], version=1, target_options=options)
    assert (written.rows, written.version) == (1000, 1)
    parts = [pq.read_table(served / "out" / file.name) for file in written.files]
    assert sorted(pa.concat_tables(parts)["id"].to_pylist()) == [*range(1000)]
