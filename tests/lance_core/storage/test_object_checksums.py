"""Checksums of tables in object stores: every writer records them, and every reader finds the damaged file."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import Corrupt, Table
from lance_core.datafiles.checksums import forget_verified_files
from lance_core.errors import IndexIgnored
from lance_core.fsck import Severity
from lance_core.storage.factory import TableStore, open_store
from lance_core.tasks.rows.write import FileLimits, PlannedWrite, WriteTask, begin_append
from lance_core.versions.recorded_files import files_of
from tests.lance_core.storage.buckets import Bucket
from tests.lance_core.storage.faulty_proxy import proxy_to
from tests.lance_core.storage.object_servers import Server


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {number}" for number in ids]})


def write_everything(bucket: Bucket, uri: str) -> Table:
    """Create a table whose files come from this process and from the task of a driver: data, deletions, an index."""
    table = Table.create(uri, rows(*range(20)), storage_options=bucket.options, max_rows_per_file=10)
    planned = begin_append(
        uri,
        rows().schema,
        create=False,
        intent=None,
        limits=FileLimits(5, 2**20),
        storage_options=bucket.options,
    )
    assert isinstance(planned, PlannedWrite)
    planned.finish(pa.Table.from_batches(WriteTask(planned.plan)(iter(rows(*range(20, 30)).to_batches()))))
    table.refresh().add_columns({"double": "id * 2"})
    table.refresh().delete("id = 3")
    return table.refresh().create_index("id", "BTREE").table


def flip_bit(store: TableStore, path: str) -> bytes:
    original = store.read(path)
    position = len(original) // 3
    store.put(path, original[:position] + bytes([original[position] ^ 4]) + original[position + 1 :])
    return original


def test_every_damaged_object_is_found(server: Server, tmp_path: Path) -> None:
    bucket = server.bucket()
    uri = f"{bucket.uri}/orders"
    table = write_everything(bucket, uri)
    store = open_store(uri, storage_options=bucket.options)
    files = [(path, owner) for path, owner, checksum in files_of(table.manifest) if checksum is not None]
    assert [path for path, _owner in files] == [path for path, _owner, _checksum in files_of(table.manifest)]
    assert {path.partition("/")[0] for path, _owner in files} == {"data", "_deletions", "_indices"}
    index_file = next(path for path, _owner in files if path.startswith("_indices"))
    original = flip_bit(store, index_file)  # before this process opens the index, which it then caches
    opened = Table.open(uri, storage_options=bucket.options, verify="read")
    with pytest.warns(IndexIgnored, match="has the hash"):
        found_rows = opened.to_table(filter="id = 7")
    assert found_rows["id"].to_pylist() == [7]
    store.put(index_file, original)
    report = table.fsck(data=True)
    assert (report.verified_files, report.errors) == (report.files, ())
    copy = table.clone(tmp_path / "copy", shallow=False)
    assert copy.fsck(data=True).verified_files >= len(files)
    for path, owner in {path.partition("/")[0]: (path, owner) for path, owner in files}.values():
        original = flip_bit(store, path)
        found = [finding for finding in table.fsck(data=True).errors if finding.rule == "checksum"]
        assert [finding.path for finding in found] == [path]
        assert owner in found[0].what
        forget_verified_files()
        if not path.startswith("_indices"):
            with pytest.raises(Corrupt, match=path):
                Table.open(uri, storage_options=bucket.options, verify="read").to_table()
        store.put(path, original)
    forget_verified_files()
    assert Table.open(uri, storage_options=bucket.options, verify="read").to_table().num_rows == 29


def test_hashing_takes_no_request(s3_server: Server) -> None:
    """A write sends each file once. `verify="read"` adds one request for each file, at its first use."""
    with proxy_to(s3_server.endpoint) as proxy:
        bucket = s3_server.bucket(proxy.endpoint)
        table = write_everything(bucket, f"{bucket.uri}/orders")
        paths = [path for path, _owner, _checksum in files_of(table.manifest)]
        for path in paths:
            sent = [method for method, url, _fault in proxy.requests if path in url and method != "GET"]
            assert sent.count("PUT") == 1, (path, sent)
        counts = []
        for verify in ("off", "read", "read"):
            before = len(proxy.requests)
            Table.open(table.uri, storage_options=bucket.options, verify=verify).to_table()
            counts.append(len(proxy.requests) - before)
        data_files = sum(path.startswith("data/") for path in paths)
        assert counts[1] - counts[0] == data_files
        assert counts[2] == counts[0]


def test_blob_files_are_checked_for_existence_and_size(s3_server: Server) -> None:
    """The format has no place for their hashes."""
    bucket = s3_server.bucket()
    uri = f"{bucket.uri}/pictures"
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("blob")])
    blobs = lance.blob_array([b"a" * 100_000, b"b" * 5_000_000])
    table = Table.create(uri, pa.table({"id": [0, 1], "blob": blobs}, schema=schema), storage_options=bucket.options)
    store = open_store(uri, storage_options=bucket.options)
    files = [info.path for info in store.walk("data") if info.path.endswith(".blob")]
    assert len(files) == 2
    assert not table.fsck(data=True).errors
    for path in files:
        original = store.read(path)
        store.delete(path)
        assert [path in finding.path or path in finding.what for finding in table.fsck(data=True).errors] == [True]
        store.put(path, original[:-1])
        assert [path in finding.path or path in finding.what for finding in table.fsck(data=True).errors] == [True]
        store.put(path, original)
    assert not [each for each in table.fsck(data=True).findings if each.severity is Severity.ERROR]
