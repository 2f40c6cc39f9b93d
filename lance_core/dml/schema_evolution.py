"""Schema evolution: drops, renames and reorders columns, and changes their nullability or type. Rows stay where they
are.

Only a change of type writes data: the column is written as a new field with a new id in a file of its own, and the old
one stays in its file until that file is rewritten.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from lance_core import validation
from lance_core.datafiles.blob_locations import null_mask
from lance_core.datafiles.column_layout import is_blob
from lance_core.datafiles.conform import Conversion
from lance_core.dml.column_files import add_column_file, read_live_rows
from lance_core.dml.computed_column import DECLARATION_KEY, FINGERPRINT
from lance_core.errors import InvalidInput, SchemaMismatch
from lance_core.format import field_ids
from lance_core.format.field_paths import (
    FieldPath,
    find_field,
    narrow_to,
    remove_fields,
    replace_field,
    unknown_column_message,
)
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.logical_types import EXTENSION_METADATA, EXTENSION_NAME
from lance_core.format.operations import Merge, Project
from lance_core.format.schema import Field, TableSchema
from lance_core.runtime import Runtime
from lance_core.versions.snapshot import Snapshot

_FIRST_WITH_LEAF_COLUMNS = StorageVersion(2, 1)


def drop_columns(base: Snapshot, columns: Sequence[str], *, runtime: Runtime) -> Project | Merge:
    """Plan the removal of columns, or of fields within them. A parent without remaining children is dropped too, and so
    are the fingerprints of a computed column. Files keep the data until they are rewritten."""
    schema = base.manifest.schema
    if not (paths := validation.check_names(columns, "columns")):
        raise InvalidInput(f"{base.location.uri}: drop_columns needs a list of at least one column")
    dropped: set[int] = set()
    for path in paths:
        chain = find_field(schema, path)
        _check_separable(chain, path)
        dropped.add(chain[-1].id)
        if fingerprint := _fingerprint_of(schema, chain):
            dropped.add(fingerprint.id)
    after = remove_fields(schema, frozenset(dropped))
    if not after.fields:
        raise InvalidInput(f"{base.location.uri}: these are all of its columns, but a table needs at least one")
    live = {field.id for top in after.fields for field in top.walk()}
    if all(any(not live.isdisjoint(file.fields) for file in each.files) for each in base.manifest.message.fragments):
        return Project(after, preserves_nullability=True)
    fragments = tuple(
        _ensure_file(base, _without_stored_fields(fragment, set(), live), after, runtime)
        for fragment in base.manifest.fragments
    )
    return Merge(fragments, after, preserves_nullability=True)


def _ensure_file(base: Snapshot, fragment: Fragment, schema: TableSchema, runtime: Runtime) -> Fragment:
    """Write a file of nulls for a fragment without files. This library can read such a fragment, but others refuse the
    table."""
    if fragment.files:
        return fragment
    cheapest = min((field for field in schema.fields if field.nullable), key=lambda field: len(field.children))
    return add_column_file(base, fragment, (), TableSchema((cheapest,), {}), runtime=runtime)


def reorder_columns(base: Snapshot, columns: Sequence[str]) -> Project:
    """Plan another order of all columns."""
    schema = base.manifest.schema
    columns = validation.check_names(columns, "columns")
    names = [field.name for field in schema.fields]
    for name in columns:
        if name not in names:
            raise InvalidInput(unknown_column_message(name, names))
    if sorted(columns) != sorted(names):
        missing = [name for name in names if name not in columns]
        problem = f"{missing[0]!r} is missing" if missing else "one is named twice"
        raise InvalidInput(f"an order names every column once, but {problem}; the columns are {', '.join(names)}")
    return Project(TableSchema(tuple(map(schema.field, columns)), schema.metadata), preserves_nullability=True)


def alter_column(
    base: Snapshot,
    path: str,
    *,
    rename: str | None,
    type: pa.DataType | None,
    nullable: bool | None,
    runtime: Runtime,
) -> Project | Merge:
    """Plan another name, type or nullability of a column, or of a field within it. The fingerprints of a computed
    column get its new name."""
    if rename is None and type is None and nullable is None:
        raise InvalidInput(f"nothing to alter in column {path!r}: pass rename=, type= or nullable=")
    path = validation.check_text(path, "name")
    rename = None if rename is None else validation.check_text(rename, "rename")
    type = None if type is None else validation.check_data_type(type, "type")
    nullable = None if nullable is None else validation.check_flag(nullable, "nullable")
    schema = base.manifest.schema
    chain = find_field(schema, path)
    old = chain[-1]
    becomes_mandatory = nullable is False and old.nullable
    if becomes_mandatory:
        _check_no_nulls(base, chain, path)
    if rename is not None:
        _check_separable(chain, path)
        _check_name_is_free(schema, chain, rename)
    after = Field(
        old.id,
        old.name if rename is None else rename,
        old.logical_type,
        old.nullable if nullable is None else nullable,
        old.metadata,
        old.children,
    )
    preserves_nullability = not becomes_mandatory
    operation: Project | Merge = Project(replace_field(schema, chain, after), preserves_nullability)
    if type is not None:
        operation = _cast(base, chain, path, after, type, preserves_nullability=preserves_nullability, runtime=runtime)
    fingerprint = _fingerprint_of(schema, chain)
    if fingerprint is None or rename is None:
        return operation
    _check_name_is_free(schema, (fingerprint,), rename + FINGERPRINT)
    renamed = replace(fingerprint, name=rename + FINGERPRINT)
    return replace(operation, schema=replace_field(operation.schema, (fingerprint,), renamed))


def _fingerprint_of(schema: TableSchema, chain: FieldPath) -> Field | None:
    """Return the column with the fingerprints of a computed column; `None` if the field is not one."""
    if len(chain) > 1 or DECLARATION_KEY.encode() not in chain[0].metadata:
        return None
    name = chain[0].name + FINGERPRINT
    return next((field for field in schema.fields if field.name == name), None)


def _cast(
    base: Snapshot,
    chain: FieldPath,
    path: str,
    after: Field,
    type: pa.DataType,
    *,
    preserves_nullability: bool,
    runtime: Runtime,
) -> Merge:
    manifest, version = base.manifest, base.manifest.storage_version
    _check_separable(chain, path, keeps_position=True)
    if is_blob(chain[0]):
        raise InvalidInput(
            f"column {path!r} stores blobs and cannot become {type}; add a column computed from it, and drop this one"
        )
    _check_not_indexed(base, chain, path)
    recast = _with_type(after, type, first_id=_next_id(base))
    schema = replace_field(manifest.schema, chain, recast)
    # In storage version 2.0 a parent is a column too and cannot be in two files, so all of it is written again.
    writes_parent = version < _FIRST_WITH_LEAF_COLUMNS
    read = chain[0] if writes_parent else narrow_to(chain)
    written = next(field for field in schema.fields if field.id == chain[0].id or field.id == recast.id)
    if not writes_parent:
        written = narrow_to((*chain[:-1], recast))
    source = TableSchema((read,), manifest.schema.metadata)
    stored = TableSchema((_with_names_of(written, read),), {})
    moved = {field.id for field in written.walk()} if writes_parent else set()
    live = {field.id for top in schema.fields for field in top.walk()}
    fragments = []
    for fragment in manifest.fragments:
        rows = read_live_rows(base, fragment, [read.name], source)
        kept = _without_stored_fields(fragment, moved, live)
        try:
            fragments.append(
                add_column_file(base, kept, rows, stored, conversion=Conversion.REQUESTED, runtime=runtime)
            )
        except SchemaMismatch as error:
            raise SchemaMismatch(
                f"{base.location.uri}: column {path!r} cannot become {type}: {error}",
                column=path,
                expected=error.expected,
                got=error.got,
            ) from error
    # A column that is not nullable is a new column, which appends that were planned before do not have.
    return Merge(tuple(fragments), schema, preserves_nullability and recast.nullable)


def _without_stored_fields(fragment: Fragment, moved: set[int], live: set[int]) -> Fragment:
    """Remove fields that are stored in another file from now on, and files without a live field."""
    files = [file.without_fields(moved) if moved & set(file.field_ids) else file for file in fragment.files]
    return fragment.with_files([file for file in files if live & set(file.field_ids)])


def _with_type(field: Field, type: pa.DataType, *, first_id: int) -> Field:
    """Return a new field of this type, with the name and metadata of the old one."""
    declared = pa.schema([pa.field("field", type, field.nullable)])
    new = TableSchema.from_arrow(declared, first_id=first_id).fields[0]
    kept = {key: value for key, value in field.metadata.items() if key not in (EXTENSION_NAME, EXTENSION_METADATA)}
    return Field(new.id, field.name, new.logical_type, field.nullable, {**kept, **new.metadata}, new.children)


def _with_names_of(field: Field, like: Field) -> Field:
    """Return the field under its old names. A field that is renamed and cast in one change is written from rows that
    have the old names."""
    children = field.children
    if len(children) == len(like.children):
        children = tuple(_with_names_of(ours, theirs) for ours, theirs in zip(children, like.children, strict=True))
    return Field(field.id, like.name, field.logical_type, field.nullable, field.metadata, children)


def _check_no_nulls(base: Snapshot, chain: FieldPath, path: str) -> None:
    """Raise `InvalidInput` if the field is null in a live row. A null parent makes its children null."""
    source = TableSchema((narrow_to(chain),), {})
    for fragment in base.manifest.fragments:
        for rows in read_live_rows(base, fragment, [chain[0].name], source, describe_blobs=True):
            array = rows.batch.column(0)
            if null_mask(array).any() if is_blob(chain[0]) else _has_nulls(array, len(chain) - 1):
                raise InvalidInput(
                    f"{base.location.uri}: column {path!r} contains nulls (in fragment {fragment.id}), so it cannot "
                    "become not nullable; give those rows a value first, or delete them"
                )


def _has_nulls(array: pa.Array, depth: int) -> bool:
    if array.null_count or not depth:
        return bool(array.null_count)
    if pa.types.is_struct(array.type):
        return _has_nulls(array.field(0), depth - 1)
    return _has_nulls(array.flatten(), depth - 1)


def _check_name_is_free(schema: TableSchema, chain: FieldPath, name: str) -> None:
    siblings = chain[-2].children if len(chain) > 1 else schema.fields
    if any(field.name == name and field.id != chain[-1].id for field in siblings):
        raise InvalidInput(f"a column {name!r} exists already; choose another name, or drop that column first")
    if len(chain) == 1:
        TableSchema.from_arrow(pa.schema([pa.field(name, pa.null())]))  # raises for a name that no table can have
    elif not name:
        raise InvalidInput("a field within a column needs a name")


def _check_separable(chain: FieldPath, path: str, *, keeps_position: bool = False) -> None:
    """Raise `InvalidInput` if the field cannot be changed or dropped without its siblings."""
    for parent in chain[:-1]:
        if parent.is_packed or parent.logical_type.partition(":")[0] in ("map", "fixed_size_list"):
            raise InvalidInput(
                f"field {path!r} is part of {parent.name!r}, whose parts cannot be changed alone; add a column with "
                "the new content, and drop this one"
            )
    if len(chain) > 1 and chain[-2].logical_type != "struct" and not keeps_position:
        raise InvalidInput(f"field {path!r} is the element of the lists in {chain[-2].name!r}, not a field")


def _check_not_indexed(base: Snapshot, chain: FieldPath, path: str) -> None:
    """Raise `InvalidInput` if an index is on the field, on a parent or on a child: an index of labels is on the
    list."""
    ids = {node.id for node in (*chain, *chain[-1].walk())}
    section = base.manifest.indices
    names = sorted({index.name for index in section if ids & set(index.field_ids)})
    if names:
        raise InvalidInput(
            f"{base.location.uri}: column {path!r} cannot be cast while it has an index ({', '.join(names)}), whose "
            "entries have the old type. Drop the index, cast the column, and create the index again"
        )


def _next_id(base: Snapshot) -> int:
    manifest = base.manifest
    return field_ids.highest_field_id(manifest.schema, manifest.message.fragments, manifest.config) + 1
