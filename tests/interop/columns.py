"""Column specs: columns of generated tables and their rows, which programs print as
`make_rows({"k": "key", "a": "int32!"}, ...)`.

The spec of a column is the name of a case of `type_cases.py`, followed by `!` if the column is not nullable. The spec
`key` is an integer column whose values the caller passes, so that rows are identifiable. The values of other columns
are those of the case without the long ones; a seed selects them. The values of a column do not depend on the other
columns of the table.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from random import Random

import pyarrow as pa

from tests.interop.type_cases import CASES, TypeCase

KEY = "key"
_CASES_BY_NAME = {case.name: case for case in CASES}
_REPR_LENGTH_MAX = 300


def make_rows(
    columns: Mapping[str, str], keys: Iterable[int], seed: int = 0, metadata: Mapping[str, str] | None = None
) -> pa.Table:
    """Return one row for each key; also for columns of nulls and for no keys at all."""
    key_values = list(keys)
    arrays = []
    for name, spec in columns.items():
        if spec.rstrip("!") == KEY:
            arrays.append(pa.array(key_values, pa.int64()))
            continue
        random, values = Random(f"{seed}/{name}"), _short_values(spec)
        arrays.append(values.take(pa.array([random.randrange(len(values)) for _ in key_values], pa.int64())))
    return pa.Table.from_arrays(arrays, schema=make_schema(columns, metadata))


def make_batch(columns: Mapping[str, str], keys: pa.RecordBatch, seed: int) -> pa.RecordBatch:
    """Return new columns for existing rows. The key of a row, in the only column of `keys`, selects its values."""
    arrays = []
    for spec in columns.values():
        values = _short_values(spec)
        indices = [Random(f"{seed}/{key}").randrange(len(values)) for key in keys.column(0).to_pylist()]
        arrays.append(values.take(pa.array(indices, pa.int64())))
    return pa.RecordBatch.from_arrays(arrays, schema=make_schema(columns))


def make_schema(columns: Mapping[str, str], metadata: Mapping[str, str] | None = None) -> pa.Schema:
    return pa.schema([make_field(name, spec) for name, spec in columns.items()], metadata)


def make_field(name: str, spec: str) -> pa.Field:
    case = spec.rstrip("!")
    nullable = case == spec
    if case == KEY:
        return pa.field(name, pa.int64(), nullable)
    return _CASES_BY_NAME[case].field.with_name(name).with_nullable(nullable)


def arrow_type(case: str) -> pa.DataType:
    """Return the Arrow type of a case; a cast names it as its target."""
    return make_field("v", case).type


def cases_for(storage_version: str) -> tuple[TypeCase, ...]:
    """Return the cases that a table of this storage version can hold and that a generator can pick rows of."""
    return tuple(case for case in CASES if case.since <= storage_version and case.name not in _NOT_GENERATED)


def has_non_null_values(spec: str) -> bool:
    """Return whether the case has a value that is not null."""
    return spec == KEY or any(value.is_valid for value in _CASES_BY_NAME[spec].values)


_NOT_GENERATED = {
    # Arrow has no `take` for views; a view is written as the type it is a view of.
    "string_view",
    "binary_view",
    # pylance cannot read these together with other columns (test_pylance_defects.py).
    "fsl-of-struct",
    "struct-empty",
}


@cache
def _short_values(spec: str) -> pa.Array:
    case = spec.rstrip("!")
    indices = [
        index
        for index, value in enumerate(_CASES_BY_NAME[case].values)
        if len(repr(value)) < _REPR_LENGTH_MAX and (case == spec or value.is_valid)
    ]
    return _CASES_BY_NAME[case].values.take(pa.array(indices, pa.int64()))
