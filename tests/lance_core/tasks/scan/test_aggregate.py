"""Aggregate: partial results of workers combine to the result of one pass by pylance."""

import datetime as dt
import math
import random
from decimal import Decimal
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.tasks.scan import read as read_module
from lance_core.tasks.scan.aggregate import aggregate
from lance_core.tasks.scan.read import VersionRef
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

COUNT = 2000


def rows(seed: int) -> pa.Table:
    random_source = random.Random(seed)

    def nullable(value: object, share: float = 0.1) -> object:
        return None if random_source.random() < share else value

    numbers = [math.nan, -0.0, 0.0, math.inf, -math.inf]
    return pa.table(
        {
            "id": pa.array(range(COUNT), pa.int64()),
            "g": [nullable(f"g{random_source.randrange(6)}") for _ in range(COUNT)],
            "x": [
                nullable(random_source.choice(numbers) if random_source.random() < 0.02 else random_source.random())
                for _ in range(COUNT)
            ],
            "f": pa.array([nullable(random_source.randrange(100) / 8) for _ in range(COUNT)], pa.float32()),
            "d": pa.array(
                [nullable(Decimal(random_source.randrange(-9999, 9999)) / 100) for _ in range(COUNT)],
                pa.decimal128(8, 2),
            ),
            "w": pa.array(
                [nullable(Decimal(random_source.randrange(10**30))) for _ in range(COUNT)], pa.decimal128(38, 0)
            ),
            "k": pa.array([nullable(random_source.randrange(-9, 9)) for _ in range(COUNT)], pa.int32()),
            "u": pa.array([nullable(random_source.randrange(255)) for _ in range(COUNT)], pa.uint8()),
            "b": pa.array([nullable(random_source.random() < 0.5) for _ in range(COUNT)], pa.bool_()),
            "at": pa.array([nullable(dt.datetime(2026, 1, 1 + n % 28)) for n in range(COUNT)], pa.timestamp("us")),  # noqa: DTZ001 - no zone is meant
            "p": [nullable({"x": n % 3}) for n in range(COUNT)],
            "none": pa.nulls(COUNT, pa.int64()),
        }
    )


@pytest.fixture(params=[1, 2])
def uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table that is aggregated in many partitions of many groups of rows, with repeated merges of partial results."""
    monkeypatch.setattr(read_module, "PARTITION_ROWS_MIN", 50)
    monkeypatch.setattr(read_module, "REDUCED_PARTITION_ROWS_MIN", 50)
    monkeypatch.setattr("lance_core.scan.query.GROUP_ROWS", 1)
    monkeypatch.setattr("lance_core.scan.query.PARTIALS_MAX", 2)
    uri = str(tmp_path / "t")
    table = Table.create(uri, rows(request.param), max_rows_per_file=300, durable=False)
    table.delete("id % 11 = 3")
    return uri


QUERIES = [
    "select count(*) from dataset",
    "select count(*), count(1), count(x), count(null), count(none) from dataset",
    "select count(*) as n, sum(k), sum(u), sum(d), min(at), max(at), min(g), max(b) from dataset where id > 100",
    "select sum(d), avg(d), avg(k), min(x), count(*) from dataset where id > 999999",
    "select g, avg(d), avg(k), avg(u), avg(w), sum(none), avg(none), max(none) from dataset group by g order by g",
    "select g, k, count(*) from dataset group by g, k order by g nulls first, k desc",
    "select g, count(*) n from dataset group by g having count(*) > 200 order by n desc, g limit 3 offset 1",
    "select k / 2 h, b, sum(k * 2 + 1), max(d) - min(d) spread from dataset group by 1, 2 order by 1, 2",
    "select max(n), count(*) from (select g, count(*) n from dataset t where t.k > 0 group by g) where n > 3",
    "select g from dataset group by g order by g",
    "select bool_and(k > -9), bool_or(b), bit_xor(k), bit_and(u), bit_or(u) from dataset where id % 2 = 1",
    "select x, count(*) from dataset where id < 1500 group by x order by x desc limit 12",
    "select min(x), max(x), min(f), max(f) from dataset",
    "select p.x, count(*), sum(case when b then 1 else 0 end) from dataset group by p.x order by p.x",
    "select date_trunc('week', at) w, count(*) from dataset group by 1 order by 1",
    "select 1 as one, count(*) from dataset where true group by one",
    "select count(*) from dataset where d > 1.5 and (g = 'g1' or x is null) and f in (1.5, 2)",
]


@pytest.mark.parametrize("sql", QUERIES)
def test_the_result_equals_one_pass(uri: str, sql: str) -> None:
    ours = aggregate(
        VersionRef(uri).snapshot(), sql, runner=lambda: InProcessWorkers(slots=2, lost_partitions=frozenset({1}))
    )
    theirs = pa.Table.from_batches(lance.dataset(uri).sql(sql).build().to_batch_records())
    assert ours.schema.remove_metadata() == theirs.schema.remove_metadata()
    assert str(ours.to_pylist()) == str(theirs.to_pylist())


def test_sums_of_floats_equal_one_pass_except_for_the_last_digits(uri: str) -> None:
    sql = "select g, sum(f) s, avg(f) a, avg(x) m from dataset where x < 2 and x > -2 group by g order by g"
    ours = aggregate(VersionRef(uri).snapshot(), sql, runner=InProcessWorkers).to_pylist()
    theirs = pa.Table.from_batches(lance.dataset(uri).sql(sql).build().to_batch_records()).to_pylist()
    assert [row["g"] for row in ours] == [row["g"] for row in theirs]
    for actual, expected in zip(ours, theirs, strict=True):
        assert [actual[name] for name in "sam"] == pytest.approx([expected[name] for name in "sam"], rel=1e-12)


def test_conditions_follow_the_rules_of_lance(uri: str) -> None:
    """Lance rules apply instead of the engine's: a literal takes the type of its column, and names ignore case."""
    base = VersionRef(uri).snapshot()
    found = aggregate(
        base, "select count(*) as n from dataset where F = 0.625 and _rowaddr < 4294967296", runner=InProcessWorkers
    )
    assert found["n"].to_pylist() == [Table.open(uri).count_rows("f = 0.625 and _rowaddr < 4294967296")]


def test_counting_rows_runs_no_task(uri: str) -> None:
    def no_workers() -> InProcessWorkers:
        raise AssertionError

    found = aggregate(VersionRef(uri).snapshot(), "select count(*) + 1 as n from dataset", runner=no_workers)
    assert found["n"].to_pylist() == [Table.open(uri).count_rows() + 1]


def test_an_empty_table(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), rows(1).schema)
    base = VersionRef(table.uri).snapshot()
    assert aggregate(
        base, "select count(x) n, sum(k) s, avg(d) a from dataset", runner=InProcessWorkers
    ).to_pylist() == [{"n": 0, "s": None, "a": None}]
    assert aggregate(base, "select g, sum(k) from dataset group by g", runner=InProcessWorkers).num_rows == 0


def test_no_row_matches(uri: str) -> None:
    found = aggregate(
        VersionRef(uri).snapshot(), "select g, count(*) from dataset where false group by g", runner=InProcessWorkers
    )
    assert (found.num_rows, found.column_names) == (0, ["g", "count(*)"])


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select count(distinct g) from dataset", r"count\(DISTINCT g\) cannot be computed from partial results"),
        (
            "select sum(x) filter (where k > 1) from dataset",
            "FILTER .* cannot be computed from partial results: .*case when",
        ),
        ("select median(x) from dataset", r"median\(\) cannot be computed from partial results; supported are .*avg"),
        ("select * from dataset", r"the query has no aggregate; .* read\(\)"),
        ("select 1", "the query has no aggregate"),
        ("select distinct g, count(*) from dataset group by g", "DISTINCT cannot"),
        ("select g, sum(sum(k)) over () from dataset group by g", "a window function cannot"),
        ("select count(*) from dataset a join dataset b on a.id = b.id", "a join below an aggregate is not supported"),
        ("select sum(k) from (select k from dataset limit 4)", "below an aggregate is not supported"),
        ("select g, count(*) from dataset group by rollup(g)", "grouping sets are not supported"),
        ("select count(*) from nope", "the table is called dataset"),
        ("select count(nope) from dataset", "there is no column 'nope'"),
        ("select count( from dataset", "it does not parse"),
        ("delete from dataset", "DML not supported"),
        ("create table x as select 1", "DDL not supported"),
        ("copy dataset to 'x.csv'", "not supported"),
        ("select avg(at) from dataset", r"query"),
        ("select count(*) from dataset where g in (select g from dataset)", "a subquery"),
        ("select random(), count(*) from dataset group by 1", "is not deterministic"),
        ("select count(*) from dataset where random() > 0.5", "is not deterministic"),
        ("", "query"),
        (5, "write it as a SQL string"),
    ],
)
def test_aggregates_without_partial_results_are_rejected(tmp_path: Path, sql: str, message: str) -> None:
    table = Table.create(str(tmp_path / "t"), rows(1), durable=False)
    with pytest.raises(InvalidInput, match=message):
        aggregate(VersionRef(table.uri).snapshot(), sql, runner=InProcessWorkers)
    assert not (tmp_path / "x.csv").exists()


def test_a_failed_evaluation_keeps_its_error_type(uri: str) -> None:
    with pytest.raises(InvalidInput, match="failed on a row"):
        aggregate(VersionRef(uri).snapshot(), "select sum(1 / (k - k)) from dataset", runner=InProcessWorkers)
