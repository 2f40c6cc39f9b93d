"""Tables in object stores: a whole life alternately with pylance, and appends over a network that loses answers."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import lance
import pyarrow as pa
import pytest

from lance_core import CommitUndecided, InvalidInput, RetryableConflict, StorageError, Table, find_tables
from lance_core.fsck import Report
from lance_core.fsck.report import Severity
from lance_core.maintenance import branch_manifests
from lance_core.storage.factory import open_store
from lance_core.tasks.rows.write import FileLimits, PlannedWrite, WriteTask, begin_append
from tests.lance_core.in_memory_table import clean_up
from tests.lance_core.storage.buckets import SECRET, Bucket, s3_options
from tests.lance_core.storage.faulty_proxy import FAULTS_OF_READS, FAULTS_OF_WRITES, proxy_to
from tests.lance_core.storage.object_servers import AZURE_KEY, Server

SEEDS = 8
FAULTS_PER_REQUEST = 0.15
WRITERS, APPENDS, TRIES_MAX = 2, 3, 60
NOW = timedelta(0)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {number}" for number in ids]})


def ids(table: Table) -> list[int]:
    return sorted(table.to_table(columns=["id"])["id"].to_pylist())


class SharedTable:
    """One table, which each step opens again with either library."""

    def __init__(self, bucket: Bucket, path: str = "lake/orders") -> None:
        self.uri = f"{bucket.uri}/{path}"
        self.options = dict(bucket.options)

    def ours(self, *, tag: str | None = None, branch: str | None = None) -> Table:
        return Table.open(self.uri, storage_options=self.options, tag=tag, branch=branch)

    def theirs(self) -> lance.LanceDataset:
        return lance.dataset(self.uri, storage_options=self.options)

    def create(self, data: pa.Table, *, intent: str | None = None) -> Table:
        return Table.create(self.uri, data, storage_options=self.options, intent=intent)

    def check(self, *expected: int) -> None:
        """Check that both libraries read these rows and that the table is sound."""
        assert ids(self.ours()) == list(expected)
        assert sorted(self.theirs().to_table(columns=["id"])["id"].to_pylist()) == list(expected)
        assert is_sound(self.ours().fsck())


def is_sound(report: Report) -> bool:
    """Tell whether there are no findings but files of abandoned writes."""
    return {finding.severity for finding in report.findings} <= {Severity.INFO}


@pytest.fixture
def shared(server: Server) -> SharedTable:
    return SharedTable(server.bucket())


def test_rows_are_written_and_read_alternately(shared: SharedTable) -> None:
    assert not Table.exists(shared.uri, storage_options=shared.options)
    shared.create(rows(1, 2, 3))
    assert Table.exists(shared.uri, storage_options=shared.options)
    shared.ours().append(rows(4, 5))
    lance.write_dataset(rows(6, 7), shared.uri, mode="append", storage_options=shared.options)
    shared.check(1, 2, 3, 4, 5, 6, 7)
    shared.ours().delete("id = 2")
    shared.theirs().delete("id = 6")
    shared.ours().update({"text": "'new'"}, where="id = 4")
    shared.theirs().update({"text": "'newer'"}, where="id = 5")
    shared.ours().upsert(rows(3, 100), on=["id"])
    shared.check(1, 3, 4, 5, 7, 100)
    assert shared.ours().to_table(filter="text LIKE 'new%'")["id"].to_pylist() == [4, 5]
    in_order = shared.ours().to_table()["id"].to_pylist()
    assert shared.ours().take([4, 0], columns=["id"])["id"].to_pylist() == [in_order[4], in_order[0]]
    shared.ours().add_columns({"double": "id * 2"})
    shared.theirs().add_columns({"triple": "id * 3"})
    assert shared.ours().to_table(columns=["double", "triple"], filter="id = 7").to_pylist() == [
        {"double": 14, "triple": 21}
    ]
    assert shared.theirs().count_rows("double = 14") == 1


def test_references_are_written_and_read_alternately(shared: SharedTable) -> None:
    shared.create(rows(1))
    shared.ours().append(rows(2))
    shared.ours().tags.create("ours", 1)
    shared.theirs().tags.create("theirs", 2)
    assert set(shared.theirs().tags.list()) == set(shared.ours().tags.list()) == {"ours", "theirs"}
    shared.ours().branches.create("dev/ours")
    shared.theirs().create_branch("theirs/dev")
    assert set(shared.theirs().branches.list()) == set(shared.ours().branches.list()) == {"dev/ours", "theirs/dev"}
    shared.ours(branch="dev/ours").append(rows(3))
    assert shared.theirs().checkout_version(("dev/ours", None)).count_rows() == 3
    lance.write_dataset(rows(4), shared.theirs().checkout_version(("theirs/dev", None)), mode="append")
    assert ids(shared.ours(branch="theirs/dev")) == [1, 2, 4]
    assert ids(shared.ours(tag="ours")) == [1]
    shared.check(1, 2)
    shared.ours().branches.delete("dev/ours")
    shared.theirs().branches.delete("theirs/dev")
    assert shared.ours().branches.list() == {}
    assert is_sound(shared.ours().fsck())


def test_maintenance_runs_alternately(shared: SharedTable) -> None:
    shared.create(rows(1))
    for number in range(2, 6):
        shared.ours().append(rows(number))
    shared.ours().tags.create("kept", 3)
    shared.ours().compact()
    assert len(shared.ours().fragments) == 1
    clean_up(shared.ours())
    assert shared.ours().version_numbers() == (3, shared.ours().version)
    shared.check(1, 2, 3, 4, 5)
    lance.write_dataset(rows(6), shared.uri, mode="append", storage_options=shared.options)
    shared.theirs().optimize.compact_files()
    shared.theirs().cleanup_old_versions(older_than=NOW, error_if_tagged_old_versions=False)
    shared.check(1, 2, 3, 4, 5, 6)
    shared.ours().restore(3)
    shared.check(1, 2, 3)


def test_clones_cross_between_stores(shared: SharedTable, server: Server, tmp_path: Path) -> None:
    table = shared.create(rows(1, 2)).append(rows(3)).table
    other = server.bucket()
    table.clone(f"{other.uri}/shallow")
    with pytest.raises(InvalidInput, match="outside the table"):
        Table.open(f"{other.uri}/shallow", storage_options=shared.options).to_table()
    shallow = Table.open(f"{other.uri}/shallow", storage_options=shared.options, bases=[shared.uri])
    assert ids(shallow) == [1, 2, 3]
    assert lance.dataset(f"{other.uri}/shallow", storage_options=shared.options).count_rows() == 3
    for path in (f"{shared.uri}-deep", f"{other.uri}/deep", str(tmp_path / "deep")):
        table.clone(path, shallow=False)
        assert ids(Table.open(path, storage_options=shared.options)) == [1, 2, 3]
        assert lance.dataset(path, storage_options=shared.options).count_rows() == 3
    local = Table.open(tmp_path / "deep", storage_options=shared.options)
    local.clone(f"{other.uri}/up", shallow=False)
    assert ids(Table.open(f"{other.uri}/up", storage_options=shared.options)) == [1, 2, 3]


def test_an_intent_is_committed_once(shared: SharedTable) -> None:
    shared.create(rows(1), intent="create")
    shared.create(rows(1), intent="create")
    first = shared.ours().append(rows(2), intent="append")
    again = shared.ours().append(rows(2), intent="append")
    assert (first.version, again.version, again.already_committed) == (2, 2, True)
    shared.check(1, 2)


def test_large_files_and_blobs(shared: SharedTable) -> None:
    """The files are larger than one request of the codec, which uploads them in parts."""
    sizes = [10, 100_000, 6_000_000]
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("blob")])
    blobs = lance.blob_array([bytes([65 + number]) * size for number, size in enumerate(sizes)])
    table = shared.create(pa.table({"id": [0, 1, 2], "blob": blobs}, schema=schema))
    read = [blob.read() for blob in table.blobs("blob", [0, 1, 2]) if blob]
    assert [(len(data), set(data)) for data in read] == [(size, {65 + n}) for n, size in enumerate(sizes)]
    theirs = shared.theirs().take_blobs("blob", indices=[0, 1, 2])
    assert [len(each.read()) for each in theirs if each is not None] == sizes
    noise = random.Random(0).randbytes(7_000_000)
    large = SharedTable(Bucket(f"{shared.uri}-large", shared.options))
    large.create(pa.table({"id": range(7), "data": [noise[n::7] for n in range(7)]}))
    assert large.ours().to_table()["data"].to_pylist() == [noise[n::7] for n in range(7)]


def test_concurrent_appends_are_all_committed(shared: SharedTable) -> None:
    shared.create(rows(0))
    with ThreadPoolExecutor(4) as pool:
        commits = list(pool.map(lambda number: shared.ours().append(rows(number)), range(1, 9)))
    shared.check(*range(9))
    assert {each.version for each in commits} == set(range(2, shared.ours().version + 1))  # some share a version


def test_workers_write_the_plan_of_a_driver(shared: SharedTable) -> None:
    shared.create(rows(1))
    limits = FileLimits(1000, 2**20)
    planned = begin_append(
        shared.uri, rows().schema, create=False, intent="spark", limits=limits, storage_options=shared.options
    )
    assert isinstance(planned, PlannedWrite)
    assert SECRET not in repr(planned)
    assert AZURE_KEY not in repr(planned)
    results = pa.Table.from_batches(WriteTask(planned.plan)(iter(rows(2, 3).to_batches())))
    planned.finish(results)
    shared.check(1, 2, 3)


def test_a_table_of_the_old_naming_scheme(shared: SharedTable) -> None:
    for number in range(1, 12):
        lance.write_dataset(
            rows(number),
            shared.uri,
            mode="append" if number > 1 else "create",
            storage_options=shared.options,
            enable_v2_manifest_paths=False,
        )
    assert shared.ours().version == 11
    shared.ours().append(rows(12))
    shared.check(*range(1, 13))


@pytest.mark.parametrize("has_cleanup", [True, False])
def test_a_clock_that_steps_ahead_before_a_put_is_detected_by_the_date_of_the_answer(
    server: Server, has_cleanup: bool
) -> None:
    """The clock of the store jumps ahead by a month between the last read of a writer and its put, so that its files
    are old for a cleanup that runs meanwhile."""
    with proxy_to(server.endpoint) as proxy:
        shared = SharedTable(server.bucket(proxy.endpoint + urlsplit(server.endpoint).path))
        table = shared.create(rows(1)).append(rows(2)).table
        store = open_store(shared.uri, storage_options=shared.options)
        kept = {info.path for info in store.walk("_transactions")}

        def clean_up_at_put(method: str, path: str) -> None:
            if method in ("PUT", "POST") and ".manifest" in path and not proxy.clock_offset:
                for info in store.walk("_transactions") if has_cleanup else ():
                    if info.path not in kept:
                        store.delete(info.path)
                proxy.clock_offset = timedelta(days=30).total_seconds()

        proxy.choose_fault = clean_up_at_put
        if has_cleanup:
            with pytest.raises(CommitUndecided, match="clock of the store had been changed"):
                table.append(rows(3))
            restored = shared.ours().restore(2).table
            assert ids(restored.append(rows(4)).table) == [1, 2, 4]
        else:
            assert ids(table.append(rows(3)).table.append(rows(4)).table) == [1, 2, 3, 4]


def test_opening_and_appending_cost_the_same_after_many_versions(s3_server: Server) -> None:
    with proxy_to(s3_server.endpoint) as proxy:
        shared = SharedTable(s3_server.bucket(proxy.endpoint))
        shared.create(rows(0))
        request_counts = []
        for number in range(12):
            before = len(proxy.requests)
            table = shared.ours()
            opened = len(proxy.requests)
            table.append(rows(number))
            request_counts.append((opened - before, len(proxy.requests) - opened))
        assert set(request_counts) == {(2, 4)}
        assert [path for _, path, _ in proxy.requests if path.endswith("latest_version_hint.json")] == []
        assert "max-keys=1000" not in proxy.requests[-3][1]


@pytest.mark.parametrize("intent", [None, "append"])
def test_a_lost_race_costs_two_requests(s3_server: Server, intent: str | None) -> None:
    """A lost race costs one read of the winning version and the next put; every second one also costs a listing, since
    more versions may exist after the back-off.
    """
    races_to_lose = 0

    def decide(method: str, path: str) -> None:
        nonlocal races_to_lose
        if method == "PUT" and "/_versions/" in path and races_to_lose:
            races_to_lose -= 1
            without_faults.ours().append(rows(0))

    bucket = s3_server.bucket()
    without_faults = SharedTable(bucket)
    without_faults.create(rows(0))
    with proxy_to(s3_server.endpoint, decide) as proxy:
        shared = SharedTable(Bucket(bucket.uri, s3_options(proxy.endpoint)))
        shared.ours().append(rows(0))  # the first append probes the conditions of the store
        request_counts = []
        for races in range(5):
            table = shared.ours()
            races_to_lose, before = races, len(proxy.requests)
            committed = table.append(rows(races), intent=intent and f"{intent} {races}")
            assert committed.attempts == races + 1
            request_counts.append(len(proxy.requests) - before)
    assert all(count - request_counts[0] <= 2 * races + races // 2 for races, count in enumerate(request_counts))


@pytest.mark.parametrize("change_uri", [lambda uri: f"{uri}-none", lambda uri: uri.replace("bucket", "no-bucket")])
def test_a_missing_table_is_reported_without_secrets(shared: SharedTable, change_uri: Callable[[str], str]) -> None:
    uri = change_uri(shared.uri)
    with pytest.raises(Exception, match=uri.partition("://")[2]) as caught:
        Table.open(uri, storage_options=shared.options)
    assert SECRET not in str(caught.value)


def test_a_missing_data_file_is_reported_without_secrets(shared: SharedTable) -> None:
    table = shared.create(rows(1))
    file = next(iter(table.fragments)).files[0]
    shared.ours()._location.store.delete(file.qualified_path)
    with pytest.raises(Exception, match=r"\.lance does not exist") as caught:
        shared.ours().to_table()
    error: BaseException | None = caught.value
    while error:
        assert SECRET not in f"{error!r}{error}"
        error = error.__cause__


@pytest.mark.parametrize("seed", range(SEEDS))
def test_appends_commit_once_over_an_unreliable_network(s3_server: Server, seed: int) -> None:
    """Every append is repeated with its intent until it is acknowledged, as an orchestrator does."""
    choices = random.Random(seed)

    def decide(method: str, path: str) -> str | None:
        if choices.random() >= FAULTS_PER_REQUEST:
            return None
        return choices.choice(FAULTS_OF_READS if method in ("GET", "HEAD") else FAULTS_OF_WRITES)

    bucket = s3_server.bucket()
    without_faults = SharedTable(bucket)
    without_faults.create(rows(0))
    with proxy_to(s3_server.endpoint, decide) as proxy:
        options = {**s3_options(proxy.endpoint), "client_max_retries": "20"}

        def append(row: int) -> None:
            for _ in range(TRIES_MAX):
                try:
                    Table.open(without_faults.uri, storage_options=options).append(rows(row), intent=f"row {row}")
                    return
                except (CommitUndecided, StorageError, RetryableConflict):
                    continue
            raise AssertionError(f"row {row} was given up")

        def write(writer: int) -> None:
            for number in range(APPENDS):
                append(writer * 10 + number + 1)

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(write, range(WRITERS)))
        assert any(fault for _, _, fault in proxy.requests)
    expected = sorted(writer * 10 + number + 1 for writer in range(WRITERS) for number in range(APPENDS))
    without_faults.check(0, *expected)
    # Concurrent appends may share one version, which lists the uuids of all of them.
    uuids = [uuid for info in without_faults.ours().versions() for uuid in info.together or (info.uuid,)]
    assert len(uuids) == len(set(uuids)) == len(expected) + 1


def test_tables_are_found_below_a_prefix(server: Server) -> None:
    bucket = server.bucket()
    names = ("lake/orders", "lake/sales/eu/items", "lake/sales/us", "elsewhere/t")
    for name in names:
        Table.create(f"{bucket.uri}/{name}", rows(1), storage_options=bucket.options)
    listing = find_tables(f"{bucket.uri}/lake", storage_options=bucket.options)
    assert listing.tables == tuple(f"{bucket.uri}/{name}" for name in names[:3])
    assert listing.skipped == {}
    listing = find_tables(bucket.uri, storage_options=bucket.options, exclude=["lake/s*"])
    assert listing.tables == (f"{bucket.uri}/elsewhere/t", f"{bucket.uri}/lake/orders")
    assert find_tables(f"{bucket.uri}/lak", storage_options=bucket.options).tables == ()


@pytest.mark.parametrize("manifests_min", [1, 32])
def test_a_cleanup_by_either_reader_keeps_what_is_referenced(
    s3_server: Server, monkeypatch: pytest.MonkeyPatch, manifests_min: int
) -> None:
    """The codec reads many manifests, and the store reads few. A tagged version and the files of the newest version
    stay."""
    monkeypatch.setattr(branch_manifests, "READ_BY_CODEC_MIN", manifests_min)
    shared = SharedTable(s3_server.bucket())
    shared.create(rows(1, 2))
    shared.ours().append(rows(3))
    shared.ours().tags.create("kept", 2)
    shared.ours().overwrite(rows(7))
    shared.ours().append(rows(8))
    report = clean_up(shared.ours())
    assert report.versions == (1, 3)
    assert ids(shared.ours(tag="kept")) == [1, 2, 3]
    shared.check(7, 8)
