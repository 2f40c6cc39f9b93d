"""Every verb that takes rows accepts every form of rows: a property test over forms, verbs, types and values."""

import dataclasses
import datetime as dt
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_core import SchemaMismatch, Table

COLUMNS: dict[str, tuple[pa.DataType, pa.DataType, st.SearchStrategy]] = {
    "i": (pa.int64(), pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "u": (pa.uint32(), pa.uint8(), st.integers(0, 255)),
    "f": (pa.float64(), pa.float32(), st.integers(-1000, 1000).map(lambda each: each / 8)),
    "s": (pa.large_string(), pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    "b": (pa.large_binary(), pa.binary(), st.binary(max_size=4)),
    "flag": (pa.bool_(), pa.bool_(), st.booleans()),
    "day": (pa.date32(), pa.date32(), st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))),
    "at": (
        pa.timestamp("us"),
        pa.timestamp("ms"),
        st.integers(0, 10**12).map(lambda each: dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=each)),  # noqa: DTZ001
    ),
    "list": (pa.list_(pa.int64()), pa.list_(pa.int8()), st.lists(st.none() | st.integers(-5, 5), max_size=3)),
    "struct": (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        pa.struct([("x", pa.int8()), ("y", pa.string())]),
        st.fixed_dictionaries({"x": st.integers(-5, 5), "y": st.sampled_from(["a", "b"])}),
    ),
}
"""Columns: the stored type, a narrower type of the input, and values of both."""


class Stream:
    """Object of an unknown library with Arrow's stream interface."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)


def dataclass_records(rows: pa.Table) -> list[object]:
    record = dataclasses.make_dataclass("Record", [(name, annotated(rows, name)) for name in rows.column_names])
    return [record(**values) for values in rows.to_pylist()]


def model_records(rows: pa.Table) -> list[object]:
    fields: Any = {name: (annotated(rows, name), ...) for name in rows.column_names}
    record = pydantic.create_model("Record", **fields)
    return [record(**values) for values in rows.to_pylist()]


def annotated(rows: pa.Table, name: str) -> Any:
    from typing import Annotated

    return Annotated[Any, rows.schema.field(name).type] | None


FORMS: dict[str, Callable[[pa.Table], object]] = {
    "table": lambda rows: rows,
    "batch": lambda rows: rows.combine_chunks().to_batches()[0],
    "reader": lambda rows: rows.to_reader(),
    "generator of batches": lambda rows: (batch for batch in rows.to_batches()),
    "dataset": pads.dataset,
    "scanner": lambda rows: pads.dataset(rows).scanner(),
    "pandas": lambda rows: rows.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.from_arrow,
    "stream": Stream,
    "dicts": lambda rows: rows.to_pylist(),
    "dict of lists": lambda rows: rows.to_pydict(),
    "dict of arrays": lambda rows: dict(zip(rows.column_names, rows.columns, strict=True)),
    "dataclasses": dataclass_records,
    "models": model_records,
}
VERBS: dict[str, Callable[[str, Table, object], Table]] = {
    "create": lambda uri, _table, rows: Table.create(uri + "-new", rows, durable=False),
    "append": lambda _uri, table, rows: table.append(rows).table,
    "overwrite": lambda _uri, table, rows: table.overwrite(rows).table,
    "overwrite where": lambda _uri, table, rows: table.overwrite(rows, where="key >= 0").table,
    "upsert": lambda _uri, table, rows: table.upsert(rows, "key").table,
    "merge_columns": lambda _uri, table, rows: table.merge_columns(rows, "key").table,
}


@st.composite
def inputs(draw: st.DrawFn) -> tuple[pa.Table, pa.Schema]:
    """Draw rows with a key, in the stored types or narrower ones, and the schema that stores them."""
    names = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=3, unique=True))
    narrow, count = draw(st.booleans()), draw(st.integers(1, 4))
    values = {name: draw(st.lists(st.none() | COLUMNS[name][2], min_size=count, max_size=count)) for name in names}
    stored = pa.schema([("key", pa.int64()), *((name, COLUMNS[name][0]) for name in names)])
    given = pa.schema([("key", pa.int64()), *((name, COLUMNS[name][narrow]) for name in names)])
    return pa.table({"key": list(range(count)), **values}, given), stored


@settings(max_examples=120, deadline=None)
@given(inputs(), st.sampled_from(list(FORMS)), st.sampled_from(list(VERBS)))
def test_every_verb_accepts_every_form_of_rows(drawn: tuple[pa.Table, pa.Schema], form: str, verb: str) -> None:
    rows, stored = drawn
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "t")
        if verb == "merge_columns":
            base = Table.create(uri, rows.select(["key"]), durable=False)
        else:
            base = Table.create(uri, stored, durable=False)
        changed = VERBS[verb](uri, base, FORMS[form](rows))
        keeps_schema = verb not in ("create", "overwrite", "merge_columns")
        assert changed.to_table().select(rows.column_names).sort_by("key").to_pylist() == rows.to_pylist()
        if keeps_schema:
            assert changed.schema == stored


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("change", ["filtered", "sorted", "selected", "numbered by text"])
def test_row_numbers_of_pandas_are_no_column(tmp_path: Path, verb: str, change: str) -> None:
    frame = pd.DataFrame({"key": [3, 1, 2], "price": [3.0, 1.0, 2.0]})
    frames = {
        "filtered": frame[frame.price > 1],
        "sorted": frame.sort_values("price"),
        "selected": frame.iloc[[2, 0]],
        "numbered by text": frame.set_axis(["a", "b", "c"]),
    }
    rows = frames[change]
    base = Table.create(str(tmp_path / "t"), pa.table({"key": [3, 2], "price": [0.5, 0.5]}), durable=False)
    if verb == "merge_columns":
        base = base.drop_columns(["price"]).table
    changed = VERBS[verb](base.uri, base, rows).to_table()
    assert changed.column_names == ["key", "price"]
    written = set(zip(rows["key"], rows["price"], strict=True))
    stored = set(zip(changed["key"].to_pylist(), changed["price"].to_pylist(), strict=True))
    assert stored >= {row for row in written if row[0] != 1 or verb != "merge_columns"}


def test_an_index_of_pandas_with_a_name_is_a_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"key": [3, 1], "price": [3.0, 1.0]})
    table = Table.create(str(tmp_path / "t"), frame, durable=False)
    by_key = frame.set_index("key")
    assert table.append(by_key).table.to_table()["key"].to_pylist() == [3, 1, 3, 1]
    numbered = pd.DataFrame({"price": [7.0, 8.0]}, index=pd.RangeIndex(10, 14, 2, name="key"))
    assert table.refresh().overwrite(numbered).table.to_table(["key", "price"]).to_pylist() == [
        {"key": 10, "price": 7.0},
        {"key": 12, "price": 8.0},
    ]
    levels = pd.DataFrame({"price": [1.0]}, index=pd.MultiIndex.from_tuples([(1, "x", 5)], names=["key", None, "n"]))
    assert sorted(table.refresh().overwrite(levels).table.schema.names) == ["key", "n", "price"]


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 2**53), ("float32", 2**24), ("float16", 2**11)])
def test_integers_that_pandas_may_have_rounded_are_refused(tmp_path: Path, dtype: str, limit: int) -> None:
    table = Table.create(tmp_path / "t", pa.table({"id": pa.array([limit, limit + 1])}), durable=False)
    assert table.append(pd.DataFrame({"id": np.array([limit - 1], dtype)})).rows_added == 1
    for number in (limit, -limit):
        with pytest.raises(SchemaMismatch, match="id"):
            table.upsert(pd.DataFrame({"id": np.array([number], dtype)}), on="id")


def test_masked_arrays_have_nulls(tmp_path: Path) -> None:
    mask = [[False, True], [False, False]]
    values = {
        "one": np.ma.masked_array([1.0, 2.0], mask=mask[0]),
        "two": np.ma.masked_array(np.ones((2, 2)), mask=mask),
    }
    table = Table.create(tmp_path / "t", values, durable=False)
    assert table.to_table().to_pylist() == [{"one": 1.0, "two": [1.0, None]}, {"one": None, "two": [1.0, 1.0]}]


def test_integers_of_pandas_remain_integers_if_one_is_missing(tmp_path: Path) -> None:
    """pandas makes floats of integers if one of them is missing."""
    rows = pa.table({"key": [1, 2], "count": [7, None], "price": [1.0, 2.5]})
    table = Table.create(str(tmp_path / "t"), rows, durable=False)
    frame = table.to_pandas()
    assert frame["count"].dtype == "float64"
    assert table.append(frame).table.to_table() == pa.concat_tables([rows, rows])
    assert table.refresh().upsert(frame.iloc[[1]], "key").table.schema == rows.schema


@pytest.mark.parametrize(
    "values", [np.arange(6.0).reshape(3, 2), np.arange(6)[::-1].reshape(2, 3).T, np.zeros((0, 4)), np.ones((2, 2, 3))]
)
def test_an_array_of_rows_is_a_column_of_lists_of_fixed_size(tmp_path: Path, values: np.ndarray) -> None:
    table = Table.create(str(tmp_path / "t"), {"v": values}, durable=False)
    assert table.to_table()["v"].to_pylist() == values.tolist()
    assert table.schema.field("v").type.list_size == values.shape[1]
    narrow = Table.create(str(tmp_path / "u"), pa.schema([("v", pa.list_(pa.float32(), 4))]), durable=False)
    assert narrow.append({"v": np.full((2, 4), 0.1)}).table.to_table()["v"][1].as_py() == [np.float32(0.1)] * 4


DICTIONARY = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize(
    ("stored", "values"),
    [
        (DICTIONARY, ["a", None, "a"]),
        (pa.struct([("city", DICTIONARY)]), [{"city": "a"}, None]),
        (pa.list_(DICTIONARY), [["a", "b"], None, []]),
    ],
    ids=["column", "field", "items"],
)
@pytest.mark.parametrize("form", ["polars", "views"])
def test_text_of_polars_fits_a_dictionary(tmp_path: Path, stored: pa.DataType, values: list[Any], form: str) -> None:
    """Polars gives text as views, which Arrow itself does not cast to a dictionary."""
    table = Table.create(str(tmp_path / "t"), pa.schema([("c", stored)]), durable=False)
    frame = pl.DataFrame({"c": values})
    rows = frame if form == "polars" else pa.RecordBatchReader.from_stream(frame).read_all()
    assert table.append(rows).table.to_table()["c"].to_pylist() == values


@pytest.mark.parametrize("rows", [[], {}, ()], ids=["list", "dict", "tuple"])
def test_no_rows_have_the_columns_of_the_table(tmp_path: Path, rows: Any) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"key": [1, 2], "s": ["a", "b"]}), durable=False)
    assert table.append(rows).version == table.version
    assert table.upsert(rows, "key").table.count_rows() == 2
    assert table.upsert(rows, "key", delete_unmatched="key = 2").table.to_table()["key"].to_pylist() == [1]
    assert table.refresh().overwrite(rows, where="key = 1").table.count_rows() == 0
    emptied = table.refresh().overwrite(rows).table
    assert (emptied.schema, emptied.count_rows()) == (table.schema, 0)
