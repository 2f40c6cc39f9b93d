"""SQL dialect: spellings of Lance that the engine's parser does not know give the rows that pylance returns."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table

ROWS = pa.table(
    {
        "id": [1, 2, 3],
        "struct": pa.array([{"y": 1, "x.z": 5}, {"y": -1, "x.z": 7}, None]),
        "datetime": pa.array([1, 2, 3]),
        "day": ["2026-01-01", "2026-01-02", "2026-01-03T00:00:01.5"],
        "ts": pa.array([1, 2, 3_000_000], pa.timestamp("us")),
        "note": ["struct.y", "datetime '2026-01-01'", ";"],
    }
)
SAME_AS_PYLANCE = [
    "struct.y > 0",
    "struct['y'] > 0",
    "struct['x.z'] = 5",
    "struct IS NULL",
    "struct is not null and not struct.y > 0",
    "Struct.y IN (1, 2)",
    "STRUCT['y'] = 1",
    "`struct`.y > 0",
    "struct(1, 2) is not null",
    "note = 'struct.y'",
    "get_field(struct, 'y') > 0",
    "get_field(struct, 'x.z') = 5",
    "datetime > 1",
    "datetime = 1 or datetime=3",
    "cast(day as datetime) > cast('2026-01-01' as datetime)",
    "cast(day AS DATETIME) = datetime '2026-01-03T00:00:01.5'",
    "try_cast(note as datetime) is null",
    *(f"ts < cast('1970-01-01T00:00:03' as datetime({precision}))" for precision in (0, 3, 6, 9)),
    "ts >= '1970-01-01T00:00:03' :: datetime",
    "ts = datetime '1970-01-01 00:00:00.000001'",
    "cast(datetime as datetime) < datetime '2026-01-01'",
    "note = 'datetime ''2026-01-01'''",
    "id > 1;",
    "id > 1 -- struct.y and datetime '1'",
    "note = ';'",
    "note = ';' ; ",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dialect") / "t"
    lance.write_dataset(ROWS, path)
    return path


@pytest.mark.parametrize("sql", SAME_AS_PYLANCE)
def test_the_same_rows_as_in_pylance_match(sql: str, directory: Path) -> None:
    expected = lance.dataset(directory).to_table(filter=sql, columns=["id"])
    assert Table.open(directory).to_table(filter=sql, columns=["id"]) == expected


@pytest.mark.parametrize(
    "clause", ["limit 1", "LIMIT 1 OFFSET 1", "order by id", "group by id", "fetch first 1 rows only"]
)
def test_clauses_are_refused_where_pylance_ignores_them(clause: str, directory: Path) -> None:
    assert lance.dataset(directory).to_table(filter=f"id > 1 {clause}").num_rows == 2
    with pytest.raises(InvalidInput, match=rf"{clause.split()[0].upper()} is a clause of a query.*pass `limit=`"):
        Table.open(directory).to_table(filter=f"id > 1 {clause}")


def test_queries_have_the_same_dialect(directory: Path) -> None:
    rows = Table.open(directory).query("select id from dataset where struct.y > 0 and ts < datetime '2026-01-01';")
    assert rows["id"].to_pylist() == [1]
    total = Table.open(directory).query("select sum(struct.y) as y from dataset")
    assert total["y"].to_pylist() == [0]


@pytest.mark.parametrize(
    "query",
    [
        "select id as datetime from dataset",
        "select cast(id as bigint) as datetime from dataset",
        "select id as datetime from dataset where ts < cast('2026-01-01' as datetime)",
        "select id as datetime from dataset where day > cast((cast(id as varchar)) as datetime(3)) or true",
    ],
)
def test_an_alias_may_be_the_name_of_a_type(query: str, directory: Path) -> None:
    rows = Table.open(directory).query(query)
    assert rows.column_names == ["datetime"]
    assert rows["datetime"].to_pylist() == [1, 2, 3]


def test_an_unknown_precision_is_refused(directory: Path) -> None:
    with pytest.raises(InvalidInput, match=r"TIMESTAMP\(5\)|precision"):
        Table.open(directory).to_table(filter="ts < cast('2026-01-01' as datetime(5))")
