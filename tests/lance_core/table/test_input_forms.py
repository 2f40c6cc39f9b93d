"""Every verb that takes rows accepts every form of rows: a property test over forms, verbs, types and values."""

import dataclasses
import datetime as dt
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pydantic
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_core import Table

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
