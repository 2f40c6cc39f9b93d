"""New columns: computed from SQL or by a function, joined by key, or null until somebody writes them.

Old files stay as they are; each fragment gets one file more, with the new columns alone. New fields get ids above every
id that the table ever gave out (`format/field_ids.py`).
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
from lance_core.runtime import Runtime
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
    """A left join: rows without a partner get null, and null keys have none. `data` is held in memory."""
    what, stored = base.location.uri, base.manifest.schema
    keys = validation.check_key_columns(on, "on")
    added = pa.schema([field for field in data.required_schema if field.name not in keys])
    for name in keys:
        for side, names in (("the table", stored.arrow.names), ("the data", data.required_schema.names)):
            if name not in names:
                raise InvalidInput(
                    f"{what}: cannot join on {name!r}, for in {side} {unknown_column_message(name, names)}"
                )
        check_key_type(name, stored.arrow.field(name).type, what=what)
    if not keys or not added.names:
        raise InvalidInput(f"{what}: a merge of columns needs a key to join on and, in the data, a column besides it")
    new = define_new_fields(base, added)
    rows = _cast_keys(pa.Table.from_batches(data.batches, data.schema), stored.arrow, keys, what)
    values = rows.select(added.names).combine_chunks()

    read = [list(read_live_rows(base, fragment, keys, stored)) for fragment in base.manifest.fragments]
    sought = [
        pa.chunked_array([each.batch.column(key) for placed in read for each in placed], stored.arrow.field(key).type)
        for key in keys
    ]
    found = SourceKeys(rows, keys, what=what).find_rows(sought)
    fragments = []
    position = 0
    for fragment, placed in zip(base.manifest.fragments, read, strict=True):
        joined = []
        for each in placed:
            joined.append((each, found[position : position + each.batch.num_rows]))
            position += each.batch.num_rows
        taken = (PositionedBatch(_take_or_null(values, partners), each.offsets) for each, partners in joined)
        fragments.append(add_column_file(base, fragment, taken, new, runtime=runtime))
    return merge_operation(base, fragments, new.fields)


def _add_sql_columns(base: Snapshot, expressions: Mapping[str, str], runtime: Runtime) -> Merge:
    readable = with_metadata_columns(base.manifest.schema.arrow)
    projection = Projection.parse(expressions, readable)
    new = define_new_fields(base, projection.schema_over(readable))

    def computed(fragment: Fragment) -> Iterator[PositionedBatch]:
        for rows in read_live_rows(base, fragment, projection.columns, base.manifest.schema):
            yield PositionedBatch(projection.evaluate(rows.batch), rows.offsets)

    fragments = [add_column_file(base, each, computed(each), new, runtime=runtime) for each in base.manifest.fragments]
    return merge_operation(base, fragments, new.fields)


def _add_function_columns(
    base: Snapshot, compute: Compute, schema: pa.Schema | None, read_columns: Sequence[str] | None, runtime: Runtime
) -> Merge:
    stored = base.manifest.schema
    readable = with_metadata_columns(stored.arrow)
    columns = stored.arrow.names if read_columns is None else list(validation.check_names(read_columns, "read_columns"))
    for name in columns:
        if name not in readable.names:
            raise InvalidInput(unknown_column_message(name, stored.arrow.names))

    def computed(fragment: Fragment) -> Iterator[PositionedBatch]:
        for rows in read_live_rows(base, fragment, columns, stored):
            if rows.batch.num_rows:
                try:
                    result = compute(rows.batch)
                except Exception as error:
                    of = f"fragment {fragment.id}, {rows.batch.num_rows:,} rows of version {base.version}"
                    error.add_note(f"{base.location.uri}: the function for new columns raised this on {of}")
                    raise
                where = f"fragment {fragment.id}, rows {rows.offsets[0]} to {rows.offsets[-1]}"
                yield PositionedBatch(_check_result(result, rows.batch, base, where, schema), rows.offsets)

    fragments = list(base.manifest.fragments)
    begun: dict[int, Iterator[PositionedBatch]] = {}
    if schema is None:
        for number, fragment in enumerate(fragments):
            results = computed(fragment)
            if (first := next(results, None)) is not None:
                begun[number] = chain([first], results)
                schema = first.batch.schema
                break
        else:
            none = pa.RecordBatch.from_pylist([], schema=pa.schema([readable.field(name) for name in columns]))
            schema = _check_result(compute(none), none, base, "no rows", None).schema
    new = define_new_fields(base, schema)
    written = [
        add_column_file(
            base, fragment, _in_schema_order(begun.get(number) or computed(fragment), new.arrow), new, runtime=runtime
        )
        for number, fragment in enumerate(fragments)
    ]
    return merge_operation(base, written, new.fields)


def _check_result(
    result: pa.RecordBatch | pa.Table, shown: pa.RecordBatch, base: Snapshot, where: str, expected: pa.Schema | None
) -> pa.RecordBatch:
    """`where` are the rows that it was given."""
    told = f"{base.location.uri}: {where}: the function for new columns"
    if not isinstance(result, pa.RecordBatch):
        try:
            table = pa.table(result)
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"{told} returned {type(result)}; return a record batch, or a table, with a row for each row it was "
                "given"
            ) from error
        result = pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)
    if result.num_rows != shown.num_rows:
        raise InvalidInput(
            f"{told} was given {shown.num_rows} rows and returned {result.num_rows}; it has to return one for each, in "
            "their order"
        )
    if expected is not None and sorted(result.schema.names) != sorted(expected.names):
        got, names = ", ".join(result.schema.names), ", ".join(expected.names)
        raise SchemaMismatch(
            f"{told} returned the columns {got}; expected are {names}", column=got, expected=names, got=got
        )
    for field in expected or ():
        if not is_blob_v2(field) and _BLOB not in (field.metadata or {}):  # of those, another type is given than stored
            conform(result, pa.schema([field]), conversion=Conversion.EXACT, what=f"{told} returned what does not fit")
    return result


def _in_schema_order(results: Iterator[PositionedBatch], schema: pa.Schema) -> Iterator[PositionedBatch]:
    """In the order of the schema."""
    for each in results:
        yield PositionedBatch(each.batch.select(schema.names), each.offsets)


def _add_null_columns(base: Snapshot, wanted: pa.Schema) -> Merge:
    """No file is written: what no file holds is null. A struct that is there gets the children it lacks."""
    manifest = base.manifest
    if not wanted.names:
        raise InvalidInput("no column is given; name at least one")
    new = TableSchema.from_arrow(stored_schema(wanted, manifest.storage_version))
    check_storable(new, manifest.storage_version)
    there = {field.name: field for field in manifest.schema.fields}
    ids = iter(range(_next_id(base), 2**31 - 1))
    fields = list(manifest.schema.fields)
    for field in new.fields:
        old = there.get(field.name)
        if old is None:
            fields.append(_with_ids(_check_nullable(field, field.name), ids))
        else:
            if manifest.storage_version < _FIRST_WITH_ADDED_CHILDREN and old.logical_type in _PARENTS:
                raise InvalidInput(
                    f"column {field.name!r} is there, and children are added to a column from storage version "
                    f"{_FIRST_WITH_ADDED_CHILDREN} on; this table has {manifest.storage_version}"
                )
            fields[fields.index(old)] = _with_added_children(old, field, ids, field.name)
    metadata = {**manifest.schema.metadata, **new.metadata}
    # A mandatory column that changed: Lance lets no append stand that was planned before.
    keeps = all(there[field.name].nullable for field in new.fields if field.name in there)
    return Merge(tuple(manifest.fragments), TableSchema(tuple(fields), metadata), preserves_nullability=keeps)


def _with_added_children(old: Field, new: Field, ids: Iterator[int], path: str) -> Field:
    if old.logical_type != new.logical_type or old.logical_type not in _PARENTS or old.is_packed:
        raise InvalidInput(f"there is a column {path!r} already, a {old.logical_type}; give the new one another name")
    there = {child.name: child for child in old.children}
    children = list(old.children)
    for child in new.children:
        below = f"{path}.{child.name}"
        if child.name not in there:
            children.append(_with_ids(_check_nullable(child, below), ids))
        else:
            same = there[child.name]
            children[children.index(same)] = _with_added_children(same, child, ids, below)
    return with_children(old, children)


def _check_nullable(field: Field, path: str) -> Field:
    if not field.nullable:
        raise InvalidInput(f"column {path!r} would be null in every row, and is declared not nullable; declare it so")
    return field


def _with_ids(field: Field, ids: Iterator[int]) -> Field:
    number = next(ids, None)
    if number is None:
        raise InvalidInput(
            f"field {field.name!r} would need an id of more than 31 bits: the table has given out all others"
        )
    children = tuple(_with_ids(child, ids) for child in field.children)
    return Field(number, field.name, field.logical_type, field.nullable, field.metadata, children)


def define_new_fields(base: Snapshot, arrow: pa.Schema) -> TableSchema:
    names = base.manifest.schema.arrow.names
    if not arrow.names:
        raise InvalidInput(f"{base.location.uri}: no new column is given; name at least one")
    for name in arrow.names:
        if name in names:
            raise InvalidInput(
                f"{base.location.uri} has a column {name!r} already; give the new one another name, or update that one"
            )
    declared = stored_schema(pa.schema(list(arrow)), base.manifest.storage_version)
    new = TableSchema.from_arrow(declared, first_id=_next_id(base))
    check_storable(new, base.manifest.storage_version)
    return new


def _next_id(base: Snapshot) -> int:
    manifest = base.manifest
    return field_ids.highest_field_id(manifest.schema, manifest.message.fragments, manifest.config) + 1


def merge_operation(base: Snapshot, fragments: Sequence[Fragment], new: Sequence[Field]) -> Merge:
    old = base.manifest.schema
    schema = TableSchema((*old.fields, *new), old.metadata)
    return Merge(tuple(fragments), schema, preserves_nullability=all(field.nullable for field in new))


def _cast_keys(rows: pa.Table, stored: pa.Schema, keys: Sequence[str], what: str) -> pa.Table:
    for name in keys:
        expected, coming = stored.field(name).type, rows.schema.field(name)
        if coming.type == expected:
            continue
        try:
            cast = rows.column(name).cast(expected)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise SchemaMismatch(
                f"{what}: the key {name!r} is a {expected} in the table and a {coming.type} in the data, which does "
                f"not convert: {error}",
                column=name,
                expected=str(expected),
                got=str(coming.type),
            ) from error
        rows = rows.set_column(rows.schema.get_field_index(name), pa.field(name, expected), cast)
    return rows


def _take_or_null(values: pa.Table, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.RecordBatch:
    places = pa.array(rows, mask=rows == NO_ROW)
    taken = values.take(places).combine_chunks()
    columns = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in taken.columns]
    return pa.RecordBatch.from_arrays(columns, names=values.column_names)
