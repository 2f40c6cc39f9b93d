"""Stream reading: a stream follows a table version by version and sends each added row once, whatever happens later."""

import json
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, LanceError, NotFound, Table
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.naming import NamingScheme
from lance_core.operations import Update
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.store import Store
from lance_core.tasks.scan.read import VersionRef
from lance_core.tasks.streaming import stream_partitions as stream_parts
from lance_core.tasks.streaming.change_feed import OnChange
from lance_core.tasks.streaming.offsets import Offset, StreamStart
from lance_core.tasks.streaming.stream_source import ReadLimits, Stream
from lance_core.versions import version_hint
from tests.interop.overlays import ALLOWED, commit_overlay
from tests.lance_core.storage.buckets import Bucket
from tests.lance_core.storage.object_servers import s3

OffsetJson = Mapping[str, object]


def rows(first: int, stop: int) -> pa.Table:
    ids = range(first, stop)
    return pa.table({"id": pa.array(ids, pa.int64()), "s": [f"s{n}" for n in ids], "x": [n / 2 for n in ids]})


def stream(
    uri: str,
    *,
    columns: list[str] | None = None,
    filter: str | None = None,
    start: StreamStart | None = None,
    on_change: str = "fail",
    limits: ReadLimits | None = None,
    branch: str | None = None,
) -> Stream:
    return Stream(
        VersionRef(uri, branch=branch),
        transport=lambda schema: schema,
        columns=columns,
        filter=filter,
        start=start,
        on_change=OnChange(on_change),
        limits=limits,
    )


def read_between(source: Stream, start: OffsetJson, end: OffsetJson, *, slots: int = 2) -> pa.Table:
    """Return the rows between two offsets, read by workers from pickled partitions."""
    parts = pickle.loads(pickle.dumps(source.plan_partitions(start, end, slots=slots)))
    schema = source.arrow.remove_metadata()
    return pa.Table.from_batches((batch for part in parts for batch in part.read(schema)), schema)


def ids(table: pa.Table) -> list[int]:
    return [int(n) for n in table["id"].to_pylist()]


def batches(source: Stream, at: OffsetJson | None = None) -> Iterator[tuple[OffsetJson, pa.Table]]:
    """Yield each batch up to the newest version with its end offset, after a round trip through JSON."""
    at = source.initial_offset() if at is None else at
    while True:
        end = json.loads(json.dumps(source.latest_offset(at, limited=True)))
        if end == at:
            return
        yield end, read_between(source, at, end)
        at = end


def all_ids(source: Stream, at: OffsetJson | None = None) -> list[int]:
    return [n for _, table in batches(source, at) for n in ids(table)]


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with s3() as server:
        yield server.bucket()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table whose versions 1 to 3 add 30 rows in six fragments."""
    table = Table.create(str(tmp_path / "t"), rows(0, 10), max_rows_per_file=5, durable=False)
    table.append(rows(10, 20), max_rows_per_file=5)
    table.append(rows(20, 30), max_rows_per_file=5)
    return table.refresh()


def test_all_rows_come_first_then_the_added_ones(table: Table) -> None:
    source = stream(table.uri)
    (end, first), *rest = batches(source)
    assert (ids(first), rest) == (list(range(30)), [])
    table.append(rows(30, 33))
    table.append(rows(33, 40))
    assert all_ids(source, end) == list(range(30, 40))
    assert all_ids(stream(table.uri), end) == list(range(30, 40))


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (StreamStart(version=2), range(10, 30)),
        (StreamStart(version=1), range(30)),
        (StreamStart(version=4), range(0)),
        (StreamStart(latest=True), range(0)),
        (StreamStart(timestamp=datetime(2000, 1, 1, tzinfo=UTC)), range(30)),
        (StreamStart(timestamp=datetime.now(UTC) + timedelta(days=9)), range(0)),
    ],
)
def test_a_stream_begins_at_its_start(table: Table, start: StreamStart, expected: range) -> None:
    source = stream(table.uri, start=start)
    received = list(batches(source))
    assert [n for _, read_between in received for n in ids(read_between)] == list(expected)
    table.append(rows(90, 92))
    assert all_ids(source, received[-1][0]) == [90, 91]


def test_a_stream_starts_after_a_timestamp(table: Table) -> None:
    created_at = table.at(2).timestamp
    assert all_ids(stream(table.uri, start=StreamStart(timestamp=created_at))) == list(range(20, 30))
    assert all_ids(stream(table.uri, start=StreamStart(timestamp=created_at - timedelta(microseconds=1)))) == list(
        range(10, 30)
    )
    with pytest.raises(InvalidInput, match="time zone"):
        list(batches(stream(table.uri, start=StreamStart(timestamp=datetime(2000, 1, 1)))))  # noqa: DTZ001


@pytest.mark.parametrize("start", [StreamStart(), StreamStart(latest=True), StreamStart(timestamp=datetime.now(UTC))])
def test_a_repeated_first_batch_has_the_same_begin(table: Table, start: StreamStart) -> None:
    """Spark records the end offset of a first batch, and asks the source again for its initial offset."""
    source = stream(table.uri, start=start)
    end = source.latest_offset(source.initial_offset())
    first = ids(read_between(source, source.initial_offset(), end))
    table.delete("id < 5")
    table.append(rows(30, 40))
    again = stream(table.uri, start=start)
    assert ids(read_between(again, again.initial_offset(), end)) == first


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        (ReadLimits(rows=7), [7, 7, 7, 7, 2]),
        (ReadLimits(rows=10), [10, 10, 10]),
        (ReadLimits(files=1), [5] * 6),
        (ReadLimits(files=3), [15, 15]),
        (ReadLimits(versions=1), [30]),
        (ReadLimits(rows=8, files=1), [5] * 6),
        (ReadLimits(rows=3, files=4), [3] * 10),
        (ReadLimits(), [30]),
    ],
)
def test_limits_of_a_batch(table: Table, limits: ReadLimits, sizes: list[int]) -> None:
    received = [read_between for _, read_between in batches(stream(table.uri, limits=limits))]
    assert [len(read_between) for read_between in received] == sizes
    assert [n for read_between in received for n in ids(read_between)] == list(range(30))


def test_limits_over_versions(table: Table) -> None:
    for limits, sizes in (
        (ReadLimits(versions=2), [20, 10]),
        (ReadLimits(rows=12), [12, 12, 6]),
        (ReadLimits(files=3), [15, 15]),
        (ReadLimits(versions=1, rows=6), [6, 4] * 3),
    ):
        source = stream(table.uri, start=StreamStart(version=1), limits=limits)
        assert [len(read_between) for _, read_between in batches(source)] == sizes
    source = stream(table.uri, limits=ReadLimits(rows=1))
    assert (
        len(read_between(source, source.initial_offset(), source.latest_offset(source.initial_offset(), limited=False)))
        == 30
    )


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"files": -1}, {"versions": 0}])
def test_limits_must_be_positive(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="a limit is at least 1"):
        ReadLimits(**wrong)


def test_columns_and_filter(table: Table) -> None:
    source = stream(table.uri, columns=["s", "id"], filter="x >= 2 and id % 2 = 0", limits=ReadLimits(rows=9))
    received = [read_between for _, read_between in batches(source)]
    assert received[0].column_names == ["s", "id"]
    assert [n for read_between in received for n in ids(read_between)] == [
        n for n in range(30) if n % 2 == 0 and n >= 4
    ]
    addressed = stream(table.uri, columns=["id", "_rowaddr"], limits=ReadLimits(rows=12), start=StreamStart(version=2))
    assert [row["_rowaddr"] for _, read_between in batches(addressed) for row in read_between.to_pylist()] == [
        (n // 5 << 32) + n % 5 for n in range(10, 30)
    ]
    with pytest.raises(InvalidInput, match="nope"):
        stream(table.uri, columns=["nope"])
    with pytest.raises(InvalidInput, match="does not parse"):
        stream(table.uri, filter="id = = 3")


def count_polls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the store of each request for the newest version in the returned list."""
    polls: list[str] = []
    find_newest = version_hint.find_newest

    def counted(store: Store) -> tuple[Version, NamingScheme] | None:
        polls.append(repr(store))
        return find_newest(store)

    monkeypatch.setattr(version_hint, "find_newest", counted)
    return polls


def test_the_store_is_polled_once_per_interval(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trigger without an interval asks a hundred times a second, and a bucket charges for each request."""
    clock_seconds = 0.0
    runtime = replace(SYSTEM_RUNTIME, elapsed_ns=lambda: int(clock_seconds * 1e9))
    source = Stream(VersionRef(table.uri), transport=lambda schema: schema, poll_seconds=0.5, runtime=runtime)
    end = source.latest_offset(source.initial_offset())
    table.append(rows(30, 40))
    polls = count_polls(monkeypatch)
    for _ in range(48):
        clock_seconds += 0.01
        assert source.latest_offset(end) == end
    assert not polls, "the stream polled when it was created"
    clock_seconds += 0.02
    then = source.latest_offset(end)
    assert ids(read_between(source, end, then)) == list(range(30, 40))
    table.append(rows(40, 41))
    source.stop_at_newest()
    assert ids(read_between(source, then, source.latest_offset(then))) == [40], "`stop_at_newest` polls at once"


def test_a_disk_is_polled_at_each_trigger_and_a_bucket_each_second(
    table: Table, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Table.create(f"{bucket.uri}/t", rows(0, 5), storage_options=bucket.options)
    polls = count_polls(monkeypatch)
    for received, options, polls_per_second in ((table, None, 4), (far, bucket.options, 1)):
        clock_seconds = 0.0
        runtime = replace(SYSTEM_RUNTIME, elapsed_ns=lambda: int(clock_seconds * 1e9))  # noqa: B023
        version = VersionRef(received.uri, storage_options=options)
        source = Stream(version, transport=lambda schema: schema, runtime=runtime)
        (end, first), *rest = batches(source)
        assert (len(first), rest) == (received.count_rows(), [])
        source = Stream(version, transport=lambda schema: schema, runtime=runtime)
        polls.clear()
        for _ in range(4):
            clock_seconds += 0.25
            assert source.latest_offset(end) == end
        assert len(polls) == polls_per_second
    with pytest.raises(InvalidInput, match="poll_seconds=-1"):
        Stream(VersionRef(table.uri), transport=lambda schema: schema, poll_seconds=-1)


def apply_invisible_changes(table: Table) -> None:
    """Apply every change that neither adds rows nor changes rows that were sent."""
    table.compact(target_rows=100)
    table.refresh().set_config({"a": "b"})
    table.refresh().tags.create("t", 1)
    table.refresh().add_columns({"y": "x * 2"})
    lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    table.refresh().drop_columns(["y"])


def test_maintenance_is_skipped(table: Table) -> None:
    source = stream(table.uri, columns=["id", "s"], limits=ReadLimits(rows=12))
    first, *_ = batches(source)
    apply_invisible_changes(table)
    table.refresh().append(rows(30, 35))
    assert ids(first[1]) + all_ids(source, first[0]) == list(range(35))
    assert ids(first[1]) + all_ids(stream(table.uri, columns=["id", "s"]), first[0]) == list(range(35))


def test_rows_are_sent_as_they_were_added(table: Table) -> None:
    source = stream(table.uri, start=StreamStart(version=1), limits=ReadLimits(rows=4), on_change="skip")
    table.delete("id % 3 = 0")
    table.refresh().update({"s": "'changed'"}, "id = 7")
    table.refresh().compact(target_rows=100)
    received = [read_between for _, read_between in batches(source)]
    assert [n for read_between in received for n in ids(read_between)] == list(range(30))
    assert "changed" not in pa.concat_tables(received)["s"].to_pylist()


CHANGES: dict[str, tuple[Callable[[Table], object], list[int]]] = {
    "delete": (lambda table: table.delete("id < 3"), []),
    "delete of a fragment": (lambda table: table.delete("id < 5"), []),
    "overwrite": (lambda table: table.overwrite(rows(50, 53)), [50, 51, 52]),
    "restore": (lambda table: table.restore(1), list(range(10))),
    "update": (lambda table: table.update({"s": "'new'"}, "id in (3, 12)"), [3, 12]),
    "update of all": (lambda table: table.update({"x": "x + 1"}), [*range(30), 40, 41]),
    "upsert": (lambda table: table.upsert(rows(28, 33), on=["id"]), [28, 29, 30, 31, 32]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_rows_end_the_stream_unless_configured(table: Table, name: str) -> None:
    change, again = CHANGES[name]
    end = stream(table.uri).latest_offset(stream(table.uri).initial_offset())
    table.append(rows(40, 42))
    change(table.refresh())
    table.refresh().append(rows(60, 62))
    source = stream(table.uri)
    (before, received), *_ = [next(batches(source, end))]
    assert ids(received) == [40, 41]
    with pytest.raises(InvalidInput, match=r"version 5 changed .* on_change='skip'.*starting_version=6") as raised:
        source.latest_offset(before)
    transaction = table.at(5).transaction()
    assert transaction is not None
    assert transaction.operation.name in str(raised.value)
    assert all_ids(stream(table.uri, on_change="skip"), end) == [40, 41, 60, 61]
    resent = all_ids(stream(table.uri, on_change="rewritten"), end)
    assert (resent[:2], sorted(resent[2:-2]), resent[-2:]) == ([40, 41], sorted(again), [60, 61])
    assert all_ids(stream(table.uri, start=StreamStart(version=6))) == [60, 61]


@pytest.mark.parametrize("stable_row_ids", [False, True])
def test_a_column_changed_in_place(tmp_path: Path, stable_row_ids: bool) -> None:
    """With stable row ids the changed rows are recorded; without them all rows of the fragments count as changed."""
    uri = str(tmp_path / "t")
    table = Table.create(uri, rows(0, 30), stable_row_ids=stable_row_ids, max_rows_per_file=5, durable=False)
    table.update({"x": "x + 1"}, "id % 5 < 4 and id < 20")
    transaction = table.at(2).transaction()
    assert transaction is not None
    assert isinstance(transaction.operation, Update)
    assert transaction.operation.fields_modified, "the update rewrites the column in place"
    since = StreamStart(version=2)
    sent_again = sorted(all_ids(stream(uri, on_change="rewritten", start=since, limits=ReadLimits(rows=7))))
    assert sent_again == [n for n in range(20) if n % 5 < 4 or not stable_row_ids]
    assert all_ids(stream(uri, on_change="skip", start=since)) == []
    assert all_ids(stream(uri, columns=["id", "s"], start=since)) == []
    for columns, filter in ((["id"], "x > 3"), (["x"], "id >= 0"), (["x"], None)):
        with pytest.raises(InvalidInput, match="version 2 changed"):
            list(batches(stream(uri, columns=columns, filter=filter, start=since)))


def test_cells_changed_by_an_overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "1")
    uri = str(tmp_path / "t")
    table = Table.create(uri, rows(0, 10), max_rows_per_file=5, durable=False)
    values = pa.table({"x": pa.array([-1, -2], table.schema.field("x").type)})
    commit_overlay(uri, 1, values, [table.manifest.schema.field("x").id], [0, 3])
    since = StreamStart(version=2)
    assert sorted(all_ids(stream(uri, on_change="rewritten", start=since))) == [5, 8]
    assert all_ids(stream(uri, on_change="skip", start=since)) == []
    assert all_ids(stream(uri, columns=["id", "s"], start=since)) == []
    with pytest.raises(InvalidInput, match="version 2 changed"):
        all_ids(stream(uri, start=since))
    (_, info) = Table.open(uri).versions()
    assert (info.action, info.operation) == ("update cells", "DataOverlay")


def test_an_upsert_that_only_inserts_adds_rows(table: Table) -> None:
    table.upsert(rows(25, 35), on=["id"], matched="ignore")
    dataset = lance.dataset(table.uri)
    dataset.merge_insert("id").when_not_matched_insert_all().execute(rows(30, 40))
    assert sorted(all_ids(stream(table.uri, start=StreamStart(version=4)))) == list(range(30, 40))


@pytest.mark.parametrize("by_pylance", [False, True])
def test_stable_row_ids_distinguish_inserts_from_updates(tmp_path: Path, by_pylance: bool) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, rows(0, 10), stable_row_ids=True, durable=False)
    if by_pylance:
        merge = lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(rows(8, 13))
    else:
        Table.open(uri).upsert(rows(8, 13), on=["id"])
    assert sorted(all_ids(stream(uri, on_change="skip", start=StreamStart(version=2)))) == [10, 11, 12]
    assert sorted(all_ids(stream(uri, on_change="rewritten", start=StreamStart(version=2)))) == [8, 9, 10, 11, 12]


def test_versions_by_pylance_are_streamed(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(0, 10), uri, max_rows_per_file=3)
    lance.write_dataset(rows(10, 20), uri, mode="append", max_rows_per_file=3)
    lance.dataset(uri).optimize.compact_files()
    lance.write_dataset(rows(20, 25), uri, mode="append")
    assert all_ids(stream(uri, start=StreamStart(version=1), limits=ReadLimits(rows=4))) == list(range(25))
    lance.dataset(uri).delete("id = 3")
    with pytest.raises(InvalidInput, match="changed or removed rows: it is the Delete"):
        list(batches(stream(uri, start=StreamStart(version=1))))


def test_stop_at_newest_excludes_later_versions(table: Table) -> None:
    source = stream(table.uri, limits=ReadLimits(rows=8))
    source.stop_at_newest()
    table.append(rows(30, 40))
    assert all_ids(source) == list(range(30))
    assert all_ids(stream(table.uri)) == list(range(40))


def test_an_idle_poll_reads_no_version(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    source = stream(table.uri)
    end = source.latest_offset(source.initial_offset())
    monkeypatch.setattr("lance_core.tasks.streaming.stream_source.load_at", None)
    monkeypatch.setattr("lance_core.tasks.streaming.stream_source.load_latest", None)
    assert source.latest_offset(end) == end
    assert source.newest_offset()["version"] == 4


def test_a_cleaned_up_version_is_reported(table: Table) -> None:
    end = stream(table.uri, start=StreamStart(version=1), limits=ReadLimits(versions=1)).latest_offset(
        Stream.initial_offset(), limited=True
    )
    for number in range(30, 33):
        table.refresh().append(rows(number, number + 1))
    for number in range(1, 6):
        (Path(table.uri) / naming.manifest_path(Version(number), NamingScheme.V2)).unlink()
    with pytest.raises(NotFound, match=r"version 2, .* cleaned up; there is 6\..*starting_version.*older_than"):
        stream(table.uri).latest_offset(end)
    with pytest.raises(NotFound, match="version 2,"):
        stream(table.uri).plan_partitions(end, {**end, "version": 7}, slots=2)
    assert all_ids(stream(table.uri)) == [*range(30), 30, 31, 32]
    with pytest.raises(NotFound, match=r"starting_timestamp.* before version 6"):
        list(batches(stream(table.uri, start=StreamStart(timestamp=datetime(2000, 1, 1, tzinfo=UTC)))))


def test_another_table_at_the_same_location_is_detected(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, rows(0, 10), durable=False)
    end = stream(uri).latest_offset(Stream.initial_offset())
    shutil.rmtree(uri)
    Table.create(uri, rows(0, 10), durable=False).append(rows(10, 20))
    for operation in (
        lambda: stream(uri).latest_offset(end),
        lambda: stream(uri).plan_partitions(Stream.initial_offset(), end, slots=1),
    ):
        with pytest.raises(InvalidInput, match="another table now"):
            operation()
    with pytest.raises(InvalidInput, match="checkpointLocation"):
        stream(uri).latest_offset({"version": 3})


def test_a_replaced_table_is_detected_by_a_running_query(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, rows(0, 10), durable=False)
    source = stream(uri)
    end = source.latest_offset(Stream.initial_offset())
    shutil.rmtree(uri)
    with pytest.raises(NotFound, match="no Lance table"):
        source.latest_offset(end)
    Table.create(uri, rows(0, 10), durable=False).append(rows(10, 20))
    with pytest.raises(InvalidInput, match="another table now"):
        source.latest_offset(end)


def test_a_table_restored_from_a_backup_is_detected(table: Table, tmp_path: Path) -> None:
    shutil.copytree(table.uri, tmp_path / "copy")
    table.append(rows(30, 40))
    end = stream(table.uri).latest_offset(Stream.initial_offset())
    shutil.rmtree(table.uri)
    (tmp_path / "copy").rename(table.uri)
    with pytest.raises(InvalidInput, match="up to version 4, and the table ends at 3"):
        stream(table.uri).latest_offset(end)


def test_branches(table: Table) -> None:
    branch = table.branches.create("b")
    branch.append(rows(70, 75))
    table.append(rows(80, 85))
    source = stream(table.uri, branch="b")
    end = source.latest_offset(source.initial_offset())
    assert ids(read_between(source, source.initial_offset(), end)) == [*range(30), *range(70, 75)]
    branch.refresh().append(rows(75, 77))
    assert all_ids(stream(table.uri, branch="b"), end) == [75, 76]
    with pytest.raises(InvalidInput, match="the branch 'b', and this query reads 'main'"):
        stream(table.uri).latest_offset(end)


def test_a_branch_begins_with_the_rows_of_its_parent(table: Table) -> None:
    branch = table.branches.create("b")
    branch.append(rows(70, 75))
    first = branch.version_numbers()[0]
    received = all_ids(stream(table.uri, branch="b", start=StreamStart(version=first), limits=ReadLimits(rows=11)))
    assert received == [*range(30), *range(70, 75)]


def test_versions_before_a_change_are_sent_first(table: Table) -> None:
    table.delete("id = 1")
    received = batches(stream(table.uri, start=StreamStart(version=2)))
    assert ids(next(received)[1]) == list(range(10, 30))
    with pytest.raises(InvalidInput, match="version 4 changed"):
        next(received)


def test_an_added_column_is_null_in_earlier_versions(table: Table) -> None:
    table.add_columns(pa.field("y", pa.int32()))
    table.refresh().append(rows(30, 32).append_column("y", pa.array([1, 2], pa.int32())))
    source = stream(table.uri, columns=["y", "id"], start=StreamStart(version=2))
    (_, received), *_ = batches(source)
    assert received["y"].to_pylist() == [None] * 20 + [1, 2]
    assert stream(table.uri, columns=["y"], start=StreamStart(version=3)).latest_offset(Stream.initial_offset())
    only = stream(table.uri, columns=["y"], start=StreamStart(version=3))
    (_, received), *_ = batches(only)
    assert received["y"].to_pylist() == [None] * 10 + [1, 2]


@pytest.mark.parametrize("change_kind", ["drop", "rename"])
def test_a_removed_column_is_not_read_as_null(table: Table, change_kind: str) -> None:
    source = stream(table.uri, limits=ReadLimits(rows=20))
    (end, _), *_ = batches(source)
    if change_kind == "drop":
        table.drop_columns(["s"])
    else:
        table.alter_column("s", rename="t")
    table.refresh().append(table.refresh().to_table().slice(0, 2))
    last = source.latest_offset(end)
    with pytest.raises(LanceError, match="no column 's' any more"):
        source.plan_partitions(end, last, slots=1)


def test_large_fragments_are_split_and_small_ones_grouped(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    n = 300_000
    Table.create(uri, pa.table({"id": pa.array(range(n), pa.int64())}), durable=False)
    for first in range(n, n + 50, 5):
        Table.open(uri).append(pa.table({"id": pa.array(range(first, first + 5), pa.int64())}))
    source = stream(uri, start=StreamStart(version=1))
    end = source.latest_offset(source.initial_offset())
    parts = source.plan_partitions(source.initial_offset(), end, slots=2)
    assert 4 <= len(parts) <= 6
    assert max(len(part.slices) for part in parts) >= 10
    assert ids(read_between(source, source.initial_offset(), end)) == list(range(n + 50))
    middle = {**end, "version": 1, "row": 123_456}
    assert ids(read_between(source, middle, end)) == list(range(123_456, n + 50))
    assert source.plan_partitions(end, end, slots=2) == []


def test_wide_rows_make_small_partitions(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_parts, "PARTITION_BYTES_MAX", 300)
    source = stream(table.uri, start=StreamStart(version=1))
    end = source.latest_offset(source.initial_offset())
    parts = source.plan_partitions(source.initial_offset(), end, slots=1)
    assert len(parts) > 6
    assert all(sum(piece.size for piece in part.slices) <= 300 or len(part.slices) == 1 for part in parts)
    assert ids(read_between(source, source.initial_offset(), end)) == list(range(30))


def test_a_worker_with_other_packages_is_rejected(table: Table) -> None:
    source = stream(table.uri)
    (part,) = source.plan_partitions(source.initial_offset(), source.latest_offset(source.initial_offset()), slots=1)
    whole = replace(part.slices[0].header, stamp=replace(part.slices[0].header.stamp, lance_assets="0.0"))
    with pytest.raises(InvalidInput, match="this worker runs"):
        list(replace(part.slices[0], header=whole).read(source.arrow))


def test_an_offset_distinguishes_a_version_from_its_additions(table: Table) -> None:
    source = stream(table.uri)
    assert ids(read_between(source, source.initial_offset(), source.latest_offset(source.initial_offset()))) == list(
        range(30)
    )
    added = Offset(table.id, None, 3, False, 3).to_json()
    assert ids(read_between(source, added, source.latest_offset(added))) == list(range(20, 30))


def test_offsets_are_validated() -> None:
    offset = Offset("t", None, 2, True, 5, 7)
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    for wrong in ({"row": -1}, {"version": True}, {"begins": 9}, {"table": 1}, {"whole": 1}, {"lance_stream": 2}):
        with pytest.raises(InvalidInput, match="checkpointLocation"):
            Offset.from_json({**offset.to_json(), **wrong})
