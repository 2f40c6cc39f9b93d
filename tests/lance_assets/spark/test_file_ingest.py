"""File ingest by real executors: types of the table, one version, new files only, and errors of workers."""

import gzip
import zipfile
from io import BytesIO
from pathlib import Path

import fsspec
import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lance_assets.spark import CsvFormat, ingest
from lance_core import InvalidInput, SchemaMismatch, StorageError, Table
from lance_core.tasks.ingest.sources import PROCESS_BYTES_MAX
from tests.lance_core.tasks.source_servers import PASSWORD, USER, sftp_server, web_server


def test_workers_read_files(spark: SparkSession, tmp_path: Path) -> None:
    uri, landing = str(tmp_path / "table"), tmp_path / "landing"
    exact = pa.schema([("id", pa.uint32()), ("v", pa.list_(pa.float32(), 2)), ("at", pa.timestamp("ns", "UTC"))])
    Table.create(uri, exact, durable=False)
    landing.mkdir()
    rows = pa.table({"id": pa.array(range(2000), pa.int64()), "v": [[float(n), 0.5] for n in range(2000)]})
    pq.write_table(rows, landing / "a.parquet", row_group_size=100)
    (landing / "b.jsonl").write_text('{"id": 2000, "v": [1, 2], "at": "2024-01-01T00:00:00.000000001Z"}\n')
    (landing / "c.csv").write_text("id;at\n2001;\n-1;\n")
    side, csv = str(tmp_path / "side"), CsvFormat(delimiter=";")
    committed = ingest(spark, str(landing), uri, csv=csv, on_bad_record=side, intent="monday", properties={"run": "1"})
    assert (committed.operation, committed.rows_added, committed.version) == ("Append", 2002, 2)
    assert committed.table.schema == exact
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == list(range(2002))
    assert committed.table.versions()[-1].properties["run"] == "1"
    (bad,) = Table.open(side).to_table().to_pylist()
    assert (bad["file"], bad["row"], bad["line"], bad["column"]) == (str(landing / "c.csv"), 2, 3, "id")
    assert bad["ingest"] == "monday"
    assert ingest(spark, str(landing), uri, intent="monday").already_committed
    assert ingest(spark, f"{landing}/**/*.parquet", uri).version == 2
    assert committed.table.fsck().is_sound


def test_worker_errors_keep_their_type(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id\n1\nx\n")
    with pytest.raises(SchemaMismatch, match=r"a\.csv, row 2 \(line 3\), column 'id'") as raised:
        ingest(spark, str(path), str(tmp_path / "table"), schema=pa.schema([("id", pa.int64())]))
    assert raised.value.column == "id"
    assert not Table.exists(str(tmp_path / "table"))


def test_workers_get_the_files_of_the_driver_process(spark: SparkSession, tmp_path: Path) -> None:
    files, root = fsspec.filesystem("memory"), f"memory://{tmp_path.name}"
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("b.csv", "id\n2\n")
    for name, content in {"in/a.csv": b"id\n1\n", "in/c.jsonl.gz": gzip.compress(b'{"id": 3}\n')}.items():
        files.pipe(f"/{tmp_path.name}/{name}", content)
    files.pipe(f"/{tmp_path.name}/all.zip", packed.getvalue())
    pattern, uri = [f"{root}/in/*", f"zip://*.csv::{root}/all.zip"], str(tmp_path / "t")
    assert ingest(spark, pattern, uri).rows_added == 3
    assert ingest(spark, pattern, uri).rows_added == 0
    files.pipe(f"/{tmp_path.name}/in/d.csv", b"id\n" + b"1\n" * (PROCESS_BYTES_MAX // 2))
    with pytest.raises(InvalidInput, match=r"in/d\.csv and the other files .* more than 64 MiB"):
        ingest(spark, pattern, uri)
    files.pipe(f"/{tmp_path.name}/in/d.csv", b"id\n4\n")
    assert sorted(ingest(spark, pattern, uri).table.to_table()["id"].to_pylist()) == [1, 2, 3, 4]


def test_secrets_stay_out_of_plans(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id\nx\n")
    options = {"aws_secret_access_key": "canary-of-the-source"}
    schema = pa.schema([("id", pa.int64())])
    with pytest.raises(SchemaMismatch) as raised:
        ingest(spark, str(path), str(tmp_path / "t"), schema=schema, source_options=options, storage_options=options)
    assert "canary" not in repr(raised.value)
    assert "canary" not in "".join(capfd.readouterr())


def test_workers_reach_files_through_fsspec(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    served = tmp_path / "served"
    served.mkdir()
    pq.write_table(pa.table({"id": range(100)}), served / "a.parquet")
    (served / "b.csv").write_text("id\n100\nx\n")
    schema, uri, side = pa.schema([("id", pa.int64())]), str(tmp_path / "table"), str(tmp_path / "side")
    with sftp_server(served) as sftp, web_server(served) as web:
        options = {"sftp": {"username": USER, "password": PASSWORD}}
        committed = ingest(spark, f"{sftp}/*", uri, schema=schema, source_options=options, on_bad_record=side)
        assert (committed.version, committed.rows_added) == (1, 101)
        assert Table.open(side).to_table()["file"].to_pylist() == [f"{sftp}/b.csv"]
        assert ingest(spark, f"{sftp}/*", uri, source_options=options).version == 1
        assert ingest(spark, f"{web.uri}/*.parquet", uri).rows_added == 100
        wrong = {"sftp": {"username": USER, "password": f"{PASSWORD}-2"}}
        with pytest.raises(StorageError, match=r"could not open sftp://.*Authentication") as raised:
            ingest(spark, f"{sftp}/*", uri, source_options=wrong)
    assert PASSWORD not in "".join((repr(raised.value), repr(committed.table.versions()), *capfd.readouterr()))
    assert PASSWORD.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
