"""Columns of generated tables, and rows of them: what programs print as `rows({"k": "key", "a": "int32!"}, ...)`.

A column is spelt as the name of a case of `type_cases.py`, with a `!` where it may not be null; `key` is an integer
that is handed in, so that rows can be told apart. The values are those of the case, drawn by a seed; the long ones are
left out. What is drawn for a column does not depend on which other columns there are.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from random import Random

import pyarrow as pa

from tests.interop.type_cases import CASES, TypeCase

KEY = "key"
_BY_NAME = {case.name: case for case in CASES}
_LETTERS_MAX = 300


def rows(
    columns: Mapping[str, str], keys: Iterable[int], seed: int = 0, metadata: Mapping[str, str] | None = None
) -> pa.Table:
    """One row for each key. Null columns and empty tables too."""
    chosen = list(keys)
    arrays = []
    for name, spec in columns.items():
        if spec.rstrip("!") == KEY:
            arrays.append(pa.array(chosen, pa.int64()))
            continue
        random, values = Random(f"{seed}/{name}"), _values(spec)
        arrays.append(values.take(pa.array([random.randrange(len(values)) for _ in chosen], pa.int64())))
    return pa.Table.from_arrays(arrays, schema=schema(columns, metadata))


def batch(columns: Mapping[str, str], by: pa.RecordBatch, seed: int) -> pa.RecordBatch:
    """New columns for rows: which value one gets is told by its key, the only column that is given."""
    arrays = []
    for spec in columns.values():
        values = _values(spec)
        places = [Random(f"{seed}/{key}").randrange(len(values)) for key in by.column(0).to_pylist()]
        arrays.append(values.take(pa.array(places, pa.int64())))
    return pa.RecordBatch.from_arrays(arrays, schema=schema(columns))


def schema(columns: Mapping[str, str], metadata: Mapping[str, str] | None = None) -> pa.Schema:
    return pa.schema([field(name, spec) for name, spec in columns.items()], metadata)


def field(name: str, spec: str) -> pa.Field:
    case = spec.rstrip("!")
    nullable = case == spec
    if case == KEY:
        return pa.field(name, pa.int64(), nullable)
    return _BY_NAME[case].field.with_name(name).with_nullable(nullable)


def arrow(case: str) -> pa.DataType:
    """The type of a column, to cast another one to."""
    return field("it", case).type


def cases_for(storage_version: str) -> tuple[TypeCase, ...]:
    """Those that a table of that storage version can hold, and of which rows can be picked."""
    return tuple(case for case in CASES if case.since <= storage_version and case.name not in _NOT_PICKED)


def may_be_full(spec: str) -> bool:
    """Whether the case has a value that is not null."""
    return spec == KEY or any(value.is_valid for value in _BY_NAME[spec].values)


_NOT_PICKED = {
    # Arrow does not take from views; they are written as what they are views of.
    "string_view",
    "binary_view",
    # pylance cannot read them beside other columns (test_pylance_defects.py).
    "fsl-of-struct",
    "struct-empty",
}


@cache
def _values(spec: str) -> pa.Array:
    case = spec.rstrip("!")
    kept = [
        number
        for number, value in enumerate(_BY_NAME[case].values)
        if len(repr(value)) < _LETTERS_MAX and (case == spec or value.is_valid)
    ]
    return _BY_NAME[case].values.take(pa.array(kept, pa.int64()))
