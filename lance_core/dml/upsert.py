"""Rows brought to a table by key: those that match are updated or deleted, the others inserted, and rows of the table
that nothing matched may go.

The rows that come are held in memory. What they are for is found in `upsert_join.py`, how changed rows are written in
`row_rewrite.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.blob_writing import schema_to_stored, to_stored
from lance_core.datafiles.conform import Conversion, columns_to_write, conform, copy_array
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.datafiles.inputs import InputRows
from lance_core.datafiles.key_normalization import normalized_key
from lance_core.dml.key_join import check_key_type
from lance_core.dml.row_matching import check_columns
from lance_core.dml.row_rewrite import (
    FragmentChange,
    RowRewrite,
    concat_arrays,
    field_ids_of,
    is_cheaper_in_place,
    move_rows,
    rewrite_columns,
)
from lance_core.dml.upsert_join import (
    InMemorySource,
    JoinCache,
    JoinResult,
    Matched,
    SourceRows,
    UpsertRules,
    column_arrays,
    join,
)
from lance_core.errors import InvalidInput
from lance_core.format.key_filter import is_recorded_by_all, key_filter, merge_filters
from lance_core.format.operations import Update
from lance_core.format.schema import TableSchema
from lance_core.runtime import Runtime
from lance_core.versions.snapshot import Snapshot

_INSERTED_AT_ONCE = 1 << 16


def upsert(
    base: Snapshot,
    rows: InputRows,
    rules: UpsertRules,
    *,
    limits: FileLimits,
    runtime: Runtime,
    cache: JoinCache | None = None,
) -> Update | None:
    """None where the rules change nothing at all. Another upsert makes a version even where it finds no row to change,
    as the reference writer's does."""
    schema, what = base.manifest.schema, base.location.uri
    given_rows = _load_source(rows, rules, schema, what)
    source = InMemorySource(given_rows, rules.on, what=what)
    found = join(base, source, rules, JoinCache() if cache is None else cache)
    if rules.matched is Matched.FAIL and found.has_match.any():
        met = np.flatnonzero(found.has_match)
        raise existing_keys_error(len(met), source.describe_keys(met), what=what)
    if changes_nothing(rules):
        return None
    new_rows = np.flatnonzero(~found.has_match) if rules.insert else np.empty(0, dtype=np.int64)
    inserted = [
        batch
        for start in range(0, len(new_rows), _INSERTED_AT_ONCE)
        for batch in _taken(given_rows, new_rows[start : start + _INSERTED_AT_ONCE])
    ]
    changes = row_rewrite_of(base, source, found, rules)
    if can_stay_in_place(source.columns, schema) and not found.removed and is_cheaper_in_place(changes):
        update = rewrite_columns(changes, inserted, limits=limits, runtime=runtime)
    else:
        assigned = field_ids_of(schema.fields)
        update = move_rows(changes, found.removed, inserted, assigned=assigned, limits=limits, runtime=runtime)
    update = with_commit_hints(update, source, rules, schema)
    if not rules.insert:
        return update
    keys = encode_new_keys(given_rows.select(list(rules.on)).take(pa.array(new_rows)), rules, schema)
    return replace(update, inserted_keys=keys)


@dataclass(frozen=True, slots=True)
class SourceKeySet:
    """The keys of the rows that came, for whoever commits beside others that append."""

    fields: tuple[int, ...]
    source: SourceRows

    def has_any(self, columns: Sequence[pa.ChunkedArray]) -> bool:
        places, _ = self.source.find_matches(columns)
        return bool(len(places))


def with_commit_hints(update: Update, source: SourceRows, rules: UpsertRules, schema: TableSchema) -> Update:
    """With what the version does not keep, and its commit has to know."""
    brought = SourceKeySet(tuple(schema.field(name).id for name in rules.on), source)
    return replace(update, deletes_unmatched=rules.delete_unmatched is not False, source_keys=brought)


def existing_keys_error(count: int, named: str, *, what: str) -> InvalidInput:
    return InvalidInput(
        f"{what}: keys of the data that the table has already ({count:,} of them): {named}. Nothing was written; leave "
        'them out, or say matched="update" or matched="ignore"'
    )


def changes_nothing(rules: UpsertRules) -> bool:
    return rules.matched is Matched.IGNORE and not rules.insert and rules.delete_unmatched is False


def can_stay_in_place(source: pa.Schema, schema: TableSchema) -> bool:
    """Rows that come with every column are written whole."""
    return set(source.names) != set(schema.arrow.names)


def changed_columns(source: pa.Schema, schema: TableSchema, rules: UpsertRules) -> tuple[str, ...]:
    present = [name for name in schema.arrow.names if name in source.names]
    return tuple([name for name in present if name not in rules.on] if can_stay_in_place(source, schema) else present)


def row_rewrite_of(base: Snapshot, source: SourceRows, found: JoinResult, rules: UpsertRules) -> RowRewrite:
    columns = changed_columns(source.columns, base.manifest.schema, rules)
    parts = [
        FragmentChange(fragment, at, _values(source, columns, of)) for fragment, at, of in found.changed if columns
    ]
    return RowRewrite(base, columns, (), tuple(parts))


def check_source_columns(
    incoming: pa.Schema, schema: TableSchema, rules: UpsertRules, conversion: Conversion, what: str
) -> TableSchema:
    """Of the table, after checking them; `incoming` as the table stores it."""
    check_columns(rules.on, schema, what=what, where="on=")
    check_columns(incoming.names, schema, what=what, where="the data")
    for name in rules.on:
        if name not in incoming.names:
            raise InvalidInput(f"{what}: on= names {name!r}, which the data does not have; rows are matched by it")
        check_key_type(name, schema.arrow.field(name).type, what=what)
    held = TableSchema(tuple(field for field in schema.fields if field.name in incoming.names), schema.metadata)
    return columns_to_write(incoming, schema if rules.insert else held, conversion=conversion, what=what)


def encode_new_keys(new_rows: pa.Table, rules: UpsertRules, schema: TableSchema) -> bytes:
    """The version says which keys are new in it, so that two writers of one new key see each other. The reference
    writer says so only of a key that the table declares; rows are told apart by any key that is named here."""
    fields = [schema.field(name) for name in rules.on]
    columns = [
        concat_arrays(column.chunks)
        for column in map(normalized_key, new_rows.drop_null().columns)
        if column.num_chunks
    ]
    return key_filter([field.id for field in fields], columns, exact=not _is_recorded_by_pylance(rules, schema))


def merge_new_keys(filters: Sequence[bytes], rules: UpsertRules, schema: TableSchema) -> bytes:
    """Of keys that were found new in several places."""
    fields = [schema.field(name) for name in rules.on]
    return merge_filters([field.id for field in fields], filters, exact=not _is_recorded_by_pylance(rules, schema))


def _is_recorded_by_pylance(rules: UpsertRules, schema: TableSchema) -> bool:
    fields = [schema.field(name) for name in rules.on]
    declared = [field for field in schema.fields if field.is_primary_key]
    return declared == fields and all(is_recorded_by_all(schema.arrow.field(name).type) for name in rules.on)


def _load_source(rows: InputRows, rules: UpsertRules, schema: TableSchema, what: str) -> pa.Table:
    """All rows that come, in the types that the table stores, in memory."""
    rows = InputRows(schema_to_stored(rows.required_schema, schema), to_stored(rows.batches, schema))
    arrow = check_source_columns(rows.required_schema, schema, rules, Conversion.EXACT, what).arrow
    batches = [
        pa.RecordBatch.from_arrays(
            [copy_array(column) if column.offset else column for column in batch.columns], schema=arrow
        )
        for batch in (conform(batch, arrow, conversion=Conversion.EXACT, what=what) for batch in rows.batches)
    ]
    return pa.Table.from_batches(batches, arrow)


def _values(
    source: SourceRows, columns: Sequence[str], rows: npt.NDArray[np.int64]
) -> Callable[[pa.RecordBatch, npt.NDArray[np.int64]], pa.RecordBatch]:
    """New values by place: the rows that come, in the order of the rows they are for."""

    def values(_rows: pa.RecordBatch, places: npt.NDArray[np.int64]) -> pa.RecordBatch:
        table = source.take(rows[places], columns)
        return pa.RecordBatch.from_arrays(column_arrays(table), schema=table.schema)

    return values


def _taken(source: pa.Table, rows: npt.NDArray[np.int64]) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = source.take(pa.array(rows)).to_batches()
    return found


__all__ = ["JoinCache", "Matched", "UpsertRules", "upsert"]
