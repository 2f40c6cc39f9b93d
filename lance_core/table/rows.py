"""Row writes: append, overwrite, delete, update and upsert.

Each method says how its change is planned; `dml/` and `datafiles/` plan it and write its files.
"""

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lance_core import validation
from lance_core.commit.loop import ATTEMPTS
from lance_core.datafiles.blob_writing import stored_schema
from lance_core.datafiles.column_layout import check_storable
from lance_core.datafiles.conform import Conversion
from lance_core.datafiles.fragment_writer import (
    BYTES_PER_FILE_MAX,
    ROWS_PER_FILE_MAX,
    BufferedRows,
    FileLimits,
    buffer_rows,
    write_fragments,
)
from lance_core.datafiles.inputs import DeclaredSchema, InputRows, Rows, as_declared_input, as_input
from lance_core.dml import delete, replace_where, update, upsert
from lance_core.errors import InvalidInput
from lance_core.expressions.arrow_filters import Condition
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.operations import Append, Overwrite, Update
from lance_core.format.schema import TableSchema
from lance_core.runtime import Runtime
from lance_core.table.base import Audit, Committed, TableBase, WriteOptions
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

REPLACE_WHERE_VERB = "overwrite of a slice"
"""Verb of `overwrite(where=)` in intent records, which distinguish it from an overwrite of all rows."""
_BUFFERED_BYTES_MAX = 1024**2
"""Appends of at most this size stay in memory, and group commit writes those of several threads into one file. Larger
appends are written first, in parallel with those of other threads."""


class RowWrites(TableBase):
    """Part of `Table` that changes rows."""

    def append(
        self,
        data: Rows,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    ) -> Committed:
        """Add rows. Columns are matched by name, and nullable columns may be missing. Empty data commits no version.

        A value of another type is converted if the stored type holds it exactly, such as an int32 in an int64 column;
        otherwise `SchemaMismatch` is raised. `overwrite(where=...)` and `upsert` convert by the same rule, and so does
        Spark.

        >>> committed = table.append({"id": [4], "city": ["Rome"]}, intent="orders of 2026-01-02")
        >>> committed.version, committed.rows_added
        (2, 1)
        >>> table.append({"id": [4], "city": ["Rome"]}, intent="orders of 2026-01-02").already_committed
        True
        """
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)

        def plan(base: Snapshot) -> Append | BufferedRows | None:
            schema, version, rows = base.manifest.schema, base.manifest.storage_version, as_input(data, self._columns)
            if rows.bytes is not None and rows.bytes <= _BUFFERED_BYTES_MAX:
                return buffer_rows(
                    rows.batches,
                    schema=schema,
                    version=version,
                    limits=limits,
                    conversion=Conversion.CAST,
                    what=base.location.uri,
                )
            fragments = _write_fragments(
                base.location, rows.batches, schema, version, limits, self.runtime, Conversion.CAST
            )
            return Append(fragments) if fragments else None

        return self._write("append", plan, WriteOptions(intent, properties, retries, audit), can_replan=False)

    def overwrite(
        self,
        data: Rows | DeclaredSchema,
        *,
        schema: DeclaredSchema | None = None,
        where: Condition | None = None,
        config: Mapping[str, str] | None = None,
        stable_row_ids: bool | None = None,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    ) -> Committed:
        """Replace all rows and the schema, which `schema` declares as in `create`. Config, table metadata and older
        versions stay; indices are removed. The table keeps its kind of row ids; `stable_row_ids` is the expected kind,
        and another one raises `InvalidInput`. Without any row, as in an empty list, the schema stays.

        With `where`, a condition in Lance SQL, replace only the rows that match it. All new rows must match it too.
        Schema and indices stay. After the commit the matching rows are exactly `data`, also if other writers add
        matching rows at the same time.

        >>> day = {"id": [5], "city": ["Oslo"], "price": [12.5]}
        >>> table.overwrite(day, where="city = 'Oslo'").table.to_table(["id"])["id"].to_pylist()
        [2, 3, 5]
        """
        validation.check_stable_row_ids_unchanged(
            stable_row_ids, self._snapshot.manifest.has_stable_row_ids, table=self._location.address
        )
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        entries = validation.check_config(config)
        if where is not None:
            if schema is not None:
                raise InvalidInput("schema= belongs to an overwrite of all rows; with where= the schema stays")
            if entries:
                raise InvalidInput("config= belongs to an overwrite of all rows; with where=, call set_config()")
            condition = validation.check_text(self._sql(where, "where"), "where")
            rows = as_input(data, self._columns).with_columns_of(self._columns)
            plan = replace_where.plan_locally(rows, condition, limits=limits, runtime=self.runtime)
            return self._write(REPLACE_WHERE_VERB, plan, WriteOptions(intent, properties, retries, audit))

        def replace_all(base: Snapshot) -> Overwrite:
            rows, conversion = as_declared_input(data, schema)
            rows, version = rows.with_columns_of(self._columns), base.manifest.storage_version
            return overwrite_operation(base.location, rows, conversion, version, limits, entries, self.runtime)

        return self._write(
            "overwrite",
            replace_all,
            WriteOptions(intent, properties, retries, audit),
            can_replan=False,
        )

    def delete(
        self,
        predicate: Condition,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
    ) -> Committed:
        """Delete the rows that match `predicate`, a condition in Lance SQL or as an expression of pyarrow. No data file
        is rewritten.

        >>> table.delete("price >= 20").rows_removed
        2
        """
        condition = self._sql(predicate, "predicate")
        return self._write(
            "delete",
            lambda base: delete.delete(base, condition, runtime=self.runtime),
            WriteOptions(intent, properties, retries, audit),
        )

    def update(
        self,
        values: Mapping[str, str],
        where: Condition | None = None,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    ) -> Committed:
        """Set columns to SQL expressions in the rows that match `where`, or in all rows.

        >>> table.update({"price": "price * 2"}, where="price < 15").table.to_table(["price"])["price"].to_pylist()
        [20.0, 20.0, 30.0]
        """
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        condition = None if where is None else self._sql(where, "where")
        return self._write(
            "update",
            lambda base: update.update_with_sources(base, values, condition, limits=limits, runtime=self.runtime),
            WriteOptions(intent, properties, retries, audit),
        )

    def upsert(
        self,
        data: Rows,
        on: str | Sequence[str],
        *,
        matched: str = "update",
        matched_if: str | None = None,
        insert: bool = True,
        delete_unmatched: bool | Condition | None = False,
        delete_if: str | None = None,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
    ) -> Committed:
        """Merge rows into the table by the key columns `on`.

        `matched` says what happens to a row of the table with the same key: "update", "delete", "fail" or "ignore";
        `matched_if`, a condition over `source.x` and `target.x`, restricts it. Rows without a match are inserted if
        `insert` is true. `delete_unmatched` deletes the rows of the table that no source row matches: all of them, or
        those that match a condition. A row of `data` that meets `delete_if`, a condition over its columns, deletes its
        match instead of updating it, and is not inserted. `data` is held in memory.

        >>> changed = table.upsert({"id": [3, 4], "price": [33.0, 40.0]}, on="id").table
        >>> changed.scan({"id": "id", "price": "price"}, order_by="id").to_table()["price"].to_pylist()
        [10.0, 20.0, 33.0, 40.0]
        """
        if isinstance(delete_unmatched, pc.Expression):
            delete_unmatched = self._sql(delete_unmatched, "delete_unmatched")
        rules = upsert.UpsertRules.of(
            on,
            matched=matched,
            matched_if=matched_if,
            insert=insert,
            delete_unmatched=delete_unmatched,
            delete_if=delete_if,
        )
        limits = FileLimits(max_rows_per_file, max_bytes_per_file)
        source = as_input(data, self._columns).with_columns_of(self._columns).materialized()
        cache = upsert.JoinCache()
        return self._write(
            "upsert",
            lambda base: upsert.upsert_with_sources(
                base, source, rules, limits=limits, runtime=self.runtime, cache=cache
            ),
            WriteOptions(intent, properties, retries, audit),
            operation=Update.name,
        )


def overwrite_operation(
    location: Location,
    rows: InputRows,
    conversion: Conversion,
    version: StorageVersion,
    limits: FileLimits,
    config: Mapping[str, str],
    runtime: Runtime,
) -> Overwrite:
    """Write `rows` and return the operation that makes them the whole table."""
    if rows.schema is None:
        raise InvalidInput(
            "the columns of the table are unknown, since data has no batches; pass a pyarrow schema instead"
        )
    schema = TableSchema.from_arrow(stored_schema(rows.schema, version))
    check_storable(schema, version)
    fragments = _write_fragments(location, rows.batches, schema, version, limits, runtime, conversion)
    return Overwrite(fragments, schema, config)


def _write_fragments(
    location: Location,
    batches: Iterable[pa.RecordBatch],
    schema: TableSchema,
    version: StorageVersion,
    limits: FileLimits,
    runtime: Runtime,
    conversion: Conversion,
) -> tuple[Fragment, ...]:
    return write_fragments(
        location.codec,
        batches,
        schema=schema,
        version=version,
        limits=limits,
        conversion=conversion,
        new_uuid=runtime.new_uuid,
        what=location.uri,
    )
