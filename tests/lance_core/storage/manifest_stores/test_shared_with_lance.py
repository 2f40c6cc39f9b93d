"""Interoperability with Lance at `s3+ddb://`: both libraries write one table with the same entries and files, and each
finishes what the other left behind. moto emulates DynamoDB.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import lance
import pyarrow as pa
import pytest
from botocore.session import get_session
from lance import LanceOperation

from lance_core import Table
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.storage.factory import open_store
from lance_core.storage.manifest_stores.dynamodb import DynamoDBManifestStore
from lance_core.storage.manifest_stores.manifest_store import Entry
from lance_core.storage.manifest_stores.two_phase import TwoPhaseStore
from tests.histories.cooperative_scheduler import ProcessKilled
from tests.lance_core.in_memory_table import InMemoryTable, clean_up
from tests.lance_core.storage.manifest_stores.fault_injection import (
    FaultInjectingManifestStore,
    FaultInjectingStore,
    FaultPlan,
)
from tests.lance_core.storage.s3_emulator import BUCKET


@pytest.fixture
def uri(dynamodb_table: str) -> str:
    return f"s3+ddb://{BUCKET}/{dynamodb_table}/orders?ddbTableName={dynamodb_table}"


@pytest.fixture
def key(dynamodb_table: str) -> str:
    return f"{dynamodb_table}/orders"


@pytest.fixture
def entries(aws: dict[str, str], dynamodb_table: str) -> DynamoDBManifestStore:
    return DynamoDBManifestStore(dynamodb_table, aws)


def _dynamodb(aws: Mapping[str, str]) -> Any:
    return get_session().create_client(
        "dynamodb",
        endpoint_url=aws["dynamodb_endpoint"],
        region_name=aws["aws_region"],
        aws_access_key_id=aws["aws_access_key_id"],
        aws_secret_access_key=aws["aws_secret_access_key"],
    )


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def read_with_both(uri: str, aws: dict[str, str]) -> tuple[int, list[int]]:
    """Return the version and the values that both libraries read, which must be equal."""
    ours, theirs = Table.open(uri, storage_options=aws), lance.dataset(uri, storage_options=aws)
    values = sorted(ours.to_table()["id"].to_pylist())
    assert (ours.version, values) == (theirs.version, sorted(theirs.to_table()["id"].to_pylist()))
    theirs.validate()
    return ours.version, values


def scan_entries(aws: dict[str, str], table: str) -> dict[tuple[str, str], Mapping[str, Mapping[str, str]]]:
    items = _dynamodb(aws).scan(TableName=table, ConsistentRead=True)["Items"]
    return {(item["base_uri"]["S"], item["version"]["N"]): item for item in items}


@pytest.mark.parametrize("created_by", ["us", "lance"])
def test_alternating_writes(
    uri: str, key: str, aws: dict[str, str], dynamodb_table: str, entries: DynamoDBManifestStore, created_by: str
) -> None:
    if created_by == "us":
        assert Table.create(uri, rows(1, 2), storage_options=aws).uri == uri
    else:
        lance.write_dataset(rows(1, 2), uri, storage_options=aws)
    for step in range(3):
        Table.open(uri, storage_options=aws).append(rows(10 + step))
        lance.write_dataset(rows(20 + step), uri, mode="append", storage_options=aws)
    Table.open(uri, storage_options=aws).delete("id = 1")
    lance.dataset(uri, storage_options=aws).delete("id = 2")
    assert read_with_both(uri, aws) == (9, [10, 11, 12, 20, 21, 22])
    items = scan_entries(aws, dynamodb_table)
    assert set(items) == {(key, str(version)) for version in range(1, 10)}
    for (base, version), item in items.items():
        assert set(item) == {"base_uri", "version", "path", "size", "committer"}
        assert item["path"] == {"S": f"{base}/{naming.manifest_path(Version(int(version)))}"}
        assert entries.find_entry(key, Version(int(version))) is not None


@pytest.mark.parametrize("state", ["reserved", "final", "final, staged deleted", "moved"])
@pytest.mark.parametrize("next_reader", ["us", "lance"])
def test_a_version_that_one_left_unfinished_is_finished_by_the_other(
    uri: str, key: str, aws: dict[str, str], entries: DynamoDBManifestStore, state: str, next_reader: str
) -> None:
    """The writer of version 2 died after it reached this state."""
    Table.create(uri, rows(1), storage_options=aws).append(rows(2))
    store = open_store(f"s3://{BUCKET}/{key}", storage_options=aws)
    final = naming.manifest_path(Version(2))
    data = store.read(final)
    staged = Entry(Version(2), f"{final}-0b5a3c9e-0000-4000-8000-000000000000", len(data))
    moved = Entry(Version(2), final, len(data))
    if state != "final, staged deleted":
        store.put(staged.path, data)
    if state != "moved":
        assert entries.move_entry(key, moved, staged)
    if state == "reserved":
        store.delete(final)
    if next_reader == "lance":
        assert lance.dataset(uri, storage_options=aws).version == 2
    else:
        assert Table.open(uri, storage_options=aws).version == 2
    assert entries.find_entry(key, Version(2)) == moved
    assert store.read(final) == data
    assert (store.head(staged.path) is None) == (state != "moved"), (
        "a cleanup removes a staged manifest without an entry"
    )
    assert lance.write_dataset(rows(3), uri, mode="append", storage_options=aws).version == 3
    assert Table.open(uri, storage_options=aws).append(rows(4)).version == 4
    assert read_with_both(uri, aws) == (4, [1, 2, 3, 4])


def test_an_entry_of_an_old_writer_is_read(uri: str, key: str, aws: dict[str, str], dynamodb_table: str) -> None:
    """The entry has no size and an outdated etag."""
    Table.create(uri, rows(1), storage_options=aws)
    item = scan_entries(aws, dynamodb_table)[key, "1"]
    old = {name: value for name, value in item.items() if name != "size"} | {"e_tag": {"S": "stale"}}
    _dynamodb(aws).put_item(TableName=dynamodb_table, Item=old)
    assert read_with_both(uri, aws) == (1, [1])
    Table.open(uri, storage_options=aws).append(rows(2))
    assert read_with_both(uri, aws) == (2, [1, 2])


def test_branches_and_clones_have_the_entries_of_lance(
    uri: str, key: str, aws: dict[str, str], dynamodb_table: str
) -> None:
    table = Table.create(uri, rows(1), storage_options=aws)
    table.branches.create("ours").append(rows(2))
    theirs = lance.dataset(uri, storage_options=aws).create_branch("theirs")
    lance.write_dataset(rows(3), theirs, mode="append")
    assert {key_and_version for key_and_version in scan_entries(aws, dynamodb_table) if key_and_version[0] != key} == {
        (f"{key}/tree/{name}", version) for name in ("ours", "theirs") for version in ("1", "2")
    }
    for name, expected in (("ours", [1, 2]), ("theirs", [1, 3])):
        branch = Table.open(uri, branch=name, storage_options=aws)
        assert sorted(branch.to_table()["id"].to_pylist()) == expected
        other = lance.dataset(uri, storage_options=aws).checkout_version((name, None))
        assert sorted(other.to_table()["id"].to_pylist()) == expected


def test_a_detached_version_of_lance_is_not_the_newest(uri: str, aws: dict[str, str]) -> None:
    """Lance writes an entry for it as for any other version, and then opens it as the newest itself."""
    lance.write_dataset(rows(1), uri, storage_options=aws)
    lance.LanceDataset.commit(uri, LanceOperation.Append([]), read_version=1, detached=True, storage_options=aws)
    assert naming.is_detached(Version(lance.dataset(uri, storage_options=aws).version))
    table = Table.open(uri, storage_options=aws)
    assert table.version == 1
    assert table.append(rows(2)).version == 2
    assert Table.open(uri, storage_options=aws).version == 2


def test_lance_does_not_record_the_manifest_store_of_a_table(uri: str, key: str, aws: dict[str, str]) -> None:
    """A write to the plain URI bypasses the entries, and a reader of the entries misses it. This library probes one
    version further.
    """
    plain = f"s3://{BUCKET}/{key}"
    lance.write_dataset(rows(1), uri, storage_options=aws)
    assert lance.write_dataset(rows(2), plain, mode="append", storage_options=aws).version == 2
    assert lance.dataset(uri, storage_options=aws).version == 1
    assert Table.open(uri, storage_options=aws).version == 2
    Table.open(uri, storage_options=aws).append(rows(3))
    assert read_with_both(uri, aws) == (3, [1, 2, 3])


def test_cleanup_of_lance_leaves_entries_and_ours_removes_them(
    uri: str, key: str, aws: dict[str, str], dynamodb_table: str
) -> None:
    table = Table.create(uri, rows(1), storage_options=aws)
    for number in range(2, 5):
        table = table.append(rows(number)).table
    lance.dataset(uri, storage_options=aws).cleanup_old_versions(timedelta(0))
    assert (key, "1") in scan_entries(aws, dynamodb_table)
    table = Table.open(uri, storage_options=aws)
    assert table.version_numbers() == (4,)
    table = table.append(rows(5)).table
    clean_up(table)
    assert (key, "4") not in scan_entries(aws, dynamodb_table)
    assert read_with_both(uri, aws) == (5, [1, 2, 3, 4, 5])


def test_unusual_names_have_the_keys_of_lance(uri: str, aws: dict[str, str], dynamodb_table: str) -> None:
    query = uri.partition("?")[2]
    for name in ("a b/c~d", "é/ö", "x.y-z_1"):
        uri_of_name = f"s3+ddb://{BUCKET}/{dynamodb_table}/{name}?{query}"
        lance.write_dataset(rows(1), uri_of_name, storage_options=aws)
        Table.open(uri_of_name, storage_options=aws).append(rows(2))
        assert read_with_both(uri_of_name, aws) == (2, [1, 2])
        assert {
            version for base, version in scan_entries(aws, dynamodb_table) if base == f"{dynamodb_table}/{name}"
        } == {
            "1",
            "2",
        }


class _TableOnS3(InMemoryTable):
    """Commits without readable data files, on S3 with entries in DynamoDB."""

    def __init__(self, key: str, entries: DynamoDBManifestStore, aws: Mapping[str, str], steps: FaultPlan) -> None:
        store = open_store(f"s3://{BUCKET}/{key}", storage_options=aws)
        super().__init__(
            TwoPhaseStore(FaultInjectingStore(store, steps), FaultInjectingManifestStore(entries, steps), key)
        )


@pytest.mark.parametrize("next_reader", ["us", "lance"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_next_process_finishes_a_write_stopped_at_any_call(
    uri: str, key: str, aws: dict[str, str], entries: DynamoDBManifestStore, moment: str, next_reader: str
) -> None:
    """The interruptions begin with the first object of the version; both libraries agree whether version 2 exists."""
    plan = FaultPlan()
    _TableOnS3(f"{key}-0", entries, aws, FaultPlan()).create("a")
    _TableOnS3(f"{key}-0", entries, aws, plan).append("b", intent="b")
    first = next(at for at, call in enumerate(plan.calls) if call.startswith("put _versions/"))
    last = next(at for at, call in enumerate(plan.calls) if call.startswith("delete _versions/"))
    for at in range(first, last + 1):
        key_of_run, uri_of_run = f"{key}-{at}", uri.replace("/orders?", f"/orders-{at}?")
        _TableOnS3(key_of_run, entries, aws, FaultPlan()).create("a")
        with suppress(ProcessKilled):
            _TableOnS3(key_of_run, entries, aws, FaultPlan(at, moment)).append("b", intent="b")
        reserved = at > first + 1 or (at == first + 1 and moment == "after")
        if next_reader == "us":
            assert Table.open(uri_of_run, storage_options=aws).version == 1 + reserved
        assert lance.dataset(uri_of_run, storage_options=aws).version == 1 + reserved
        assert _TableOnS3(key_of_run, entries, aws, FaultPlan()).append("b", intent="b").snapshot.version == 2
        assert lance.dataset(uri_of_run, storage_options=aws).version == 2
        assert entries.newest_entry(key_of_run) == entries.find_entry(key_of_run, Version(2))


def test_concurrent_appends_of_both_are_all_kept(uri: str, aws: dict[str, str]) -> None:
    Table.create(uri, rows(0), storage_options=aws)
    failures: list[BaseException] = []

    def append_with_this_library(number: int) -> None:
        Table.open(uri, storage_options=aws).append(rows(number), retries=100)

    def append_with_lance(number: int) -> None:
        lance.write_dataset(rows(number), lance.dataset(uri, storage_options=aws), mode="append")

    def write(append: Callable[[int], None], start: int) -> None:
        try:
            for number in range(start, start + 3):
                append(number)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [
        threading.Thread(target=write, args=(append_with_this_library, 10)),
        threading.Thread(target=write, args=(append_with_lance, 20)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert read_with_both(uri, aws) == (7, [0, 10, 11, 12, 20, 21, 22])
