"""Tables on a local disk whose versions are reserved in a database, through the front door."""

import logging
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import InvalidInput, MissingDependency, NotFound, StorageError, Table, Unsupported, operations
from lance_core.format import naming
from lance_core.format.ids import FragmentId, Version
from lance_core.storage.manifest_stores.factory import open_manifest_store, split_uri
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.tasks.driver import TableRef
from lance_core.tasks.rows.write import FileLimits, PlannedWrite, WriteTask, begin_append
from lance_core.tasks.scan.read import VersionRef
from lance_core.versions.location import MANIFEST_STORE
from tests.lance_core.world import cleaned

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture(params=["sqlite", "postgresql", "dynamodb"])
def given(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/manifests.db"
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"dynamodb://{request.getfixturevalue('dynamodb_table')}"


def ids(table: Table) -> list[int]:
    return sorted(table.to_table()["id"].to_pylist())


def test_every_verb_works_as_without(tmp_path: Path, given: str, options: dict[str, str]) -> None:
    place = str(tmp_path / "orders")
    assert not Table.exists(place, options, manifest_store=given)
    table = Table.create(place, ROWS, manifest_store=given, storage_options=options)
    assert Table.exists(place, options, manifest_store=given)
    table = table.append(pa.table({"id": [4]}), intent="four").table
    assert table.append(pa.table({"id": [4]}), intent="four").already_committed
    table = table.delete("id = 1").table
    table = table.update({"id": "id * 10"}, "id = 4").table
    table = table.compact().table
    assert ids(table.at(2)) == [1, 2, 3, 4]
    table = table.restore(3).table
    table.tags.create("good", 2)
    assert [info.operation for info in table.versions()][:3] == ["Overwrite", "Append", "Delete"]
    again = Table.open(place, manifest_store=given, storage_options=options)
    assert (again.version, ids(again)) == (table.version, [2, 3, 4])
    assert ids(Table.open(place, tag="good", manifest_store=given, storage_options=options)) == [1, 2, 3, 4]
    names = {path.name for path in (tmp_path / "orders" / "_versions").iterdir()}
    assert names == {naming.manifest_path(Version(each)).rpartition("/")[2] for each in range(1, table.version + 1)}
    assert table.fsck().findings == ()
    assert Table.check(place, storage_options=options, manifest_store=given).findings == ()


def test_a_branch_and_a_clone_are_reserved_too(
    tmp_path: Path, given: str, options: dict[str, str], manifests: ManifestStore
) -> None:
    table = Table.create(tmp_path / "orders", ROWS, manifest_store=given, storage_options=options)
    branch = table.branches.create("dev")
    branch = branch.append(pa.table({"id": [9]})).table
    clone = table.clone(str(tmp_path / "copy"))
    clone.append(pa.table({"id": [8]}))
    opened = Table.open(tmp_path / "orders", branch="dev", manifest_store=given, storage_options=options)
    assert ids(opened) == [1, 2, 3, 9]
    for uri, version in ((branch.uri, 2), (str(tmp_path / "copy"), 2), (table.uri, 1)):
        entry = manifests.newest_entry(manifests.table_key(uri))
        assert entry is not None
        assert (entry.version, entry.path) == (version, naming.manifest_path(Version(version)))


def test_a_deleted_branch_leaves_no_entry(
    tmp_path: Path, given: str, options: dict[str, str], manifests: ManifestStore
) -> None:
    table = Table.create(tmp_path / "orders", ROWS, manifest_store=given, storage_options=options)
    branch = table.branches.create("dev").append(pa.table({"id": [9]})).table
    table.branches.delete("dev")
    assert manifests.newest_entry(manifests.table_key(branch.uri)) is None
    assert ids(table.branches.create("dev").append(pa.table({"id": [8]})).table) == [1, 2, 3, 8]


def test_cleanup_removes_the_entries_of_the_versions(
    tmp_path: Path, given: str, options: dict[str, str], manifests: ManifestStore
) -> None:
    table = Table.create(tmp_path / "orders", ROWS, manifest_store=given, storage_options=options)
    for number in range(4):
        table = table.append(pa.table({"id": [number]})).table
    report = cleaned(table, keep=2)
    assert report.versions == (1, 2, 3)
    key = manifests.table_key(table.uri)
    assert [manifests.find_entry(key, Version(each)) is not None for each in range(1, 6)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert table.refresh().append(pa.table({"id": [7]})).version == 6


def test_many_threads_append_and_none_is_lost(tmp_path: Path, given: str, options: dict[str, str]) -> None:
    Table.create(tmp_path / "orders", ROWS, manifest_store=given, storage_options=options, durable=False)
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            for turn in range(3):
                table = Table.open(tmp_path / "orders", manifest_store=given, storage_options=options, durable=False)
                table.append(pa.table({"id": [100 * writer + turn]}), retries=100)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    table = Table.open(tmp_path / "orders", manifest_store=given, storage_options=options)
    assert ids(table) == [1, 2, 3, *(100 * writer + turn for writer in range(1, 5) for turn in range(3))]
    assert 1 < table.version <= 13, "those that meet in one process may share a version"


_WRITER = """
import sys, pyarrow as pa
from lance_core import Table
place, given, who = sys.argv[1:]
sys.stdin.readline()
for turn in range(6):
    number = int(who) * 100 + turn
    Table.open(place, manifest_store=given).append(pa.table({"id": [number]}), retries=200, intent=str(number))
"""


@pytest.mark.parametrize("given", ["sqlite", "postgresql"], indirect=True)
def test_many_processes_append_and_one_is_killed(tmp_path: Path, given: str) -> None:
    place = str(tmp_path / "orders")
    Table.create(place, ROWS, manifest_store=given)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, place, given, str(who)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[4],
        )
        for who in range(1, 4)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    while Table.open(place, manifest_store=given).version < 4:
        assert any(writer.poll() is None for writer in writers)
    writers[0].kill()
    told = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers[1:]] == [0, 0], told
    table = Table.open(place, manifest_store=given)
    for turn in range(6):
        table = table.append(pa.table({"id": [100 + turn]}), intent=str(100 + turn)).table
    assert ids(table) == [1, 2, 3, *(100 * who + turn for who in range(1, 4) for turn in range(6))]
    assert table.version == 19


def test_nobody_commits_past_the_manifest_store(tmp_path: Path, given: str, options: dict[str, str]) -> None:
    """What it creates says so; reading does no harm."""
    table = Table.create(tmp_path / "orders", ROWS, manifest_store=given, storage_options=options)
    plain = Table.open(tmp_path / "orders")
    assert ids(plain) == [1, 2, 3]
    with pytest.raises(InvalidInput, match=r"manifest store \((sql|dynamodb)\).*manifest_store="):
        plain.append(pa.table({"id": [4]}))
    past: list[Callable[[], object]] = [
        lambda: begin_append(str(tmp_path / "orders"), ROWS.schema, create=False, intent=None, limits=FileLimits()),
        lambda: plain.branches.create("dev"),
        lambda: plain.clone(str(tmp_path / "copy")),
        lambda: plain.cleanup(),
        lambda: plain.restore(1),
    ]
    for commit in past:
        with pytest.raises(InvalidInput, match="manifest store"):
            commit()
    assert Table.open(tmp_path / "orders").version == 1
    free = table.set_config({MANIFEST_STORE: None})
    assert Table.open(tmp_path / "orders").append(pa.table({"id": [4]})).version == free.version + 1
    assert table.refresh().version == free.version + 1


def test_a_manifest_store_that_is_not_that_of_the_table_is_refused(
    tmp_path: Path, given: str, options: dict[str, str]
) -> None:
    """Both would reserve the next version. A detached version is in neither."""
    other = f"sqlite:///{tmp_path}/another.db"
    place = str(tmp_path / "orders")
    table = Table.create(place, ROWS, manifest_store=given, storage_options=options)
    table.branches.create("dev")
    opening: list[Callable[[], object]] = [
        lambda: Table.open(place, manifest_store=other),
        lambda: Table.open(place, version=1, manifest_store=other),
        lambda: Table.open(place, branch="dev", manifest_store=other),
        lambda: VersionRef(place, manifest_store=other).snapshot(),
        lambda: TableRef(place, manifest_store=other).newest(),
    ]
    for open_table in opening:
        with pytest.raises(InvalidInput, match=r"another\.db|of the kind 'dynamodb', not in sqlite"):
            open_table()
    plain = Table.create(tmp_path / "plain", ROWS)
    for create in (True, False):
        with pytest.raises(InvalidInput, match="has no version of this table, which was created without a manifest"):
            begin_append(
                plain.uri, ROWS.schema, create=create, intent=None, limits=FileLimits(), manifest_store=given,
                storage_options=options,
            )  # fmt: skip
    assert Table.open(place, manifest_store=given, storage_options=options).version == 1
    assert plain.refresh().version == 1


def test_a_table_may_get_a_manifest_store_later(tmp_path: Path, given: str, options: dict[str, str]) -> None:
    Table.create(tmp_path / "orders", ROWS).append(pa.table({"id": [4]}))
    with pytest.raises(InvalidInput, match=r"fsck --repair entries --apply"):
        Table.open(tmp_path / "orders", manifest_store=given, storage_options=options)
    report = Table.check(str(tmp_path / "orders"), storage_options=options, manifest_store=given)
    for finding in report.findings:
        if finding.automatic_repair is not None:
            finding.automatic_repair.apply()
    table = Table.open(tmp_path / "orders", manifest_store=given, storage_options=options)
    assert ids(table) == [1, 2, 3, 4]
    assert table.append(pa.table({"id": [5]})).version == 3
    assert ids(Table.open(tmp_path / "orders", manifest_store=given, storage_options=options, version=1)) == [1, 2, 3]


def test_workers_write_and_the_driver_reserves(
    tmp_path: Path, given: str, options: dict[str, str], manifests: ManifestStore
) -> None:
    place = str(tmp_path / "orders")
    for expected in (1, 2):
        planned = begin_append(
            place, ROWS.schema, create=True, intent=None, limits=FileLimits(), storage_options=options,
            manifest_store=given,
        )  # fmt: skip
        assert isinstance(planned, PlannedWrite)
        assert given not in repr(planned.plan)
        results = pa.Table.from_batches(list(WriteTask(planned.plan)(ROWS.to_batches())))
        assert planned.finish(results).version == expected
    newest = manifests.newest_entry(manifests.table_key(place))
    assert newest is not None
    assert newest.version == 2
    assert Table.open(place).config[MANIFEST_STORE] in ("sql", "dynamodb")


@pytest.mark.parametrize("given", ["sqlite"], indirect=True)
def test_manifests_are_renamed_with_their_entries(
    tmp_path: Path, given: str, options: dict[str, str], manifests: ManifestStore
) -> None:
    place = tmp_path / "orders"
    Table.create(place, ROWS).append(pa.table({"id": [4]}))
    for version in (1, 2):
        new = place / naming.manifest_path(Version(version))
        new.rename(new.with_name(f"{version}.manifest"))
    table = Table.open(place, manifest_store=given).append(pa.table({"id": [5]})).table
    key = manifests.table_key(str(place))
    entry = manifests.newest_entry(key)
    assert entry is not None
    assert entry.path == "_versions/3.manifest"
    table = table.migrate_manifest_names()
    entry = manifests.newest_entry(key)
    assert entry is not None
    assert entry.path == naming.manifest_path(Version(3))
    assert (table.append(pa.table({"id": [6]})).version, ids(table)) == (4, [1, 2, 3, 4, 5])


def test_a_detached_version_is_published_by_reservation(tmp_path: Path, given: str, options: dict[str, str]) -> None:
    table = Table.create(tmp_path / "orders", ROWS, manifest_store=given, storage_options=options)
    detached = table.commit(operations.Delete((), (FragmentId(0),), "true"), detached=True)
    assert table.refresh().version == 1
    assert table.publish(detached.version).version == 2
    assert table.refresh().version == 2


SECRET = "s3cr3t-of-everybody"


@pytest.mark.parametrize(
    ("manifest_store", "options"),
    [
        (f"postgresql://somebody:{SECRET}@127.0.0.1:1/orders", {}),
        (f"postgresql+nothing://somebody:{SECRET}@127.0.0.1/orders", {}),
        (f"mysql://somebody:{SECRET}@127.0.0.1/orders", {}),
        (f"postgresql:/somebody:{SECRET}@127.0.0.1/orders", {}),
        (f"post gresql://somebody:{SECRET}@[/orders", {}),
        (f"dynamodb://somebody:{SECRET}@table", {}),
        (
            "dynamodb://table",
            {
                "aws_secret_access_key": SECRET, "aws_session_token": SECRET, "aws_access_key_id": "A",
                "aws_region": "eu-west-1", "dynamodb_endpoint": "http://127.0.0.1:1", "allow_http": "true",
            },
        ),
        ("dynamodb://table", {"dynamodb_endpoint": f"http://a:{SECRET}@127.0.0.1:1"}),
        ("dynamodb://table", {"dynamodb_endpoint": f"nothing://a:{SECRET}@127.0.0.1:1", "aws_region": "r"}),
    ],
)  # fmt: skip
def test_no_error_says_a_secret(
    tmp_path: Path,
    manifest_store: str,
    options: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lance_core.storage.manifest_stores.dynamodb._ATTEMPTS_MAX", 1)
    caplog.set_level(logging.INFO)
    with pytest.raises((InvalidInput, StorageError, Unsupported, MissingDependency)) as raised:
        Table.create(tmp_path / "orders", ROWS, manifest_store=manifest_store, storage_options=options)
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert SECRET not in caplog.text
    assert not (tmp_path / "orders" / "_versions").exists()


def test_no_repr_says_a_secret(tmp_path: Path) -> None:
    for given, options in (
        (f"postgresql://somebody:{SECRET}@127.0.0.1/orders", {}),
        ("dynamodb://table", {"aws_secret_access_key": SECRET}),
    ):
        store = open_manifest_store(given, options)
        assert SECRET not in f"{store!r} {store}"
        assert store is not None
        assert SECRET not in store.description


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ("sqlite://", InvalidInput, "in memory"),
        ("sqlite:///:memory:", InvalidInput, "in memory"),
        ("orders.db", InvalidInput, "sqlite:////"),
        ("oracle://host/db", Unsupported, "SQLite or PostgreSQL"),
        ("dynamodb://", InvalidInput, "must name a table"),
        ("dynamodb://table?region=x", InvalidInput, "storage options"),
    ],
)
def test_what_cannot_reserve_is_refused_by_name(given: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        open_manifest_store(given, None)


@pytest.mark.parametrize("given", [5, b"sqlite:///x.db", Path("m.db"), {}, object])
def test_what_is_no_manifest_store_is_refused_by_its_type(tmp_path: Path, given: object) -> None:
    for use in (
        lambda: Table.create(tmp_path / "t", ROWS, manifest_store=given),  # type: ignore[arg-type]
        lambda: Table.open(tmp_path / "t", manifest_store=given),  # type: ignore[arg-type]
        lambda: Table.exists(tmp_path / "t", manifest_store=given),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidInput, match=f"manifest_store must be a URL such as .*, not {type(given).__name__}"):
            use()
    assert not (tmp_path / "t").exists()


def test_a_table_of_dynamodb_that_is_missing_or_strange_is_refused(tmp_path: Path, aws: dict[str, str]) -> None:
    with pytest.raises(NotFound, match=r"table nowhere.*base_uri \(S\).*version \(N\)"):
        Table.open(tmp_path, manifest_store="dynamodb://nowhere", storage_options=aws)


def test_a_database_that_cannot_be_reached_says_so(tmp_path: Path) -> None:
    Table.create(tmp_path / "orders", ROWS)
    with pytest.raises(StorageError, match=r"sqlite .*nowhere/m.db.*unable to open"):
        Table.open(tmp_path / "orders", manifest_store=f"sqlite:///{tmp_path}/nowhere/m.db")


@pytest.mark.parametrize(
    "uri", ["s3+ddb://lake/orders", "s3+ddb://lake/orders?ddbTableName=", "s3+ddb://lake/orders?ddbTableName=t&x=1"]
)
def test_a_uri_names_one_table_of_dynamodb(uri: str) -> None:
    with pytest.raises(InvalidInput, match="ddbTableName"):
        split_uri(uri)


def test_a_manifest_store_is_named_once() -> None:
    with pytest.raises(InvalidInput, match="pass only one of them"):
        Table.open("s3+ddb://lake/orders?ddbTableName=t", manifest_store="dynamodb://t")
