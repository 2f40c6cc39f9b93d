"""Tests of `lance_core/table/frames.py` and of the forms of rows that writers accept."""

import datetime as dt
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lance_core import InvalidInput, NotFound, Table
from tests.pairwise import pairwise

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("score", pa.float32()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("day", pa.date32()),
    ]
)
ROWS = pa.table(
    {
        "id": [1, 2, 3],
        "name": ["a", None, "c"],
        "score": [0.5, 1.5, None],
        "tags": [["x"], [], None],
        "day": [dt.date(2026, 1, 1), None, dt.date(2026, 1, 3)],
    },
    schema=SCHEMA,
)


@dataclass
class Row:
    id: int


class Stream:
    """Object of a library that this package does not know, with Arrow's stream interface."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)


def batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from rows.to_batches()


FORMS: dict[str, Callable[[pa.Table], object]] = {
    "table": lambda rows: rows,
    "reader": lambda rows: rows.to_reader(),
    "batches": batches,
    "pandas": lambda rows: rows.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.from_arrow,
    "stream": Stream,
    "dicts": lambda rows: rows.to_pylist(),
    "columns": lambda rows: rows.to_pydict(),
}
WRITERS: dict[str, Callable[[Table, object], Table]] = {
    "append": lambda table, rows: table.append(rows).table,
    "overwrite": lambda table, rows: table.overwrite(rows, where="id < 10").table,
    "upsert": lambda table, rows: table.upsert(rows, "id").table,
    "merge_columns": lambda table, rows: table.drop_columns(["name"]).table.merge_columns(rows, "id").table,
}


@pytest.mark.parametrize(("form", "writer"), pairwise(list(FORMS), list(WRITERS)))
def test_writers_accept_every_form_of_rows(form: str, writer: str, tmp_path: Path) -> None:
    base = Table.create(tmp_path / "t", ROWS.slice(0, 0 if writer == "append" else 3), durable=False)
    rows = ROWS.select(["id", "name"]) if writer == "merge_columns" else ROWS
    changed = WRITERS[writer](base, FORMS[form](rows))
    assert changed.to_table().select(SCHEMA.names).sort_by("id") == ROWS
    assert changed.schema.metadata is None


@pytest.mark.parametrize("form", FORMS)
def test_a_table_is_created_from_every_form_of_rows(form: str, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", FORMS[form](ROWS), durable=False)
    assert table.to_table().to_pylist() == ROWS.to_pylist()
    assert all(not field.metadata for field in table.schema)


def test_other_values_are_refused_by_name(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", ROWS, durable=False)
    for values, message in (
        (5, "not int"),
        ("rows", "not str"),
        ([(1, "a")], "not list of tuple"),
        (pl.Series([1]), r"not Series; call its to_frame\(\)"),
        (pd.Series([1]), r"not Series; call its to_frame\(\)"),
        (pl.LazyFrame({"id": [1]}), r"not LazyFrame; call its collect\(\)"),
        (Path("rows.parquet"), "not PosixPath; read the file first"),
        (Row(1), "not Row; put it in a list"),
        (pd.DataFrame({"id": [1, "x"]}), "the DataFrame cannot be converted to Arrow: Could not convert 'x'"),
        (pd.DataFrame([[1, 2]], columns=["id", "id"]), "cannot be converted to Arrow: Duplicate column names"),
        (pd.DataFrame({"id": [1.5, None]}), "column 'id' is stored as int32, but the data has double"),
        ({"embedding": np.ones((2, 3))}, "has no column 'embedding'"),
        ({"id": [1], "name": ["a", "b"]}, "different lengths"),
        ([{"id": 1}, {"id": "x"}], "column 'id'"),
        ([{"id": 1}, pa.record_batch({"id": [1]})], "rows must be of one kind"),
        ({"id": [1 << 40]}, "column 'id' of type int64 does not convert to int32"),
        ([{"id": 1.7}], "column 'id' is stored as int32"),
        ([{"day": dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC)}], "column 'day' is stored as date32"),
        ([{"score": 1e300}], "a number is out of its range"),
        ({1: [2]}, "must be strings"),
        ([{"tags": [1.5]}], "column 'tags.item' is stored as string"),
    ):
        with pytest.raises(InvalidInput, match=message):
            table.append(values)


def test_floats_of_python_are_rounded_to_the_stored_floats(tmp_path: Path) -> None:
    vectors = pa.schema([("v", pa.list_(pa.float32(), 2)), ("h", pa.float16())])
    table = Table.create(tmp_path / "t", vectors, durable=False).append([{"v": [0.1, 0.5], "h": 0.1}]).table
    assert table.to_table() == pa.table({"v": [[0.1, 0.5]], "h": [0.1]}).cast(vectors)


def test_an_overwrite_of_all_rows_replaces_the_columns(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", ROWS, durable=False)
    assert table.overwrite([{"id": "a"}]).table.schema == pa.schema([("id", pa.string())])


def test_a_pickle_keeps_how_files_are_decoded(tmp_path: Path) -> None:
    Table.create(tmp_path / "t", ROWS, durable=False)
    copy = pickle.loads(pickle.dumps(Table.open(tmp_path / "t", trusted=False, verify="read")))
    assert (copy._location.access.trusted, copy._location.access.verify.value) == (False, "read")


def test_keys_that_only_later_dicts_have_are_columns(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", [{"a": 1}, {"a": 2, "b": "x"}], durable=False)
    assert table.to_table().to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_frame_libraries_read_a_table(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", ROWS, durable=False).append(ROWS).table.delete("id = 2").table
    expected = table.to_table()
    assert pa.table(table) == expected
    assert pa.schema(table) == expected.schema
    assert pl.DataFrame(table).to_dicts() == expected.to_pylist()
    assert table.to_polars(["id"], "id > 1").to_dicts() == [{"id": 3}, {"id": 3}]
    assert table.to_pandas(limit=2, types_mapper=pd.ArrowDtype)["id"].tolist() == [1, 3]
    assert table.head(3) == expected.slice(0, 3)
    sampled = table.sample(3, ["id"], seed=7)
    assert sampled == table.sample(3, ["id"], seed=7)
    assert sampled.num_rows == 3
    assert table.sample(100) == expected
    assert len(table) == 4
    assert Table.create(tmp_path / "copy", table, durable=False).to_table() == expected
    assert Table.create(tmp_path / "empty", SCHEMA, durable=False)
    with pytest.raises(InvalidInput, match="to_batches"):
        list(table)


def count_in_process(table: Table) -> int:
    return table.count_rows("id > 1")


def test_a_table_travels_to_other_processes_at_its_version(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", ROWS, durable=False)
    branch = table.branches.create("dev").append(ROWS).table
    table.append(ROWS)
    assert pickle.loads(pickle.dumps(table)).version == 1
    assert pickle.loads(pickle.dumps(branch)).to_table() == branch.to_table()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(count_in_process, table).result() == 2


def test_a_pickle_of_a_table_that_was_created_again_is_refused(tmp_path: Path) -> None:
    data = pickle.dumps(Table.create(tmp_path / "t", ROWS, durable=False))
    (tmp_path / "t").rename(tmp_path / "old")
    Table.create(tmp_path / "t", ROWS, durable=False)
    with pytest.raises(NotFound, match="created again"):
        pickle.loads(data)


def test_from_arrow_of_polars_returns_a_series_of_structs(tmp_path: Path) -> None:
    """Polars reads every object with a stream interface so, except those of pyarrow."""
    table = Table.create(tmp_path / "t", {"id": [1, 2], "s": ["a", "b"]}, durable=False)
    series = pl.from_arrow(table)
    assert isinstance(series, pl.Series)
    assert series.struct.unnest().equals(pl.DataFrame(table))
