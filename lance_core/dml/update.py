"""Update the rows that match: new values by SQL, from the row's own columns.

The predicate's columns are read first; of the rows that match, what their new state needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core import validation
from lance_core.datafiles.column_layout import is_blob
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml.row_matching import check_columns, find_matching_rows
from lance_core.dml.row_rewrite import (
    FragmentChange,
    RowRewrite,
    field_ids_of,
    is_cheaper_in_place,
    move_rows,
    rewrite_columns,
)
from lance_core.errors import InvalidInput
from lance_core.expressions import Predicate, Projection
from lance_core.format.operations import Update
from lance_core.format.schema import Field
from lance_core.runtime import Runtime
from lance_core.scan.column_resolution import check_condition, filterable_schema
from lance_core.scan.selection import Selection
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """What was asked for, and that it makes sense for this version."""

    columns: tuple[str, ...]
    """Those that get new values, in the order of the schema."""
    projection: Projection
    predicate: Predicate | None

    @classmethod
    def of(cls, base: Snapshot, values: Mapping[str, str], where: str | None) -> "UpdateRequest":
        schema, what = base.manifest.schema, base.location.uri
        validation.check_mapping(values, "values")
        validation.check_names(list(values), "values")
        if not values:
            raise InvalidInput(f"{what}: an update names no column; give at least one, as in {{'price': 'price * 2'}}")
        check_columns(values, schema, what=what, where="the update")
        columns = tuple(field.name for field in schema.fields if field.name in values)
        types = {name: _result_type(schema.field(name), schema.arrow.field(name)) for name in columns}
        projection = Projection.parse({name: values[name] for name in columns}, schema.arrow, types=types)
        predicate = None if where is None else Predicate.parse(where, filterable_schema(base.manifest))
        check_condition(base.manifest, predicate.columns if predicate else (), what="the condition")
        return cls(columns, projection, predicate)


def update(
    base: Snapshot,
    values: Mapping[str, str],
    where: str | None,
    *,
    limits: FileLimits,
    runtime: Runtime,
    in_place: bool | None = None,
    selection: Selection | None = None,
) -> Update:
    """All expressions see the row as it was, so two columns may change places. `in_place` says in which way it is done,
    where that was decided for more than this, `selection` what indices know, where they were asked before."""
    asked = UpdateRequest.of(base, values, where)
    projection = asked.projection

    def evaluated(rows: pa.RecordBatch, places: npt.NDArray[np.int64]) -> pa.RecordBatch:
        # An expression that reads no column has as many values as a batch that has none says it has rows.
        shown = rows if rows.num_columns else pa.RecordBatch.from_arrays([pa.array(places)], names=["place"])
        return projection.evaluate(shown)

    found = find_matching_rows(base, asked.predicate, selection)
    parts = [FragmentChange(fragment, offsets, evaluated) for fragment, offsets in found if len(offsets)]
    changes = RowRewrite(base, asked.columns, projection.columns, tuple(parts))
    if is_cheaper_in_place(changes) if in_place is None else in_place:
        return rewrite_columns(changes, (), limits=limits, runtime=runtime)
    return move_rows(changes, {}, (), assigned=field_ids_of(changes.fields.fields), limits=limits, runtime=runtime)


def _result_type(field: Field, arrow: pa.Field) -> pa.DataType:
    """What an expression is cast to; a blob is given as its bytes."""
    return pa.large_binary() if is_blob(field) else arrow.type
