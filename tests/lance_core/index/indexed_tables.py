"""Indexed tables: tables whose indices precede deletes, updates, upserts, appends and compactions.

Start with `TABLES`, the factories by description, and `predicates`, a strategy for SQL filters over their columns.
"""

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import lance
import pyarrow as pa
from hypothesis import strategies as st

from lance_core import Table

INDEXED: Mapping[str, str] = {
    "id": "BTREE",
    "f": "BTREE",
    "word": "BITMAP",
    "n": "ZONEMAP",
    "tags": "LABEL_LIST",
    "s.x": "BTREE",
    "flag": "BITMAP",
    "d": "BTREE",
}
"""The first index of each column. `word` also has a BTREE and an NGRAM, `f` a ZONEMAP and `plain` a BLOOMFILTER."""
_WORDS = ["", "a", "ab", "abc", "abcd", "b", "ba", "Ä", "z%", None]
_FLOATS = [0.0, -0.0, 1.5, -2.5, 7.0, float("nan"), float("inf"), float("-inf"), None, 3.25]
_TAGS = [[], None, ["a"], ["a", "b"], ["b", None], ["c", "a", "b"], [None]]


def rows(first: int, count: int, seed: int = 0) -> pa.Table:
    random_source = random.Random(f"{seed} {first}")
    return pa.table(
        {
            "id": pa.array(random_source.sample(range(first, first + count), count), pa.int64()),
            "f": pa.array([random_source.choice(_FLOATS) for _ in range(count)], pa.float64()),
            "word": pa.array([random_source.choice(_WORDS) for _ in range(count)], pa.string()),
            "n": pa.array(
                [None if random_source.random() < 0.1 else (first + row) // 8 for row in range(count)], pa.int32()
            ),
            "tags": pa.array([random_source.choice(_TAGS) for _ in range(count)], pa.list_(pa.string())),
            "s": pa.array(
                [random_source.choice([None, {"x": None}, {"x": random_source.randrange(9)}]) for _ in range(count)],
                pa.struct([("x", pa.int16())]),
            ),
            "flag": pa.array([random_source.choice([True, False, None]) for _ in range(count)]),
            "d": pa.array(
                [None if random_source.random() < 0.1 else random_source.randrange(60) for _ in range(count)],
                pa.date32(),
            ),
            "plain": pa.array([random_source.choice([None, *range(6)]) for _ in range(count)], pa.int64()),
        }
    )


def _create_table(uri: str, stable_row_ids: bool) -> Table:
    lance.write_dataset(rows(0, 240), uri, max_rows_per_file=60, enable_stable_row_ids=stable_row_ids)
    return Table.open(uri).delete("id % 17 = 0").table


def _create_indices(table: Table, by_pylance: bool) -> Table:
    if by_pylance:
        dataset = lance.dataset(table.uri)
        for column, kind in INDEXED.items():
            dataset.create_scalar_index(column, kind)  # type: ignore[arg-type]
        dataset.create_scalar_index("word", "BTREE", name="words")
        dataset.create_scalar_index("f", "ZONEMAP", name="zones")
        dataset.create_scalar_index("word", "NGRAM", name="grams")
        dataset.create_scalar_index("plain", "BLOOMFILTER", name="blooms")
        return table.refresh()
    for column, kind in INDEXED.items():
        table = table.create_index(column, kind).table
    table = table.create_index("word", "BTREE", name="words").table
    table = table.create_index("f", "ZONEMAP", name="zones", rows_per_zone=8).table
    table = table.create_index("word", "NGRAM", name="grams").table
    return table.create_index("plain", "BLOOMFILTER", name="blooms").table


def _apply_changes(table: Table) -> Table:
    """Delete rows and a whole fragment, rewrite columns in place, move rows, and append rows that no index covers."""
    table = table.delete("id % 11 = 3").table
    table = table.delete("id >= 0 and _rowaddr >= 4294967296 and _rowaddr < 8589934592").table
    keys = table.to_table(["id"], filter="_rowaddr >= 12884901888").column("id")
    table = table.upsert(pa.table({"id": keys, "word": pa.array(["ab"] * len(keys))}), on=["id"]).table
    table = table.update({"n": "n + 1"}, where="id % 19 = 1").table
    return table.append(rows(240, 40)).table


def _compact(table: Table, remap: str | None) -> Table:
    table = table.delete("id % 11 = 3").table
    table = table.compact(target_rows=150, remap=remap).table  # type: ignore[arg-type]
    table = table.delete("id % 23 = 5").table
    keys = table.to_table(["id"], limit=190).column("id")
    table = table.upsert(pa.table({"id": keys, "d": pa.array([7] * len(keys), pa.date32())}), on=["id"]).table
    return table.append(rows(240, 40)).table


def _compact_twice(table: Table) -> Table:
    """Compact twice, the second time over the result of the first, and extend only some of the indices."""
    table = _compact(table, "reuse")
    table = table.compact(target_rows=1000, remap="reuse").table
    table = table.append(rows(280, 20)).table
    return table.optimize_indices(["id_idx", "word_idx"], merge="none").table


def _change_and_restore(table: Table) -> Table:
    return _apply_changes(table).restore(table.version).table


TableFactory = Callable[[Path], Table]


def _table_factory(
    name: str, *, stable_row_ids: bool, by_pylance: bool, change: Callable[[Table], Table]
) -> tuple[str, TableFactory]:
    row_ids = "stable row ids" if stable_row_ids else "addresses"
    description = f"{name}, {row_ids}, built by {'pylance' if by_pylance else 'us'}"

    def create(directory: Path) -> Table:
        return change(_create_indices(_create_table(str(directory / "t"), stable_row_ids), by_pylance))

    return description, create


def _pylance_compacted(table: Table) -> Table:
    lance.dataset(table.uri).optimize.compact_files(defer_index_remap=True)
    return table.refresh().append(rows(240, 40)).table


TABLES: Mapping[str, TableFactory] = dict(
    [
        _table_factory("changed", stable_row_ids=False, by_pylance=False, change=_apply_changes),
        _table_factory("changed", stable_row_ids=True, by_pylance=False, change=_apply_changes),
        _table_factory("changed", stable_row_ids=False, by_pylance=True, change=_apply_changes),
        _table_factory("changed", stable_row_ids=True, by_pylance=True, change=_apply_changes),
        _table_factory(
            "fragment reuse", stable_row_ids=False, by_pylance=False, change=lambda table: _compact(table, "reuse")
        ),
        _table_factory("fragment reuse by pylance", stable_row_ids=False, by_pylance=True, change=_pylance_compacted),
        _table_factory("compacted", stable_row_ids=True, by_pylance=False, change=lambda table: _compact(table, None)),
        _table_factory("compacted", stable_row_ids=False, by_pylance=True, change=lambda table: _compact(table, None)),
        _table_factory("compacted again", stable_row_ids=False, by_pylance=False, change=_compact_twice),
        _table_factory("restored", stable_row_ids=False, by_pylance=False, change=_change_and_restore),
    ]
)

_OPERATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
_NUMBERS = st.integers(-5, 300)
_WORD = st.sampled_from(["''", "'a'", "'ab'", "'b'", "'Ä'", "'zz'"])
_FLOAT = st.sampled_from(["0.0", "-0.0", "1.5", "7", "-2.5", "cast('nan' as double)", "1e300"])


def _sql_list(values: st.SearchStrategy[object]) -> st.SearchStrategy[str]:
    return st.lists(values, min_size=1, max_size=5).map(lambda some: ", ".join(map(str, some)))


_CONDITIONS = st.one_of(
    st.builds("id {} {}".format, _OPERATORS, _NUMBERS),
    st.builds("id in ({})".format, _sql_list(_NUMBERS)),
    st.builds("id between {} and {}".format, _NUMBERS, _NUMBERS),
    st.builds("f {} {}".format, _OPERATORS, _FLOAT),
    st.builds("f in ({})".format, _sql_list(_FLOAT)),
    st.builds("word {} {}".format, _OPERATORS, _WORD),
    st.builds("word not in ({})".format, _sql_list(_WORD)),
    st.sampled_from(["word like 'a%'", "word like '%b'", "contains(word, 'abc')", "word like '%abc%'"]),
    st.sampled_from(["starts_with(word, 'b')", "word not like 'a%'", "not contains(word, 'bcd')"]),
    st.builds("n {} {}".format, _OPERATORS, st.integers(-1, 36)),
    st.builds("n between {} and {}".format, st.integers(-1, 36), st.integers(-1, 36)),
    st.builds("array_has_any(tags, [{}])".format, st.sampled_from(["'a'", "'b', 'c'", "'q'"])),
    st.builds("array_has_all(tags, [{}])".format, st.sampled_from(["'a'", "'a', 'b'"])),
    st.sampled_from(["array_has(tags, 'a')", "not array_has(tags, 'c')"]),
    st.builds("s.x {} {}".format, _OPERATORS, st.integers(0, 9)),
    st.sampled_from(["flag", "not flag", "flag = false", "flag is not true"]),
    st.builds("d {} cast('1970-01-{:02}' as date)".format, _OPERATORS, st.integers(1, 31)),
    st.builds("plain {} {}".format, _OPERATORS, st.integers(-1, 6)),
    st.sampled_from(["id % 3 = 1", "plain + 1 = 2", "id = plain", "upper(word) = 'AB'"]),
    st.builds(
        "{} is {}null".format,
        st.sampled_from([*INDEXED, "s", "plain"]),
        st.sampled_from(["", "not "]),
    ),
)


def predicates() -> st.SearchStrategy[str]:
    return st.recursive(
        _CONDITIONS,
        lambda inner: st.one_of(
            st.builds("({} and {})".format, inner, inner),
            st.builds("({} or {})".format, inner, inner),
            st.builds("not ({})".format, inner),
        ),
        max_leaves=6,
    )
