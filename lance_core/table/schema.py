"""Schema and settings: columns added, merged, dropped, reordered and altered; config and metadata.

Each method says how its change is planned; `dml/` plans it and writes its files.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from lance_core import validation
from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import Planned
from lance_core.datafiles.inputs import Rows, as_input
from lance_core.dml import new_columns, replaced_columns, schema_evolution, settings
from lance_core.dml.column_sources import with_column_sources
from lance_core.expressions.arrow_filters import Condition
from lance_core.format.operations import Update
from lance_core.progress import ProgressArgument, reporting
from lance_core.table.base import Audit, Committed, TableBase, WriteOptions
from lance_core.versions.snapshot import Snapshot


class SchemaWrites(TableBase):
    """Part of `Table` that changes columns, config and metadata."""

    def add_columns(
        self,
        columns: new_columns.NewColumns,
        *,
        schema: pa.Schema | None = None,
        read_columns: Sequence[str] | None = None,
        replace: bool = False,
        where: Condition | None = None,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        progress: ProgressArgument = False,
    ) -> Committed:
        """Add columns: `{name: SQL}`; or Arrow fields, which are null in every row and need no file; or a function from
        a batch of `read_columns` to a batch of new columns, whose types are those of `schema` or of its first result.

        With `replace=True`, columns that exist get new values and keep their types. Rows stay where they are: each
        fragment in which a value changes gets a file with these columns, and indices on them lose these fragments. With
        `where`, only the matching rows get values; the others keep theirs, or have null in a new column. If no value
        changes, no version is committed.

        >>> wider = table.add_columns({"rounded": "cast(round(price) as int)"}).table
        >>> wider.to_table(["rounded"])["rounded"].to_pylist()
        [10, 20, 30]
        >>> doubled = wider.add_columns({"rounded": "2 * rounded"}, replace=True, where="rounded > 10").table
        >>> doubled.to_table(["rounded"])["rounded"].to_pylist()
        [10, 40, 60]
        """
        validation.check_flag(replace, "replace")
        options = WriteOptions(intent, properties, retries, audit)
        if replace or where is not None:
            replacement = replaced_columns.replaced_columns(
                columns,
                schema=schema,
                read_columns=read_columns,
                replace=replace,
                where=None if where is None else self._sql(where, "where"),
                runtime=self.runtime,
            )
            with reporting(progress, "add_columns"):
                return self._write("add_columns", replacement.plan, options, operation=Update.name)
        with reporting(progress, "add_columns"):
            return self._write(
                "add_columns",
                lambda base: replaced_columns.added_columns(
                    base, columns, schema=schema, read_columns=read_columns, runtime=self.runtime
                ),
                options,
            )

    def merge_columns(
        self,
        data: Rows,
        on: str | Sequence[str],
        *,
        replace: bool = False,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        progress: ProgressArgument = False,
    ) -> Committed:
        """Add the columns of `data` to the rows with the same values in the key columns `on`. Rows without a match get
        null, and a null key matches nothing. `data` and the keys of the table are held in memory.

        With `replace=True`, columns of `data` that exist in the table get new values in the rows with a match; all
        other rows keep theirs. `on` can then also be `"_rowaddr"` or `"_rowid"`, of the rows of this version.

        >>> merged = table.merge_columns({"id": [1, 3], "stars": [5, 4]}, on="id").table
        >>> merged.to_table(["stars"])["stars"].to_pylist()
        [5, None, 4]
        """
        validation.check_flag(replace, "replace")
        source = as_input(data, self._columns).without_views().materialized()
        options = WriteOptions(intent, properties, retries, audit)
        with reporting(progress, "merge_columns"):
            if replace:
                replacement = replaced_columns.joined_columns(source, on, replace=True, runtime=self.runtime)
                return self._write("merge_columns", replacement.plan, options, operation=Update.name)
            return self._write(
                "merge_columns",
                lambda base: replaced_columns.joined_new_columns(base, source, on, runtime=self.runtime),
                options,
            )

    def drop_columns(
        self,
        columns: Sequence[str],
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
    ) -> Committed:
        """Drop columns or nested fields (`address.city`), with the indices on them. No file is written, unless no
        column with a file would remain.

        >>> table.drop_columns(["vec"]).table.schema.names
        ['id', 'city', 'price']
        """
        return self._write(
            "drop_columns",
            lambda base: schema_evolution.drop_columns(base, columns, runtime=self.runtime),
            WriteOptions(intent, properties, retries, audit),
        )

    def reorder_columns(
        self,
        columns: Sequence[str],
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Reorder the columns; `columns` lists all of them. No file is written.

        >>> table.reorder_columns(["city", "id", "price", "vec"]).table.schema.names
        ['city', 'id', 'price', 'vec']
        """
        return self._write(
            "reorder_columns",
            lambda base: schema_evolution.reorder_columns(base, columns),
            WriteOptions(intent, properties, retries),
        )

    def alter_column(
        self,
        name: str,
        rename: str | None = None,
        type: pa.DataType | None = None,
        nullable: bool | None = None,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
    ) -> Committed:
        """Change the name, type or nullability of a column or nested field (`address.city`). Only a new type writes
        files; it is refused while the column has an index. The position of the column stays.

        >>> table.alter_column("price", rename="net", type=pa.float32()).table.schema.field("net").type
        DataType(float)
        """
        options = WriteOptions(intent, properties, retries, audit)

        def plan(base: Snapshot) -> Planned | None:
            operation = schema_evolution.alter_column(
                base, name, rename=rename, type=type, nullable=nullable, runtime=self.runtime
            )
            is_column = name in base.manifest.schema.arrow.names
            return with_column_sources(base, operation, {rename: [name]} if rename and is_column else {})

        return self._write("alter_column", plan, options)

    def set_config(
        self,
        values: settings.SettingChanges,
        *,
        replace: bool = False,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Set entries of the config; `None` deletes one. `replace` deletes all others, except those of this library.

        >>> table.set_config({"team": "sales"}).table.config["team"]
        'sales'
        """
        return self._write(
            "set_config",
            lambda base: settings.set_config(base, values, replace=replace),
            WriteOptions(intent, properties, retries),
        )

    def set_metadata(
        self,
        values: settings.SettingChanges,
        *,
        replace: bool = False,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Set entries of the table metadata; `None` deletes one. `replace` deletes all others.

        >>> table.set_metadata({"owner": "sales"}).table.metadata["owner"]
        'sales'
        """
        return self._write(
            "set_metadata",
            lambda _base: settings.set_metadata(values, replace=replace),
            WriteOptions(intent, properties, retries),
        )

    def set_schema_metadata(
        self,
        values: settings.SettingChanges,
        *,
        replace: bool = False,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Set entries of the Arrow schema metadata; `None` deletes one. `replace` deletes all others.

        >>> table.set_schema_metadata({"source": "shop"}).table.schema.metadata
        {b'source': b'shop'}
        """
        return self._write(
            "set_schema_metadata",
            lambda _base: settings.set_schema_metadata(values, replace=replace),
            WriteOptions(intent, properties, retries),
        )

    def set_field_metadata(
        self,
        columns: Mapping[str, settings.SettingChanges],
        *,
        replace: bool = False,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Set entries of the metadata of columns, `{column: {key: value}}`; `None` deletes one. Encodings that it names
        apply to files written from now on.

        >>> table.set_field_metadata({"price": {"unit": "EUR"}}).table.schema.field("price").metadata
        {b'unit': b'EUR'}
        """
        return self._write(
            "set_field_metadata",
            lambda base: settings.set_field_metadata(base, columns, replace=replace),
            WriteOptions(intent, properties, retries),
        )
