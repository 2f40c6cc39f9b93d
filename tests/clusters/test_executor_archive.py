"""Executors with an archive: executor processes of a standalone cluster run the packages of `lance-assets
pack-executors`, without the environment of the driver.

`make clusters` runs it, since it installs wheels and starts Java processes.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_assets.spark import append, count_rows, delete, read
from tests.clusters.deployments import PROJECT, standalone
from tests.clusters.driver import start_driver

EVERYTHING = os.environ.get("CLUSTERS") == "all"
UV = PROJECT / ".tools" / "uv" / "bin"
ARCHIVE_MB_MAX = 220


def write_and_read(session: SparkSession, uri: str) -> list[list[str]]:
    """Write, change and read a table, and return the libraries that the executors loaded, with their memory."""
    committed = append(session.range(0, 10_000, 1, 4), uri)
    assert (committed.rows_added, committed.files) == (10_000, 4)
    assert read(session, uri).where("id < 100").count() == 100
    resident = _inspect_workers(session)
    assert delete(session, uri, "id % 2 = 1").rows_removed == 5_000
    assert count_rows(session, uri) == 5_000
    return resident


def _inspect_workers(session: SparkSession) -> list[list[str]]:
    def inspect(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import lance_assets.spark.worker_memory as memory

        for _ in batches:
            pass
        loaded = [name for name in ("lance", "datafusion", "pandas") if name in sys.modules]
        yield pa.record_batch(
            {"file": [memory.__file__], "loaded": [",".join(loaded)], "bytes": [memory.resident_bytes()]}
        )

    rows = session.range(0, 8, 1, 8).mapInArrow(inspect, "file string, loaded string, bytes long").collect()
    return [[row["file"], row["loaded"], str(row["bytes"])] for row in rows]


if EVERYTHING:

    @pytest.mark.timeout(900)
    def test_executors_run_from_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        archive = tmp_path / "executors.tar.gz"
        # The executors find a Python without any packages of the project.
        base = Path(sysconfig.get_config_var("BINDIR"))
        monkeypatch.setenv("PATH", f"{UV}:{base}:{os.environ['PATH']}")
        command = [sys.executable, "-m", "lance_assets", "pack-executors", "--output", str(archive)]
        subprocess.run(command, check=True)
        assert archive.stat().st_size < ARCHIVE_MB_MAX * 1024**2
        with standalone() as address:
            settings = {
                "spark.archives": f"{archive}#executors",
                "spark.executorEnv.PYTHONPATH": "",
                "spark.pyspark.python": "./executors/bin/python",
                "spark.pyspark.driver.python": sys.executable,
            }
            packed = replace(address, conf={**address.conf, **settings})
            with start_driver(packed, PYSPARK_PYTHON="./executors/bin/python") as driver:
                workers = cast(list[list[str]], driver.call(write_and_read, uri=str(tmp_path / "table")))
        for file, loaded, size in workers:
            assert "/executors/lib/lance_assets/" in file
            assert "pandas" not in loaded
            assert "datafusion" not in loaded
            assert int(size) < 400 * 1024**2
        assert {loaded for _, loaded, _ in workers} >= {"lance"}
