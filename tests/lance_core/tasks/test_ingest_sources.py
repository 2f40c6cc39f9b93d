"""Sources of an ingest: the same files have the same rows, and are noticed when they change, wherever they are."""

import gzip
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from gcsfs import GCSFileSystem as ExtendedGcsFileSystem
from gcsfs.core import GCSFileSystem

from lance_core import InvalidInput, LanceError, MissingDependency, NotFound, StorageError, Table
from lance_core.storage.factory import open_store
from lance_core.storage.object_store import ObjectStore
from lance_core.tasks.ingest.formats import CsvFormat
from lance_core.tasks.ingest.source_options import SourceClient, SourceKind, inherited_options
from lance_core.tasks.ingest.sources import list_files
from lance_core.tasks.partitioning import Task
from tests.lance_core.storage.conftest import gcs_server, s3_server
from tests.lance_core.storage.object_servers import Server
from tests.lance_core.tasks.hub_server import DATASET, hub_server
from tests.lance_core.tasks.in_process_workers import InProcessWorkers
from tests.lance_core.tasks.ingest_environment import IngestEnvironment
from tests.lance_core.tasks.source_servers import PASSWORD, USER, WebServer, sftp_server, web_server

__all__ = ["gcs_server", "s3_server"]

TABLE = pa.table({"id": pa.array(range(40), pa.int64()), "name": [f"n{number % 7}" for number in range(40)]})
CANARY = "canary-of-a-secret"


@pytest.fixture
def environment(tmp_path: Path) -> IngestEnvironment:
    return IngestEnvironment(tmp_path)


@dataclass
class Source:
    """A place for files: how to write one there, and the glob and the options that reach all of them."""

    write: Callable[[str, bytes], object]
    glob: str
    options: Mapping[str, object] | None = None


def files() -> dict[str, bytes]:
    """Return files of every format, each with ten rows of `TABLE`, and files that an ingest leaves out."""
    parquet, arrow = io.BytesIO(), io.BytesIO()
    pq.write_table(TABLE.slice(20, 10), parquet, row_group_size=4)
    with pa.ipc.new_file(arrow, TABLE.schema) as file:
        file.write_table(TABLE.slice(30, 10))
    text = "id,name\n" + "".join(f"{row['id']},{row['name']}\n" for row in TABLE.slice(0, 10).to_pylist())
    lines = "".join(f'{{"id": {row["id"]}, "name": "{row["name"]}"}}\n' for row in TABLE.slice(10, 10).to_pylist())
    return {
        "2026/a.csv": text.encode(),
        "2026/b.json.gz": gzip.compress(lines.encode()),
        "2026/deep/c.parquet": parquet.getvalue(),
        "2026/deep/d e.arrow": arrow.getvalue(),
        "2026/_temporary/e.csv": b"not data",
        "2026/deep/.f.csv": b"not data",
        "other/g.csv": b"not data",
    }


def in_memory(name: str) -> Source:
    root = f"/{name}"
    return Source(lambda path, data: fsspec.filesystem("memory").pipe(f"{root}/{path}", data), f"memory:/{root}/2026")


class ScratchFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no type information
    """Files in memory, under a protocol that the ingest does not know to be limited to one process."""

    protocol = "scratch"
    store: ClassVar[dict[str, object]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("scratch://")))


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    """The source of a protocol, with all `files()`."""
    root = tmp_path / "served"

    def write_local(path: str, data: bytes) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)

    def write_object(store: object, path: str, data: bytes) -> None:
        assert isinstance(store, ObjectStore)
        store.put(path, data)

    def write_archive(path: str, data: bytes) -> None:
        archived[path] = data
        with zipfile.ZipFile(root / "all.zip", "w") as archive:
            for name, content in archived.items():
                archive.writestr(zipfile.ZipInfo(name), content)

    archived: dict[str, bytes] = {}
    root.mkdir()
    with ExitStack() as stack:
        match request.param:
            case "memory":
                made = in_memory(tmp_path.name)
            case "https":
                made = Source(write_local, f"{stack.enter_context(web_server(root)).uri}/2026/**")
            case "sftp":
                uri = stack.enter_context(sftp_server(root))
                made = Source(write_local, f"{uri}/2026/**", {"sftp": {"username": USER, "password": "env:SFTP_WORD"}})
            case "hf":
                hub = {"endpoint": stack.enter_context(hub_server(root)), "token": False}
                made = Source(write_local, f"hf://datasets/{DATASET}/2026/**", {"hf": hub})
            case "zip":
                made = Source(write_archive, f"zip://2026/**::file://{root}/all.zip")
            case "s3":
                server: Server = request.getfixturevalue("s3_server")
                bucket = server.bucket()
                store = open_store(bucket.uri, storage_options=bucket.options)
                made = Source(lambda path, data: write_object(store, path, data), f"{bucket.uri}/2026/", bucket.options)
            case "gcsfs":
                server = request.getfixturevalue("gcs_server")
                bucket = server.bucket()
                store = open_store(bucket.uri, storage_options=bucket.options)
                # The class that gcsfs registers also asks for the type of the bucket by another interface.
                fsspec.register_implementation("gs", GCSFileSystem, clobber=True)
                stack.callback(fsspec.register_implementation, "gs", ExtendedGcsFileSystem, clobber=True)
                options = {"token": "anon", "endpoint_url": server.endpoint}
                made = Source(lambda path, data: write_object(store, path, data), f"{bucket.uri}/2026", options)
            case _:
                made = Source(write_local, f"{root}/2026/**")
        for path, data in files().items():
            made.write(path, data)
        yield made


@pytest.mark.parametrize("source", ["local", "memory", "https", "sftp", "hf", "zip", "s3", "gcsfs"], indirect=True)
def test_every_protocol_gives_the_same_rows(
    environment: IngestEnvironment, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SFTP_WORD", PASSWORD)
    ingest = lambda **arguments: environment.ingest(source.glob, source_options=source.options, **arguments)  # noqa: E731
    assert ingest().rows_added == 40
    table = Table.open(environment.uri).to_table()
    assert table.sort_by("id") == TABLE.cast(table.schema)
    assert ingest().version == 1, "nothing has changed"

    source.write("2026/a.csv", b"id,name\n100,changed\n101,changed\n")
    source.write("2026/new.csv", b"id,name\n200,new\n")
    with pytest.raises(
        InvalidInput, match=r"1 of the files were ingested before and have changed since: .*2026/a\.csv"
    ):
        ingest()
    assert ingest(changed="skip").rows_added == 1
    assert ingest(changed="again").rows_added == 2
    assert ingest().files == 0
    assert Table.open(environment.uri).count_rows() == 43


def test_the_root_of_a_server_is_listed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    with sftp_server(tmp_path) as uri:
        options = {"username": USER, "password": PASSWORD}
        for files in ("", "/", "/*.csv", "/a.csv"):
            assert [file.uri for file in list_files(f"{uri}{files}", options)] == [f"{uri}/a.csv"]


def test_a_lost_connection_is_opened_again(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    with sftp_server(tmp_path) as uri:
        options = {"username": USER, "password": PASSWORD}
        for _ in range(2):
            assert [file.uri for file in list_files(f"{uri}/", options)] == [f"{uri}/a.csv"]
            kept, _path = fsspec.url_to_fs(f"{uri}/", **options)
            kept.client.close()


def test_a_change_of_the_same_size_is_noticed(environment: IngestEnvironment) -> None:
    source = in_memory("same-size")
    source.write("2026/a.csv", b"id\n1\n")
    environment.ingest(source.glob)
    source.write("2026/a.csv", b"id\n2\n")
    with pytest.raises(InvalidInput, match="have changed since"):
        environment.ingest(source.glob)


def test_a_file_that_changes_after_it_was_listed_is_refused(tmp_path: Path) -> None:
    """The worker compares the property that the listing gave, even if the size is the same."""
    fsspec.register_implementation("scratch", ScratchFileSystem, clobber=True)
    source = Source(lambda path, data: ScratchFileSystem().pipe(f"/changing/{path}", data), "scratch:///changing/2026")
    source.write("2026/a.csv", b"id\n1\n")

    class Changing(InProcessWorkers):
        def run(self, task: Task, parts: int) -> pa.Table:
            source.write("2026/a.csv", b"id\n2\n")
            return super().run(task, parts)

    with pytest.raises(InvalidInput, match=r"scratch:///changing/2026/a\.csv was changed while it was ingested"):
        IngestEnvironment(tmp_path, Changing()).ingest(source.glob, schema=pa.schema({"id": pa.int64()}))


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebServer]:
    directory = tmp_path / "web"
    directory.mkdir()
    with web_server(directory) as server:
        yield server


def test_only_the_columns_of_the_table_are_downloaded(environment: IngestEnvironment, web: WebServer) -> None:
    noise = np.random.default_rng(1).bytes(24_000_000)
    wide = pa.table({"noise": [noise[start : start + 1000] for start in range(0, len(noise), 1000)]})
    pq.write_table(wide.append_column("id", pa.array(range(24_000), pa.int64())), web.directory / "wide.parquet")
    size = (web.directory / "wide.parquet").stat().st_size
    environment.ingest(f"{web.uri}/*.parquet", schema=pa.schema({"id": pa.int64()}), extra="drop")
    assert Table.open(environment.uri).count_rows() == 24_000
    sent = [count for method, path, count in web.requests if path == "/wide.parquet"]
    assert sum(sent) < size * 0.6
    assert max(sent) < size / 2
    web.requests.clear()
    environment.ingest(f"{web.uri}/*.parquet", extra="drop")
    assert [method for method, path, _ in web.requests if path == "/wide.parquet"] == ["HEAD"], "it is not read again"


def test_a_server_without_ranges_sends_texts_only(environment: IngestEnvironment, web: WebServer) -> None:
    web.has_ranges = False
    rows = "".join(f"{number},{'x' * 990}\n" for number in range(16_000))
    (web.directory / "long.csv").write_text(f"id,text\n{rows}")
    pq.write_table(pa.table({"noise": [os.urandom(1000) for _ in range(12_000)]}), web.directory / "wide.parquet")
    environment.ingest(f"{web.uri}/long.csv", csv=CsvFormat(newlines_in_values=False))
    assert Table.open(environment.uri).to_table(["id"])["id"].to_pylist() == [*range(16_000)]
    with pytest.raises(StorageError, match="sends the file only from its beginning, and Parquet"):
        environment.ingest(f"{web.uri}/wide.parquet", extra="drop")


def test_a_failing_server_is_no_bad_record(environment: IngestEnvironment, web: WebServer) -> None:
    """A server that fails between listing and reading fails the ingest; the file stays new."""
    (web.directory / "a.csv").write_text("id\n1\n")

    class Failing(InProcessWorkers):
        def run(self, task: Task, parts: int) -> pa.Table:
            web.status = 500
            try:
                return super().run(task, parts)
            finally:
                web.status = None

    failing = IngestEnvironment(environment.directory, Failing())
    arguments = {"schema": pa.schema({"id": pa.int64()}), "on_bad_record": environment.bad_records_uri}
    with pytest.raises((StorageError, NotFound), match=r"a\.csv"):
        failing.ingest(f"{web.uri}/*.csv", **arguments)
    assert environment.ingest(f"{web.uri}/*.csv", **arguments).rows_added == 1


@pytest.mark.parametrize(
    ("uri", "options", "error", "message"),
    [
        ("memory://nothing/at-all", {}, NotFound, "memory:// exists in one process only"),
        ("nope://host/a.csv", {}, InvalidInput, "fsspec has no file system for nope://"),
        ("smb://host/a.csv", {}, MissingDependency, "pip install smbprotocol"),
        ("s3://lake/a.csv", {"key": CANARY, "secret": CANARY}, MissingDependency, "pip install s3fs"),
        ("s3://lake/a.csv", {"aws_regoin": "x"}, InvalidInput, "did you mean 'aws_region'"),
        ("s3://lake/a.csv", {"aws_allow_http": True}, InvalidInput, "'aws_allow_http' .* must be a string"),
        ("sftp://host/a.csv", {"pasword": CANARY, "timeout": 1}, LanceError, "sftp://host/a.csv"),
        ("sftp://127.0.0.1:9/a.csv", {"password": CANARY}, StorageError, "could not open sftp"),
        ("sftp://host/a.csv", {"password": "env:NO_SUCH_NAME"}, InvalidInput, "'NO_SUCH_NAME'"),
        (f"sftp://me:{CANARY}@host/a.csv", {}, InvalidInput, r"pass it in source_options="),
        (f"https://host/a.csv?X-Amz-Signature={CANARY}", {}, InvalidInput, r"pass it in source_options="),
        (f"file:///a.csv::https://me:{CANARY}@host/b.zip", {}, InvalidInput, r"pass it in source_options="),
        ("simplecache::https://host/a.csv", {}, InvalidInput, "outdated file"),
        ("http://127.0.0.1:9/a.csv", {}, NotFound, "ClientConnectorError"),
    ],
)
def test_a_source_that_cannot_be_reached_is_an_error_without_secrets(
    environment: IngestEnvironment, uri: str, options: Mapping[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        environment.ingest(uri, source_options=options)
    raised: BaseException | None = caught.value
    while raised is not None:
        assert CANARY not in str(raised)
        raised = raised.__cause__ or (None if raised.__suppress_context__ else raised.__context__)


def test_a_message_of_a_library_is_shown_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_FILE", f"/{CANARY}")
    with sftp_server(tmp_path) as uri, pytest.raises(LanceError, match=r"No such file.*\*\*\*") as caught:
        list_files(f"{uri}/a.csv", {"username": USER, "key_filename": "env:KEY_FILE", "allow_agent": False})
    assert CANARY not in str(caught.value)


def test_options_apply_to_all_files_or_to_a_protocol() -> None:
    options = {"sftp": {"username": "me"}, "s3": {"aws_region": "x"}, "zip": {"mode": "r"}}
    for uri, kind, expected in (
        ("sftp://host/a.csv", SourceKind.FSSPEC, {"username": "me"}),
        ("s3a://lake/a.csv", SourceKind.STORE, {"aws_region": "x"}),
        ("https://host/a.csv", SourceKind.FSSPEC, {}),
        ("zip://a.csv::sftp://host/b.zip", SourceKind.FSSPEC, {"mode": "r", "sftp": {"username": "me"}}),
        ("/data/a.csv", SourceKind.LOCAL, {}),
    ):
        client = SourceClient.of(uri, options)
        assert (client.kind, client.options) == (kind, expected)
    assert SourceClient.of("s3://lake/a.csv", {"anon": True}).kind is SourceKind.FSSPEC
    assert SourceClient.of("gs://lake/a.csv", {"token": "anon"}).kind is SourceKind.FSSPEC
    assert SourceClient.of("S3A://lake/a.csv", {}).uri == "s3://lake/a.csv"


def test_a_source_inherits_options_of_a_table_on_the_same_store_only() -> None:
    options = {"aws_region": "x", "aws_secret_access_key": CANARY, "token": CANARY}
    inherited = inherited_options(options, table="s3://lake/t", files=["sftp://host/a", "s3://other/a", "gs://b/a"])
    assert SourceClient.of("sftp://host/a", inherited).options == {}
    assert SourceClient.of("s3://other/a", inherited).options == options
    assert SourceClient.of("gs://b/a", inherited).options == {}


def test_a_local_ingest_does_not_import_fsspec(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    program = (
        "import sys\nfrom lance_core.tasks.ingest.sources import list_files\n"
        f"assert len(list_files({str(tmp_path)!r}, {{}})) == 1\nprint('fsspec' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
