"""Upsert join: matches the rows of a table with source rows by key, and decides what happens to each by the rules.

    keys of the table  ──►  matches with the source  ──►  rows that change, rows that are removed, rows to insert

The join writes nothing; `upsert.py` writes its result. The source is any `SourceRows`, in memory or in files. The join
reads the key columns of the table and the columns of the conditions, many fragments at a time. Start with `join`.
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
from lance_core.scan.parallel import map_in_order, threads_of
from lance_core.scan.selection import Offsets, Selection
from lance_core.scan.system_columns import ROW_OFFSET
from lance_core.versions.snapshot import Snapshot

_ROWS_PER_GROUP = 1 << 20
_LOOKUP_KEYS_MAX = 10_000
LOOKUP_ROWS_PER_KEY_MIN = 50
"""Minimum number of table rows per source key for an index lookup: from there on it is faster than a full read."""
_SOURCE, _TARGET = "source", "target"


class Matched(enum.Enum):
    """Action for a row of the table whose key is in the source."""

    UPDATE = "update"
    DELETE = "delete"
    FAIL = "fail"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class UpsertRules:
    """Rules of one upsert. Conditions are in Lance SQL."""

    on: tuple[str, ...]
    matched: Matched
    matched_if: str | None
    insert: bool
    delete_unmatched: bool | str
    delete_if: str | None = None
    """Condition over the source: a source row that meets it removes its match, and is not inserted."""

    @classmethod
    def of(
        cls,
        on: str | Sequence[str],
        *,
        matched: str,
        matched_if: str | None,
        insert: bool,
        delete_unmatched: bool | str | None,
        delete_if: str | None = None,
    ) -> "UpsertRules":
        keys = validation.check_key_columns(on, "on")
        if not keys or len(set(keys)) != len(keys):
            raise InvalidInput(f"on={list(keys)}: name at least one key column, and each only once")
        rule = validation.check_choice(Matched, matched, "matched")
        if matched_if is not None and rule not in (Matched.UPDATE, Matched.DELETE):
            raise InvalidInput(
                f"matched_if= selects rows to update or delete, but matched={matched!r} does neither; leave it out"
            )
        if delete_if is not None and rule is not Matched.UPDATE:
            raise InvalidInput(
                f"delete_if= selects rows of the data that delete instead of update, but matched={matched!r} updates "
                "nothing; leave one of them out"
            )
        if delete_unmatched is None:
            delete_unmatched = False
        elif not isinstance(delete_unmatched, str):
            delete_unmatched = validation.check_flag(delete_unmatched, "delete_unmatched")
        return cls(keys, rule, matched_if, validation.check_flag(insert, "insert"), delete_unmatched, delete_if)


class SourceRows(Protocol):
    """Source rows, numbered from 0, in the types that the table stores."""

    @property
    def columns(self) -> pa.Schema: ...

    @property
    def count(self) -> int: ...

    def find_matches(self, keys: Sequence[pa.ChunkedArray]) -> tuple[Numbers, Numbers]:
        """Return the positions in `keys`, the table's key columns, whose key is in the source, in ascending order, and
        the source row of each."""

    def take(self, rows: Numbers, names: Sequence[str]) -> pa.Table:
        """Return these rows in this order."""


class InMemorySource:
    """Source rows in memory, with unique keys."""

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
        """Format a few of the keys for a message."""
        return self._keys.describe_keys(rows)


@dataclass(frozen=True, slots=True)
class FragmentMatches:
    """Result of the join for one fragment."""

    source_rows: npt.NDArray[np.int64]
    """Source rows with a match in the fragment."""
    changed: Offsets
    """Offsets of the rows that get new values."""
    source_of_changed: npt.NDArray[np.int64]
    """Source row of each changed row."""
    removed: Offsets
    """Offsets of the rows that are deleted."""


@dataclass(slots=True)
class JoinCache:
    """Results of the previous plan of the same upsert. Fragments that have not changed since need not be read again:
    without this, an upsert that reads a large table would lose every race against frequent commits."""

    schema: TableSchema | None = None
    matches: dict[bytes, FragmentMatches] = field(default_factory=dict)
    """By encoded fragment, which includes all that the manifest says about it."""


@dataclass(slots=True)
class JoinResult:
    """Result of the join for the whole table."""

    changed: list[tuple[Fragment, Offsets, npt.NDArray[np.int64]]]
    """Fragments with the offsets of their changed rows and the source row of each."""
    removed: dict[FragmentId, Offsets]
    has_match: npt.NDArray[np.bool_]
    """For each source row, whether the table has its key."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Parsed conditions of the rules."""

    delete_unmatched: Predicate | None
    matched_if: "Condition | None"
    delete_if: Predicate | None = None

    @classmethod
    def of(cls, base: Snapshot, source: pa.Schema, rules: UpsertRules) -> "Conditions":
        """Parse and check the conditions of the rules. `source` is the schema of the source rows."""
        schema = filterable_schema(base.manifest)
        unmatched = rules.delete_unmatched
        predicate = Predicate.parse(unmatched, schema) if isinstance(unmatched, str) else None
        condition = Condition.of(rules.matched_if, source, schema) if rules.matched_if is not None else None
        read = dict.fromkeys((*rules.on, *(predicate.columns if predicate else ())))
        check_condition(base.manifest, read, what="the condition on unmatched rows")
        targets = [name for name in condition.target.names if f"{_TARGET}.{name}" in condition.sql] if condition else []
        check_condition(base.manifest, targets, what="matched_if=")
        return cls(predicate, condition, parse_delete_if(rules, source))

    def columns(self, rules: UpsertRules, *, reads_all_rows: bool) -> list[str]:
        """Return the columns of the table that the join reads. If it reads all physical rows of a fragment, positions
        are offsets, and the offset column is not needed."""
        of_predicate = self.delete_unmatched.columns if self.delete_unmatched else ()
        of_condition = self.matched_if.target.names if self.matched_if else ()
        offsets = [] if reads_all_rows else [ROW_OFFSET]
        return list(dict.fromkeys((*rules.on, *of_predicate, *of_condition, *offsets)))


def join(
    base: Snapshot, source: SourceRows, rules: UpsertRules, cache: JoinCache, candidates: Selection | None = None
) -> JoinResult:
    """Join the table with the source, and store the result in `cache`.

    `candidates` are the only rows that can have one of the keys, if an index was searched before; an empty selection
    means that nothing is known, and all rows are read. For `None`, the indices of the version are searched."""
    step = _Join(base, source, rules, Conditions.of(base, source.columns, rules))
    cached = cache.matches if cache.schema == base.manifest.schema else {}
    fragments = {fragment.encode(): fragment for fragment in base.manifest.fragments}
    matches = {key: cached[key] for key in fragments if key in cached}
    unread = {key: fragment for key, fragment in fragments.items() if key not in matches}
    if candidates is None:
        candidates = find_candidates(base, source, rules) if unread else Selection()
    matches.update(step.match(unread, candidates))
    cache.schema, cache.matches = base.manifest.schema, matches
    return _combine(fragments, matches, source.count)


@dataclass(frozen=True, slots=True)
class _Join:
    """Join of some fragments of a version."""

    base: Snapshot
    source: SourceRows
    rules: UpsertRules
    conditions: Conditions

    def match(
        self, fragments: Mapping[bytes, Fragment], candidates: Selection
    ) -> Iterator[tuple[bytes, FragmentMatches]]:
        """Match fragments with the source, several at a time."""
        for group in _groups(fragments, max(_ROWS_PER_GROUP, self.source.count)):
            tables = self._read_all([fragments[key] for key in group], candidates)
            positions, source_rows = self.source.find_matches(self._key_columns(tables))
            start = 0
            for key, table in zip(group, tables, strict=True):
                first, last = np.searchsorted(positions, (start, start + table.num_rows))
                yield key, self._apply_rules(table, positions[first:last] - start, source_rows[first:last])
                start += table.num_rows

    def _read_all(self, fragments: Sequence[Fragment], candidates: Selection) -> list[pa.Table]:
        """Read several fragments concurrently, each as `_read` does."""
        threads = threads_of(self.base.location.own_store)
        return list(map_in_order(lambda fragment: self._read(fragment, candidates), fragments, threads=threads))

    def _read(self, fragment: Fragment, candidates: Selection) -> pa.Table:
        """Read the rows of a fragment that can match, with the columns that the join needs."""
        is_selected = fragment.id in candidates.covered
        columns = self.conditions.columns(self.rules, reads_all_rows=not (is_selected or fragment.deletion_file))
        if is_selected:
            return read_selected_rows(self.base, fragment, columns, candidates.fragments.get(fragment.id))
        return pa.Table.from_batches(read_rows(self.base, fragment, columns))

    def _key_columns(self, tables: Sequence[pa.Table]) -> list[pa.ChunkedArray]:
        """Concatenate the key columns of several tables."""
        types = [tables[0].schema.field(name).type for name in self.rules.on]
        return [
            pa.chunked_array([chunk for table in tables for chunk in table[name].chunks], arrow)
            for name, arrow in zip(self.rules.on, types, strict=True)
        ]

    def _apply_rules(self, table: pa.Table, matched: Numbers, source_rows: Numbers) -> FragmentMatches:
        """Decide what happens to the rows of one fragment. `matched` are the positions in `table` whose key is in the
        source, and `source_rows` the source row of each."""
        affected, sources = self._affected(table, matched, source_rows)
        none = affected[:0]
        is_update = self.rules.matched is Matched.UPDATE
        removed = affected if self.rules.matched is Matched.DELETE else none
        if (condition := self.conditions.delete_if) is not None and len(sources):
            deletes = mask_of_source(condition, self.source, sources)
            removed, affected, sources = affected[deletes], affected[~deletes], sources[~deletes]
        if self.rules.delete_unmatched is not False:
            removed = np.union1d(removed, self._unmatched(table, matched))
        return FragmentMatches(
            source_rows,
            changed=_offsets(table, affected if is_update else none),
            source_of_changed=sources if is_update else sources[:0],
            removed=_offsets(table, removed),
        )

    def _affected(self, table: pa.Table, matched: Numbers, source_rows: Numbers) -> tuple[Numbers, Numbers]:
        """Return the matched rows to update or delete, which are those that satisfy `matched_if`."""
        condition = self.conditions.matched_if
        if condition is None or not len(matched) or self.rules.matched not in (Matched.UPDATE, Matched.DELETE):
            return matched, source_rows
        holds = condition.holds(self.source, source_rows, table, matched)
        return matched[holds], source_rows[holds]

    def _unmatched(self, table: pa.Table, matched: Numbers) -> Numbers:
        """Return the rows without a match that `delete_unmatched` deletes."""
        predicate = self.conditions.delete_unmatched
        is_deleted = _mask(predicate, table) if predicate else np.ones(table.num_rows, dtype=np.bool_)
        is_deleted[matched] = False
        return np.flatnonzero(is_deleted)


def parse_delete_if(rules: UpsertRules, source: pa.Schema) -> Predicate | None:
    """Parse the condition of `delete_if` over the columns of the source; `None` if there is none."""
    return None if rules.delete_if is None else Predicate.parse(rules.delete_if, source)


def mask_of_source(condition: Predicate, source: SourceRows, rows: Numbers) -> npt.NDArray[np.bool_]:
    """Return which of these source rows meet a condition."""
    return _mask(condition, source.take(rows, condition.columns))


def _combine(
    fragments: Mapping[bytes, Fragment], matches: Mapping[bytes, FragmentMatches], source_count: int
) -> JoinResult:
    result = JoinResult([], {}, np.zeros(source_count, dtype=np.bool_))
    for key, fragment in fragments.items():
        found = matches[key]
        result.has_match[found.source_rows] = True
        if len(found.changed):
            result.changed.append((fragment, found.changed, found.source_of_changed))
        if len(found.removed):
            result.removed[fragment.id] = found.removed
    return result


def find_candidates(base: Snapshot, source: SourceRows, rules: UpsertRules) -> Selection:
    """Return the only rows that can have one of the source's keys, according to the indices on the key columns.

    The selection is empty, and all rows are read, if there are too many keys, or if unmatched rows are deleted. Few
    keys may still select many rows."""
    is_small = 0 < source.count <= min(_LOOKUP_KEYS_MAX, base.manifest.row_count() // LOOKUP_ROWS_PER_KEY_MIN)
    if not is_small or rules.delete_unmatched is not False or lookup.selector_of(base) is None:
        return Selection()
    keys = source.take(np.arange(source.count), rules.on)
    lists = tuple(
        In((name,), tuple(keys[name].unique().drop_null())) for name in rules.on if _has_sql_equality(keys[name].type)
    )
    return lookup.IndexLookup.of(base).select_candidates(And(lists)) if lists else Selection()


def _has_sql_equality(arrow: pa.DataType) -> bool:
    """Tell whether two keys of this type match exactly if SQL finds them equal."""
    return not (pa.types.is_floating(arrow) or pa.types.is_dictionary(arrow) or isinstance(arrow, pa.BaseExtensionType))


def _groups(fragments: Mapping[bytes, Fragment], rows_max: int) -> Iterator[list[bytes]]:
    """Group fragments that are matched together, so that small fragments share the preparation of the source keys."""
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
    """Condition `matched_if`, evaluated over two structs: `source.x` is a column of the source, `target.x` one of the
    table."""

    sql: str
    predicate: Predicate
    source: pa.Schema
    target: pa.Schema

    @classmethod
    def of(cls, sql: str, source: pa.Schema, target: pa.Schema) -> "Condition":
        try:
            Predicate.parse(sql, _pair(source, target))
        except InvalidInput as error:
            raise InvalidInput(f"matched_if: {error}. Write its columns as source.x and target.x") from error
        # The engine reports which struct it reads, not which fields. A name that is not in the text is not read.
        read = [pa.schema([field for field in side if field.name in sql]) for side in (source, target)]
        return cls(sql, Predicate.parse(sql, _pair(*read)), *read)

    def holds(
        self, source: SourceRows, source_rows: Numbers, target: pa.Table, target_rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Evaluate the condition for pairs of a source row and a position in `target`."""
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


def _offsets(table: pa.Table, positions: Numbers) -> Offsets:
    """Convert positions in a table that was read to offsets in its fragment."""
    if ROW_OFFSET not in table.column_names:
        return positions
    return np.asarray(table[ROW_OFFSET].take(pa.array(positions)).to_numpy(), dtype=np.int64)


def _mask(predicate: Predicate, table: pa.Table) -> npt.NDArray[np.bool_]:
    masks = [predicate.mask(batch).to_numpy(zero_copy_only=False) for batch in table.to_batches()]
    return np.concatenate([np.empty(0, dtype=np.bool_), *masks])


def column_arrays(table: pa.Table) -> list[pa.Array]:
    """Return each column as one contiguous array."""
    return [concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type) for column in table.columns]
