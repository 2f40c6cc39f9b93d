"""What an upsert finds: rows of the table that rows which came are for, and what becomes of them by the rules.

The source is a `SourceRows`, in memory or not. The join reads the key columns of the table and the columns of the
conditions, many fragments at a time. `upsert.py` writes the result.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core import validation
from lance_core.dml.key_join import Numbers, SourceKeys
from lance_core.dml.row_matching import read_rows, read_selected_rows
from lance_core.dml.row_rewrite import concat_arrays
from lance_core.errors import InvalidInput
from lance_core.expressions import And, In, Predicate
from lance_core.format.fragment import Fragment
from lance_core.format.ids import FragmentId
from lance_core.format.schema import TableSchema
from lance_core.index import lookup
from lance_core.scan.column_resolution import check_condition, filterable_schema
from lance_core.scan.selection import Offsets, Selection
from lance_core.scan.system_columns import ROW_OFFSET
from lance_core.versions.snapshot import Snapshot

_ROWS_AT_ONCE = 1 << 20
_KEYS_MAX = 10_000
_ROWS_PER_KEY = 50
"""Keys are looked up where the table has so many rows for each: then picking is faster than reading all."""
_SOURCE, _TARGET = "source", "target"


class Matched(enum.Enum):
    """What happens to a row of the table whose key comes."""

    UPDATE = "update"
    DELETE = "delete"
    FAIL = "fail"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class UpsertRules:
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
    ) -> "UpsertRules":
        keys = validation.check_key_columns(on, "on")
        if not keys or len(set(keys)) != len(keys):
            raise InvalidInput(f"on={list(keys)}: name the columns that tell rows apart, each once")
        rule = validation.check_choice(Matched, matched, "matched")
        if matched_if is not None and rule not in (Matched.UPDATE, Matched.DELETE):
            raise InvalidInput(f"matched_if= says which rows to update or delete, and matched={matched!r} does neither")
        if delete_unmatched is None:
            delete_unmatched = False
        elif not isinstance(delete_unmatched, str):
            delete_unmatched = validation.check_flag(delete_unmatched, "delete_unmatched")
        return cls(keys, rule, matched_if, validation.check_flag(insert, "insert"), delete_unmatched)


class SourceRows(Protocol):
    """Rows that came, by their number, in the types that the table stores."""

    @property
    def columns(self) -> pa.Schema: ...

    @property
    def count(self) -> int: ...

    def find_matches(self, keys: Sequence[pa.ChunkedArray]) -> tuple[Numbers, Numbers]:
        """The rows of the table, by their key columns, whose key came, ascending; and for each the row that came."""

    def take(self, rows: Numbers, names: Sequence[str]) -> pa.Table:
        """These rows, in this order."""


class InMemorySource:
    """A source in memory, each key there once."""

    def __init__(self, rows: pa.Table, on: Sequence[str], *, what: str) -> None:
        self._rows = rows
        self._keys = SourceKeys(rows, on, what=what)

    @property
    def columns(self) -> pa.Schema:
        return self._rows.schema

    @property
    def count(self) -> int:
        return int(self._rows.num_rows)

    def find_matches(self, keys: Sequence[pa.ChunkedArray]) -> tuple[Numbers, Numbers]:
        return self._keys.find_matches(keys)

    def take(self, rows: Numbers, names: Sequence[str]) -> pa.Table:
        return self._rows.select(list(names)).take(pa.array(rows))

    def describe_keys(self, rows: Numbers) -> str:
        """Their keys for people, of a few."""
        return self._keys.describe_keys(rows)


@dataclass(frozen=True, slots=True)
class FragmentMatches:
    """What the join found in one fragment."""

    source_rows: npt.NDArray[np.int64]
    """Rows that came and have a match in it."""
    changed: Offsets
    """Of its rows that change, and `source_of_changed`, which of those that came are for them."""
    source_of_changed: npt.NDArray[np.int64]
    removed: Offsets


@dataclass(slots=True)
class JoinCache:
    """What a plan found, for the next one of the same change. Fragments that are as they were need not be read again:
    others commit while a large table is read, and who had to read it all each time would never be first."""

    schema: TableSchema | None = None
    matches: dict[bytes, FragmentMatches] = field(default_factory=dict)
    """By the fragment, all that the manifest says of it."""


@dataclass(slots=True)
class JoinResult:
    """What the join found: rows of the table that change, with the rows that come for them; rows that go; and which
    rows that came had a match."""

    changed: list[tuple[Fragment, Offsets, npt.NDArray[np.int64]]]
    removed: dict[FragmentId, Offsets]
    has_match: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Conditions:
    delete_unmatched: Predicate | None
    matched_if: "Condition | None"

    @classmethod
    def of(cls, base: Snapshot, source: pa.Schema, rules: UpsertRules) -> "Conditions":
        """What the rules say in SQL, after checking it; `source` are the columns that come."""
        schema = filterable_schema(base.manifest)
        unmatched = rules.delete_unmatched
        doomed = Predicate.parse(unmatched, schema) if isinstance(unmatched, str) else None
        condition = Condition.of(rules.matched_if, source, schema) if rules.matched_if is not None else None
        read = dict.fromkeys((*rules.on, *(doomed.columns if doomed else ())))
        check_condition(base.manifest, read, what="the condition on unmatched rows")
        targets = [name for name in condition.target.names if f"{_TARGET}.{name}" in condition.sql] if condition else []
        check_condition(base.manifest, targets, what="matched_if=")
        return cls(doomed, condition)

    def columns(self, rules: UpsertRules, *, all_rows: bool) -> list[str]:
        """Of the table, to be read for the join. Where all rows that a fragment ever had are read, a row's place among
        them is where it is."""
        doomed, condition = self.delete_unmatched, self.matched_if
        of_condition = condition.target.names if condition else ()
        offsets = [] if all_rows else [ROW_OFFSET]
        return list(dict.fromkeys((*rules.on, *(doomed.columns if doomed else ()), *of_condition, *offsets)))


def join(
    base: Snapshot, source: SourceRows, rules: UpsertRules, cache: JoinCache, candidates: Selection | None = None
) -> JoinResult:
    """`covered` are the rows that can have one of the keys, as somebody was told by indices; one that is empty says that
    nothing is known, and all are read. Without it the version's own indices are asked."""
    conditions = Conditions.of(base, source.columns, rules)
    doomed, condition, unmatched = conditions.delete_unmatched, conditions.matched_if, rules.delete_unmatched

    def part_of(table: pa.Table, matches: Numbers, met: Numbers) -> FragmentMatches:
        """`find_matches` are rows of the table, `source_rows` the rows that came for them."""
        places, rows = matches, met
        if condition and len(places) and rules.matched in (Matched.UPDATE, Matched.DELETE):
            holds = condition.holds(source, rows, table, places)
            places, rows = places[holds], rows[holds]
        changes = rules.matched is Matched.UPDATE
        gone = places if rules.matched is Matched.DELETE else places[:0]
        if unmatched is not False:
            leaves = _mask(doomed, table) if doomed else np.ones(table.num_rows, dtype=np.bool_)
            leaves[matches] = False
            gone = np.union1d(gone, np.flatnonzero(leaves))
        changed = _offsets(table, places if changes else places[:0])
        return FragmentMatches(met, changed, rows if changes else rows[:0], _offsets(table, gone))

    before = cache.matches if cache.schema == base.manifest.schema else {}
    fragments = {fragment.encode(): fragment for fragment in base.manifest.fragments}
    parts = {key: before[key] for key in fragments if key in before}
    unread = {key: fragment for key, fragment in fragments.items() if key not in parts}
    candidates = (
        candidates if candidates is not None else find_candidates(base, source, rules) if unread else Selection()
    )

    def rows_in(fragment: Fragment) -> pa.Table:
        picked = fragment.id in candidates.covered
        columns = conditions.columns(rules, all_rows=not (picked or fragment.deletion_file))
        if picked:
            return read_selected_rows(base, fragment, columns, candidates.fragments.get(fragment.id))
        return pa.Table.from_batches(read_rows(base, fragment, columns))

    for group in _groups(unread, max(_ROWS_AT_ONCE, source.count)):
        read = [rows_in(unread[key]) for key in group]
        types = [read[0].schema.field(name).type for name in rules.on]
        together = [
            pa.chunked_array([c for table in read for c in table[name].chunks], arrow)
            for name, arrow in zip(rules.on, types, strict=True)
        ]
        places, rows = source.find_matches(together)
        start = 0
        for key, table in zip(group, read, strict=True):
            first, last = np.searchsorted(places, (start, start + table.num_rows))
            parts[key] = part_of(table, places[first:last] - start, rows[first:last])
            start += table.num_rows
    cache.schema, cache.matches = base.manifest.schema, parts
    found = JoinResult([], {}, np.zeros(source.count, dtype=np.bool_))
    for key, fragment in fragments.items():
        part = parts[key]
        found.has_match[part.source_rows] = True
        if len(part.changed):
            found.changed.append((fragment, part.changed, part.source_of_changed))
        if len(part.removed):
            found.removed[fragment.id] = part.removed
    return found


def find_candidates(base: Snapshot, source: SourceRows, rules: UpsertRules) -> Selection:
    """Rows that alone can have one of the keys, as far as indices on them tell. Of few keys only: else every row is
    read, as it is where rows go that nothing matches. Few keys may be those of many rows."""
    few = 0 < source.count <= min(_KEYS_MAX, base.manifest.row_count() // _ROWS_PER_KEY)
    if not few or rules.delete_unmatched is not False or lookup.selector_of(base) is None:
        return Selection()
    keys = source.take(np.arange(source.count), rules.on)
    lists = tuple(
        In((name,), tuple(keys[name].unique().drop_null())) for name in rules.on if _has_sql_equality(keys[name].type)
    )
    return lookup.IndexLookup.of(base).select_candidates(And(lists)) if lists else Selection()


def _has_sql_equality(arrow: pa.DataType) -> bool:
    """Whether keys of this type are equal where conditions find them equal."""
    return not (pa.types.is_floating(arrow) or pa.types.is_dictionary(arrow) or isinstance(arrow, pa.BaseExtensionType))


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
class Condition:
    """`matched_if`, over rows that are two structs: `source.x` is what comes, `target.x` what is there."""

    sql: str
    predicate: Predicate
    source: pa.Schema
    target: pa.Schema

    @classmethod
    def of(cls, sql: str, source: pa.Schema, target: pa.Schema) -> "Condition":
        try:
            Predicate.parse(sql, _pair(source, target))
        except InvalidInput as error:
            raise InvalidInput(f"matched_if: {error}. Its columns are written source.x and target.x") from error
        # The engine says which of the two it reads, not which fields: a name that is nowhere in the text is not read.
        read = [pa.schema([field for field in side if field.name in sql]) for side in (source, target)]
        return cls(sql, Predicate.parse(sql, _pair(*read)), *read)

    def holds(
        self, source: SourceRows, source_rows: Numbers, target: pa.Table, target_rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        sides = (
            source.take(source_rows, self.source.names),
            target.select(self.target.names).take(pa.array(target_rows)),
        )
        structs = [_structs(side, len(target_rows)) for side in sides]
        batch = pa.RecordBatch.from_arrays(structs, schema=_pair(self.source, self.target))
        return np.asarray(self.predicate.mask(batch).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _pair(source: pa.Schema, target: pa.Schema) -> pa.Schema:
    return pa.schema([(_SOURCE, pa.struct(list(source))), (_TARGET, pa.struct(list(target)))])


def _structs(table: pa.Table, count: int) -> pa.Array:
    fields = list(table.schema)
    if not fields:
        return pa.array([{}] * count, pa.struct([]))
    return pa.StructArray.from_arrays(column_arrays(table), fields=fields)


def _offsets(table: pa.Table, places: Numbers) -> Offsets:
    """Of rows that were read, by their places among them."""
    if ROW_OFFSET not in table.column_names:
        return places
    return np.asarray(table[ROW_OFFSET].take(pa.array(places)).to_numpy(), dtype=np.int64)


def _mask(predicate: Predicate, table: pa.Table) -> npt.NDArray[np.bool_]:
    masks = [predicate.mask(batch).to_numpy(zero_copy_only=False) for batch in table.to_batches()]
    return np.concatenate([np.empty(0, dtype=np.bool_), *masks])


def column_arrays(table: pa.Table) -> list[pa.Array]:
    """Each column in one piece."""
    return [concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type) for column in table.columns]
