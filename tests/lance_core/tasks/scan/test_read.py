"""Read: a scan by workers is pinned to a version, split into partitions and sent in the transport types."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import InvalidInput, NotFound, Table, Unsupported
from lance_core.format.fragment import Fragment
from lance_core.scan.plan import plan_scan
from lance_core.tasks.scan import read as read_module
from lance_core.tasks.scan.read import (
    ReadPlan,
    ReadTask,
    VersionRef,
    count_rows,
    fetch_or_plan,
    partition_scan,
    plan_read,
)
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

ROWS = pa.table(
    {
        "n": pa.array(range(1000), pa.int64()),
        "s": [None if n % 7 == 0 else f"r{n}" for n in range(1000)],
        "p": [{"x": n % 3, "y": str(n)} for n in range(1000)],
    }
)


def same_schema(schema: pa.Schema) -> pa.Schema:
    return schema


def run_workers(plan: ReadPlan) -> pa.Table:
    task: ReadTask = pickle.loads(pickle.dumps(ReadTask(plan)))
    numbers = pa.RecordBatch.from_pydict({"id": pa.array(range(len(plan.partitions)), pa.int64())})
    return pa.Table.from_batches(task([numbers]), plan.work.transport)


@pytest.fixture
def small_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_module, "PARTITION_ROWS_MIN", 10)
    monkeypatch.setattr(read_module, "REDUCED_PARTITION_ROWS_MIN", 10)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with fragments of 100 rows and one of 600, some of whose rows are deleted."""
    uri = str(tmp_path / "t")
    table = Table.create(uri, ROWS.slice(0, 400), max_rows_per_file=100, durable=False)
    table = table.append(ROWS.slice(400), max_rows_per_file=600).table
    return table.delete("n % 5 = 2").table


def test_addresses_beyond_signed_integers_are_rejected(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address is signed in Spark: in a fragment with an id of 2**31 or more it would be negative."""
    base = VersionRef(table.uri).snapshot()
    monkeypatch.setattr(read_module, "SIGNED_FRAGMENT_IDS", base.manifest.max_fragment_id)
    for by_id in (False, True):
        with pytest.raises(Unsupported, match="read it without them"):
            plan_read(base, transport=same_schema, slots=1, with_row_id=by_id, with_row_address=not by_id)
    assert plan_read(base, transport=same_schema, slots=1).partitions


@pytest.mark.parametrize("slots", [1, 2, 7, 100])
@pytest.mark.usefixtures("small_partitions")
def test_partitions_contain_every_live_row_once_in_order(table: Table, slots: int) -> None:
    plan = plan_read(VersionRef(table.uri).snapshot(), transport=same_schema, slots=slots)
    assert run_workers(plan) == table.to_table()
    assert len(plan.partitions) >= min(slots * 4, 5)
    rows = [sum(partition_rows(part)) for part in plan.partitions]
    assert sum(rows) == 800
    assert max(rows) <= max(80, 2 * 800 // (slots * 4))


def partition_rows(part: read_module.ScanPartition) -> list[int]:
    return [
        Fragment.decode(fragment).live_rows if take is None else take
        for fragment, (_skip, take, _chosen) in zip(part.fragments, part.ranges, strict=True)
    ]


def test_few_rows_are_one_task(table: Table) -> None:
    assert len(plan_read(VersionRef(table.uri).snapshot(), transport=same_schema, slots=100).partitions) == 1


def test_scans_that_return_no_rows_have_fewer_partitions(tmp_path: Path) -> None:
    """Each slot gets a partition once the rows justify the start of a task."""
    rows = pa.table({"n": pa.array(range(400_000), pa.int64())})
    table = Table.create(str(tmp_path / "t"), rows, max_rows_per_file=50_000, durable=False)
    plan = plan_scan(table.manifest, columns=["n"])
    assert (
        len(partition_scan(plan, 1)),
        len(partition_scan(plan, 1, returns_rows=False)),
        len(partition_scan(plan, 2, returns_rows=False)),
    ) == (4, 1, 2)


def test_the_size_of_a_partition_is_bounded(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_module, "PARTITION_BYTES_MAX", 2_000)
    plan = plan_scan(table.manifest, columns=None)
    assert all(len(part.fragments) == 1 for part in partition_scan(plan, 1))
    assert len(partition_scan(plan, 1)) > 10


@pytest.mark.parametrize(
    ("columns", "filter"),
    [
        (["n"], "n > 500 and s is not null"),
        (["s"], "p.x = 1"),
        (["p.y", "n"], "n in (3, 399, 400, 999)"),
        (None, "false"),
        (["n", "_rowoffset"], "_rowoffset < 3"),
        (["n"], "_rowaddr = 4294967297"),
    ],
)
@pytest.mark.usefixtures("small_partitions")
def test_filtered_rows_equal_those_of_one_process(table: Table, columns: list[str] | None, filter: str) -> None:
    base = VersionRef(table.uri).snapshot()
    found = run_workers(plan_read(base, transport=same_schema, slots=3, columns=columns, filter=filter))
    local_rows = table.to_table(columns, filter)
    assert found.to_pylist() == local_rows.to_pylist()
    workers = InProcessWorkers(slots=3, lost_partitions=frozenset({0}))
    assert count_rows(base, filter, runner=lambda: workers) == len(local_rows)


def test_counting_all_rows_runs_no_task(table: Table) -> None:
    def no_workers() -> InProcessWorkers:
        raise AssertionError

    assert count_rows(VersionRef(table.uri).snapshot(), None, runner=no_workers) == 800


def test_a_plan_keeps_its_version(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"n": [1]}))
    plan = plan_read(VersionRef(table.uri).snapshot(), transport=same_schema, slots=4)
    table.overwrite(pa.table({"n": [2]}))
    assert run_workers(plan)["n"].to_pylist() == [1]


def test_versions_are_named_by_number_tag_and_branch(table: Table) -> None:
    table.tags.create("before", 1)
    table.branches.create("dev").append(ROWS.slice(0, 1))
    uri = table.uri
    counts = [
        count_rows(version_ref.snapshot(), None, runner=InProcessWorkers)
        for version_ref in (
            VersionRef(uri, 1),
            VersionRef(uri, tag="before"),
            VersionRef(uri, branch="dev"),
            VersionRef(uri),
        )
    ]
    assert counts == [400, 400, 801, 800]
    assert len(run_workers(plan_read(VersionRef(uri, branch="dev").snapshot(), transport=same_schema, slots=1))) == 801
    with pytest.raises(NotFound, match="has no tag 'nope'"):
        VersionRef(uri, tag="nope").snapshot()
    with pytest.raises(InvalidInput, match="pass only one of them"):
        VersionRef(uri, 1, tag="before").snapshot()


@pytest.mark.parametrize("stable", [False, True])
def test_ids_and_addresses_are_sent_as_signed_integers(tmp_path: Path, stable: bool) -> None:
    table = Table.create(str(tmp_path / "t"), ROWS, max_rows_per_file=300, stable_row_ids=stable)
    table = table.delete("n < 310").table
    base = VersionRef(table.uri).snapshot()
    plan = plan_read(base, transport=same_schema, slots=2, columns=["n"], with_row_id=True, with_row_address=True)
    found = run_workers(plan)
    assert found.schema.types == [pa.int64()] * 3
    local_rows = table.to_table(["n"], with_row_id=True, with_row_address=True)
    assert found.to_pylist() == local_rows.to_pylist()


def test_now_is_evaluated_by_the_driver(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"n": [1]}))
    plan = plan_read(
        VersionRef(table.uri).snapshot(), transport=same_schema, slots=1, filter="now() > timestamp '2020-01-01'"
    )
    predicate = plan.work.scan_spec.predicate
    assert predicate is not None
    assert "now" not in str(predicate.tree)


def test_errors_are_raised_before_a_worker_runs(table: Table) -> None:
    base = VersionRef(table.uri).snapshot()
    for arguments, message in (({"filter": "nope = 1"}, "no column 'nope'"), ({"columns": ["m"]}, "no column 'm'")):
        with pytest.raises(InvalidInput, match=message):
            plan_read(base, transport=same_schema, slots=1, **arguments)
    with pytest.raises(InvalidInput, match="write it as a SQL string"):
        plan_read(base, transport=same_schema, slots=1, filter=5)


def test_batches_are_sent_in_the_transport_types(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"v": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))}))
    transport = pa.schema([("v", pa.list_(pa.float32()))])
    plan = plan_read(VersionRef(table.uri).snapshot(), transport=lambda _: transport, slots=1, columns=["v"])
    assert run_workers(plan).schema == transport


def test_few_indexed_rows_are_fetched_by_the_driver(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(filter: str) -> int | None:
        """Return the number of rows fetched on the driver, or None if the read is planned for workers."""
        result = fetch_or_plan(
            VersionRef(table.uri).snapshot(), transport=same_schema, slots=1, columns=["s", "n"], filter=filter
        )
        if isinstance(result, ReadPlan):
            return None
        assert result.rows == table.to_table(columns=["s", "n"], filter=filter)
        return int(result.rows.num_rows)

    assert found("n = 18") is None, "without an index"
    table = table.create_index("n", "BTREE").table
    assert [found(f"n = {n}") for n in (18, 17, 5000)] == [1, 0, 0]
    assert found("n in (18, 450, 999) and s like 'r4%'") == 1, "the rest of the condition is evaluated"
    assert found("s = 'r18'") is None
    monkeypatch.setattr(read_module, "LOOKUP_ROWS_MAX", 2)
    assert (found("n in (18, 450)"), found("n in (18, 450, 999)")) == (2, None)
    monkeypatch.setattr(read_module, "LOOKUP_FRAGMENTS_MAX", 1)
    assert (found("n in (18, 20)"), found("n in (18, 450)")) == (2, None)
    monkeypatch.setattr(read_module, "LOOKUP_BYTES_MAX", 10)
    assert found("n in (18, 20)") is None
    monkeypatch.undo()
    table = table.append(ROWS.slice(0, 50)).table
    assert found("n = 18") is None, "no index covers the new fragment"
