"""Upsert: merges source rows into a table by key. Matching rows are updated or deleted, other source rows are inserted,
and rows of the table without a match can be deleted.

The source rows are held in memory. `upsert_join.py` matches them with the table, and `row_rewrite.py` writes the
changed rows. Start with `upsert`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.commit.write_protocol import Planned
from lance_core.datafiles.blob_writing import schema_to_stored, to_stored
from lance_core.datafiles.conform import Conversion, columns_to_write, conform, copy_array
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.datafiles.inputs import InputRows
from lance_core.datafiles.key_normalization import normalized_key
from lance_core.dml.column_sources import with_given_columns
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
    mask_of_source,
    parse_delete_if,
)
from lance_core.errors import InvalidInput
from lance_core.format.key_filter import is_recorded_by_all, key_filter, merge_filters
from lance_core.format.operations import Update
from lance_core.format.schema import TableSchema
from lance_core.runtime import Runtime
from lance_core.versions.snapshot import Snapshot

_INSERT_BATCH_ROWS = 1 << 16


def upsert(
    base: Snapshot,
    rows: InputRows,
    rules: UpsertRules,
    *,
    limits: FileLimits,
    runtime: Runtime,
    cache: JoinCache | None = None,
) -> Update | None:
    """Plan an upsert; `None` if the rules change nothing at all. Any other upsert commits a version even if it finds no
    row to change, as pylance does. `cache` keeps results of the join for the next plan."""
    schema, what = base.manifest.schema, base.location.uri
    source_table = _load_source(rows, rules, schema, what)
    source = InMemorySource(source_table, rules.on, what=what)
    joined = join(base, source, rules, JoinCache() if cache is None else cache)
    if rules.matched is Matched.FAIL and joined.has_match.any():
        matched = np.flatnonzero(joined.has_match)
        raise existing_keys_error(len(matched), source.describe_keys(matched), what=what)
    if changes_nothing(rules):
        return None
    new_rows = np.flatnonzero(~joined.has_match) if rules.insert else np.empty(0, dtype=np.int64)
    if (condition := parse_delete_if(rules, source.columns)) is not None:
        new_rows = new_rows[~mask_of_source(condition, source, new_rows)]
    inserted = [
        batch
        for start in range(0, len(new_rows), _INSERT_BATCH_ROWS)
        for batch in _take_batches(source_table, new_rows[start : start + _INSERT_BATCH_ROWS])
    ]
    rewrite = row_rewrite_of(base, source, joined, rules)
    if can_stay_in_place(source.columns, schema) and not joined.removed and is_cheaper_in_place(rewrite):
        update = rewrite_columns(rewrite, inserted, limits=limits, runtime=runtime)
    else:
        assigned = field_ids_of(schema.fields)
        update = move_rows(rewrite, joined.removed, inserted, assigned=assigned, limits=limits, runtime=runtime)
    update = with_commit_hints(update, source, rules, schema)
    if not rules.insert:
        return update
    keys = encode_new_keys(source_table.select(list(rules.on)).take(pa.array(new_rows)), rules, schema)
    return replace(update, inserted_keys=keys)


def upsert_with_sources(
    base: Snapshot, rows: InputRows, rules: UpsertRules, *, limits: FileLimits, runtime: Runtime, cache: JoinCache
) -> Planned | None:
    """Plan an upsert, and record the caller's rows as the source of the columns with the same names."""
    update = upsert(base, rows, rules, limits=limits, runtime=runtime, cache=cache)
    return with_given_columns(base, update, given_columns(rows.required_schema, rules))


def given_columns(source: pa.Schema, rules: UpsertRules) -> Sequence[str]:
    """Return the columns that get values from the source. Keys are among them only if rows are inserted, since the keys
    of matching rows are equal."""
    if not rules.insert and rules.matched is not Matched.UPDATE:
        return ()
    return [name for name in source.names if rules.insert or name not in rules.on]


@dataclass(frozen=True, slots=True)
class SourceKeySet:
    """Keys of the source rows, for the commit, which compares them with concurrent appends."""

    fields: tuple[int, ...]
    source: SourceRows

    def has_any(self, columns: Sequence[pa.ChunkedArray]) -> bool:
        """Tell whether one of these rows, given by the key columns, has a key of the source."""
        positions, _ = self.source.find_matches(columns)
        return bool(len(positions))


def with_commit_hints(update: Update, source: SourceRows, rules: UpsertRules, schema: TableSchema) -> Update:
    """Add what the commit has to know and the version does not store: the source keys, and whether unmatched rows are
    deleted."""
    source_keys = SourceKeySet(tuple(schema.field(name).id for name in rules.on), source)
    return replace(update, deletes_unmatched=rules.delete_unmatched is not False, source_keys=source_keys)


def existing_keys_error(count: int, keys: str, *, what: str) -> InvalidInput:
    return InvalidInput(
        f"{what}: the table has keys of the data already ({count:,} of them): {keys}. Nothing was written; leave them "
        'out, or pass matched="update" or matched="ignore"'
    )


def changes_nothing(rules: UpsertRules) -> bool:
    return rules.matched is Matched.IGNORE and not rules.insert and rules.delete_unmatched is False


def can_stay_in_place(source: pa.Schema, schema: TableSchema) -> bool:
    """Tell whether matching rows can stay where they are: the source lacks columns of the table. Source rows with all
    columns are written as whole rows."""
    return set(source.names) != set(schema.arrow.names)


def changed_columns(source: pa.Schema, schema: TableSchema, rules: UpsertRules) -> tuple[str, ...]:
    """Return the columns that get new values in matching rows."""
    given = frozenset(source.names)
    present = [name for name in schema.arrow.names if name in given]
    return tuple([name for name in present if name not in rules.on] if can_stay_in_place(source, schema) else present)


def row_rewrite_of(base: Snapshot, source: SourceRows, joined: JoinResult, rules: UpsertRules) -> RowRewrite:
    """Return the changed rows with the function that takes their new values from the source."""
    columns = changed_columns(source.columns, base.manifest.schema, rules)
    changes = [
        FragmentChange(fragment, offsets, _new_values(source, columns, source_rows))
        for fragment, offsets, source_rows in joined.changed
        if columns
    ]
    return RowRewrite(base, columns, (), tuple(changes))


def check_source_columns(
    incoming: pa.Schema, schema: TableSchema, rules: UpsertRules, conversion: Conversion, what: str
) -> TableSchema:
    """Check the columns of the source, and return them as fields of the table. `incoming` is the source's schema as the
    table stores it."""
    check_columns(rules.on, schema, what=what, where="on=")
    names = frozenset(incoming.names)
    check_columns(incoming.names, schema, what=what, where="the data")
    for name in rules.on:
        if name not in names:
            raise InvalidInput(
                f"{what}: on= names {name!r}, which the data does not have; add the key column to the data"
            )
        check_key_type(name, schema.arrow.field(name).type, what=what)
    given = TableSchema(tuple(field for field in schema.fields if field.name in names), schema.metadata)
    return columns_to_write(incoming, schema if rules.insert else given, conversion=conversion, what=what)


def encode_new_keys(new_rows: pa.Table, rules: UpsertRules, schema: TableSchema) -> bytes:
    """Encode the keys that the version inserts, by which two writers that insert the same key conflict. pylance records
    only the primary key that the table declares; this library records any key that `on=` names."""
    fields = [schema.field(name) for name in rules.on]
    columns = [
        concat_arrays(column.chunks)
        for column in map(normalized_key, new_rows.drop_null().columns)
        if column.num_chunks
    ]
    return key_filter([field.id for field in fields], columns, exact=not _is_recorded_by_pylance(rules, schema))


def merge_new_keys(filters: Sequence[bytes], rules: UpsertRules, schema: TableSchema) -> bytes:
    """Merge the encoded keys that several workers insert."""
    fields = [schema.field(name) for name in rules.on]
    return merge_filters([field.id for field in fields], filters, exact=not _is_recorded_by_pylance(rules, schema))


def _is_recorded_by_pylance(rules: UpsertRules, schema: TableSchema) -> bool:
    """Tell whether pylance records these keys too: the declared primary key, of types that it supports."""
    fields = [schema.field(name) for name in rules.on]
    declared = [field for field in schema.fields if field.is_primary_key]
    return declared == fields and all(is_recorded_by_all(schema.arrow.field(name).type) for name in rules.on)


def _load_source(rows: InputRows, rules: UpsertRules, schema: TableSchema, what: str) -> pa.Table:
    """Read all source rows into memory, in the types that the table stores."""
    rows = InputRows(schema_to_stored(rows.required_schema, schema), to_stored(rows.batches, schema))
    arrow = check_source_columns(rows.required_schema, schema, rules, Conversion.CAST, what).arrow
    batches = [
        pa.RecordBatch.from_arrays(
            [copy_array(column) if column.offset else column for column in batch.columns], schema=arrow
        )
        for batch in (conform(batch, arrow, conversion=Conversion.CAST, what=what) for batch in rows.batches)
    ]
    return pa.Table.from_batches(batches, arrow)


def _new_values(
    source: SourceRows, columns: Sequence[str], rows: npt.NDArray[np.int64]
) -> Callable[[pa.RecordBatch, npt.NDArray[np.int64]], pa.RecordBatch]:
    """Return the function of new values: those of the source rows, in the order of the changed rows."""

    def values(_rows: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> pa.RecordBatch:
        table = source.take(rows[positions], columns)
        return pa.RecordBatch.from_arrays(column_arrays(table), schema=table.schema)

    return values


def _take_batches(source: pa.Table, rows: npt.NDArray[np.int64]) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = source.take(pa.array(rows)).to_batches()
    return batches


__all__ = ["JoinCache", "Matched", "UpsertRules", "upsert"]
