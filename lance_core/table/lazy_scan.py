"""Lazy scan: describes which rows and columns of a version to read, and in which order; reads when rows are requested.

    scan = table.scan({"city": "city", "gross": "net * 1.2"}, filter="year = 2026", order_by="gross desc", limit=10)
    print(scan)             the plan
    scan.to_pandas()        the rows

A scan is an Arrow stream. Without an order it reads batch by batch; with one it holds the rows that may be in the
result. Start with `Scan.to_batches`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pyarrow as pa
import pyarrow.compute as pc

from lance_core import validation
from lance_core.datafiles.codec import BATCH_ROWS
from lance_core.errors import InvalidInput, NotFound
from lance_core.expressions.arrow_evaluation import ComputedColumns, filter_batch
from lance_core.expressions.arrow_expressions import FieldNode, read_tree
from lance_core.expressions.arrow_filters import Condition, SplitFilter, split_filter
from lance_core.format.field_paths import find_field, needs_quotes, unknown_column_message
from lance_core.format.ids import Version
from lance_core.format.schema import TableSchema
from lance_core.index import lookup
from lance_core.index.explain import explain_indices
from lance_core.scan.column_resolution import filterable_schema
from lance_core.scan.executor import count_matches, scan, slice_batches, split_batches
from lance_core.scan.explain import explain_plan
from lance_core.scan.plan import ScanPlan, plan_scan
from lance_core.scan.selection import RowSelector
from lance_core.storage.optional_packages import import_package
from lance_core.versions.location import AccessOptions, locate
from lance_core.versions.snapshot import Snapshot, load_at

if TYPE_CHECKING:
    import pandas
    import polars

Columns = Sequence[str | pc.Expression] | Mapping[str, str | pc.Expression]
"""Names of columns, or names of the result with their values, each as SQL or as an expression of pyarrow."""
ITERATION_HINT = "use to_batches(), to_pandas() or to_polars(), or to_table().to_pylist() for rows as dicts"
_ALL_ROWS = SplitFilter(None)
HEAD_ROWS = 5
"""Number of rows that `head` returns by default."""
SORTED_ROWS_MAX = 1_048_576
"""Rows that are collected before those that cannot be in the result are dropped."""
_EXPRESSION = re.compile(r"[-+*/%()<>=|]|\S\s+\S")
"""Part of a text that is an expression in SQL rather than a name."""
_INTERNAL_NAMES = ("check", "create", "snapshot")
_DIRECTIONS = {"asc": "ascending", "desc": "descending"}


@dataclass(frozen=True, slots=True)
class SnapshotAddress:
    """Location and version of a snapshot, which a pickle contains in its place."""

    uri: str
    access: AccessOptions
    version: Version
    timestamp: datetime

    @classmethod
    def of(cls, snapshot: Snapshot) -> "SnapshotAddress":
        location, manifest = snapshot.location, snapshot.manifest
        return cls(location.uri, location.access, manifest.version, manifest.timestamp)

    def load(self) -> Snapshot:
        """Read the manifest. Raise `NotFound` if the version is another one now."""
        access = self.access
        location = locate(
            self.uri,
            storage_options=access.storage_options,
            durable=access.durable,
            bases=access.bases,
            manifest_store=access.manifest_store,
            verify=access.verify,
            trusted=access.trusted,
        )
        snapshot = load_at(location, self.version)
        if snapshot.manifest.timestamp != self.timestamp:
            raise NotFound(
                f"{location.uri}: version {self.version} is not the one that was pickled: the table was created again; "
                "open it by its URI"
            )
        return snapshot


@dataclass(frozen=True, slots=True)
class Scan:
    """Lazy scan of one version. `Table.scan` creates it."""

    snapshot: Snapshot
    columns: Sequence[str] | Mapping[str, str | pc.Expression] | None = None
    filter: SplitFilter = _ALL_ROWS
    order_by: tuple[str, ...] = ()
    limit: int | None = None
    offset: int | None = None
    with_row_id: bool = False
    with_row_address: bool = False
    fragments: tuple[int, ...] | None = None
    use_indices: bool = True

    @classmethod
    def create(
        cls,
        snapshot: Snapshot,
        columns: Columns | None,
        filter: Condition | None,
        *,
        order_by: str | Sequence[str] = (),
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        fragments: Sequence[int] | None = None,
        use_indices: bool = True,
    ) -> "Scan":
        """Return a scan. Raise `InvalidInput` if an argument is invalid."""
        _check_names(columns, order_by)
        if isinstance(columns, Mapping):
            system_columns = {"_rowid": with_row_id, "_rowaddr": with_row_address}
            columns = {**columns, **{name: name for name, is_wanted in system_columns.items() if is_wanted}}
            with_row_id = with_row_address = False
        keys = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        check_plain_names(columns, keys, snapshot.manifest.schema)
        return cls(
            snapshot,
            columns if isinstance(columns, Mapping) else _names(columns),
            split_filter(filter, filterable_schema(snapshot.manifest)),
            keys,
            limit,
            offset,
            with_row_id,
            with_row_address,
            None if fragments is None else validation.check_fragment_ids(fragments, "fragments"),
            use_indices,
        ).check()

    def __repr__(self) -> str:
        return self.explain()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the location and the version. The copy reads the manifest again."""
        others = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "snapshot"}
        return _reopen, (SnapshotAddress.of(self.snapshot), others)

    def __dir__(self) -> list[str]:
        """Return the names that completion offers: those for users of a scan."""
        return sorted(name for name in object.__dir__(self) if name not in _INTERNAL_NAMES)

    def __iter__(self) -> NoReturn:
        raise InvalidInput(f"a scan cannot be iterated; {ITERATION_HINT}")

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as an Arrow stream."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __dask_tokenize__(self) -> object:
        """Return what identifies the scan in a task graph of Dask."""
        return self.__reduce__()

    @property
    def schema(self) -> pa.Schema:
        """Columns of the result."""
        plan = self._plan()
        computed = self._computed_schema(plan, self._projection())
        return pa.schema([computed.field(name) for name in self._result_names(plan)], computed.metadata)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a reader, which reads each batch when it is requested."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_batches(self, *, batch_size: int | None = None) -> Iterator[pa.RecordBatch]:
        """Return an iterator over the rows in batches of at most `batch_size` rows."""
        rows_max = None if batch_size is None else validation.check_batch_size(batch_size)
        plan, projection = self._plan(), self._projection()
        rows: Iterator[pa.RecordBatch] = scan(self.snapshot.location, plan)
        schema = self._computed_schema(plan, projection)
        if (residual := self.filter.residual) is not None:
            rows = (match for batch in rows for match in filter_batch(batch, residual))
        if projection is not None:
            rows = (self._compute(batch, projection, schema) for batch in rows)
        if self.order_by:
            rows = self._sorted(rows, schema)
        elif not self._plan_has_window:
            rows = slice_batches(rows, self.offset or 0, self.limit)
        names = self._result_names(plan)
        rows = (_select(batch, names) for batch in rows)
        return rows if rows_max is None else split_batches(rows, rows_max)

    def to_table(self) -> pa.Table:
        """Return the rows."""
        return pa.Table.from_batches(self.to_batches(), self.schema)

    def to_pandas(self, **options: Any) -> "pandas.DataFrame":
        """Return the rows as a pandas data frame. `options` are those of `pyarrow.Table.to_pandas`."""
        import_package("pandas", extra=None, needed_for="to_pandas()")
        frame: pandas.DataFrame = self.to_table().to_pandas(**options)
        return frame

    def to_polars(self) -> "polars.DataFrame":
        """Return the rows as a polars data frame."""
        package = import_package("polars", extra=None, needed_for="to_polars()")
        frame: polars.DataFrame = package.from_arrow(self.to_table())
        return frame

    def head(self, rows: int = HEAD_ROWS) -> pa.Table:
        """Return the first rows."""
        count = validation.check_integer(rows, "rows", at_least=0, too_small="it counts rows")
        return replace(self, limit=count if self.limit is None else min(count, self.limit)).to_table()

    def count_rows(self) -> int:
        """Return the number of rows."""
        if self.filter.residual is not None:
            return sum(batch.num_rows for batch in replace(self, columns=(), order_by=()).to_batches())
        plan = plan_scan(self.snapshot.manifest, columns=(), filter=self.filter.sql, select=self._selector())
        plan = self._restricted(plan)
        if plan.predicate is None:
            matching = sum(task.fragment.live_rows for task in plan.tasks)
        else:
            matching = count_matches(self.snapshot.location, plan)
        remaining = max(matching - (self.offset or 0), 0)
        return remaining if self.limit is None else min(remaining, self.limit)

    def explain(self) -> str:
        """Return the plan as text. Nothing is read."""
        indices = explain_indices(self.snapshot, self._plan(select=False).predicate, use_indices=self.use_indices)
        lines = [explain_plan(self.snapshot.location, self._plan(select=False), indices)]
        if self.filter.residual is not None:
            lines.append(f"  then      pyarrow filters by {self.filter.residual}")
        if self.order_by:
            lines.append(f"  order     {', '.join(self.order_by)}")
            if self.limit is not None or self.offset:
                lines.append(f"  window    {'all' if self.limit is None else self.limit} rows after {self.offset or 0}")
        if isinstance(self.columns, Mapping):
            lines += (f"  computes  {name} = {value}" for name, value in self.columns.items())
        return "\n".join(lines)

    def check(self) -> "Scan":
        """Return this scan; raise `InvalidInput` if an argument is invalid."""
        if not all(isinstance(key, str) for key in self.order_by):
            raise InvalidInput(f"order_by={self.order_by!r} must be names of columns, such as 'price desc'")
        plan, projection = self._plan(select=False), self._projection()
        plan_scan(self.snapshot.manifest, columns=(), limit=self.limit, offset=self.offset)
        if self.order_by:
            self._check_order(self._computed_schema(plan, projection))
        return self

    def _check_order(self, schema: pa.Schema) -> None:
        for name, _direction in self._order():
            try:
                pc.sort_indices(pa.schema([schema.field(name)]).empty_table(), sort_keys=[(name, "ascending")])
            except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise InvalidInput(
                    f"order_by={list(self.order_by)}: column {name!r} of type {schema.field(name).type} has no order"
                ) from error

    @property
    def _plan_has_window(self) -> bool:
        """`True` if the plan applies limit and offset, since no later step orders or drops rows."""
        return not self.order_by and self.fragments is None and self.filter.residual is None

    def _plan(self, *, select: bool = True) -> ScanPlan:
        has_window = self._plan_has_window
        plan = plan_scan(
            self.snapshot.manifest,
            columns=self._read_names(),
            filter=self.filter.sql,
            limit=self.limit if has_window else None,
            offset=self.offset if has_window else None,
            with_row_id=self.with_row_id,
            with_row_address=self.with_row_address,
            select=self._selector() if select else None,
        )
        return self._restricted(plan)

    def _restricted(self, plan: ScanPlan) -> ScanPlan:
        """Return the plan for the requested fragments only."""
        if self.fragments is None:
            return plan
        existing = {fragment.id for fragment in self.snapshot.manifest.fragments}
        if missing := [number for number in self.fragments if number not in existing]:
            raise InvalidInput(
                f"{self.snapshot.location.uri}: version {self.snapshot.version} has no fragment {missing[0]}; "
                "Table.fragments lists those that exist"
            )
        return replace(plan, tasks=tuple(task for task in plan.tasks if task.fragment.id in self.fragments))

    def _selector(self) -> RowSelector | None:
        return lookup.selector_of(self.snapshot) if self.use_indices else None

    def _projection(self) -> ComputedColumns | None:
        if not isinstance(self.columns, Mapping):
            return None
        return ComputedColumns.parse(self.columns, filterable_schema(self.snapshot.manifest))

    def _read_names(self) -> Sequence[str] | None:
        """Return the columns to read; `None` means all."""
        projection, extra = self._projection(), [*(name for name, _ in self._order()), *self.filter.columns]
        if projection is not None:
            unknown = [name for name in extra if name not in projection.schema.names or name in self.filter.columns]
            return list(dict.fromkeys((*projection.columns, *unknown)))
        names = cast("Sequence[str] | None", self.columns)
        if not extra or isinstance(names, str):
            return names
        every = self.snapshot.manifest.schema.arrow.names if names is None else names
        return list(dict.fromkeys((*every, *extra)))

    def _computed_schema(self, plan: ScanPlan, projection: ComputedColumns | None) -> pa.Schema:
        """Return the columns of the result, and behind them those that are read for the order only."""
        if projection is None:
            return plan.schema
        result = projection.schema
        extra = [plan.schema.field(name) for name, _ in self._order() if name not in result.names]
        return pa.schema([*result, *extra])

    def _compute(self, batch: pa.RecordBatch, projection: ComputedColumns, schema: pa.Schema) -> pa.RecordBatch:
        computed = projection.evaluate(batch)
        extra = [batch.column(name) for name in schema.names[computed.num_columns :]]
        return pa.RecordBatch.from_arrays([*computed.columns, *extra], schema=schema) if extra else computed

    def _result_names(self, plan: ScanPlan) -> Sequence[str]:
        """Return the names of the result's columns, without those that are read for the order only."""
        if isinstance(self.columns, Mapping):
            return list(self.columns)
        requested = set(self.snapshot.manifest.schema.arrow.names if self.columns is None else self.columns)
        requested |= {"_rowid"} if self.with_row_id else set()
        requested |= {"_rowaddr"} if self.with_row_address else set()
        return [name for name in plan.columns if name in requested]

    def _order(self) -> list[tuple[str, str]]:
        """Return the columns to sort by, each with its direction."""
        keys = []
        for text in self.order_by:
            name, _, direction = text.rpartition(" ")
            if name and direction.lower() in _DIRECTIONS:
                keys.append((name.strip(), _DIRECTIONS[direction.lower()]))
            else:
                keys.append((text, "ascending"))
        return keys

    def _sorted(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, with nulls last. With a limit, only rows that may be in the result are held."""
        skip = self.offset or 0
        needed = None if self.limit is None else skip + self.limit
        rows, collected = schema.empty_table(), list[pa.RecordBatch]()
        collected_rows = 0
        for batch in batches:
            collected.append(batch)
            collected_rows += batch.num_rows
            if needed is not None and collected_rows >= SORTED_ROWS_MAX:
                rows = self._sort(pa.concat_tables([rows, pa.Table.from_batches(collected)])).slice(0, needed)
                collected, collected_rows = [], 0
        rows = self._sort(pa.concat_tables([rows, pa.Table.from_batches(collected, schema)]))
        yield from rows.slice(skip, self.limit).to_batches(max_chunksize=BATCH_ROWS)

    def _sort(self, rows: pa.Table) -> pa.Table:
        return rows.take(pc.sort_indices(rows, sort_keys=self._order()))


def _reopen(address: SnapshotAddress, others: Mapping[str, Any]) -> Scan:
    """Return the scan that a pickle describes."""
    return Scan(address.load(), **others)


def _check_names(columns: object, order_by: object) -> None:
    """Raise `InvalidInput` if an argument is a single value, not a list, or a key of `columns` is not a string."""
    if isinstance(columns, Mapping) and not all(isinstance(name, str) for name in columns):
        raise InvalidInput(f"the names of columns= must be strings, not {list(columns)!r:.200}")
    for value, name, example in (
        (columns, "columns", "['id', 'city']"),
        (order_by, "order_by", "['price desc', 'id']"),
    ):
        if value is not None and not isinstance(value, Iterable):
            raise InvalidInput(f"{name}={value!r} must be a list, such as {example}")


def check_plain_names(columns: object, order_by: Sequence[object], schema: TableSchema) -> None:
    """Raise `InvalidInput` for SQL where only a name can stand, with the way to compute the value."""
    listed = [] if columns is None or isinstance(columns, str | Mapping) else list(cast("Iterable[object]", columns))
    computed = tuple(columns) if isinstance(columns, Mapping) else ()
    for name in listed:
        if isinstance(name, str) and name not in computed and _is_expression(name, schema):
            raise InvalidInput(
                f"{unknown_column_message(name, schema.arrow.names).rstrip('?')}. To compute a value, pass a dict: "
                f"columns={{'value': {name!r}}}"
            )
    for key in order_by:
        name = re.sub(r"(?i)\s+(asc|desc)\s*$", "", key) if isinstance(key, str) else ""
        if isinstance(key, str) and name not in computed and _is_expression(name, schema):
            raise InvalidInput(
                f"order_by= takes names of columns, not the expression {name!r}; compute it as a column, and order by "
                f"that: columns={{..., 'value': {name!r}}}, order_by={key.replace(name, 'value')!r}"
            )


def _is_expression(text: str, schema: TableSchema) -> bool:
    """Return whether a text looks like SQL and is no path of a field, whose names may have any sign."""
    if "`" in text or _EXPRESSION.search(text) is None:
        return False
    with suppress(InvalidInput):
        find_field(schema, text)
        return False
    return True


def _select(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    return batch if batch.schema.names == names else batch.select(names)


def _names(columns: Sequence[str | pc.Expression] | None) -> Sequence[str] | None:
    """Return the names of columns that are given as names or as fields."""
    if columns is None or isinstance(columns, str) or not any(isinstance(each, pc.Expression) for each in columns):
        return cast("Sequence[str] | None", columns)
    return [_name_of_field(each) if isinstance(each, pc.Expression) else each for each in columns]


def _name_of_field(column: pc.Expression) -> str:
    field = read_tree(column)
    if not isinstance(field, FieldNode):
        raise InvalidInput(f"columns= has the expression {column}, which has no name; pass a dict of names and values")
    return ".".join("`" + name.replace("`", "``") + "`" if needs_quotes(name) else name for name in field.path)
