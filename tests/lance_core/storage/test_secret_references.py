"""Secret references: secrets that storage options name instead of contain; they are resolved at their use and appear
nowhere else.
"""

import json
import pickle
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.storage import secret_references
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.options import options_for
from lance_core.tasks.partitioning import VersionHeader
from lance_core.tasks.rows.write import FileLimits, PlannedWrite, WriteTask, begin_append
from lance_core.tasks.rows.write_handle import WriteHandle
from lance_core.tasks.scan.read import VersionRef
from tests.lance_core.storage.buckets import SECRET, Bucket
from tests.lance_core.storage.object_servers import Server

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
requested_uris: list[str] = []
provided_options: list[object] = []
"""The results of the provider below, in order; the last one is repeated."""


def provider(uri: str) -> object:
    requested_uris.append(uri)
    return provided_options.pop(0) if len(provided_options) > 1 else provided_options[0]


PROVIDER = {"provider": f"{__name__}:provider"}


@pytest.fixture(autouse=True)
def reset_provider() -> Iterator[None]:
    requested_uris.clear()
    provided_options.clear()
    secret_references._provided.clear()
    yield
    secret_references._provided.clear()


@pytest.fixture
def bucket(s3_server: Server) -> Bucket:
    return s3_server.bucket()


def millis_after(seconds: float) -> str:
    return str(int((time.time() + seconds) * 1000))


def referenced_options(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the options of a bucket as references to environment variables that contain the values."""
    for name, value in bucket.options.items():
        monkeypatch.setenv(f"HERE_{name.upper()}", value)
    return {name: f"env:HERE_{name.upper()}" for name in bucket.options}


def test_a_table_whose_options_are_in_the_environment(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    options, uri = referenced_options(bucket, monkeypatch), f"{bucket.uri}/t"
    Table.create(uri, ROWS, storage_options=options).append(ROWS)
    opened = Table.open(uri, storage_options=options)
    assert opened.to_table()["id"].to_pylist() == [1, 2, 3, 1, 2, 3]
    assert Table.open(uri, storage_options=bucket.options).count_rows() == 6
    assert opened.fsck().is_sound


def test_only_references_leave_the_process(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks, results and the table contain references; a worker resolves the secret."""
    options, uri = referenced_options(bucket, monkeypatch), f"{bucket.uri}/t"
    planned = begin_append(uri, ROWS.schema, create=True, intent="i", limits=FileLimits(), storage_options=options)
    assert isinstance(planned, PlannedWrite)
    pickled_task = pickle.dumps(WriteTask(planned.plan))
    pickled_handle = pickle.dumps(WriteHandle.of(planned))
    worker: WriteTask = pickle.loads(pickled_task)
    committed = planned.finish(pa.Table.from_batches(list(worker(ROWS.to_batches()))))
    pickled_header = pickle.dumps(VersionHeader.of(VersionRef(uri, storage_options=options).snapshot()))
    assert committed.table.count_rows() == 3
    for text in (
        pickled_task,
        pickled_handle,
        pickled_header,
        repr(planned).encode(),
        repr(worker).encode(),
        repr(committed).encode(),
    ):
        assert SECRET.encode() not in text
    assert b"env:HERE_AWS_SECRET_ACCESS_KEY" in pickled_header


def test_a_missing_variable_is_reported(bucket: Bucket) -> None:
    options = {**bucket.options, "aws_secret_access_key": "env:NOT_SET_ANYWHERE"}
    with pytest.raises(
        InvalidInput, match=r"'aws_secret_access_key' refers to the environment variable 'NOT_SET_ANYWHERE'"
    ):
        Table.open(f"{bucket.uri}/t", storage_options=options)


def test_a_provider_is_called_once(bucket: Bucket) -> None:
    provided_options.append({**bucket.options, "expires_at_millis": millis_after(3600)})
    uri = f"{bucket.uri}/t"
    Table.create(uri, ROWS, storage_options=PROVIDER)
    assert Table.open(uri, storage_options=PROVIDER).append(ROWS).table.count_rows() == 6
    assert requested_uris == [uri]


def test_a_provider_is_called_again_before_its_options_expire(bucket: Bucket) -> None:
    """This holds for a table that was opened long before as well."""
    good = {**bucket.options, "expires_at_millis": millis_after(3600)}
    provided_options.extend(
        [{**bucket.options, "expires_at_millis": millis_after(59)}, {**good, "aws_access_key_id": "second"}]
    )
    table = Table.create(f"{bucket.uri}/t", ROWS, storage_options=PROVIDER)
    assert len(requested_uris) == 2
    store = VersionRef(table.uri, storage_options=PROVIDER).snapshot().location.own_store
    assert isinstance(store, ObjectStore)
    assert dict(store.codec_options) == {**bucket.options, "aws_access_key_id": "second"}
    assert table.append(ROWS).table.count_rows() == 6
    assert len(requested_uris) == 2


@pytest.mark.parametrize(
    ("name", "options_of_provider", "message"),
    [
        ("no_colon", {}, "must name a function as package.module:function, not 'no_colon'"),
        ("not_there:f", {}, r"cannot import the provider not_there:f \(No module named 'not_there'\)"),
        (f"{__name__}:missing", {}, f"cannot import the provider {__name__}:missing"),
        (f"{__name__}:ROWS", {}, "is not callable"),
        (None, ["aws_region"], "a mapping of strings to strings"),
        (None, {"aws_region": 1}, "a mapping of strings to strings"),
        (None, {"aws_regoin": "x"}, "did you mean 'aws_region'"),
        (None, {"aws_region": "env:X"}, "returned a reference"),
        (None, {"expires_at_millis": "soon"}, "is not a decimal number"),
    ],
)
def test_invalid_providers_are_rejected(
    bucket: Bucket, name: str | None, options_of_provider: object, message: str
) -> None:
    provided_options.append(options_of_provider)
    options = PROVIDER if name is None else {"provider": name}
    with pytest.raises(InvalidInput, match=message):
        Table.open(f"{bucket.uri}/t", storage_options=options)


@pytest.mark.parametrize(
    ("own", "other", "has_provider"),
    [
        ("s3://a/t", "s3://b/t", True),
        ("s3://a/t", "gs://b/t", False),
        ("az://a/t", "s3://b/t", False),
        ("abfss://c@one.dfs.core.windows.net/t", "abfss://c@two.dfs.core.windows.net/t", False),
    ],
)
def test_a_provider_is_for_the_tables_own_store(own: str, other: str, has_provider: bool) -> None:
    assert ("provider" in options_for(PROVIDER, own=own, other=other)) is has_provider


def test_a_manifest_store_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE_MANIFESTS", f"sqlite:///{tmp_path}/manifests.db")
    table = Table.create(str(tmp_path / "t"), ROWS, manifest_store="env:HERE_MANIFESTS")
    assert table.append(ROWS).version == 2
    assert (tmp_path / "manifests.db").exists()
    with pytest.raises(InvalidInput, match="the manifest store refers to the environment variable 'HERE_NOT'"):
        Table.open(str(tmp_path / "t"), manifest_store="env:HERE_NOT")


def test_references_are_not_stored_in_the_table(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = referenced_options(bucket, monkeypatch)
    table = Table.create(f"{bucket.uri}/t", ROWS, storage_options=options)
    stored: Mapping[str, object] = {
        "config": table.config,
        "metadata": table.metadata,
        "p": table.versions()[0].properties,
    }
    assert "HERE_" not in json.dumps(stored, default=str)
