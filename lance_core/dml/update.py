"""Update: gives columns of the matching rows new values, by SQL expressions over the row's own columns.

The columns of the condition are read first; of the matching rows, only the columns that their new state needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core import validation
from lance_core.commit.write_protocol import Planned
from lance_core.datafiles.column_layout import is_blob
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml.column_sources import OwnColumnSources, sources_of_sql, with_column_sources
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
    """Arguments of an update, checked against a version."""

    columns: tuple[str, ...]
    """Columns that get new values, in the order of the schema."""
    projection: Projection
    predicate: Predicate | None

    @classmethod
    def of(cls, base: Snapshot, values: Mapping[str, str], where: str | None) -> "UpdateRequest":
        schema, what = base.manifest.schema, base.location.uri
        validation.check_mapping(values, "values")
        validation.check_names(list(values), "values")
        if not values:
            raise InvalidInput(f"{what}: values= is empty; name at least one column, as in {{'price': 'price * 2'}}")
        check_columns(values, schema, what=what, where="the update")
        columns = tuple(field.name for field in schema.fields if field.name in values)
        types = {name: _result_type(schema.field(name), schema.arrow.field(name)) for name in columns}
        projection = Projection.parse({name: values[name] for name in columns}, schema.arrow, types=types)
        predicate = None if where is None else Predicate.parse(where, filterable_schema(base.manifest))
        check_condition(base.manifest, predicate.columns if predicate else (), what="the condition")
        return cls(columns, projection, predicate)

    def column_sources(self) -> OwnColumnSources:
        """Return the columns that decide about the new values of each column."""
        return sources_of_sql(self.projection, self.predicate)


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
    """Plan an update. All expressions see the row before the update, so two columns can be swapped.

    `in_place` says whether columns are rewritten in place, if that was decided for the whole table before. `selection`
    is the result of the indices, if they were asked before."""
    request = UpdateRequest.of(base, values, where)
    return _plan_update(base, request, limits=limits, runtime=runtime, in_place=in_place, selection=selection)


def update_with_sources(
    base: Snapshot, values: Mapping[str, str], where: str | None, *, limits: FileLimits, runtime: Runtime
) -> Planned | None:
    """Plan an update, and record the columns from which the new values are computed."""
    request = UpdateRequest.of(base, values, where)
    operation = _plan_update(base, request, limits=limits, runtime=runtime, in_place=None, selection=None)
    return with_column_sources(base, operation, request.column_sources())


def _plan_update(
    base: Snapshot,
    request: UpdateRequest,
    *,
    limits: FileLimits,
    runtime: Runtime,
    in_place: bool | None,
    selection: Selection | None,
) -> Update:
    projection = request.projection

    def evaluate(rows: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> pa.RecordBatch:
        # An expression that reads no column still needs a batch with the right number of rows.
        batch = rows if rows.num_columns else pa.RecordBatch.from_arrays([pa.array(positions)], names=["position"])
        return projection.evaluate(batch)

    matching = find_matching_rows(base, request.predicate, selection)
    changes = [FragmentChange(fragment, offsets, evaluate) for fragment, offsets in matching if len(offsets)]
    rewrite = RowRewrite(base, request.columns, projection.columns, tuple(changes))
    if is_cheaper_in_place(rewrite) if in_place is None else in_place:
        return rewrite_columns(rewrite, (), limits=limits, runtime=runtime)
    return move_rows(rewrite, {}, (), assigned=field_ids_of(rewrite.fields.fields), limits=limits, runtime=runtime)


def _result_type(field: Field, arrow: pa.Field) -> pa.DataType:
    """Return the type to which an expression is cast; the value of a blob column is its bytes."""
    return pa.large_binary() if is_blob(field) else arrow.type
