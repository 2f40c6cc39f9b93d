"""Stores and databases as they are on bad days: one that puts under no condition, one whose answers are lost."""

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
from tests.lance_core.storage.chaos import between
from tests.lance_core.storage.gcs_server import Gcs
from tests.lance_core.storage.servers import gcs

ROWS = pa.table({"id": [1, 2, 3]})
KEY = "lake/orders"


def ids(table: Table) -> list[int]:
    return sorted(table.to_table()["id"].to_pylist())


def entry(version: int) -> Entry:
    return Entry(Version(version), f"_versions/{version}.manifest-0b5a3c9e-0000-4000-8000-000000000000", 3)


def test_a_store_that_ignores_conditions_holds_a_table_with_a_manifest_store(tmp_path: Path) -> None:
    """Without one it is refused: of two writers both would believe that they were first."""
    given = f"sqlite:///{tmp_path}/manifests.db"
    with gcs(Gcs(honours_conditions=False)) as server:
        bucket = server.bucket()
        uri, options = f"{bucket.uri}/orders", bucket.options
        with pytest.raises(Unsupported, match=r"honours conditional puts.*manifest_store="):
            Table.create(uri, ROWS, storage_options=options)
        table = Table.create(uri, ROWS, storage_options=options, manifest_store=given, intent="create")
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
                    opened = Table.open(uri, storage_options=options, manifest_store=given)
                    opened.append(pa.table({"id": [number]}), retries=100)
            except BaseException as error:  # noqa: BLE001 - shown by the assertion below
                failures.append(error)

        threads = [threading.Thread(target=write, args=(start,)) for start in (10, 20, 30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        table = Table.open(uri, storage_options=options, manifest_store=given)
        assert ids(table) == [1, 2, 3, 4, 10, 11, 12, 20, 21, 22, 30, 31, 32]
        assert table.version <= 11  # some of the threads' appends shared one
        assert ids(Table.open(uri, storage_options=options)) == ids(table), "reading needs no manifest store"


@pytest.mark.parametrize("fault", ["lost after", "500 after", "lost before", "500 before", "503 before"])
def test_an_answer_of_dynamodb_is_lost(tmp_path: Path, aws: dict[str, str], dynamodb_table: str, fault: str) -> None:
    """Of any one of the requests of an append: it is committed once, and both said and seen to be."""
    place, given = tmp_path / "orders", f"dynamodb://{dynamodb_table}"
    Table.create(place, ROWS, storage_options=aws, manifest_store=given)
    expected = [1, 2, 3]
    faults: list[str | None] = []
    with between(aws["dynamodb_endpoint"], lambda method, path: faults.pop(0) if faults else None) as chaos:
        options = {**aws, "dynamodb_endpoint": chaos.endpoint}
        table = Table.open(place, storage_options=options, manifest_store=given)
        before = len(chaos.seen)
        table = table.append(pa.table({"id": [10]})).table
        asked = len(chaos.seen) - before
        expected.append(10)
        assert asked >= 3
        for at in range(asked):
            faults[:] = [*[None] * at, fault]
            table = table.append(pa.table({"id": [11 + at]})).table
            expected.append(11 + at)
            assert ids(table) == expected
    table = Table.open(place, storage_options=aws, manifest_store=given)
    assert (table.version, ids(table)) == (2 + asked, expected)


@pytest.mark.parametrize("fault", ["lost before", "500 before", "500 after"])
def test_a_reservation_that_is_never_answered_is_not_known(
    monkeypatch: pytest.MonkeyPatch, aws: dict[str, str], dynamodb_table: str, fault: str
) -> None:
    monkeypatch.setattr("lance_core.storage.manifest_stores.dynamodb._ATTEMPTS_MAX", 2)
    faults = itertools.chain([None], itertools.repeat(fault))  # it is described once
    with between(aws["dynamodb_endpoint"], lambda method, path: next(faults)) as chaos:
        store = DynamoDBManifestStore(dynamodb_table, {**aws, "dynamodb_endpoint": chaos.endpoint})
        assert store.reserve(KEY, entry(1)) is Put.UNKNOWN
    there = DynamoDBManifestStore(dynamodb_table, aws).find_entry(KEY, Version(1))
    assert there == (entry(1) if fault == "500 after" else None)


def test_a_reservation_that_is_refused_is_known_to_be(aws: dict[str, str], dynamodb_table: str) -> None:
    faults = itertools.chain([None], itertools.repeat("403 before"))
    with between(aws["dynamodb_endpoint"], lambda method, path: next(faults)) as chaos:
        store = DynamoDBManifestStore(dynamodb_table, {**aws, "dynamodb_endpoint": chaos.endpoint})
        with pytest.raises(StorageError, match=r"reserve version 1.*credentials"):
            store.reserve(KEY, entry(1))


def test_a_database_that_goes_away_leaves_the_commit_undecided_or_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aws: dict[str, str], dynamodb_table: str
) -> None:
    """From any of the requests on, nothing is answered; when it is back, what was said about the commit is true."""
    monkeypatch.setattr("lance_core.storage.manifest_stores.dynamodb._ATTEMPTS_MAX", 1)
    place, given = tmp_path / "orders", f"dynamodb://{dynamodb_table}"
    Table.create(place, ROWS, storage_options=aws, manifest_store=given)
    outcomes = set()
    for at, fault in zip(range(1, 7), itertools.cycle(("lost before", "lost after")), strict=False):
        expected = ids(Table.open(place, storage_options=aws, manifest_store=given))
        answers = itertools.chain([None] * at, itertools.repeat(fault))
        with between(aws["dynamodb_endpoint"], lambda method, path, answers=answers: next(answers)) as chaos:  # type: ignore[misc]
            options = {**aws, "dynamodb_endpoint": chaos.endpoint}
            number = len(expected) + 100
            try:
                Table.open(place, storage_options=options, manifest_store=given).append(
                    pa.table({"id": [number]}), retries=2
                )
                outcome = "acknowledged"
            except CommitUndecided:
                outcome = "not known"
            except LanceError:
                outcome = "refused"
        outcomes.add(outcome)
        now = ids(Table.open(place, storage_options=aws, manifest_store=given))
        assert now in (expected, sorted([*expected, number]))
        if outcome != "not known":
            assert (number in now) == (outcome == "acknowledged")
    assert {"acknowledged", "refused"} <= outcomes


def test_a_missing_table_of_dynamodb_is_told(aws: dict[str, str]) -> None:
    with pytest.raises(NotFound, match="nowhere does not exist"):
        DynamoDBManifestStore("nowhere", aws).newest_entry(KEY)
