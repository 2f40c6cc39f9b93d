"""A slice of a table, overwritten: the rows that match a condition go, and those that come take their place, all of
which have to match it too.

One commit removes the ones and adds the others. The slice is what was given, on whichever version that lands: rows that
others brought into it meanwhile are met by planning again (`002-replace-where-semantics.md`). The rows that come are
written once, however often it is planned.
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

_SHOWN_MAX = 60
"""Characters of a value in a message."""


@dataclass(frozen=True, slots=True)
class ReplaceScope:
    """The rows that match, as a value that travels to workers."""

    predicate: Predicate
    fields: tuple[int, ...]
    """Of the columns that it reads, in the order of the predicate's."""

    @classmethod
    def of(cls, sql: str, schema: TableSchema, *, what: str) -> "ReplaceScope":
        """Rows that come have no ids and addresses yet, and their blobs are nowhere: such a slice has no new rows."""
        predicate = Predicate.parse(sql, with_metadata_columns(descriptor_schema(schema)))
        known = {field.name: field for field in schema.fields}
        if not predicate.columns:
            raise InvalidInput(
                f"{what}: where={sql!r} reads no column, so it says no slice of the table; leave it out to overwrite "
                "all rows"
            )
        for name in predicate.columns:
            if name not in known or is_blob(known[name]):
                kind = "a blob column" if name in known else "which rows have only once they are in the table"
                raise InvalidInput(
                    f"{what}: where={sql!r} reads {name!r}, {kind}; rows that come have to match it as well, so use "
                    "the other columns"
                )
        return cls(predicate, tuple(known[name].id for name in predicate.columns))

    def has_any(self, columns: Sequence[pa.ChunkedArray]) -> bool:
        """Whether one of these rows, told by the columns of `fields`, is of the slice."""
        rows = pa.table(list(columns), names=list(self.predicate.columns))
        return any(self.predicate.mask(batch).true_count for batch in rows.to_batches())

    def row_check(self, what: str, *, counts: bool = True) -> Callable[[pa.RecordBatch], None]:
        """Refuses the first row that is not of the slice. One worker of several does not know which row that is."""
        before = 0

        def look(batch: pa.RecordBatch) -> None:
            nonlocal before
            shown = self._predicate_columns(batch)
            mask = self.predicate.mask(shown)
            if mask.true_count < len(mask):
                place = int(np.flatnonzero(~mask.to_numpy(zero_copy_only=False))[0])
                which = f"row {before + place}" if counts else "one"
                values = ", ".join(f"{name} is {_shorten(value)}" for name, value in _row(shown, place).items())
                raise InvalidInput(
                    f"{what}: the rows where {self.predicate.sql} are overwritten, and of those that came {which} is "
                    f"not among them: {values}. Nothing was written; leave such rows out, or widen where="
                )
            before += batch.num_rows

        return look

    def _predicate_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What the condition reads, null where no such column came."""
        arrow = self.predicate.schema
        there = set(batch.schema.names)
        columns = [
            batch.column(name) if name in there else pa.nulls(batch.num_rows, field.type)
            for name, field in zip(self.predicate.columns, self._fields(arrow), strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=list(self.predicate.columns))

    def _fields(self, arrow: pa.Schema) -> list[pa.Field]:
        names = {column: name for name, column in self.predicate.compiled.names}
        return [arrow.field(names[column]) for column in self.predicate.columns]


class ReplacementRows:
    """The rows of one overwrite, written on the first plan, and again where the table's columns became others."""

    def __init__(
        self, write: Callable[[Snapshot, ReplaceScope], tuple[TableSchema, tuple[Fragment, ...]]], sql: str
    ) -> None:
        self._write, self._sql = write, sql
        self._written: tuple[TableSchema, tuple[Fragment, ...]] | None = None

    def plan(self, base: Snapshot, plan_delete: Callable[[], Delete]) -> Update:
        """`plan_delete` finds the rows that are there, and writes their deletion files."""
        what, schema = base.location.uri, base.manifest.schema
        its = ReplaceScope.of(self._sql, schema, what=what)
        if self._written is None or not _is_stored_alike(self._written[0], schema):
            self._written = self._write(base, its)
        columns, new = self._written
        columns_to_write(columns.arrow, schema, conversion=Conversion.EXACT, what=what)
        removed = plan_delete()
        return Update(
            removed_ids=removed.removed_ids,
            updated=removed.updated,
            new=new,
            fields_assigned=field_ids_of(schema.fields),
            affected=removed.affected,
            replaced_slice=its,
        )


def plan_locally(rows: InputRows, sql: str, *, limits: FileLimits, runtime: Runtime) -> Callable[[Snapshot], Update]:
    """A plan, for as often as it is needed."""
    is_held = rows.bytes is not None
    rows = rows.materialized() if is_held else rows
    before: list[Version] = []

    def write(base: Snapshot, its: ReplaceScope) -> tuple[TableSchema, tuple[Fragment, ...]]:
        schema, what = base.manifest.schema, base.location.uri
        if before and not is_held:
            raise IncompatibleConflict(
                f"{what}: columns were changed by somebody else, up to version {base.version}, while a stream of rows "
                f"was written for those of version {before[0]}. Nothing of it landed; bring the rows again",
                ours=Update.name,
                theirs="another schema",
                version=base.version,
                rule="columns_of_a_stream",
            )
        before.append(base.version)
        stored = schema_to_stored(rows.required_schema, schema)
        columns = columns_to_write(stored, schema, conversion=Conversion.EXACT, what=what)
        return columns, write_fragments(
            base.location.codec,
            rows.batches,
            schema=schema,
            version=base.manifest.storage_version,
            limits=limits,
            conversion=Conversion.EXACT,
            new_uuid=runtime.new_uuid,
            what=what,
            validate=its.row_check(what),
        )

    its_rows = ReplacementRows(write, sql)
    return lambda base: its_rows.plan(base, lambda: delete(base, sql, runtime=runtime))


def _is_stored_alike(columns: TableSchema, schema: TableSchema) -> bool:
    """Whether what was written under an older schema is what the newer one means."""
    known = {field.name: field for field in schema.fields}
    return all(
        field.name in known and _storage_signature(field) == _storage_signature(known[field.name])
        for field in columns.fields
    )


def _storage_signature(field: Field) -> tuple[object, ...]:
    """As far as files and readers care; what else is noted of a column may change."""
    return field.id, field.name, field.logical_type, field.nullable, tuple(map(_storage_signature, field.children))


def _row(batch: pa.RecordBatch, place: int) -> dict[str, object]:
    found: dict[str, object] = batch.slice(place, 1).to_pylist()[0]
    return found


def _shorten(value: object) -> str:
    text = "null" if value is None else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…"
