"""Tests of the counting of requests to Azure and Google Cloud Storage."""

from datetime import timedelta
from pathlib import Path
from time import perf_counter

import lance
import pyarrow as pa
import pytest

from lance_core import Table
from tests.lance_core.storage.proxied_stores import gcs_behind_proxy
from tests.lance_core.storage.request_counts import Transfer, kind_of


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("GET", "/account/bucket?restype=container&comp=list&prefix=t%2F", "LIST"),
        ("GET", "/account/bucket?restype=container&comp=list", "LIST"),
        ("GET", "/account/bucket/t/data/a.lance", "GET"),
        ("PUT", "/account/bucket/t/data/a.lance?comp=blocklist", "PUT"),
        ("POST", "/account/bucket?restype=container&comp=batch", "DELETE"),
        ("GET", "/storage/v1/b/bucket/o?prefix=t%2F", "LIST"),
        ("GET", "/storage/v1/b/bucket/o/t%2Fa.lance?alt=media", "GET"),
        ("POST", "/upload/storage/v1/b/bucket/o?uploadType=media&name=a", "PUT"),
        ("POST", "/batch/storage/v1", "DELETE"),
        ("DELETE", "/storage/v1/b/bucket/o/t%2Fa.lance", "DELETE"),
    ],
)
def test_requests_have_the_kinds_of_those_of_s3(method: str, path: str, kind: str) -> None:
    assert kind_of(Transfer(method, path, 0, 0)) == kind


def test_both_libraries_are_counted_and_delayed(tmp_path: Path) -> None:
    Table.create(tmp_path / "t", pa.table({"id": [1, 2, 3]}), durable=False)
    with gcs_behind_proxy() as store:
        store.load(tmp_path / "t", "t")
        assert store.take_requests().counts.total == 0
        uri = f"{store.bucket.uri}/t"
        store.set_latency(timedelta(milliseconds=20))
        started = perf_counter()
        table = Table.open(uri, storage_options=store.bucket.options).append(pa.table({"id": [4]})).table
        ours, seconds = store.take_requests().counts, perf_counter() - started
        assert ours.list
        assert ours.get
        assert ours.put >= 3
        assert seconds >= 3 * 0.02
        assert lance.dataset(uri, storage_options=dict(store.bucket.options)).to_table() == table.to_table()
        assert store.take_requests().counts.get
        store.remove("t")
        store.take_requests()
        assert not Table.exists(uri, store.bucket.options)
