"""Rows brought to a table by key: those that match are updated or deleted, the others inserted, and rows of the table
that nothing matched may go.

The rows that come are held in memory. The table is read once by its key columns (and those of the conditions), many
fragments at a time; of the rows that change, what their new state needs is read after that. The join itself is in
`joining.py`, how changed rows are written in `rewriting.py`.
"""

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core import given
from lance_core.data.blob_writing import as_stored, schema_as_stored
from lance_core.data.comparable import comparable
from lance_core.data.conform import Conversion, afresh, columns_to_write, conform
from lance_core.data.incoming import Incoming
from lance_core.data.write import FileLimits
from lance_core.edit.joining import NOTHING, SourceKeys, check_key_type
from lance_core.edit.matching import Offsets, check_columns, rows_of
from lance_core.edit.rewriting import (
    Change,
    Changes,
    ids_of,
    in_one_piece,
    is_cheaper_in_place,
    move_rows,
    rewrite_columns,
)
from lance_core.errors import InvalidInput
from lance_core.expressions import Predicate
from lance_core.format.fragment import Fragment
from lance_core.format.ids import FragmentId
from lance_core.format.key_filter import is_recorded_by_all, key_filter
from lance_core.format.operations import Update
from lance_core.format.schema import TableSchema
from lance_core.ports import Ports
from lance_core.scan.columns import check_condition, conditional
from lance_core.scan.row_columns import ROW_OFFSET
from lance_core.snapshot import Snapshot

_ROWS_AT_ONCE = 1 << 20
_INSERTED_AT_ONCE = 1 << 16
_SOURCE, _TARGET = "source", "target"


class Matched(enum.Enum):
    """What happens to a row of the table whose key comes."""

    UPDATE = "update"
    DELETE = "delete"
    FAIL = "fail"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Rules:
    """What was asked for; conditions are in Lance's SQL."""

    on: tuple[str, ...]
    matched: Matched
    matched_if: str | None
    insert: bool
    delete_unmatched: bool | str

    @classmethod
    def of(
        cls,
        on: str | Sequence[str],
        *,
        matched: str,
        matched_if: str | None,
        insert: bool,
        delete_unmatched: bool | str | None,
    ) -> "Rules":
        keys = given.keys(on, "on")
        if not keys or len(set(keys)) != len(keys):
            raise InvalidInput(f"on={list(keys)}: name the columns that tell rows apart, each once")
        rule = given.choice(Matched, matched, "matched")
        if matched_if is not None and rule not in (Matched.UPDATE, Matched.DELETE):
            raise InvalidInput(f"matched_if= says which rows to update or delete, and matched={matched!r} does neither")
        if delete_unmatched is None:
            delete_unmatched = False
        elif not isinstance(delete_unmatched, str):
            delete_unmatched = given.flag(delete_unmatched, "delete_unmatched")
        return cls(keys, rule, matched_if, given.flag(insert, "insert"), delete_unmatched)


@dataclass(frozen=True, slots=True)
class _Part:
    """What the join found in one fragment."""

    met: npt.NDArray[np.int64]
    """Rows that came and have a match in it."""
    offsets: Offsets
    """Of its rows that change, and `rows_for`, which of those that came are for them."""
    rows_for: npt.NDArray[np.int64]
    gone: Offsets


@dataclass(slots=True)
class Seen:
    """What a plan found, for the next one of the same change. Fragments that are as they were need not be read again:
    others commit while a large table is read, and who had to read it all each time would never be first."""

    schema: TableSchema | None = None
    parts: dict[bytes, _Part] = field(default_factory=dict)
    """By the fragment, all that the manifest says of it."""


@dataclass(slots=True)
class _Found:
    """What the join found: rows of the table that change, with the rows that come for them; rows that go; and which
    rows that came had a match."""

    changed: list[tuple[Fragment, Offsets, npt.NDArray[np.int64]]]
    removed: dict[FragmentId, Offsets]
    met: npt.NDArray[np.bool_]


def upsert(
    base: Snapshot, rows: Incoming, rules: Rules, *, limits: FileLimits, ports: Ports, seen: Seen | None = None
) -> Update | None:
    """None where the rules change nothing at all. Another upsert makes a version even where it finds no row to change,
    as the reference writer's does."""
    schema, what = base.manifest.schema, base.location.uri
    source = _source(rows, rules, schema, what)
    keys = SourceKeys(source, rules.on, what=what)
    found = _joined(base, source, keys, rules, Seen() if seen is None else seen)
    if rules.matched is Matched.FAIL and found.met.any():
        met = np.flatnonzero(found.met)
        raise InvalidInput(
            f"{what}: keys of the data that the table has already ({len(met):,} of them): {keys.named(met)}. Nothing "
            'was written; leave them out, or say matched="update" or matched="ignore"'
        )
    new_rows = np.flatnonzero(~found.met) if rules.insert else np.empty(0, dtype=np.int64)
    inserted = [
        batch
        for start in range(0, len(new_rows), _INSERTED_AT_ONCE)
        for batch in _taken(source, new_rows[start : start + _INSERTED_AT_ONCE])
    ]
    whole = set(source.column_names) == set(schema.arrow.names)
    present = [name for name in schema.arrow.names if name in source.column_names]
    columns = tuple(present if whole else [name for name in present if name not in rules.on])
    news = source.select(columns)
    parts = [Change(fragment, at, _values(news, of)) for fragment, at, of in found.changed if columns]
    if rules.matched is Matched.IGNORE and not rules.insert and rules.delete_unmatched is False:
        return None
    changes = Changes(base, columns, (), tuple(parts))
    if not whole and not found.removed and is_cheaper_in_place(changes):
        update = rewrite_columns(changes, inserted, limits=limits, ports=ports)
    else:
        assigned = ids_of(schema.fields)
        update = move_rows(changes, found.removed, inserted, assigned=assigned, limits=limits, ports=ports)
    update = replace(update, removes_rest=rules.delete_unmatched is not False)
    return _with_inserted_keys(update, source, new_rows, rules, schema)


def _source(rows: Incoming, rules: Rules, schema: TableSchema, what: str) -> pa.Table:
    """All rows that come, in the types that the table stores, in memory."""
    rows = Incoming(schema_as_stored(rows.columns, schema), as_stored(rows.batches, schema))
    check_columns(rules.on, schema, what=what, where="on=")
    check_columns(rows.columns.names, schema, what=what, where="the data")
    for name in rules.on:
        if name not in rows.columns.names:
            raise InvalidInput(f"{what}: on= names {name!r}, which the data does not have; rows are matched by it")
        check_key_type(name, schema.arrow.field(name).type, what=what)
    held = TableSchema(tuple(field for field in schema.fields if field.name in rows.columns.names), schema.metadata)
    wanted = schema if rules.insert else held
    arrow = columns_to_write(rows.columns, wanted, conversion=Conversion.EXACT, what=what).arrow
    batches = [
        pa.RecordBatch.from_arrays(
            [afresh(column) if column.offset else column for column in batch.columns], schema=arrow
        )
        for batch in (conform(batch, arrow, conversion=Conversion.EXACT, what=what) for batch in rows.batches)
    ]
    return pa.Table.from_batches(batches, arrow)


def _joined(base: Snapshot, source: pa.Table, keys: SourceKeys, rules: Rules, seen: Seen) -> _Found:
    schema = conditional(base.manifest)
    unmatched = rules.delete_unmatched
    doomed = Predicate.parse(unmatched, schema) if isinstance(unmatched, str) else None
    condition = _Condition.of(rules.matched_if, source, schema) if rules.matched_if is not None else None
    columns = dict.fromkeys((*rules.on, *(doomed.columns if doomed else ())))
    check_condition(base.manifest, columns, what="the condition on unmatched rows")
    targets = [name for name in condition.target.names if f"{_TARGET}.{name}" in condition.sql] if condition else []
    check_condition(base.manifest, targets, what="matched_if=")
    columns |= dict.fromkeys((*(condition.target.names if condition else ()), ROW_OFFSET))

    def part_of(table: pa.Table, its: npt.NDArray[np.int64]) -> _Part:
        """`its` are the rows that came, by the rows of the table."""
        met = matches = np.flatnonzero(its != NOTHING)
        if condition and len(matches) and rules.matched in (Matched.UPDATE, Matched.DELETE):
            matches = matches[condition.holds(source, its[matches], table, matches)]
        changed = matches if rules.matched is Matched.UPDATE else matches[:0]
        gone = matches if rules.matched is Matched.DELETE else matches[:0]
        if unmatched is not False:
            leaves = its == NOTHING
            if doomed:
                leaves &= _mask(doomed, table)
            gone = np.union1d(gone, np.flatnonzero(leaves))
        offsets = table[ROW_OFFSET].to_numpy().astype(np.int64)
        return _Part(its[met], offsets[changed], its[changed], offsets[gone])

    known = seen.parts if seen.schema == base.manifest.schema else {}
    fragments = {fragment.encode(): fragment for fragment in base.manifest.fragments}
    parts = {key: known[key] for key in fragments if key in known}
    unread = {key: fragment for key, fragment in fragments.items() if key not in parts}
    for group in _groups(unread, max(_ROWS_AT_ONCE, source.num_rows)):
        read = [(key, pa.Table.from_batches(rows_of(base, unread[key], list(columns)))) for key in group]
        together = [pa.chunked_array([c for _, t in read for c in t[name].chunks]) for name in rules.on]
        rows_for = keys.rows_for(together)
        start = 0
        for key, table in read:
            parts[key] = part_of(table, rows_for[start : start + table.num_rows])
            start += table.num_rows
    seen.schema, seen.parts = base.manifest.schema, parts
    found = _Found([], {}, np.zeros(source.num_rows, dtype=np.bool_))
    for key, fragment in fragments.items():
        part = parts[key]
        found.met[part.met] = True
        if len(part.offsets):
            found.changed.append((fragment, part.offsets, part.rows_for))
        if len(part.gone):
            found.removed[fragment.id] = part.gone
    return found


def _groups(fragments: Mapping[bytes, Fragment], rows_max: int) -> Iterator[list[bytes]]:
    """Those that are read together, so that the keys that come are not prepared for each small one again."""
    group: list[bytes] = []
    rows = 0
    for key, fragment in fragments.items():
        if group and rows + fragment.physical_rows > rows_max:
            yield group
            group, rows = [], 0
        group.append(key)
        rows += fragment.physical_rows
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class _Condition:
    """`matched_if`, over rows that are two structs: `source.x` is what comes, `target.x` what is there."""

    sql: str
    predicate: Predicate
    source: pa.Schema
    target: pa.Schema

    @classmethod
    def of(cls, sql: str, source: pa.Table, target: pa.Schema) -> "_Condition":
        try:
            Predicate.parse(sql, _pair(source.schema, target))
        except InvalidInput as error:
            raise InvalidInput(f"matched_if: {error}. Its columns are written source.x and target.x") from error
        # The engine says which of the two it reads, not which fields: a name that is nowhere in the text is not read.
        read = [pa.schema([field for field in side if field.name in sql]) for side in (source.schema, target)]
        return cls(sql, Predicate.parse(sql, _pair(*read)), *read)

    def holds(
        self, source: pa.Table, source_rows: npt.NDArray[np.int64], target: pa.Table, target_rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        sides = (source.select(self.source.names), source_rows), (target.select(self.target.names), target_rows)
        structs = [_structs(table.take(pa.array(rows)), len(rows)) for table, rows in sides]
        batch = pa.RecordBatch.from_arrays(structs, schema=_pair(self.source, self.target))
        return np.asarray(self.predicate.mask(batch).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _pair(source: pa.Schema, target: pa.Schema) -> pa.Schema:
    return pa.schema([(_SOURCE, pa.struct(list(source))), (_TARGET, pa.struct(list(target)))])


def _structs(table: pa.Table, count: int) -> pa.Array:
    fields = list(table.schema)
    if not fields:
        return pa.array([{}] * count, pa.struct([]))
    return pa.StructArray.from_arrays(_arrays(table), fields=fields)


def _mask(predicate: Predicate, table: pa.Table) -> npt.NDArray[np.bool_]:
    masks = [predicate.mask(batch).to_numpy(zero_copy_only=False) for batch in table.to_batches()]
    return np.concatenate([np.empty(0, dtype=np.bool_), *masks])


def _values(
    source: pa.Table, rows: npt.NDArray[np.int64]
) -> Callable[[pa.RecordBatch, npt.NDArray[np.int64]], pa.RecordBatch]:
    """New values by place: the rows that come, in the order of the rows they are for."""

    def values(_rows: pa.RecordBatch, places: npt.NDArray[np.int64]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(_arrays(source.take(pa.array(rows[places]))), schema=source.schema)

    return values


def _taken(source: pa.Table, rows: npt.NDArray[np.int64]) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = source.take(pa.array(rows)).to_batches()
    return found


def _with_inserted_keys(
    update: Update, source: pa.Table, new_rows: npt.NDArray[np.int64], rules: Rules, schema: TableSchema
) -> Update:
    """The version says which keys are new in it, so that two writers of one new key see each other. The reference
    writer says so only of a key that the table declares; rows are told apart by any key that is named here."""
    if not rules.insert:
        return update
    fields = [schema.field(name) for name in rules.on]
    declared = [field for field in schema.fields if field.is_primary_key]
    as_others = declared == fields and all(is_recorded_by_all(source.schema.field(name).type) for name in rules.on)
    new_keys = source.select(list(rules.on)).take(pa.array(new_rows)).drop_null()
    columns = [in_one_piece(column.chunks) for column in map(comparable, new_keys.columns) if column.num_chunks]
    return replace(update, inserted_keys=key_filter([field.id for field in fields], columns, exact=not as_others))


def _arrays(table: pa.Table) -> list[pa.Array]:
    """Each column in one piece."""
    return [in_one_piece(column.chunks) if column.num_chunks else pa.nulls(0, column.type) for column in table.columns]
