"""New columns: adds columns that are computed by SQL or a function, joined by key, or null until they are written.

Existing files stay unchanged; each fragment gets one more file with the new columns alone. New fields get ids above
every id that the table has ever used (`format/field_ids.py`). Start with `add_columns`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from lance_core import validation
from lance_core.datafiles.blob_files import is_blob_v2
from lance_core.datafiles.blob_writing import stored_schema
from lance_core.datafiles.column_layout import check_storable
from lance_core.datafiles.conform import Conversion, conform
from lance_core.datafiles.inputs import InputRows
from lance_core.dml.column_files import PositionedBatch, add_column_file, read_live_rows
from lance_core.dml.key_join import NO_ROW, SourceKeys, check_key_type
from lance_core.errors import InvalidInput, SchemaMismatch
from lance_core.expressions import Projection, with_metadata_columns
from lance_core.format import field_ids
from lance_core.format.field_paths import unknown_column_message, with_children
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.operations import Merge
from lance_core.format.schema import Field, TableSchema
from lance_core.progress import track
from lance_core.runtime import Runtime
from lance_core.scan.parallel import map_in_order
from lance_core.versions.snapshot import Snapshot

Compute: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table]
NewColumns: TypeAlias = Mapping[str, str] | pa.Field | Sequence[pa.Field] | pa.Schema | Compute
_FIRST_WITH_ADDED_CHILDREN = StorageVersion(2, 2)
_BLOB = b"lance-encoding:blob"
_PARENTS = ("struct", "list.struct", "large_list.struct")


def add_columns(
    base: Snapshot,
    columns: NewColumns,
    *,
    schema: pa.Schema | None,
    read_columns: Sequence[str] | None,
    runtime: Runtime,
) -> Merge:
    """Plan new columns: `{name: SQL}`; fields, which are null in every row; or a function from a batch of
    `read_columns` to a batch of the new columns, whose types are `schema` or those of its first result."""
    schema = None if schema is None else validation.check_schema(schema, "schema")
    if isinstance(columns, Mapping):
        return _add_sql_columns(base, columns, runtime)
    if isinstance(columns, pa.Field):
        return _add_null_columns(base, pa.schema([columns]))
    if callable(columns):
        return _add_function_columns(base, columns, schema, read_columns, runtime)
    return _add_null_columns(
        base, columns if isinstance(columns, pa.Schema) else pa.schema(validation.check_fields(columns, "columns"))
    )


def merge_columns(base: Snapshot, data: InputRows, on: str | Sequence[str], *, runtime: Runtime) -> Merge:
    """Plan new columns by a left join on key columns. Rows of the table without a match get nulls, and a null key has
    no match. `data` is held in memory."""
    what, stored = base.location.uri, base.manifest.schema
    keys = validation.check_key_columns(on, "on")
    added = pa.schema([field for field in data.required_schema if field.name not in keys])
    for name in keys:
        for side, names in (("the table", stored.arrow.names), ("the data", data.required_schema.names)):
            if name not in names:
                raise InvalidInput(f"{what}: cannot join on {name!r}: in {side}, {unknown_column_message(name, names)}")
        check_key_type(name, stored.arrow.field(name).type, what=what)
    if not keys or not added.names:
        raise InvalidInput(f"{what}: merge_columns needs a key column, and at least one other column in the data")
    new = define_new_fields(base, added)
    source = cast_keys(pa.Table.from_batches(data.batches, data.schema), stored.arrow, keys, what)
    values = source.select(added.names).combine_chunks()

    table_keys = [list(read_live_rows(base, fragment, keys, stored)) for fragment in base.manifest.fragments]
    key_columns = [
        pa.chunked_array(
            [rows.batch.column(key) for batches in table_keys for rows in batches], stored.arrow.field(key).type
        )
        for key in keys
    ]
    source_rows = SourceKeys(source, keys, what=what).find_rows(key_columns)
    fragments = []
    position = 0
    for fragment, batches in zip(track(base.manifest.fragments, "write columns", "fragments"), table_keys, strict=True):
        joined = []
        for rows in batches:
            joined.append((rows, source_rows[position : position + rows.batch.num_rows]))
            position += rows.batch.num_rows
        new_values = (PositionedBatch(take_or_null(values, matches), rows.offsets) for rows, matches in joined)
        fragments.append(add_column_file(base, fragment, new_values, new, runtime=runtime))
    return merge_operation(base, fragments, new.fields)


def _add_sql_columns(base: Snapshot, expressions: Mapping[str, str], runtime: Runtime) -> Merge:
    readable = with_metadata_columns(base.manifest.schema.arrow)
    projection = Projection.parse(expressions, readable)
    new = define_new_fields(base, projection.schema_over(readable))

    def compute(fragment: Fragment) -> Iterator[PositionedBatch]:
        for rows in read_live_rows(base, fragment, projection.columns, base.manifest.schema):
            yield PositionedBatch(projection.evaluate(rows.batch), rows.offsets)

    def write(work: tuple[Fragment, Runtime]) -> Fragment:
        fragment, own_runtime = work
        return add_column_file(base, fragment, compute(fragment), new, runtime=own_runtime)

    fragments = base.manifest.fragments
    written = map_in_order(write, ((fragment, runtime.with_drawn_uuid()) for fragment in fragments))
    tracked = zip(track(fragments, "compute columns", "fragments"), written, strict=True)
    return merge_operation(base, [fragment for _, fragment in tracked], new.fields)


def _add_function_columns(
    base: Snapshot, function: Compute, schema: pa.Schema | None, read_columns: Sequence[str] | None, runtime: Runtime
) -> Merge:
    stored = base.manifest.schema
    readable = with_metadata_columns(stored.arrow)
    columns = stored.arrow.names if read_columns is None else list(validation.check_names(read_columns, "read_columns"))
    for name in columns:
        if name not in readable.names:
            raise InvalidInput(unknown_column_message(name, stored.arrow.names))

    def compute(fragment: Fragment) -> Iterator[PositionedBatch]:
        for rows in read_live_rows(base, fragment, columns, stored):
            if rows.batch.num_rows:
                try:
                    result = function(rows.batch)
                except Exception as error:
                    source = f"fragment {fragment.id}, {rows.batch.num_rows:,} rows of version {base.version}"
                    error.add_note(f"{base.location.uri}: the function for new columns raised this on {source}")
                    raise
                source = f"fragment {fragment.id}, rows {rows.offsets[0]} to {rows.offsets[-1]}"
                yield PositionedBatch(check_function_result(result, rows.batch, base, source, schema), rows.offsets)

    fragments = list(base.manifest.fragments)
    computed: dict[int, Iterator[PositionedBatch]] = {}
    if schema is None:  # the first result decides
        for number, fragment in enumerate(fragments):
            results = compute(fragment)
            if (first := next(results, None)) is not None:
                computed[number] = chain([first], results)
                schema = first.batch.schema
                break
        else:
            empty = pa.RecordBatch.from_pylist([], schema=pa.schema([readable.field(name) for name in columns]))
            schema = check_function_result(function(empty), empty, base, "no rows", None).schema
    new = define_new_fields(base, schema)
    written = [
        add_column_file(
            base, fragment, _in_schema_order(computed.get(number) or compute(fragment), new.arrow), new, runtime=runtime
        )
        for number, fragment in enumerate(track(fragments, "compute columns", "fragments"))
    ]
    return merge_operation(base, written, new.fields)


def check_function_result(
    result: pa.RecordBatch | pa.Table, given: pa.RecordBatch, base: Snapshot, source: str, expected: pa.Schema | None
) -> pa.RecordBatch:
    """Check the result of the function for the batch `given`, and return it as one record batch. `source` names the
    rows in errors."""
    label = f"{base.location.uri}: {source}: the function for new columns"
    if not isinstance(result, pa.RecordBatch):
        try:
            table = pa.table(result)
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"{label} returned {type(result)}; return a record batch or a table, with one row for each row it was "
                "given"
            ) from error
        result = pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)
    if result.num_rows != given.num_rows:
        raise InvalidInput(
            f"{label} was given {given.num_rows} rows and returned {result.num_rows}; it has to return one row for "
            "each, in the same order"
        )
    if expected is not None and sorted(result.schema.names) != sorted(expected.names):
        got, names = ", ".join(result.schema.names), ", ".join(expected.names)
        raise SchemaMismatch(
            f"{label} returned the columns {got}; the expected columns are {names}",
            column=got,
            expected=names,
            got=got,
        )
    for field in expected or ():
        if not is_blob_v2(field) and _BLOB not in (field.metadata or {}):  # blobs are stored in another type than given
            what = f"{label} returned a wrong type"
            conform(result, pa.schema([field]), conversion=Conversion.EXACT, what=what)
    return result


def _in_schema_order(results: Iterator[PositionedBatch], schema: pa.Schema) -> Iterator[PositionedBatch]:
    for result in results:
        yield PositionedBatch(result.batch.select(schema.names), result.offsets)


def _add_null_columns(base: Snapshot, declared: pa.Schema) -> Merge:
    """Add columns that are null in every row. No file is written, since a column that no file stores is null. An
    existing struct gets the children that it lacks."""
    manifest = base.manifest
    if not declared.names:
        raise InvalidInput("no column is given; name at least one")
    new = TableSchema.from_arrow(stored_schema(declared, manifest.storage_version))
    check_storable(new, manifest.storage_version)
    existing = {field.name: field for field in manifest.schema.fields}
    ids = iter(range(_next_id(base), 2**31 - 1))
    fields = list(manifest.schema.fields)
    for field in new.fields:
        old = existing.get(field.name)
        if old is None:
            fields.append(_with_ids(_check_nullable(field, field.name), ids))
        else:
            if manifest.storage_version < _FIRST_WITH_ADDED_CHILDREN and old.logical_type in _PARENTS:
                raise InvalidInput(
                    f"column {field.name!r} exists, and adding children to a column needs storage version "
                    f"{_FIRST_WITH_ADDED_CHILDREN} or newer; this table has {manifest.storage_version}"
                )
            fields[fields.index(old)] = _with_added_children(old, field, ids, field.name)
    metadata = {**manifest.schema.metadata, **new.metadata}
    # If a column that is not nullable changes, Lance rejects appends that were planned before.
    preserves_nullability = all(existing[field.name].nullable for field in new.fields if field.name in existing)
    schema = TableSchema(tuple(fields), metadata)
    return Merge(tuple(manifest.fragments), schema, preserves_nullability=preserves_nullability)


def _with_added_children(old: Field, new: Field, ids: Iterator[int], path: str) -> Field:
    if old.logical_type != new.logical_type or old.logical_type not in _PARENTS or old.is_packed:
        raise InvalidInput(f"a column {path!r} of type {old.logical_type} exists already; choose another name")
    existing = {child.name: child for child in old.children}
    children = list(old.children)
    for child in new.children:
        child_path = f"{path}.{child.name}"
        if child.name not in existing:
            children.append(_with_ids(_check_nullable(child, child_path), ids))
        else:
            old_child = existing[child.name]
            children[children.index(old_child)] = _with_added_children(old_child, child, ids, child_path)
    return with_children(old, children)


def _check_nullable(field: Field, path: str) -> Field:
    if not field.nullable:
        raise InvalidInput(
            f"column {path!r} would be null in every row, but is declared not nullable; declare it nullable"
        )
    return field


def _with_ids(field: Field, ids: Iterator[int]) -> Field:
    field_id = next(ids, None)
    if field_id is None:
        raise InvalidInput(f"field {field.name!r} cannot be added: the table has used all field ids of 31 bits")
    children = tuple(_with_ids(child, ids) for child in field.children)
    return Field(field_id, field.name, field.logical_type, field.nullable, field.metadata, children)


def define_new_fields(base: Snapshot, arrow: pa.Schema) -> TableSchema:
    """Give new columns their field ids, after checking that the table has no column of their names."""
    names = base.manifest.schema.arrow.names
    if not arrow.names:
        raise InvalidInput(f"{base.location.uri}: no new column is given; name at least one")
    for name in arrow.names:
        if name in names:
            raise InvalidInput(
                f"{base.location.uri} has a column {name!r} already; choose another name, or replace its values, which "
                "takes replace=True (for map_columns on Spark, mode='recompute')"
            )
    declared = stored_schema(pa.schema(list(arrow)), base.manifest.storage_version)
    new = TableSchema.from_arrow(declared, first_id=_next_id(base))
    check_storable(new, base.manifest.storage_version)
    return new


def _next_id(base: Snapshot) -> int:
    manifest = base.manifest
    return field_ids.highest_field_id(manifest.schema, manifest.message.fragments, manifest.config) + 1


def merge_operation(base: Snapshot, fragments: Sequence[Fragment], new: Sequence[Field]) -> Merge:
    """Return the operation that adds the new fields, with the fragments that store them."""
    old = base.manifest.schema
    schema = TableSchema((*old.fields, *new), old.metadata)
    return Merge(tuple(fragments), schema, preserves_nullability=all(field.nullable for field in new))


def cast_keys(rows: pa.Table, stored: pa.Schema, keys: Sequence[str], what: str) -> pa.Table:
    for name in keys:
        expected, given = stored.field(name).type, rows.schema.field(name)
        if given.type == expected:
            continue
        try:
            cast = rows.column(name).cast(expected)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise SchemaMismatch(
                f"{what}: the key {name!r} has type {expected} in the table and {given.type} in the data, which cannot "
                f"be converted: {error}",
                column=name,
                expected=str(expected),
                got=str(given.type),
            ) from error
        rows = rows.set_column(rows.schema.get_field_index(name), pa.field(name, expected), cast)
    return rows


def take_or_null(values: pa.Table, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.RecordBatch:
    indices = pa.array(rows, mask=rows == NO_ROW)
    taken = values.take(indices).combine_chunks()
    columns = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in taken.columns]
    return pa.RecordBatch.from_arrays(columns, names=values.column_names)
