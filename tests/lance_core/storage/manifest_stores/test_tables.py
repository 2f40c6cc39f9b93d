"""Tables with a manifest store on a local disk, through the public API."""

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
from lance_core.storage.factory import open_manifest_store, split_uri
from lance_core.storage.manifest_stores.manifest_store import Entry, ManifestStore
from lance_core.tasks.driver import TableRef
from lance_core.tasks.rows.write import FileLimits, PlannedWrite, WriteTask, begin_append
from lance_core.tasks.scan.read import VersionRef
from lance_core.versions.location import MANIFEST_STORE
from tests.lance_core.in_memory_table import clean_up

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture(params=["sqlite", "postgresql", "dynamodb"])
def manifest_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/manifests.db"
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"dynamodb://{request.getfixturevalue('dynamodb_table')}"


def ids(table: Table) -> list[int]:
    return sorted(table.to_table()["id"].to_pylist())


def test_operations_work_as_without_a_manifest_store(
    tmp_path: Path, manifest_store: str, options: dict[str, str]
) -> None:
    path = str(tmp_path / "orders")
    assert not Table.exists(path, options, manifest_store=manifest_store)
    table = Table.create(path, ROWS, manifest_store=manifest_store, storage_options=options)
    assert Table.exists(path, options, manifest_store=manifest_store)
    table = table.append(pa.table({"id": [4]}), intent="four").table
    assert table.append(pa.table({"id": [4]}), intent="four").already_committed
    table = table.delete("id = 1").table
    table = table.update({"id": "id * 10"}, "id = 4").table
    table = table.compact().table
    assert ids(table.at(2)) == [1, 2, 3, 4]
    table = table.restore(3).table
    table.tags.create("good", 2)
    assert [info.operation for info in table.versions()][:3] == ["Overwrite", "Append", "Delete"]
    again = Table.open(path, manifest_store=manifest_store, storage_options=options)
    assert (again.version, ids(again)) == (table.version, [2, 3, 4])
    assert ids(Table.open(path, tag="good", manifest_store=manifest_store, storage_options=options)) == [1, 2, 3, 4]
    names = {path.name for path in (tmp_path / "orders" / "_versions").iterdir()}
    assert names == {naming.manifest_path(Version(each)).rpartition("/")[2] for each in range(1, table.version + 1)}
    assert table.fsck().findings == ()
    assert Table.check(path, storage_options=options, manifest_store=manifest_store).findings == ()


def test_versions_of_branches_and_clones_are_reserved(
    tmp_path: Path, manifest_store: str, options: dict[str, str], manifests: ManifestStore
) -> None:
    table = Table.create(tmp_path / "orders", ROWS, manifest_store=manifest_store, storage_options=options)
    branch = table.branches.create("dev")
    branch = branch.append(pa.table({"id": [9]})).table
    clone = table.clone(str(tmp_path / "copy"))
    clone.append(pa.table({"id": [8]}))
    opened = Table.open(tmp_path / "orders", branch="dev", manifest_store=manifest_store, storage_options=options)
    assert ids(opened) == [1, 2, 3, 9]
    for uri, version in ((branch.uri, 2), (str(tmp_path / "copy"), 2), (table.uri, 1)):
        entry = manifests.newest_entry(manifests.table_key(uri))
        assert entry is not None
        assert (entry.version, entry.path) == (version, naming.manifest_path(Version(version)))


def test_a_deleted_branch_leaves_no_entry(
    tmp_path: Path, manifest_store: str, options: dict[str, str], manifests: ManifestStore
) -> None:
    table = Table.create(tmp_path / "orders", ROWS, manifest_store=manifest_store, storage_options=options)
    branch = table.branches.create("dev").append(pa.table({"id": [9]})).table
    table.branches.delete("dev")
    assert manifests.newest_entry(manifests.table_key(branch.uri)) is None
    assert ids(table.branches.create("dev").append(pa.table({"id": [8]})).table) == [1, 2, 3, 8]


def test_cleanup_removes_the_entries_of_the_versions(
    tmp_path: Path, manifest_store: str, options: dict[str, str], manifests: ManifestStore
) -> None:
    table = Table.create(tmp_path / "orders", ROWS, manifest_store=manifest_store, storage_options=options)
    for number in range(4):
        table = table.append(pa.table({"id": [number]})).table
    report = clean_up(table, keep=2)
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


def test_concurrent_appends_of_threads_are_all_kept(
    tmp_path: Path, manifest_store: str, options: dict[str, str]
) -> None:
    Table.create(tmp_path / "orders", ROWS, manifest_store=manifest_store, storage_options=options, durable=False)
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            for step in range(3):
                table = Table.open(
                    tmp_path / "orders", manifest_store=manifest_store, storage_options=options, durable=False
                )
                table.append(pa.table({"id": [100 * writer + step]}), retries=100)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    table = Table.open(tmp_path / "orders", manifest_store=manifest_store, storage_options=options)
    assert ids(table) == [1, 2, 3, *(100 * writer + step for writer in range(1, 5) for step in range(3))]
    assert 1 < table.version <= 13, "concurrent appends of one process may share a version"


_WRITER = """
import sys, pyarrow as pa
from lance_core import Table
path, manifest_store, writer_id = sys.argv[1:]
sys.stdin.readline()
for turn in range(6):
    number = int(writer_id) * 100 + turn
    Table.open(path, manifest_store=manifest_store).append(pa.table({"id": [number]}), retries=200, intent=str(number))
"""


@pytest.mark.parametrize("manifest_store", ["sqlite", "postgresql"], indirect=True)
def test_many_processes_append_and_one_is_killed(tmp_path: Path, manifest_store: str) -> None:
    path = str(tmp_path / "orders")
    Table.create(path, ROWS, manifest_store=manifest_store)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, path, manifest_store, str(writer_id)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[4],
        )
        for writer_id in range(1, 4)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    while Table.open(path, manifest_store=manifest_store).version < 4:
        assert any(writer.poll() is None for writer in writers)
    writers[0].kill()
    errors = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers[1:]] == [0, 0], errors
    table = Table.open(path, manifest_store=manifest_store)
    for step in range(6):
        table = table.append(pa.table({"id": [100 + step]}), intent=str(100 + step)).table
    assert ids(table) == [1, 2, 3, *(100 * writer_id + step for writer_id in range(1, 4) for step in range(6))]
    assert table.version == 19


def test_a_commit_without_the_manifest_store_is_rejected(
    tmp_path: Path, manifest_store: str, options: dict[str, str]
) -> None:
    """The created table records its manifest store; reading does not need it."""
    table = Table.create(tmp_path / "orders", ROWS, manifest_store=manifest_store, storage_options=options)
    plain = Table.open(tmp_path / "orders")
    assert ids(plain) == [1, 2, 3]
    with pytest.raises(InvalidInput, match=r"manifest store \((sql|dynamodb)\).*manifest_store="):
        plain.append(pa.table({"id": [4]}))
    commits: list[Callable[[], object]] = [
        lambda: begin_append(str(tmp_path / "orders"), ROWS.schema, create=False, intent=None, limits=FileLimits()),
        lambda: plain.branches.create("dev"),
        lambda: plain.clone(str(tmp_path / "copy")),
        lambda: plain.cleanup(),
        lambda: plain.restore(1),
    ]
    for commit in commits:
        with pytest.raises(InvalidInput, match="manifest store"):
            commit()
    assert Table.open(tmp_path / "orders").version == 1
    without_manifest_store = table.set_config({MANIFEST_STORE: None})
    assert Table.open(tmp_path / "orders").append(pa.table({"id": [4]})).version == without_manifest_store.version + 1
    assert table.refresh().version == without_manifest_store.version + 1


def test_a_manifest_store_that_is_not_that_of_the_table_is_refused(
    tmp_path: Path, manifest_store: str, options: dict[str, str]
) -> None:
    """Both would reserve the next version. A detached version is in neither."""
    other = f"sqlite:///{tmp_path}/another.db"
    uri = str(tmp_path / "orders")
    table = Table.create(uri, ROWS, manifest_store=manifest_store, storage_options=options)
    table.branches.create("dev")
    opening: list[Callable[[], object]] = [
        lambda: Table.open(uri, manifest_store=other),
        lambda: Table.open(uri, version=1, manifest_store=other),
        lambda: Table.open(uri, branch="dev", manifest_store=other),
        lambda: VersionRef(uri, manifest_store=other).snapshot(),
        lambda: TableRef(uri, manifest_store=other).newest(),
    ]
    for open_table in opening:
        with pytest.raises(InvalidInput, match=r"another\.db|of the kind 'dynamodb', not in sqlite"):
            open_table()
    plain = Table.create(tmp_path / "plain", ROWS)
    for create in (True, False):
        with pytest.raises(InvalidInput, match="has no version of this table, which was created without a manifest"):
            begin_append(
                plain.uri, ROWS.schema, create=create, intent=None, limits=FileLimits(), manifest_store=manifest_store,
                storage_options=options,
            )  # fmt: skip
    assert Table.open(uri, manifest_store=manifest_store, storage_options=options).version == 1
    assert plain.refresh().version == 1


def test_a_table_may_get_a_manifest_store_later(tmp_path: Path, manifest_store: str, options: dict[str, str]) -> None:
    Table.create(tmp_path / "orders", ROWS).append(pa.table({"id": [4]}))
    with pytest.raises(InvalidInput, match=r"fsck --repair entries --apply"):
        Table.open(tmp_path / "orders", manifest_store=manifest_store, storage_options=options)
    report = Table.check(str(tmp_path / "orders"), storage_options=options, manifest_store=manifest_store)
    for finding in report.findings:
        if finding.automatic_repair is not None:
            finding.automatic_repair.apply()
    table = Table.open(tmp_path / "orders", manifest_store=manifest_store, storage_options=options)
    assert ids(table) == [1, 2, 3, 4]
    assert table.append(pa.table({"id": [5]})).version == 3
    assert ids(Table.open(tmp_path / "orders", manifest_store=manifest_store, storage_options=options, version=1)) == [
        1,
        2,
        3,
    ]


def test_workers_write_and_the_driver_reserves(
    tmp_path: Path, manifest_store: str, options: dict[str, str], manifests: ManifestStore
) -> None:
    path = str(tmp_path / "orders")
    for expected in (1, 2):
        planned = begin_append(
            path, ROWS.schema, create=True, intent=None, limits=FileLimits(), storage_options=options,
            manifest_store=manifest_store,
        )  # fmt: skip
        assert isinstance(planned, PlannedWrite)
        assert manifest_store not in repr(planned.plan)
        results = pa.Table.from_batches(list(WriteTask(planned.plan)(ROWS.to_batches())))
        assert planned.finish(results).version == expected
    newest = manifests.newest_entry(manifests.table_key(path))
    assert newest is not None
    assert newest.version == 2
    assert Table.open(path).config[MANIFEST_STORE] in ("sql", "dynamodb")


@pytest.mark.parametrize("manifest_store", ["sqlite"], indirect=True)
def test_manifests_are_renamed_with_their_entries(
    tmp_path: Path, manifest_store: str, options: dict[str, str], manifests: ManifestStore
) -> None:
    path = tmp_path / "orders"
    Table.create(path, ROWS).append(pa.table({"id": [4]}))
    for version in (1, 2):
        new = path / naming.manifest_path(Version(version))
        new.rename(new.with_name(f"{version}.manifest"))
    key = manifests.table_key(str(path))
    manifests.reserve(key, Entry(Version(2), "_versions/2.manifest"))
    table = Table.open(path, manifest_store=manifest_store).append(pa.table({"id": [5]})).table
    entry = manifests.newest_entry(key)
    assert entry is not None
    assert entry.path == "_versions/3.manifest"
    table = table.migrate_manifest_names()
    entry = manifests.newest_entry(key)
    assert entry is not None
    assert entry.path == naming.manifest_path(Version(3))
    assert (table.append(pa.table({"id": [6]})).version, ids(table)) == (4, [1, 2, 3, 4, 5])


def test_a_detached_version_is_published_by_reservation(
    tmp_path: Path, manifest_store: str, options: dict[str, str]
) -> None:
    table = Table.create(tmp_path / "orders", ROWS, manifest_store=manifest_store, storage_options=options)
    detached = table.commit(operations.Delete((), (FragmentId(0),), "true"), detached=True)
    assert table.refresh().version == 1
    assert table.publish(detached.version).version == 2
    assert table.refresh().version == 2


SECRET = "s3cr3t-of-tests"


@pytest.mark.parametrize(
    ("manifest_store", "options"),
    [
        (f"postgresql://user:{SECRET}@127.0.0.1:1/orders", {}),
        (f"postgresql+nothing://user:{SECRET}@127.0.0.1/orders", {}),
        (f"mysql://user:{SECRET}@127.0.0.1/orders", {}),
        (f"postgresql:/user:{SECRET}@127.0.0.1/orders", {}),
        (f"post gresql://user:{SECRET}@[/orders", {}),
        (f"dynamodb://user:{SECRET}@table", {}),
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
def test_errors_contain_no_secret(
    tmp_path: Path,
    manifest_store: str,
    options: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lance_core.storage.manifest_stores.dynamodb.ATTEMPTS_MAX", 1)
    caplog.set_level(logging.INFO)
    with pytest.raises((InvalidInput, StorageError, Unsupported, MissingDependency)) as raised:
        Table.create(tmp_path / "orders", ROWS, manifest_store=manifest_store, storage_options=options)
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert SECRET not in caplog.text
    assert not (tmp_path / "orders" / "_versions").exists()


def test_reprs_contain_no_secret(tmp_path: Path) -> None:
    for manifest_store, options in (
        (f"postgresql://user:{SECRET}@127.0.0.1/orders", {}),
        ("dynamodb://table", {"aws_secret_access_key": SECRET}),
    ):
        store = open_manifest_store(manifest_store, options)
        assert SECRET not in f"{store!r} {store}"
        assert store is not None
        assert SECRET not in store.description


@pytest.mark.parametrize(
    ("manifest_store", "error", "match"),
    [
        ("sqlite://", InvalidInput, "in memory"),
        ("sqlite:///:memory:", InvalidInput, "in memory"),
        ("orders.db", InvalidInput, "sqlite:////"),
        ("oracle://host/db", Unsupported, "SQLite or PostgreSQL"),
        ("dynamodb://", InvalidInput, "must name a table"),
        ("dynamodb://table?region=x", InvalidInput, "storage options"),
    ],
)
def test_unusable_urls_are_rejected(manifest_store: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        open_manifest_store(manifest_store, None)


@pytest.mark.parametrize("manifest_store", [5, b"sqlite:///x.db", Path("m.db"), {}, object])
def test_other_types_of_manifest_stores_are_rejected(tmp_path: Path, manifest_store: object) -> None:
    for call in (
        lambda: Table.create(tmp_path / "t", ROWS, manifest_store=manifest_store),  # type: ignore[arg-type]
        lambda: Table.open(tmp_path / "t", manifest_store=manifest_store),  # type: ignore[arg-type]
        lambda: Table.exists(tmp_path / "t", manifest_store=manifest_store),  # type: ignore[arg-type]
    ):
        with pytest.raises(
            InvalidInput, match=f"manifest_store must be a URL such as .*, not {type(manifest_store).__name__}"
        ):
            call()
    assert not (tmp_path / "t").exists()


def test_a_missing_dynamodb_table_is_rejected(tmp_path: Path, aws: dict[str, str]) -> None:
    with pytest.raises(NotFound, match=r"table nowhere.*base_uri \(S\).*version \(N\)"):
        Table.open(tmp_path, manifest_store="dynamodb://nowhere", storage_options=aws)


def test_an_unreachable_database_is_reported(tmp_path: Path) -> None:
    Table.create(tmp_path / "orders", ROWS)
    with pytest.raises(StorageError, match=r"sqlite .*nowhere/m.db.*unable to open"):
        Table.open(tmp_path / "orders", manifest_store=f"sqlite:///{tmp_path}/nowhere/m.db")


@pytest.mark.parametrize(
    "uri", ["s3+ddb://lake/orders", "s3+ddb://lake/orders?ddbTableName=", "s3+ddb://lake/orders?ddbTableName=t&x=1"]
)
def test_a_uri_must_name_one_dynamodb_table(uri: str) -> None:
    with pytest.raises(InvalidInput, match="ddbTableName"):
        split_uri(uri)


def test_a_manifest_store_is_passed_once() -> None:
    with pytest.raises(InvalidInput, match="pass only one of them"):
        Table.open("s3+ddb://lake/orders?ddbTableName=t", manifest_store="dynamodb://t")
