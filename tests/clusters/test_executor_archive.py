"""Executors with an archive: executor processes of a standalone cluster run the packages of `lance-assets
pack-executors`, without the environment of the driver, and without DataFusion where no SQL is evaluated.

`make clusters` runs it, since it installs wheels and starts Java processes.
"""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from lance_assets.spark import append, build_index, compact, count_rows, delete, map_columns, read, upsert
from lance_core import MissingDependency
from tests.clusters.deployments import PROJECT, standalone
from tests.clusters.driver import start_driver

EVERYTHING = os.environ.get("CLUSTERS") == "all"
UV = PROJECT / ".tools" / "uv" / "bin"
UNPACKED_MB_MAX = {True: 510, False: 400}
"""Largest size of the files of an archive with and without SQL."""
RESIDENT_MB_MAX = 400
_MEGABYTE = 1024**2


def write_and_read(session: SparkSession, uri: str, with_sql: bool) -> list[list[str]]:
    """Write, change and read a table, and return the libraries that the executors loaded, with their memory."""
    committed = append(session.range(0, 10_000, 1, 4), uri)
    assert (committed.rows_added, committed.files) == (10_000, 4)
    assert read(session, uri).where("id < 100").count() == 100
    resident = _inspect_workers(session)
    upsert(session.range(9_000, 11_000), uri, "id")
    assert read(session, uri).count() == 11_000

    # An executor cannot import this module, so the function is sent by value.
    def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"twice": pc.multiply(batch["id"], 2)})

    added = map_columns(session, uri, twice, read_columns=["id"], schema=pa.schema([("twice", pa.int64())]))
    assert added.table.schema.names == ["id", "twice"]
    build_index(session, uri, "id", "BTREE")
    assert len(compact(session, uri).table.fragments) == 1
    if with_sql:
        assert delete(session, uri, "id % 2 = 1").rows_removed == 5_500
        assert count_rows(session, uri) == 5_500
    else:
        with pytest.raises(MissingDependency, match=r"evaluating SQL needs .* without the option --without-sql"):
            delete(session, uri, "id % 2 = 1")
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
    @pytest.mark.parametrize("with_sql", [True, False], ids=["with SQL", "without SQL"])
    def test_executors_run_from_an_archive(with_sql: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        archive = tmp_path / "executors.tar.gz"
        # The executors find a Python without any packages of the project.
        base = Path(sysconfig.get_config_var("BINDIR"))
        monkeypatch.setenv("PATH", f"{UV}:{base}:{os.environ['PATH']}")
        command = [sys.executable, "-m", "lance_assets", "pack-executors", "--json", "--output", str(archive)]
        done = subprocess.run([*command, *([] if with_sql else ["--without-sql"])], stdout=subprocess.PIPE, check=True)
        assert json.loads(done.stdout)["unpacked_bytes"] < UNPACKED_MB_MAX[with_sql] * _MEGABYTE
        with standalone() as address:
            settings = {
                "spark.archives": f"{archive}#executors",
                "spark.executorEnv.PYTHONPATH": "",
                "spark.pyspark.python": "./executors/bin/python",
                "spark.pyspark.driver.python": sys.executable,
            }
            packed = replace(address, conf={**address.conf, **settings})
            with start_driver(packed, PYSPARK_PYTHON="./executors/bin/python") as driver:
                result = driver.call(write_and_read, uri=str(tmp_path / "table"), with_sql=with_sql)
                workers = cast(list[list[str]], result)
        for file, loaded, size in workers:
            assert "/executors/lib/lance_assets/" in file
            assert "pandas" not in loaded
            assert "datafusion" not in loaded
            print(f"{loaded or 'nothing'}: {int(size) // _MEGABYTE} MB")
            assert int(size) < RESIDENT_MB_MAX * _MEGABYTE
        assert {loaded for _, loaded, _ in workers} >= {"lance"}
