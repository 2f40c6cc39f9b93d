"""Uploads of files in parts: the object has the bytes of the file, whatever answers are lost."""

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from lance_core.datafiles.checksums import compute_checksum
from lance_core.errors import StorageError
from lance_core.format.file_checksum import FileChecksum
from lance_core.storage.factory import open_store
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.object_upload import PART_BYTES, StagedFile
from lance_core.storage.request_errors import RetryPolicy
from tests.lance_core.storage.buckets import KEY_ID, SECRET, Bucket
from tests.lance_core.storage.faulty_proxy import FAULTS_OF_WRITES, proxy_to
from tests.lance_core.storage.object_servers import Server


def open_in(bucket: Bucket) -> ObjectStore:
    store = open_store(f"{bucket.uri}/table", storage_options=bucket.options)
    assert isinstance(store, ObjectStore)
    return replace(store, retry_policy=RetryPolicy(sleep=lambda seconds: None))


def write_in_steps(staged: StagedFile, data: bytes, steps: int) -> Iterator[None]:
    """Write the file under a temporary name, as the codec does, and rename it at the end."""
    temporary = staged.directory / ".tmp"
    with temporary.open("wb") as file:
        yield
        for number in range(steps):
            file.write(data[len(data) * number // steps : len(data) * (number + 1) // steps])
            file.flush()
            yield
    temporary.rename(staged.path)


@pytest.mark.parametrize("size", [0, PART_BYTES, 2 * PART_BYTES + 12_345])
def test_a_growing_file_becomes_an_object(server: Server, size: int) -> None:
    store, data = open_in(server.bucket()), random.Random(size).randbytes(size)
    staged = StagedFile(store, "data/one.lance")
    for _ in write_in_steps(staged, data, 5):
        staged.advance()
    checksum = staged.finish()
    assert checksum == FileChecksum.of(data)
    assert store.read("data/one.lance") == data
    assert compute_checksum(store, "data/one.lance", size=size) == checksum
    assert compute_checksum(store, "data/one.lance") == checksum
    for wrong in (size + 1, max(0, size - 1)):
        if wrong != size:
            assert compute_checksum(store, "data/one.lance", size=wrong) == FileChecksum(size, None)
    assert os.listdir(staged.directory) == []


@pytest.mark.parametrize("effect", ["before", "after"])
def test_lost_answers_of_every_request_are_repaired(s3_server: Server, effect: str) -> None:
    data = random.Random(1).randbytes(2 * PART_BYTES + 1)
    faults = [fault for fault in FAULTS_OF_WRITES if effect in fault]
    met: set[str] = set()

    def decide(method: str, path: str) -> str | None:
        request = f"{method} {path.partition('?')[2].partition('=')[0]}"
        if request in met:
            return None
        met.add(request)
        return faults[len(met) % len(faults)]

    with proxy_to(s3_server.endpoint, decide) as proxy:
        store = open_in(s3_server.bucket(proxy.endpoint))
        staged = StagedFile(store, "x")
        for _ in write_in_steps(staged, data, 2):
            staged.advance()
        assert staged.finish() == FileChecksum.of(data)
        assert store.read("x") == data
    assert len(met) >= 4, met


def test_an_abandoned_file_leaves_no_parts(s3_server: Server) -> None:
    bucket = s3_server.bucket()
    store = open_in(bucket)

    def begin() -> Path:
        staged = StagedFile(store, "x")
        for _ in write_in_steps(staged, os.urandom(PART_BYTES + 1), 1):
            staged.advance()
        return staged.directory

    directory = begin()
    assert os.listdir(directory) == []
    keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
    client = boto3.client("s3", endpoint_url=s3_server.endpoint, region_name="us-east-1", **keys)
    assert client.list_multipart_uploads(Bucket=bucket.uri.removeprefix("s3://")).get("Uploads", []) == []
    assert store.head("x") is None


def test_parts_that_are_refused_fail_the_write(s3_server: Server) -> None:
    with proxy_to(s3_server.endpoint, lambda method, path: "503 before" if "partNumber" in path else None) as proxy:
        staged = StagedFile(open_in(s3_server.bucket(proxy.endpoint)), "x")
        for _ in write_in_steps(staged, os.urandom(PART_BYTES + 1), 1):
            staged.advance()
        with pytest.raises(StorageError, match="table/x"):
            staged.finish()
