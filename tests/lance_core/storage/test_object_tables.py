"""Tables in object stores, from their creation to their cleanup, by us and by pylance in turns; and appends over a
network that loses answers.
"""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import CommitUndecided, InvalidInput, RetryableConflict, StorageError, Table, find_tables
from lance_core.fsck import Report
from lance_core.fsck.report import Severity
from lance_core.tasks.rows.write import FileLimits, PlannedWrite, WriteTask, begin_append
from tests.lance_core.storage.chaos import FAULTS_OF_READS, FAULTS_OF_WRITES, between
from tests.lance_core.storage.servers import AZURE_KEY, SECRET, Bucket, Server, s3_options
from tests.lance_core.world import cleaned

SEEDS = 8
FAULTS_PER_REQUEST = 0.15
WRITERS, APPENDS, TRIES_MAX = 2, 3, 60
NOW = timedelta(0)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {number}" for number in ids]})


def ids(table: Table) -> list[int]:
    return sorted(table.to_table(columns=["id"])["id"].to_pylist())


class Shared:
    """One table, opened anew by either library for each step."""

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
        """Both read the same rows, and nothing is wrong."""
        assert ids(self.ours()) == list(expected)
        assert sorted(self.theirs().to_table(columns=["id"])["id"].to_pylist()) == list(expected)
        assert sound(self.ours().fsck())


def sound(report: Report) -> bool:
    """Files of writes that were given up may lie about."""
    return {finding.severity for finding in report.findings} <= {Severity.INFO}


@pytest.fixture
def shared(server: Server) -> Shared:
    return Shared(server.bucket())


def test_rows_are_written_and_read_in_turns(shared: Shared) -> None:
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


def test_references_in_turns(shared: Shared) -> None:
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
    assert sound(shared.ours().fsck())


def test_upkeep_in_turns(shared: Shared) -> None:
    shared.create(rows(1))
    for number in range(2, 6):
        shared.ours().append(rows(number))
    shared.ours().tags.create("kept", 3)
    shared.ours().compact()
    assert len(shared.ours().fragments) == 1
    cleaned(shared.ours())
    assert shared.ours().version_numbers() == (3, shared.ours().version)
    shared.check(1, 2, 3, 4, 5)
    lance.write_dataset(rows(6), shared.uri, mode="append", storage_options=shared.options)
    shared.theirs().optimize.compact_files()
    shared.theirs().cleanup_old_versions(older_than=NOW, error_if_tagged_old_versions=False)
    shared.check(1, 2, 3, 4, 5, 6)
    shared.ours().restore(3)
    shared.check(1, 2, 3)


def test_clones_cross_between_stores(shared: Shared, server: Server, tmp_path: Path) -> None:
    table = shared.create(rows(1, 2)).append(rows(3)).table
    other = server.bucket()
    table.clone(f"{other.uri}/shallow")
    with pytest.raises(InvalidInput, match="outside the table"):
        Table.open(f"{other.uri}/shallow", storage_options=shared.options).to_table()
    shallow = Table.open(f"{other.uri}/shallow", storage_options=shared.options, bases=[shared.uri])
    assert ids(shallow) == [1, 2, 3]
    assert lance.dataset(f"{other.uri}/shallow", storage_options=shared.options).count_rows() == 3
    for place in (f"{shared.uri}-deep", f"{other.uri}/deep", str(tmp_path / "deep")):
        table.clone(place, shallow=False)
        assert ids(Table.open(place, storage_options=shared.options)) == [1, 2, 3]
        assert lance.dataset(place, storage_options=shared.options).count_rows() == 3
    local = Table.open(tmp_path / "deep", storage_options=shared.options)
    local.clone(f"{other.uri}/up", shallow=False)
    assert ids(Table.open(f"{other.uri}/up", storage_options=shared.options)) == [1, 2, 3]


def test_an_intent_lands_once(shared: Shared) -> None:
    shared.create(rows(1), intent="create")
    shared.create(rows(1), intent="create")
    first = shared.ours().append(rows(2), intent="append")
    again = shared.ours().append(rows(2), intent="append")
    assert (first.version, again.version, again.already_committed) == (2, 2, True)
    shared.check(1, 2)


def test_large_files_and_blobs(shared: Shared) -> None:
    """Larger than one request of the codec: it uploads them in parts."""
    sizes = [10, 100_000, 6_000_000]
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("blob")])
    blobs = lance.blob_array([bytes([65 + number]) * size for number, size in enumerate(sizes)])
    table = shared.create(pa.table({"id": [0, 1, 2], "blob": blobs}, schema=schema))
    read = [blob.read() for blob in table.blobs("blob", [0, 1, 2]) if blob]
    assert [(len(data), set(data)) for data in read] == [(size, {65 + n}) for n, size in enumerate(sizes)]
    theirs = shared.theirs().take_blobs("blob", indices=[0, 1, 2])
    assert [len(each.read()) for each in theirs if each is not None] == sizes
    noise = random.Random(0).randbytes(7_000_000)
    large = Shared(Bucket(f"{shared.uri}-large", shared.options))
    large.create(pa.table({"id": range(7), "data": [noise[n::7] for n in range(7)]}))
    assert large.ours().to_table()["data"].to_pylist() == [noise[n::7] for n in range(7)]


def test_writers_at_once_all_land(shared: Shared) -> None:
    shared.create(rows(0))
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda number: shared.ours().append(rows(number)), range(1, 9)))
    shared.check(*range(9))
    assert {each.version for each in made} == set(range(2, shared.ours().version + 1))  # some share one


def test_workers_write_what_a_driver_planned(shared: Shared) -> None:
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


def test_a_table_of_the_old_naming_scheme(shared: Shared) -> None:
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


def test_opening_and_appending_cost_the_same_after_many_versions(s3_server: Server) -> None:
    with between(s3_server.endpoint) as chaos:
        shared = Shared(s3_server.bucket(chaos.endpoint))
        shared.create(rows(0))
        asked = []
        for number in range(12):
            before = len(chaos.seen)
            table = shared.ours()
            opened = len(chaos.seen)
            table.append(rows(number))
            asked.append((opened - before, len(chaos.seen) - opened))
        assert asked[0] == (2, 6), "the first write of a process to a table looks for names of the other scheme"
        assert set(asked[1:]) == {(2, 5)}
        assert [path for _, path, _ in chaos.seen if path.endswith("latest_version_hint.json")] == []
        assert "max-keys=1000" not in chaos.seen[-3][1]


@pytest.mark.parametrize("intent", [None, "append"])
def test_a_lost_race_costs_two_requests(s3_server: Server, intent: str | None) -> None:
    """A look at whose version it is, and the next put; after every second one, which is waited after, a listing too:
    there may be more than one by then."""
    to_lose = 0

    def decide(method: str, path: str) -> None:
        nonlocal to_lose
        if method == "PUT" and "/_versions/" in path and to_lose:
            to_lose -= 1
            quiet.ours().append(rows(0))

    bucket = s3_server.bucket()
    quiet = Shared(bucket)
    quiet.create(rows(0))
    with between(s3_server.endpoint, decide) as chaos:
        shared = Shared(Bucket(bucket.uri, s3_options(chaos.endpoint)))
        shared.ours().append(rows(0))  # the first one tries what the store honours
        asked = []
        for races in range(5):
            table = shared.ours()
            to_lose, before = races, len(chaos.seen)
            committed = table.append(rows(races), intent=intent and f"{intent} {races}")
            assert committed.attempts == races + 1
            asked.append(len(chaos.seen) - before)
    assert all(count - asked[0] <= 2 * races + races // 2 for races, count in enumerate(asked))


@pytest.mark.parametrize("damage", [lambda uri: f"{uri}-none", lambda uri: uri.replace("bucket", "no-bucket")])
def test_what_is_missing_is_named_without_secrets(shared: Shared, damage: Callable[[str], str]) -> None:
    uri = damage(shared.uri)
    with pytest.raises(Exception, match=uri.partition("://")[2]) as caught:
        Table.open(uri, storage_options=shared.options)
    assert SECRET not in str(caught.value)


def test_a_data_file_that_is_gone_is_named_without_secrets(shared: Shared) -> None:
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
def test_appends_land_once_whatever_becomes_of_answers(s3_server: Server, seed: int) -> None:
    """Every append is repeated under its intent until it is acknowledged, as an orchestrator would."""
    luck = random.Random(seed)

    def decide(method: str, path: str) -> str | None:
        if luck.random() >= FAULTS_PER_REQUEST:
            return None
        return luck.choice(FAULTS_OF_READS if method in ("GET", "HEAD") else FAULTS_OF_WRITES)

    bucket = s3_server.bucket()
    quiet = Shared(bucket)
    quiet.create(rows(0))
    with between(s3_server.endpoint, decide) as chaos:
        options = {**s3_options(chaos.endpoint), "client_max_retries": "20"}

        def append(row: int) -> None:
            for _ in range(TRIES_MAX):
                try:
                    Table.open(quiet.uri, storage_options=options).append(rows(row), intent=f"row {row}")
                    return
                except (CommitUndecided, StorageError, RetryableConflict):
                    continue
            raise AssertionError(f"row {row} was given up")

        def write(writer: int) -> None:
            for number in range(APPENDS):
                append(writer * 10 + number + 1)

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(write, range(WRITERS)))
        assert any(fault for _, _, fault in chaos.seen)
    expected = sorted(writer * 10 + number + 1 for writer in range(WRITERS) for number in range(APPENDS))
    quiet.check(0, *expected)
    # Two that met are one version, which says of which they are.
    landed = [uuid for info in quiet.ours().versions() for uuid in info.together or (info.uuid,)]
    assert len(landed) == len(set(landed)) == len(expected) + 1


def test_tables_are_found_below_a_prefix(server: Server) -> None:
    bucket = server.bucket()
    names = ("lake/orders", "lake/sales/eu/items", "lake/sales/us", "elsewhere/t")
    for name in names:
        Table.create(f"{bucket.uri}/{name}", rows(1), storage_options=bucket.options)
    found = find_tables(f"{bucket.uri}/lake", storage_options=bucket.options)
    assert found.tables == tuple(f"{bucket.uri}/{name}" for name in names[:3])
    assert found.skipped == {}
    found = find_tables(bucket.uri, storage_options=bucket.options, exclude=["lake/s*"])
    assert found.tables == (f"{bucket.uri}/elsewhere/t", f"{bucket.uri}/lake/orders")
    assert find_tables(f"{bucket.uri}/lak", storage_options=bucket.options).tables == ()
