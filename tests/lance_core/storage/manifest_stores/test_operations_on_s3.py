"""Every operation once on a table at `s3+ddb://`, with versions reserved in DynamoDB and files in an S3
emulator. Lance reads each result, and each version has its entry.
"""

from collections.abc import Callable

import lance
import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.operations import Append, BasePath
from lance_core.storage.buckets.bucket import ListingPage
from lance_core.storage.buckets.s3 import S3Bucket
from lance_core.storage.manifest_stores.dynamodb import DynamoDBManifestStore
from tests.lance_core.in_memory_table import clean_up
from tests.lance_core.storage.s3_emulator import BUCKET


class SharedTable:
    def __init__(self, aws: dict[str, str], dynamodb_table: str) -> None:
        self.table = dynamodb_table
        self.key = f"{dynamodb_table}/orders"
        self.options = aws
        self.uri = self.uri_of("orders")
        self.entries = DynamoDBManifestStore(dynamodb_table, aws)

    def uri_of(self, name: str) -> str:
        return f"s3+ddb://{BUCKET}/{self.table}/{name}?ddbTableName={self.table}"

    def create(self) -> Table:
        return Table.create(self.uri, rows(1, 2, 3, 4), storage_options=self.options, stable_row_ids=True)

    def ours(self, **reference: str) -> Table:
        return Table.open(self.uri, storage_options=self.options, **reference)  # type: ignore[arg-type]

    def theirs(self) -> lance.LanceDataset:
        return lance.dataset(self.uri, storage_options=self.options)

    def check(self, expected: list[dict[str, object]]) -> None:
        ours, theirs = self.ours(), self.theirs()
        assert in_order(ours.to_table()) == in_order(theirs.to_table()) == expected
        assert ours.version == theirs.version
        newest = self.entries.newest_entry(self.key)
        assert newest is not None
        assert (newest.version, newest.path) == (ours.version, naming.manifest_path(Version(ours.version)))
        report = ours.fsck()
        assert report.is_clean, str(report)


@pytest.fixture
def shared(aws: dict[str, str], dynamodb_table: str) -> SharedTable:
    return SharedTable(aws, dynamodb_table)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "word": [f"w{number}" for number in ids]})


def in_order(rows: pa.Table) -> list[dict[str, object]]:
    return sorted(rows.to_pylist(), key=lambda row: row["id"])


def as_rows(*ids: int, **columns: object) -> list[dict[str, object]]:
    return [{"id": number, "word": f"w{number}", **columns} for number in ids]


CHANGES: list[tuple[str, Callable[[Table], object], list[dict[str, object]]]] = [
    ("append", lambda t: t.append(rows(5)), as_rows(1, 2, 3, 4, 5)),
    ("overwrite", lambda t: t.overwrite(rows(7)), as_rows(7)),
    ("delete", lambda t: t.delete("id > 2"), as_rows(1, 2)),
    ("update", lambda t: t.update({"word": "'x'"}, where="id > 0"), [{"id": n, "word": "x"} for n in (1, 2, 3, 4)]),
    ("upsert", lambda t: t.upsert(rows(4, 9), on="id"), as_rows(1, 2, 3, 4, 9)),
    ("add_columns", lambda t: t.add_columns({"n": "7"}), as_rows(1, 2, 3, 4, n=7)),
    (
        "merge_columns",
        lambda t: t.merge_columns(pa.table({"id": pa.array([1, 2, 3, 4], pa.int64()), "m": ["m"] * 4}), on="id"),
        as_rows(1, 2, 3, 4, m="m"),
    ),
    ("drop_columns", lambda t: t.drop_columns(["word"]), [{"id": n} for n in (1, 2, 3, 4)]),
    ("alter_column", lambda t: t.alter_column("id", type=pa.int32()), as_rows(1, 2, 3, 4)),
    ("reorder_columns", lambda t: t.reorder_columns(["word", "id"]), as_rows(1, 2, 3, 4)),
    ("set_config", lambda t: t.set_config({"a": "b"}), as_rows(1, 2, 3, 4)),
    ("set_metadata", lambda t: t.set_metadata({"a": "b"}), as_rows(1, 2, 3, 4)),
    ("set_schema_metadata", lambda t: t.set_schema_metadata({"a": "b"}), as_rows(1, 2, 3, 4)),
    ("set_field_metadata", lambda t: t.set_field_metadata({"id": {"a": "b"}}), as_rows(1, 2, 3, 4)),
    ("compact", lambda t: t.append(rows(5)).table.compact(), as_rows(1, 2, 3, 4, 5)),
    ("restore", lambda t: t.delete("id = 1").table.restore(1), as_rows(1, 2, 3, 4)),
    ("add_bases", lambda t: t.add_bases([BasePath("s3://elsewhere/x", 7)]), as_rows(1, 2, 3, 4)),
]


@pytest.mark.parametrize(
    ("operation", "expected_rows"), [each[1:] for each in CHANGES], ids=[each[0] for each in CHANGES]
)
def test_a_change(
    shared: SharedTable, operation: Callable[[Table], object], expected_rows: list[dict[str, object]]
) -> None:
    before = shared.create().version
    operation(shared.ours())
    assert shared.ours().version > before
    shared.check(expected_rows)


def test_an_intent_and_an_old_handle(shared: SharedTable) -> None:
    old = shared.create()
    first = old.append(rows(5), intent="five")
    again = shared.ours().append(rows(5), intent="five")
    assert (first.version, again.version, again.already_committed) == (2, 2, True)
    assert old.delete("id = 1").version == 3
    shared.check(as_rows(2, 3, 4, 5))


def test_a_detached_version(shared: SharedTable) -> None:
    table = shared.create()
    append = table.append(rows(5)).table.transaction().operation  # type: ignore[union-attr]
    assert isinstance(append, Append)
    table = shared.ours().restore(1).table
    detached = table.commit(append, detached=True)
    assert shared.ours().version == 3
    assert shared.ours().publish(detached.version).version == 4
    shared.check(as_rows(1, 2, 3, 4, 5))


def test_tags_branches_and_reads(shared: SharedTable) -> None:
    table = shared.create().delete("id = 1").table
    table.tags.create("first", 1)
    table.tags.update("first", 2)
    assert in_order(shared.ours(tag="first").to_table()) == as_rows(2, 3, 4)
    branch = table.branches.create("dev").append(rows(8)).table
    assert in_order(shared.ours(branch="dev").to_table()) == as_rows(2, 3, 4, 8)
    assert branch.fsck().is_clean
    table.branches.delete("dev")
    assert shared.entries.newest_entry(f"{shared.key}/tree/dev") is None
    assert [info.operation for info in table.versions()] == ["Overwrite", "Delete"]
    assert table.take([2, 0])["id"].to_pylist() == [4, 2]
    assert table.changes(since=1)["_change"].to_pylist() == ["delete"]
    assert table.count_rows("id > 2") == 2
    assert "id > 2" in table.explain("id > 2")
    table.tags.delete("first")
    shared.check(as_rows(2, 3, 4))


@pytest.mark.parametrize("shallow", [True, False])
def test_a_clone(shared: SharedTable, shallow: bool) -> None:
    table = shared.create()
    uri = shared.uri_of("copy")
    clone = table.clone(uri, shallow=shallow).append(rows(5)).table
    assert in_order(clone.to_table()) == as_rows(1, 2, 3, 4, 5)
    assert in_order(lance.dataset(uri, storage_options=shared.options).to_table()) == as_rows(1, 2, 3, 4, 5)
    newest = shared.entries.newest_entry(f"{shared.table}/copy")
    assert newest is not None
    assert newest.version == 2
    shared.check(as_rows(1, 2, 3, 4))


def test_cleanup_and_new_names(shared: SharedTable) -> None:
    table = shared.create()
    for number in (5, 6, 7):
        table = table.append(rows(number)).table
    table.tags.create("kept", 2)
    assert clean_up(shared.ours()).versions == (1, 3)
    assert [entry.version for entry in shared.entries.list_entries(shared.key)] == [2, 4]
    assert shared.ours().migrate_manifest_names().version == 4
    shared.check(as_rows(1, 2, 3, 4, 5, 6, 7))


def test_the_newest_version_costs_one_entry_and_one_short_page(
    shared: SharedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a table and committing to it list a bounded number of manifests, for any number of versions."""
    table = shared.create()
    for number in range(24):
        table = table.set_metadata({"number": str(number)}).table
    pages: list[int] = []
    list_page = S3Bucket.list_page

    def count_pages(
        self: S3Bucket, prefix: str, *, recursive: bool, after: str, continuation: str | None, limit: int
    ) -> ListingPage:
        if prefix.endswith(f"{naming.VERSIONS}/"):
            pages.append(limit)
        return list_page(self, prefix, recursive=recursive, after=after, continuation=continuation, limit=limit)

    monkeypatch.setattr(S3Bucket, "list_page", count_pages)
    assert shared.ours().version == 25
    assert pages == [20]
    assert table.append(rows(9)).version == 26
    assert pages == [20, 20]
