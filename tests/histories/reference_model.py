"""A table as a list of rows: what the verbs mean, without files, versions or anything else that could go wrong.

A `Deed` is both: how it is done to a table, and what it makes of such a list. Which deeds there can be, strategies of
hypothesis say, given the columns that there are. Start with `deeds`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

import pyarrow as pa
from hypothesis import strategies as st

from lance_core import Committed, Table

Value = int | str | None
Row = Mapping[str, Value]
TYPES: Mapping[str, pa.DataType] = {"id": pa.int64(), "v": pa.int64(), "w": pa.string(), "x": pa.int64()}
IDS = st.integers(0, 30)
NUMBERS = st.none() | st.integers(-5, 5)
WORDS = st.none() | st.sampled_from("abc")


class Refused(Exception):
    """The deed makes no sense on these columns."""


@dataclass(frozen=True)
class Rows:
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    config: Mapping[str, str] = field(default_factory=dict)

    def same_as(self, table: Table) -> bool:
        shown = sorted(repr([row[name] for name in self.columns]) for row in self.rows)
        found = table.to_table()
        config = {name: text for name, text in table.config.items() if name in "abc"}
        return (
            tuple(found.column_names) == self.columns
            and sorted(repr([row[name] for name in self.columns]) for row in found.to_pylist()) == shown
            and config == self.config
        )

    def has(self, *names: str) -> None:
        if not set(names) <= set(self.columns):
            raise Refused(names)


@dataclass(frozen=True)
class Deed:
    told: str
    do: Callable[[Table], Committed] = field(repr=False)
    means: Callable[[Rows], Rows] = field(repr=False)

    def __repr__(self) -> str:
        return self.told


@dataclass(frozen=True)
class Where:
    sql: str
    column: str
    holds: Callable[[Row], bool]


def arrow(columns: Sequence[str], rows: Sequence[Row]) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], TYPES[name]) for name in columns})


def some_rows(columns: Sequence[str], *, most: int = 6, distinct: bool = False) -> st.SearchStrategy[list[Row]]:
    values: dict[str, st.SearchStrategy[Value]] = {"id": IDS, "v": NUMBERS, "w": WORDS, "x": NUMBERS}
    row: st.SearchStrategy[Row] = st.fixed_dictionaries({name: values[name] for name in columns})
    return st.lists(row, min_size=1, max_size=most, unique_by=itemgetter("id") if distinct else None)


def conditions(columns: Sequence[str]) -> st.SearchStrategy[Where]:
    def rest(by: int, of: int) -> Where:
        return Where(f"id % {by} = {of % by}", "id", lambda row: _number(row["id"]) % by == of % by)

    def below(limit: int) -> Where:
        return Where(f"id < {limit}", "id", lambda row: _number(row["id"]) < limit)

    found = [st.builds(rest, st.integers(2, 5), st.integers(0, 4)), st.builds(below, IDS)]
    if "v" in columns:
        found.append(st.just(Where("v is null", "v", lambda row: row["v"] is None)))
    if "w" in columns:
        found.append(st.just(Where("w = 'a'", "w", lambda row: row["w"] == "a")))
    return st.one_of(found)


def appending(columns: Sequence[str], most_per_file: int) -> st.SearchStrategy[Deed]:
    def deed(rows: list[Row]) -> Deed:
        def means(before: Rows) -> Rows:
            before.has(*columns)
            new = tuple({name: row.get(name) for name in before.columns} for row in rows)
            return replace(before, rows=(*before.rows, *new))

        data = arrow(columns, rows)
        return Deed(f"append {rows}", lambda table: table.append(data, max_rows_per_file=most_per_file), means)

    return some_rows(columns).map(deed)


def overwriting() -> st.SearchStrategy[Deed]:
    def deed(columns: Sequence[str], rows: list[Row]) -> Deed:
        data = arrow(columns, [{name: row[name] for name in columns} for row in rows])
        after = tuple({name: row[name] for name in columns} for row in rows)
        return Deed(
            f"overwrite {columns} {rows}",
            lambda table: table.overwrite(data),
            lambda before: replace(before, columns=tuple(columns), rows=after),
        )

    columns = st.sampled_from([("id", "v", "w"), ("id", "w"), ("w", "id", "v", "x")])
    return st.builds(deed, columns, some_rows(tuple(TYPES)))


def deleting(columns: Sequence[str]) -> st.SearchStrategy[Deed]:
    def deed(where: Where) -> Deed:
        def means(before: Rows) -> Rows:
            before.has(where.column)
            return replace(before, rows=tuple(row for row in before.rows if not where.holds(row)))

        return Deed(f"delete where {where.sql}", lambda table: table.delete(where.sql), means)

    return conditions(columns).map(deed)


def updating(columns: Sequence[str]) -> st.SearchStrategy[Deed]:
    def deed(where: Where, changed: str, by: int) -> Deed:
        sql = f"'u{by}'" if changed == "w" else f"{changed} + {by}"

        def value(row: Row) -> Value:
            before = row[changed]
            return f"u{by}" if changed == "w" else None if before is None else _number(before) + by

        def means(before: Rows) -> Rows:
            before.has(where.column, changed)
            rows = tuple({**row, changed: value(row)} if where.holds(row) else row for row in before.rows)
            return replace(before, rows=rows)

        told = f"update {changed} = {sql} where {where.sql}"
        return Deed(told, lambda table: table.update({changed: sql}, where.sql), means)

    changeable = [name for name in columns if name != "id"]
    return st.builds(deed, conditions(columns), st.sampled_from(changeable), st.integers(1, 9))


def upserting(columns: Sequence[str], matched: Sequence[str]) -> st.SearchStrategy[Deed]:
    def deed(rows: list[Row], matched: str, insert: bool, unmatched: bool) -> Deed:
        brought = {row["id"]: row for row in rows}

        def means(before: Rows) -> Rows:
            before.has(*columns)
            after: list[Row] = []
            for row in before.rows:
                if row["id"] not in brought:
                    after += [] if unmatched else [row]
                elif matched != "delete":
                    after.append({**row, **brought[row["id"]]} if matched == "update" else row)
            met = {row["id"] for row in before.rows}
            new = [row for row in rows if row["id"] not in met] if insert else []
            after += [{name: row.get(name) for name in before.columns} for row in new]
            return replace(before, rows=tuple(after))

        data = arrow(columns, rows)
        return Deed(
            f"upsert {rows}, {matched=}, {insert=}, {unmatched=}",
            lambda table: table.upsert(data, "id", matched=matched, insert=insert, delete_unmatched=unmatched),
            means,
        )

    few = some_rows(columns, distinct=True)
    return st.builds(deed, few, st.sampled_from(matched), st.booleans(), st.booleans())


def adding(columns: Sequence[str]) -> st.SearchStrategy[Deed]:
    def deed(name: str, by: int | None) -> Deed:
        def means(before: Rows) -> Rows:
            if name in before.columns:
                raise Refused(name)
            rows = tuple({**row, name: None if by is None else _number(row["id"]) * by} for row in before.rows)
            return replace(before, columns=(*before.columns, name), rows=rows)

        told = f"add {name}" + ("" if by is None else f" = id * {by}")
        if by is None:
            return Deed(told, lambda table: table.add_columns(pa.field(name, TYPES[name])), means)
        return Deed(told, lambda table: table.add_columns({name: f"id * {by}"}), means)

    absent = [name for name in ("v", "x") if name not in columns]
    return st.builds(deed, st.sampled_from(absent), st.none() | st.integers(2, 4)) if absent else st.nothing()


def dropping(columns: Sequence[str]) -> st.SearchStrategy[Deed]:
    def deed(name: str) -> Deed:
        def means(before: Rows) -> Rows:
            before.has(name)
            kept = tuple(each for each in before.columns if each != name)
            return replace(before, columns=kept, rows=tuple({each: row[each] for each in kept} for row in before.rows))

        return Deed(f"drop {name}", lambda table: table.drop_columns([name]), means)

    spare = [name for name in columns if name in ("v", "x")]
    return st.sampled_from(spare).map(deed) if spare else st.nothing()


def configuring() -> st.SearchStrategy[Deed]:
    def deed(name: str, text: str | None) -> Deed:
        def means(before: Rows) -> Rows:
            config = {key: value for key, value in before.config.items() if key != name}
            return replace(before, config=config if text is None else {**config, name: text})

        return Deed(f"config {name}={text}", lambda table: table.set_config({name: text}), means)

    return st.builds(deed, st.sampled_from("abc"), st.none() | st.sampled_from("12"))


def compacting() -> st.SearchStrategy[Deed]:
    def deed(target: int) -> Deed:
        return Deed(f"compact to {target}", lambda table: table.compact(target_rows=target), lambda before: before)

    return st.sampled_from([4, 8, 1000]).map(deed)


def deeds(
    columns: Sequence[str], *, matched: Sequence[str] = ("update", "delete", "ignore")
) -> st.SearchStrategy[Deed]:
    """All that can be done to rows of these columns."""
    partly = [name for name in columns if name != "x"]
    return st.one_of(
        appending(columns, 3), appending(partly, 100), overwriting(), deleting(columns), updating(columns),
        upserting(columns, matched), upserting(partly, matched), adding(columns), dropping(columns), configuring(),
        compacting(),
    )  # fmt: skip


def _number(value: Value) -> int:
    assert isinstance(value, int)
    return value
