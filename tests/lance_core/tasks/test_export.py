"""Export: the files of a version have its rows, in every format and wherever they are, and each row once."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from lance_core import InvalidInput, StorageError, Table
from lance_core.tasks.export.version_export import Export, ExportRequest, export_version
from lance_core.tasks.partitioning import Task
from lance_core.tasks.scan.read import VersionRef
from tests.lance_core.storage.conftest import s3_server
from tests.lance_core.storage.object_servers import Server
from tests.lance_core.tasks.in_process_workers import InProcessWorkers
from tests.lance_core.tasks.ingest_environment import IngestEnvironment
from tests.lance_core.tasks.source_servers import PASSWORD, USER, sftp_server, web_server

__all__ = ["s3_server"]

SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("score", pa.float64())]
)
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


def rows(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    columns = {
        "id": numbers,
        "name": [f'"{number},\n' if number % 5 else "ä" for number in numbers],
        "at": [AT] * count,
        "score": [number / 3 for number in numbers],
    }
    return pa.table(columns, SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with two fragments, deleted rows, and a fragment without rows."""
    table = Table.create(str(tmp_path / "table"), rows(0, 300), durable=False)
    table = table.append(rows(300, 300)).table
    table = table.append(rows(600, 100)).table
    return table.delete("id % 7 = 0 or id >= 600").table


@dataclass
class Target:
    uri: str
    options: Mapping[str, object]


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    with ExitStack() as stack:
        match request.param:
            case "s3":
                server: Server = request.getfixturevalue("s3_server")
                bucket = server.bucket()
                yield Target(f"{bucket.uri}/out", bucket.options)
            case "sftp":
                (tmp_path / "served").mkdir()
                uri = stack.enter_context(sftp_server(tmp_path / "served"))
                yield Target(f"{uri}/new/out", {"username": USER, "password": PASSWORD})
            case _:
                yield Target(str(tmp_path / "out"), {})


def export_to(table: Table, target: Target, workers: InProcessWorkers | None = None, **arguments: object) -> Export:
    request = ExportRequest(target.uri, target_options=target.options, **arguments)  # type: ignore[arg-type]
    return export_version(VersionRef(table.uri).snapshot(), request, runner=workers or InProcessWorkers())


@pytest.mark.parametrize("target", ["local", "s3", "sftp"], indirect=True)
@pytest.mark.parametrize("format", ["parquet", "csv", "json", "arrow"])
def test_an_ingest_of_the_export_gives_the_same_rows(table: Table, target: Target, format: str, tmp_path: Path) -> None:
    export = export_to(table, target, format=format)
    assert (export.rows, export.version) == (table.count_rows(), table.version)
    environment = IngestEnvironment(tmp_path / "ingested")
    ingested = environment.ingest(f"{target.uri}/**", source_options=target.options, schema=SCHEMA)
    assert ingested.table.to_table().sort_by("id") == table.to_table().sort_by("id")
    with pytest.raises(InvalidInput, match="an export needs a directory without files"):
        export_to(table, target, format=format)


def test_rows_of_repeated_tasks_are_exported_once(table: Table, tmp_path: Path) -> None:
    """Files of attempts that do not count are deleted, and the list names the others with their sizes."""
    out = tmp_path / "out"
    workers = InProcessWorkers(lost_partitions=frozenset(range(10)))
    export = export_to(table, Target(str(out), {}), workers, columns=["id"], filter="id < 100")
    assert len(workers.attempts) >= 2
    listed = json.loads((out / "_SUCCESS.json").read_text())
    found = {path.name: path.stat().st_size for path in out.iterdir() if path.name != "_SUCCESS.json"}
    assert {file["name"]: file["bytes"] for file in listed["files"]} == found
    assert (listed["version"], listed["format"], export.rows) == (table.version, "parquet", 85)
    assert sum(pa.parquet.read_metadata(out / name).num_rows for name in found) == 85


def test_an_export_without_rows_is_complete(table: Table, tmp_path: Path) -> None:
    assert export_to(table, Target(str(tmp_path / "out"), {}), filter="id < 0").files == ()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_SUCCESS.json"]


@dataclass
class DistantWorkers(InProcessWorkers):
    """Task runner on other machines: the driver does not find the first file that they wrote."""

    directory: Path = field(kw_only=True)

    def run(self, task: Task, parts: int) -> pa.Table:
        results = super().run(task, parts)
        min(self.directory.iterdir()).unlink()
        return results


def test_files_that_the_driver_does_not_find_are_an_error(table: Table, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(StorageError, match=r"1 of \d files that workers wrote to .*out are not there for the driver"):
        export_to(table, Target(str(out), {}), DistantWorkers(directory=out))
    assert not (out / "_SUCCESS.json").exists()


@pytest.mark.parametrize("uri", ["memory://out", "zip://a.csv::memory://all.zip"])
def test_files_of_one_process_are_refused(table: Table, uri: str) -> None:
    workers = InProcessWorkers()
    with pytest.raises(InvalidInput, match=r"memory:// exists in one process only, which the workers are not"):
        export_to(table, Target(uri, {}), workers)
    assert workers.attempts == []


def test_what_cannot_be_exported_is_an_error(table: Table, tmp_path: Path) -> None:
    with web_server(tmp_path) as web, pytest.raises(StorageError, match="could not write to http://"):
        export_to(table, Target(f"{web.uri}/out", {}))
    with pytest.raises(InvalidInput, match="must be one of"):
        export_to(table, Target(str(tmp_path / "out"), {}), format="xlsx")
    with pytest.raises(InvalidInput, match="pass it in target_options="):
        export_to(table, Target(f"sftp://me:{PASSWORD}@host/out", {}))
    nested = Table.create(str(tmp_path / "nested"), pa.table({"v": [[1], [2]], "b": [b"a", b"b"]}), durable=False)
    with pytest.raises(InvalidInput, match=r"cannot be exported as csv.*choose columns"):
        export_to(nested, Target(str(tmp_path / "csv"), {}), format="csv")
    with pytest.raises(InvalidInput, match="JSON has no binary values"):
        export_to(nested, Target(str(tmp_path / "json"), {}), format="json")
    assert not fsspec.filesystem("file").exists(str(tmp_path / "csv" / "_SUCCESS.json"))
