"""One table at `s3+ddb://`, written by Lance and by us in turns: the same entries, the same files, and whoever is next
finishes what the other left behind. S3 and DynamoDB are played by moto.
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
from tests.lance_core.storage.manifest_stores.stepping import SteppedManifests, SteppedStore, Steps
from tests.lance_core.world import World, cleaned

BUCKET = "lake"


@pytest.fixture
def uri(aws: dict[str, str], dynamodb_table: str) -> str:
    client = _client("s3", aws)
    if not any(bucket["Name"] == BUCKET for bucket in client.list_buckets()["Buckets"]):
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": aws["aws_region"]})
    return f"s3+ddb://{BUCKET}/{dynamodb_table}/orders?ddbTableName={dynamodb_table}"


@pytest.fixture
def key(dynamodb_table: str) -> str:
    return f"{dynamodb_table}/orders"


@pytest.fixture
def entries(aws: dict[str, str], dynamodb_table: str) -> DynamoDBManifestStore:
    return DynamoDBManifestStore(dynamodb_table, aws)


def _client(service: str, aws: Mapping[str, str]) -> Any:
    return get_session().create_client(
        service,
        endpoint_url=aws["aws_endpoint"],
        region_name=aws["aws_region"],
        aws_access_key_id=aws["aws_access_key_id"],
        aws_secret_access_key=aws["aws_secret_access_key"],
    )


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def both(uri: str, aws: dict[str, str]) -> tuple[int, list[int]]:
    """What both see, who have to see the same."""
    ours, theirs = Table.open(uri, storage_options=aws), lance.dataset(uri, storage_options=aws)
    seen = sorted(ours.to_table()["id"].to_pylist())
    assert (ours.version, seen) == (theirs.version, sorted(theirs.to_table()["id"].to_pylist()))
    theirs.validate()
    return ours.version, seen


def stored(aws: dict[str, str], table: str) -> dict[tuple[str, str], Mapping[str, Mapping[str, str]]]:
    items = _client("dynamodb", aws).scan(TableName=table, ConsistentRead=True)["Items"]
    return {(item["base_uri"]["S"], item["version"]["N"]): item for item in items}


@pytest.mark.parametrize("created_by", ["us", "lance"])
def test_in_turns(
    uri: str, key: str, aws: dict[str, str], dynamodb_table: str, entries: DynamoDBManifestStore, created_by: str
) -> None:
    if created_by == "us":
        assert Table.create(uri, rows(1, 2), storage_options=aws).uri == uri
    else:
        lance.write_dataset(rows(1, 2), uri, storage_options=aws)
    for turn in range(3):
        Table.open(uri, storage_options=aws).append(rows(10 + turn))
        lance.write_dataset(rows(20 + turn), uri, mode="append", storage_options=aws)
    Table.open(uri, storage_options=aws).delete("id = 1")
    lance.dataset(uri, storage_options=aws).delete("id = 2")
    assert both(uri, aws) == (9, [10, 11, 12, 20, 21, 22])
    items = stored(aws, dynamodb_table)
    assert set(items) == {(key, str(version)) for version in range(1, 10)}
    for (base, version), item in items.items():
        assert set(item) == {"base_uri", "version", "path", "size", "committer"}
        assert item["path"] == {"S": f"{base}/{naming.manifest_path(Version(int(version)))}"}
        assert entries.find_entry(key, Version(int(version))) is not None


@pytest.mark.parametrize("left", ["reserved", "in place", "in place, staged dropped", "moved"])
@pytest.mark.parametrize("next_one", ["us", "lance"])
def test_a_version_that_one_left_unfinished_is_finished_by_the_other(
    uri: str, key: str, aws: dict[str, str], entries: DynamoDBManifestStore, left: str, next_one: str
) -> None:
    """Whoever wrote version 2 is gone, and got as far as this."""
    Table.create(uri, rows(1), storage_options=aws).append(rows(2))
    store = open_store(f"s3://{BUCKET}/{key}", storage_options=aws)
    final = naming.manifest_path(Version(2))
    data = store.read(final)
    staged = Entry(Version(2), f"{final}-0b5a3c9e-0000-4000-8000-000000000000", len(data))
    tidied = Entry(Version(2), final, len(data))
    if left != "in place, staged dropped":
        store.put(staged.path, data)
    if left != "moved":
        assert entries.move_entry(key, tidied, staged)
    if left == "reserved":
        store.delete(final)
    if next_one == "lance":
        assert lance.dataset(uri, storage_options=aws).version == 2
    else:
        assert Table.open(uri, storage_options=aws).version == 2
    assert entries.find_entry(key, Version(2)) == tidied
    assert store.read(final) == data
    assert (store.head(staged.path) is None) == (left != "moved"), "cleanup finds what no entry names"
    assert lance.write_dataset(rows(3), uri, mode="append", storage_options=aws).version == 3
    assert Table.open(uri, storage_options=aws).append(rows(4)).version == 4
    assert both(uri, aws) == (4, [1, 2, 3, 4])


def test_an_entry_of_an_old_writer_is_read(uri: str, key: str, aws: dict[str, str], dynamodb_table: str) -> None:
    """Without a size, with an etag that is no longer true."""
    Table.create(uri, rows(1), storage_options=aws)
    item = stored(aws, dynamodb_table)[key, "1"]
    old = {name: value for name, value in item.items() if name != "size"} | {"e_tag": {"S": "stale"}}
    _client("dynamodb", aws).put_item(TableName=dynamodb_table, Item=old)
    assert both(uri, aws) == (1, [1])
    Table.open(uri, storage_options=aws).append(rows(2))
    assert both(uri, aws) == (2, [1, 2])


def test_branches_and_clones_have_the_entries_of_lance(
    uri: str, key: str, aws: dict[str, str], dynamodb_table: str
) -> None:
    table = Table.create(uri, rows(1), storage_options=aws)
    table.branches.create("ours").append(rows(2))
    theirs = lance.dataset(uri, storage_options=aws).create_branch("theirs")
    lance.write_dataset(rows(3), theirs, mode="append")
    assert {place for place in stored(aws, dynamodb_table) if place[0] != key} == {
        (f"{key}/tree/{name}", version) for name in ("ours", "theirs") for version in ("1", "2")
    }
    for name, expected in (("ours", [1, 2]), ("theirs", [1, 3])):
        branch = Table.open(uri, branch=name, storage_options=aws)
        assert sorted(branch.to_table()["id"].to_pylist()) == expected
        other = lance.dataset(uri, storage_options=aws).checkout_version((name, None))
        assert sorted(other.to_table()["id"].to_pylist()) == expected


def test_a_detached_version_of_lance_is_nobodys_newest(uri: str, aws: dict[str, str]) -> None:
    """Lance enters it like any other, and then takes it for the newest itself."""
    lance.write_dataset(rows(1), uri, storage_options=aws)
    lance.LanceDataset.commit(uri, LanceOperation.Append([]), read_version=1, detached=True, storage_options=aws)
    assert naming.is_detached(Version(lance.dataset(uri, storage_options=aws).version))
    table = Table.open(uri, storage_options=aws)
    assert table.version == 1
    assert table.append(rows(2)).version == 2
    assert Table.open(uri, storage_options=aws).version == 2


def test_lance_does_not_tell_that_a_table_has_a_manifest_store(uri: str, key: str, aws: dict[str, str]) -> None:
    """At its plain URI it is written past the entries, and who asks those does not see it. We look one further."""
    plain = f"s3://{BUCKET}/{key}"
    lance.write_dataset(rows(1), uri, storage_options=aws)
    assert lance.write_dataset(rows(2), plain, mode="append", storage_options=aws).version == 2
    assert lance.dataset(uri, storage_options=aws).version == 1
    assert Table.open(uri, storage_options=aws).version == 2
    Table.open(uri, storage_options=aws).append(rows(3))
    assert both(uri, aws) == (3, [1, 2, 3])


def test_cleanup_of_lance_leaves_entries_and_ours_none(
    uri: str, key: str, aws: dict[str, str], dynamodb_table: str
) -> None:
    table = Table.create(uri, rows(1), storage_options=aws)
    for number in range(2, 5):
        table = table.append(rows(number)).table
    lance.dataset(uri, storage_options=aws).cleanup_old_versions(timedelta(0))
    assert (key, "1") in stored(aws, dynamodb_table)
    table = Table.open(uri, storage_options=aws)
    assert table.version_numbers() == (4,)
    table = table.append(rows(5)).table
    cleaned(table)
    assert (key, "4") not in stored(aws, dynamodb_table)
    assert both(uri, aws) == (5, [1, 2, 3, 4, 5])


def test_names_of_many_kinds_have_the_keys_of_lance(uri: str, aws: dict[str, str], dynamodb_table: str) -> None:
    query = uri.partition("?")[2]
    for name in ("a b/c~d", "é/ö", "x.y-z_1"):
        place = f"s3+ddb://{BUCKET}/{dynamodb_table}/{name}?{query}"
        lance.write_dataset(rows(1), place, storage_options=aws)
        Table.open(place, storage_options=aws).append(rows(2))
        assert both(place, aws) == (2, [1, 2])
        assert {version for base, version in stored(aws, dynamodb_table) if base == f"{dynamodb_table}/{name}"} == {
            "1",
            "2",
        }


class _World(World):
    """Commits without data files that anybody reads, on S3, with entries in DynamoDB."""

    def __init__(self, key: str, entries: DynamoDBManifestStore, aws: Mapping[str, str], steps: Steps) -> None:
        store = open_store(f"s3://{BUCKET}/{key}", storage_options=aws)
        super().__init__(TwoPhaseStore(SteppedStore(store, steps), SteppedManifests(entries, steps), key))


@pytest.mark.parametrize("next_one", ["us", "lance"])
@pytest.mark.parametrize("how", ["before", "after"])
def test_wherever_we_stop_the_next_one_goes_on(
    uri: str, key: str, aws: dict[str, str], entries: DynamoDBManifestStore, how: str, next_one: str
) -> None:
    """From the moment when something of the version is written; version 2 is there or is not, the same to both."""
    counted = Steps()
    _World(f"{key}-0", entries, aws, Steps()).create("a")
    _World(f"{key}-0", entries, aws, counted).append("b", intent="b")
    first = next(at for at, call in enumerate(counted.calls) if call.startswith("put _versions/"))
    last = next(at for at, call in enumerate(counted.calls) if call.startswith("delete _versions/"))
    for at in range(first, last + 1):
        place, shared = f"{key}-{at}", uri.replace("/orders?", f"/orders-{at}?")
        _World(place, entries, aws, Steps()).create("a")
        with suppress(ProcessKilled):
            _World(place, entries, aws, Steps(at, how)).append("b", intent="b")
        reserved = at > first + 1 or (at == first + 1 and how == "after")
        if next_one == "us":
            assert Table.open(shared, storage_options=aws).version == 1 + reserved
        assert lance.dataset(shared, storage_options=aws).version == 1 + reserved
        assert _World(place, entries, aws, Steps()).append("b", intent="b").snapshot.version == 2
        assert lance.dataset(shared, storage_options=aws).version == 2
        assert entries.newest_entry(place) == entries.find_entry(place, Version(2))


def test_both_append_at_once_and_nothing_is_lost(uri: str, aws: dict[str, str]) -> None:
    Table.create(uri, rows(0), storage_options=aws)
    failures: list[BaseException] = []

    def ours(number: int) -> None:
        Table.open(uri, storage_options=aws).append(rows(number), retries=100)

    def theirs(number: int) -> None:
        lance.write_dataset(rows(number), lance.dataset(uri, storage_options=aws), mode="append")

    def write(append: Callable[[int], None], start: int) -> None:
        try:
            for number in range(start, start + 3):
                append(number)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=write, args=(ours, 10)), threading.Thread(target=write, args=(theirs, 20))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert both(uri, aws) == (7, [0, 10, 11, 12, 20, 21, 22])
