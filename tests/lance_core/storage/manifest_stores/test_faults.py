"""Faults of stores and databases: a store without conditional puts, and a database whose answers are lost."""

import itertools
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import CommitUndecided, LanceError, NotFound, StorageError, Table, Unsupported
from lance_core.format.ids import Version
from lance_core.storage.manifest_stores.dynamodb import DynamoDBManifestStore
from lance_core.storage.manifest_stores.manifest_store import Entry
from lance_core.storage.store import Put
from tests.lance_core.storage.faulty_proxy import proxy_to
from tests.lance_core.storage.gcs_server import GcsEmulator
from tests.lance_core.storage.object_servers import gcs

ROWS = pa.table({"id": [1, 2, 3]})
KEY = "lake/orders"


def ids(table: Table) -> list[int]:
    return sorted(table.to_table()["id"].to_pylist())


def entry(version: int) -> Entry:
    return Entry(Version(version), f"_versions/{version}.manifest-0b5a3c9e-0000-4000-8000-000000000000", 3)


def test_a_store_that_ignores_conditions_needs_a_manifest_store(tmp_path: Path) -> None:
    """Without a manifest store it is rejected: two writers would both believe that they committed a version."""
    manifest_store = f"sqlite:///{tmp_path}/manifests.db"
    with gcs(GcsEmulator(honours_conditions=False)) as server:
        bucket = server.bucket()
        uri, options = f"{bucket.uri}/orders", bucket.options
        with pytest.raises(Unsupported, match=r"honours conditional puts.*manifest_store="):
            Table.create(uri, ROWS, storage_options=options)
        table = Table.create(uri, ROWS, storage_options=options, manifest_store=manifest_store, intent="create")
        table = table.append(pa.table({"id": [4]}), intent="four").table
        assert table.append(pa.table({"id": [4]}), intent="four").already_committed
        table.tags.create("good", 2)
        table.tags.delete("good")
        table.tags.create("good", 1)
        assert ids(table.branches.create("dev").append(pa.table({"id": [9]})).table) == [1, 2, 3, 4, 9]
        failures: list[BaseException] = []

        def write(start: int) -> None:
            try:
                for number in range(start, start + 3):
                    opened = Table.open(uri, storage_options=options, manifest_store=manifest_store)
                    opened.append(pa.table({"id": [number]}), retries=100)
            except BaseException as error:  # noqa: BLE001 - shown by the assertion below
                failures.append(error)

        threads = [threading.Thread(target=write, args=(start,)) for start in (10, 20, 30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        table = Table.open(uri, storage_options=options, manifest_store=manifest_store)
        assert ids(table) == [1, 2, 3, 4, 10, 11, 12, 20, 21, 22, 30, 31, 32]
        assert table.version <= 11  # some of the concurrent appends shared a version
        assert ids(Table.open(uri, storage_options=options)) == ids(table), "reading needs no manifest store"


@pytest.mark.parametrize("fault", ["lost after", "500 after", "lost before", "500 before", "503 before"])
def test_an_append_survives_a_lost_answer_of_dynamodb(
    tmp_path: Path, aws: dict[str, str], dynamodb_table: str, fault: str
) -> None:
    """The fault hits each request of an append in turn: the append is committed once and acknowledged."""
    path, manifest_store = tmp_path / "orders", f"dynamodb://{dynamodb_table}"
    Table.create(path, ROWS, storage_options=aws, manifest_store=manifest_store)
    expected = [1, 2, 3]
    faults: list[str | None] = []
    with proxy_to(aws["dynamodb_endpoint"], lambda method, path: faults.pop(0) if faults else None) as proxy:
        options = {**aws, "dynamodb_endpoint": proxy.endpoint}
        table = Table.open(path, storage_options=options, manifest_store=manifest_store)
        before = len(proxy.requests)
        table = table.append(pa.table({"id": [10]})).table
        request_count = len(proxy.requests) - before
        expected.append(10)
        assert request_count >= 3
        for at in range(request_count):
            faults[:] = [*[None] * at, fault]
            table = table.append(pa.table({"id": [11 + at]})).table
            expected.append(11 + at)
            assert ids(table) == expected
    table = Table.open(path, storage_options=aws, manifest_store=manifest_store)
    assert (table.version, ids(table)) == (2 + request_count, expected)


@pytest.mark.parametrize("fault", ["lost before", "500 before", "500 after"])
def test_a_reservation_that_is_never_answered_is_unknown(
    monkeypatch: pytest.MonkeyPatch, aws: dict[str, str], dynamodb_table: str, fault: str
) -> None:
    monkeypatch.setattr("lance_core.storage.manifest_stores.dynamodb.ATTEMPTS_MAX", 2)
    faults = itertools.chain([None], itertools.repeat(fault))  # the first request describes the database table
    with proxy_to(aws["dynamodb_endpoint"], lambda method, path: next(faults)) as proxy:
        store = DynamoDBManifestStore(dynamodb_table, {**aws, "dynamodb_endpoint": proxy.endpoint})
        assert store.reserve(KEY, entry(1)) is Put.UNKNOWN
    actual = DynamoDBManifestStore(dynamodb_table, aws).find_entry(KEY, Version(1))
    assert actual == (entry(1) if fault == "500 after" else None)


def test_a_rejected_reservation_is_definite(aws: dict[str, str], dynamodb_table: str) -> None:
    faults = itertools.chain([None], itertools.repeat("403 before"))
    with proxy_to(aws["dynamodb_endpoint"], lambda method, path: next(faults)) as proxy:
        store = DynamoDBManifestStore(dynamodb_table, {**aws, "dynamodb_endpoint": proxy.endpoint})
        with pytest.raises(StorageError, match=r"reserve version 1.*credentials"):
            store.reserve(KEY, entry(1))


def test_an_unavailable_database_leaves_the_commit_undecided_or_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aws: dict[str, str], dynamodb_table: str
) -> None:
    """After a given request none is answered; the reported outcome is correct once the database is available again."""
    monkeypatch.setattr("lance_core.storage.manifest_stores.dynamodb.ATTEMPTS_MAX", 1)
    path, manifest_store = tmp_path / "orders", f"dynamodb://{dynamodb_table}"
    Table.create(path, ROWS, storage_options=aws, manifest_store=manifest_store)
    outcomes = set()
    for at, fault in zip(range(1, 7), itertools.cycle(("lost before", "lost after")), strict=False):
        expected = ids(Table.open(path, storage_options=aws, manifest_store=manifest_store))
        answers = itertools.chain([None] * at, itertools.repeat(fault))
        with proxy_to(aws["dynamodb_endpoint"], lambda method, path, answers=answers: next(answers)) as proxy:  # type: ignore[misc]
            options = {**aws, "dynamodb_endpoint": proxy.endpoint}
            number = len(expected) + 100
            try:
                Table.open(path, storage_options=options, manifest_store=manifest_store).append(
                    pa.table({"id": [number]}), retries=2
                )
                outcome = "acknowledged"
            except CommitUndecided:
                outcome = "not known"
            except LanceError:
                outcome = "refused"
        outcomes.add(outcome)
        current = ids(Table.open(path, storage_options=aws, manifest_store=manifest_store))
        assert current in (expected, sorted([*expected, number]))
        if outcome != "not known":
            assert (number in current) == (outcome == "acknowledged")
    assert {"acknowledged", "refused"} <= outcomes


def test_a_missing_dynamodb_table_is_reported(aws: dict[str, str]) -> None:
    with pytest.raises(NotFound, match="nowhere does not exist"):
        DynamoDBManifestStore("nowhere", aws).newest_entry(KEY)
