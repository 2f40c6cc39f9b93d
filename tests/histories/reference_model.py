"""Reference model: a table as a list of rows. It defines the meaning of the operations without files, versions or any
other source of errors.

A `ModelOperation` has both sides: how it runs on a table, and its result on the model. Hypothesis strategies generate
the operations that are possible on given columns. Start with `operations_on`.
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


class OperationRejected(Exception):
    """The operation is not valid for these columns."""


@dataclass(frozen=True)
class ModelTable:
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    config: Mapping[str, str] = field(default_factory=dict)

    def matches(self, table: Table) -> bool:
        expected = sorted(repr([row[name] for name in self.columns]) for row in self.rows)
        actual = table.to_table()
        config = {name: text for name, text in table.config.items() if name in "abc"}
        return (
            tuple(actual.column_names) == self.columns
            and sorted(repr([row[name] for name in self.columns]) for row in actual.to_pylist()) == expected
            and config == self.config
        )

    def require_columns(self, *names: str) -> None:
        if not set(names) <= set(self.columns):
            raise OperationRejected(names)


@dataclass(frozen=True)
class ModelOperation:
    description: str
    apply_to_table: Callable[[Table], Committed] = field(repr=False)
    apply_to_model: Callable[[ModelTable], ModelTable] = field(repr=False)

    def __repr__(self) -> str:
        return self.description


@dataclass(frozen=True)
class Condition:
    sql: str
    column: str
    matches: Callable[[Row], bool]


def to_arrow(columns: Sequence[str], rows: Sequence[Row]) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], TYPES[name]) for name in columns})


def row_lists(columns: Sequence[str], *, size_max: int = 6, unique_ids: bool = False) -> st.SearchStrategy[list[Row]]:
    values: dict[str, st.SearchStrategy[Value]] = {"id": IDS, "v": NUMBERS, "w": WORDS, "x": NUMBERS}
    row: st.SearchStrategy[Row] = st.fixed_dictionaries({name: values[name] for name in columns})
    return st.lists(row, min_size=1, max_size=size_max, unique_by=itemgetter("id") if unique_ids else None)


def conditions(columns: Sequence[str]) -> st.SearchStrategy[Condition]:
    def remainder_is(divisor: int, remainder: int) -> Condition:
        return Condition(
            f"id % {divisor} = {remainder % divisor}",
            "id",
            lambda row: _require_int(row["id"]) % divisor == remainder % divisor,
        )

    def id_below(limit: int) -> Condition:
        return Condition(f"id < {limit}", "id", lambda row: _require_int(row["id"]) < limit)

    strategies = [st.builds(remainder_is, st.integers(2, 5), st.integers(0, 4)), st.builds(id_below, IDS)]
    if "v" in columns:
        strategies.append(st.just(Condition("v is null", "v", lambda row: row["v"] is None)))
    if "w" in columns:
        strategies.append(st.just(Condition("w = 'a'", "w", lambda row: row["w"] == "a")))
    return st.one_of(strategies)


def append_operations(columns: Sequence[str], max_rows_per_file: int) -> st.SearchStrategy[ModelOperation]:
    def make_operation(rows: list[Row]) -> ModelOperation:
        def apply_to_model(before: ModelTable) -> ModelTable:
            before.require_columns(*columns)
            new = tuple({name: row.get(name) for name in before.columns} for row in rows)
            return replace(before, rows=(*before.rows, *new))

        data = to_arrow(columns, rows)
        return ModelOperation(
            f"append {rows}", lambda table: table.append(data, max_rows_per_file=max_rows_per_file), apply_to_model
        )

    return row_lists(columns).map(make_operation)


def overwrite_operations() -> st.SearchStrategy[ModelOperation]:
    def make_operation(columns: Sequence[str], rows: list[Row]) -> ModelOperation:
        data = to_arrow(columns, [{name: row[name] for name in columns} for row in rows])
        after = tuple({name: row[name] for name in columns} for row in rows)
        return ModelOperation(
            f"overwrite {columns} {rows}",
            lambda table: table.overwrite(data),
            lambda before: replace(before, columns=tuple(columns), rows=after),
        )

    columns = st.sampled_from([("id", "v", "w"), ("id", "w"), ("w", "id", "v", "x")])
    return st.builds(make_operation, columns, row_lists(tuple(TYPES)))


def delete_operations(columns: Sequence[str]) -> st.SearchStrategy[ModelOperation]:
    def make_operation(condition: Condition) -> ModelOperation:
        def apply_to_model(before: ModelTable) -> ModelTable:
            before.require_columns(condition.column)
            return replace(before, rows=tuple(row for row in before.rows if not condition.matches(row)))

        return ModelOperation(
            f"delete where {condition.sql}", lambda table: table.delete(condition.sql), apply_to_model
        )

    return conditions(columns).map(make_operation)


def update_operations(columns: Sequence[str]) -> st.SearchStrategy[ModelOperation]:
    def make_operation(condition: Condition, column: str, increment: int) -> ModelOperation:
        sql = f"'u{increment}'" if column == "w" else f"{column} + {increment}"

        def new_value(row: Row) -> Value:
            before = row[column]
            if column == "w":
                return f"u{increment}"
            return None if before is None else _require_int(before) + increment

        def apply_to_model(before: ModelTable) -> ModelTable:
            before.require_columns(condition.column, column)
            rows = tuple({**row, column: new_value(row)} if condition.matches(row) else row for row in before.rows)
            return replace(before, rows=rows)

        description = f"update {column} = {sql} where {condition.sql}"
        return ModelOperation(description, lambda table: table.update({column: sql}, condition.sql), apply_to_model)

    changeable = [name for name in columns if name != "id"]
    return st.builds(make_operation, conditions(columns), st.sampled_from(changeable), st.integers(1, 9))


def upsert_operations(columns: Sequence[str], matched: Sequence[str]) -> st.SearchStrategy[ModelOperation]:
    def make_operation(rows: list[Row], matched: str, insert: bool, delete_unmatched: bool) -> ModelOperation:
        source = {row["id"]: row for row in rows}

        def apply_to_model(before: ModelTable) -> ModelTable:
            before.require_columns(*columns)
            after: list[Row] = []
            for row in before.rows:
                if row["id"] not in source:
                    after += [] if delete_unmatched else [row]
                elif matched != "delete":
                    after.append({**row, **source[row["id"]]} if matched == "update" else row)
            existing = {row["id"] for row in before.rows}
            new = [row for row in rows if row["id"] not in existing] if insert else []
            after += [{name: row.get(name) for name in before.columns} for row in new]
            return replace(before, rows=tuple(after))

        data = to_arrow(columns, rows)
        return ModelOperation(
            f"upsert {rows}, {matched=}, {insert=}, {delete_unmatched=}",
            lambda table: table.upsert(data, "id", matched=matched, insert=insert, delete_unmatched=delete_unmatched),
            apply_to_model,
        )

    source_rows = row_lists(columns, unique_ids=True)
    return st.builds(make_operation, source_rows, st.sampled_from(matched), st.booleans(), st.booleans())


def add_column_operations(columns: Sequence[str]) -> st.SearchStrategy[ModelOperation]:
    def make_operation(name: str, factor: int | None) -> ModelOperation:
        def apply_to_model(before: ModelTable) -> ModelTable:
            if name in before.columns:
                raise OperationRejected(name)
            rows = tuple(
                {**row, name: None if factor is None else _require_int(row["id"]) * factor} for row in before.rows
            )
            return replace(before, columns=(*before.columns, name), rows=rows)

        description = f"add {name}" + ("" if factor is None else f" = id * {factor}")
        if factor is None:
            return ModelOperation(
                description, lambda table: table.add_columns(pa.field(name, TYPES[name])), apply_to_model
            )
        return ModelOperation(description, lambda table: table.add_columns({name: f"id * {factor}"}), apply_to_model)

    missing = [name for name in ("v", "x") if name not in columns]
    return (
        st.builds(make_operation, st.sampled_from(missing), st.none() | st.integers(2, 4)) if missing else st.nothing()
    )


def drop_column_operations(columns: Sequence[str]) -> st.SearchStrategy[ModelOperation]:
    def make_operation(name: str) -> ModelOperation:
        def apply_to_model(before: ModelTable) -> ModelTable:
            before.require_columns(name)
            columns = tuple(column for column in before.columns if column != name)
            rows = tuple({column: row[column] for column in columns} for row in before.rows)
            return replace(before, columns=columns, rows=rows)

        return ModelOperation(f"drop {name}", lambda table: table.drop_columns([name]), apply_to_model)

    droppable = [name for name in columns if name in ("v", "x")]
    return st.sampled_from(droppable).map(make_operation) if droppable else st.nothing()


def config_operations() -> st.SearchStrategy[ModelOperation]:
    def make_operation(name: str, text: str | None) -> ModelOperation:
        def apply_to_model(before: ModelTable) -> ModelTable:
            config = {key: value for key, value in before.config.items() if key != name}
            return replace(before, config=config if text is None else {**config, name: text})

        return ModelOperation(f"config {name}={text}", lambda table: table.set_config({name: text}), apply_to_model)

    return st.builds(make_operation, st.sampled_from("abc"), st.none() | st.sampled_from("12"))


def compact_operations() -> st.SearchStrategy[ModelOperation]:
    def make_operation(target: int) -> ModelOperation:
        return ModelOperation(
            f"compact to {target}", lambda table: table.compact(target_rows=target), lambda before: before
        )

    return st.sampled_from([4, 8, 1000]).map(make_operation)


def operations_on(
    columns: Sequence[str], *, matched_modes: Sequence[str] = ("update", "delete", "ignore")
) -> st.SearchStrategy[ModelOperation]:
    """Return a strategy for all operations on rows with these columns."""
    columns_without_x = [name for name in columns if name != "x"]
    return st.one_of(
        append_operations(columns, 3),
        append_operations(columns_without_x, 100),
        overwrite_operations(),
        delete_operations(columns),
        update_operations(columns),
        upsert_operations(columns, matched_modes),
        upsert_operations(columns_without_x, matched_modes),
        add_column_operations(columns),
        drop_column_operations(columns),
        config_operations(),
        compact_operations(),
    )


def _require_int(value: Value) -> int:
    assert isinstance(value, int)
    return value
