"""Replace where: overwrites the rows that match a condition with new rows, which must match it too.

One commit removes the matching rows and adds the new ones. Whichever version it is committed on, the matching rows are
then exactly the new ones: rows that other writers added to the slice meanwhile are found by planning again
(`002-replace-where-semantics.md`). The new rows are written once, however often the change is planned. Start with
`ReplacementRows`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lance_core.datafiles.blob_view import descriptor_schema
from lance_core.datafiles.blob_writing import schema_to_stored
from lance_core.datafiles.column_layout import is_blob
from lance_core.datafiles.conform import Conversion, columns_to_write
from lance_core.datafiles.fragment_writer import FileLimits, write_fragments
from lance_core.datafiles.inputs import InputRows
from lance_core.dml.delete import delete
from lance_core.dml.row_rewrite import field_ids_of
from lance_core.errors import IncompatibleConflict, InvalidInput
from lance_core.expressions import Predicate, with_metadata_columns
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.operations import Delete, Update
from lance_core.format.schema import Field, TableSchema
from lance_core.runtime import Runtime
from lance_core.versions.snapshot import Snapshot

_VALUE_CHARACTERS_MAX = 60
"""Maximum number of characters of a value in a message."""


@dataclass(frozen=True, slots=True)
class ReplaceScope:
    """Slice of the table: the rows that match a condition. The value can be sent to workers."""

    predicate: Predicate
    fields: tuple[int, ...]
    """Ids of the columns that the predicate reads, in its order."""

    @classmethod
    def of(cls, sql: str, schema: TableSchema, *, what: str) -> "ReplaceScope":
        """Parse the condition. It may not read row ids, row addresses or blobs, which new rows do not have yet."""
        predicate = Predicate.parse(sql, with_metadata_columns(descriptor_schema(schema)))
        known = {field.name: field for field in schema.fields}
        if not predicate.columns:
            raise InvalidInput(
                f"{what}: where={sql!r} reads no column, so it selects no slice of the table; leave it out to "
                "overwrite all rows"
            )
        for name in predicate.columns:
            if name not in known or is_blob(known[name]):
                kind = "a blob column" if name in known else "which rows have only once they are in the table"
                raise InvalidInput(
                    f"{what}: where={sql!r} reads {name!r}, {kind}; new rows have to match the condition too, so use "
                    "other columns"
                )
        return cls(predicate, tuple(known[name].id for name in predicate.columns))

    def has_any(self, columns: Sequence[pa.ChunkedArray]) -> bool:
        """Tell whether one of these rows, given by the columns of `fields`, is in the slice."""
        rows = pa.table(list(columns), names=list(self.predicate.columns))
        return any(self.predicate.mask(batch).true_count for batch in rows.to_batches())

    def row_check(self, what: str, *, counts: bool = True) -> Callable[[pa.RecordBatch], None]:
        """Return a function that raises `InvalidInput` for the first row outside of the slice. One of several workers
        does not know the number of that row: pass `counts=False`."""
        rows_before = 0

        def check(batch: pa.RecordBatch) -> None:
            nonlocal rows_before
            columns = self._predicate_columns(batch)
            mask = self.predicate.mask(columns)
            if mask.true_count < len(mask):
                position = int(np.flatnonzero(~mask.to_numpy(zero_copy_only=False))[0])
                which = f"row {rows_before + position}" if counts else "a row"
                values = ", ".join(f"{name} is {_shorten(value)}" for name, value in _row(columns, position).items())
                raise InvalidInput(
                    f"{what}: the overwrite replaces the rows where {self.predicate.sql}, but {which} of the new rows "
                    f"does not match: {values}. Nothing was written; leave such rows out, or widen where="
                )
            rows_before += batch.num_rows

        return check

    def _predicate_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that the predicate reads; a missing one is null."""
        arrow = self.predicate.schema
        names = set(batch.schema.names)
        columns = [
            batch.column(name) if name in names else pa.nulls(batch.num_rows, field.type)
            for name, field in zip(self.predicate.columns, self._fields(arrow), strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=list(self.predicate.columns))

    def _fields(self, arrow: pa.Schema) -> list[pa.Field]:
        names = {column: name for name, column in self.predicate.compiled.names}
        return [arrow.field(names[column]) for column in self.predicate.columns]


class ReplacementRows:
    """New rows of one overwrite. They are written for the first plan, and again if the table's columns changed
    since."""

    def __init__(
        self, write: Callable[[Snapshot, ReplaceScope], tuple[TableSchema, tuple[Fragment, ...]]], sql: str
    ) -> None:
        self._write, self._sql = write, sql
        self._written: tuple[TableSchema, tuple[Fragment, ...]] | None = None

    def plan(self, base: Snapshot, plan_delete: Callable[[], Delete]) -> Update:
        """Plan the overwrite. `plan_delete` finds the existing rows of the slice and writes their deletion files."""
        what, schema = base.location.uri, base.manifest.schema
        scope = ReplaceScope.of(self._sql, schema, what=what)
        if self._written is None or not _is_stored_alike(self._written[0], schema):
            self._written = self._write(base, scope)
        columns, new = self._written
        columns_to_write(columns.arrow, schema, conversion=Conversion.EXACT, what=what)
        removed = plan_delete()
        return Update(
            removed_ids=removed.removed_ids,
            updated=removed.updated,
            new=new,
            fields_assigned=field_ids_of(schema.fields),
            affected=removed.affected,
            replaced_slice=scope,
        )


def plan_locally(rows: InputRows, sql: str, *, limits: FileLimits, runtime: Runtime) -> Callable[[Snapshot], Update]:
    """Return the plan of an overwrite whose rows are written and found in this process."""
    is_in_memory = rows.bytes is not None
    rows = rows.materialized() if is_in_memory else rows
    written_for: list[Version] = []

    def write(base: Snapshot, scope: ReplaceScope) -> tuple[TableSchema, tuple[Fragment, ...]]:
        schema, what = base.manifest.schema, base.location.uri
        if written_for and not is_in_memory:
            raise IncompatibleConflict(
                f"{what}: another writer changed columns, up to version {base.version}, while a stream of rows was "
                f"written for the columns of version {written_for[0]}. Nothing was committed; pass the rows again",
                ours=Update.name,
                theirs="another schema",
                version=base.version,
                rule="columns_of_a_stream",
            )
        written_for.append(base.version)
        stored = schema_to_stored(rows.required_schema, schema)
        columns = columns_to_write(stored, schema, conversion=Conversion.CAST, what=what)
        return columns, write_fragments(
            base.location.codec,
            rows.batches,
            schema=schema,
            version=base.manifest.storage_version,
            limits=limits,
            conversion=Conversion.CAST,
            new_uuid=runtime.new_uuid,
            what=what,
            validate=scope.row_check(what),
        )

    replacement = ReplacementRows(write, sql)
    return lambda base: replacement.plan(base, lambda: delete(base, sql, runtime=runtime))


def _is_stored_alike(columns: TableSchema, schema: TableSchema) -> bool:
    """Tell whether files with these columns, written for an older schema, are valid for `schema`."""
    current = {field.name: field for field in schema.fields}
    return all(
        field.name in current and _storage_signature(field) == _storage_signature(current[field.name])
        for field in columns.fields
    )


def _storage_signature(field: Field) -> tuple[object, ...]:
    """Return what files and readers depend on; metadata of a column may change."""
    return field.id, field.name, field.logical_type, field.nullable, tuple(map(_storage_signature, field.children))


def _row(batch: pa.RecordBatch, position: int) -> dict[str, object]:
    row: dict[str, object] = batch.slice(position, 1).to_pylist()[0]
    return row


def _shorten(value: object) -> str:
    text = "null" if value is None else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _VALUE_CHARACTERS_MAX else f"{text[: _VALUE_CHARACTERS_MAX - 1]}…"
