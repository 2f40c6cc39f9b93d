"""S3 emulator with latency: the store contract, a table that both libraries change, its latency and faults."""

import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import boto3
import lance
import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.storage.factory import open_store
from lance_core.storage.object_store import ObjectStore
from tests.lance_core.in_memory_table import clean_up
from tests.lance_core.storage.buckets import KEY_ID, SECRET
from tests.lance_core.storage.s3_emulator import BUCKET
from tests.lance_core.storage.s3_process import S3Process, s3_process
from tests.lance_core.storage.store_contract import StoreContract

_LATENCY = timedelta(milliseconds=30)
_numbers = count()


@pytest.fixture(scope="module")
def emulator() -> Iterator[S3Process]:
    with s3_process() as started:
        yield started


class TestEmulator(StoreContract):
    @pytest.fixture
    def store(self, emulator: S3Process) -> ObjectStore:
        store = open_store(f"{emulator.bucket.uri}/store-{next(_numbers)}", storage_options=emulator.bucket.options)
        assert isinstance(store, ObjectStore)
        return store


def test_both_libraries_change_a_table(emulator: S3Process, tmp_path: Path) -> None:
    uri, options = f"{emulator.bucket.uri}/table", dict(emulator.bucket.options)
    Table.create(tmp_path / "table", {"id": list(range(2_000))}, durable=False, max_rows_per_file=500)
    emulator.load(tmp_path / "table", "table")
    more = pa.table({"id": pa.array(range(2_000, 900_000), pa.int64())})
    lance.write_dataset(more, uri, mode="append", storage_options=options)  # uploads parts
    table = Table.open(uri, storage_options=options)
    table = table.delete("id % 2 = 0").table
    lance.dataset(uri, storage_options=options).optimize.compact_files()
    clean_up(Table.open(uri, storage_options=options))
    assert Table.open(uri, storage_options=options).count_rows("id < 10") == 5
    assert lance.dataset(uri, storage_options=options).count_rows() == 450_000


def test_a_client_creates_a_bucket(emulator: S3Process) -> None:
    keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
    client = boto3.client("s3", endpoint_url=emulator.endpoint, region_name="us-east-1", **keys)
    with pytest.raises(client.exceptions.NoSuchBucket):
        client.put_object(Bucket="lake", Key="x", Body=b"")
    client.create_bucket(Bucket="lake")
    client.put_object(Bucket="lake", Key="x", Body=b"")
    assert {each["Name"] for each in client.list_buckets()["Buckets"]} >= {"lake", BUCKET}


def test_latency_and_requests_are_measured(emulator: S3Process) -> None:
    uri, options = f"{emulator.bucket.uri}/latency", emulator.bucket.options
    Table.create(uri, {"id": [1]}, storage_options=options)
    emulator.set_latency(_LATENCY)
    try:
        emulator.take_requests()
        start = time.perf_counter()
        Table.open(uri, storage_options=options)
        assert time.perf_counter() - start >= 2 * _LATENCY.total_seconds()
    finally:
        emulator.set_latency(timedelta(0))
    observed = emulator.take_requests()
    assert observed.counts.by_kind == (1, 0, 1, 0, 0)
    assert observed.in_flight_max == 1


def test_a_throttled_store_is_survived(emulator: S3Process) -> None:
    uri, options = f"{emulator.bucket.uri}/throttled", emulator.bucket.options
    Table.create(uri, {"id": [0]}, storage_options=options)
    emulator.set_latency(timedelta(0), throttling=1)
    try:
        table = Table.open(uri, storage_options=options)
        for number in range(1, 4):
            table = table.append({"id": [number]}).table
        assert sorted(table.to_table()["id"].to_pylist()) == [0, 1, 2, 3]
    finally:
        emulator.set_latency(timedelta(0))
