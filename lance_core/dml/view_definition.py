"""View definition: the columns and the condition of a materialized view, and the function that computes its rows.

    ViewDefinition.of(["id", "upper(title) AS title"], "lang = 'fr'")       as declared
    definition.resolve(source)  ──►  ResolvedView                            for the columns of one version

Besides its columns, a view has two: `_source_rowid`, the stable row id of the source row, which is the key of the view,
and `_source_version`, the version of the source that last changed the row. Conditions and values are Lance SQL. The
reasons are in `007-materialized-views.md`. Start with `ViewDefinition`.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lance_core import validation
from lance_core.datafiles.column_layout import is_blob
from lance_core.errors import InvalidInput
from lance_core.expressions import METADATA_COLUMNS, Predicate, Projection
from lance_core.expressions.engine_batches import reads_clock
from lance_core.format.field_paths import unknown_column_message
from lance_core.format.schema import TableSchema

SOURCE_ROW_ID = "_source_rowid"
SOURCE_VERSION = "_source_version"
KEY_FIELDS = (pa.field(SOURCE_ROW_ID, pa.int64()), pa.field(SOURCE_VERSION, pa.int64()))
"""Columns that every view has. A null `_source_version` marks a row that is to be removed; no stored row has one."""
Select: TypeAlias = Sequence[str] | Mapping[str, str] | None
"""Columns of a view: names and `SQL AS name`, or names with their SQL; `None` for all columns of the source."""
_ALIAS = re.compile(r"(?is)(?P<sql>.+)\s+as\s+(?:`(?P<quoted>[^`]+)`|(?P<name>[a-z_]\w*))\s*")
_OWN_METADATA = (b"lance_assets.", b"lance-schema:")
"""Prefixes of field metadata that are about the source, such as its primary key."""


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """Columns and condition of a view, as declared."""

    select: tuple[tuple[str, str], ...] | None
    """Names with their SQL; `None` for all columns of the source, also those that are added later."""
    where: str | None

    @classmethod
    def of(cls, select: Select, where: str | None) -> "ViewDefinition":
        """Check the declaration as far as it does not depend on the columns of the source.

        >>> ViewDefinition.of(["id", "price * 2 AS double"], None).select
        (('id', 'id'), ('double', 'price * 2'))
        """
        if where is not None:
            validation.check_text(where, "where")
        columns = None if select is None else _named_columns(select)
        for sql in [*(sql for _, sql in columns or ()), *([where] if where else [])]:
            if reads_clock(sql):
                raise InvalidInput(
                    f"{sql!r} depends on the time, so rows would enter and leave the view without a change of the "
                    "source; compare with a column, or filter the view when you read it"
                )
        return cls(columns, where)

    def resolve(self, schema: TableSchema, *, what: str) -> "ResolvedView":
        """Return the definition for a source with this schema. Raise `InvalidInput` if it does not fit."""
        arrow = schema.arrow
        columns = _all_columns(arrow) if self.select is None else self.select
        stored = {name: _column_name(sql, arrow) for name, sql in columns}
        for name, sql in columns:
            if stored[name] is None and name == sql:
                advice = f"{unknown_column_message(name, arrow.names)}; give an expression a name, as in 'a + b AS c'"
                raise InvalidInput(f"{what}: select= names {name!r}: {advice}")
        plain = {name: column for name, column in stored.items() if column is not None}
        computed = {name: sql for name, sql in columns if name not in plain}
        projection = Projection.parse(computed, arrow) if computed else None
        predicate = None if self.where is None else Predicate.parse(self.where, arrow)
        read = [columns_of.columns for columns_of in (projection, predicate) if columns_of is not None]
        inputs = tuple(dict.fromkeys((*plain.values(), *(name for names in read for name in names))))
        _check_inputs(inputs, schema, what)
        order = tuple(name for name, _ in columns)
        return ResolvedView(
            schema, order, tuple(plain.items()), projection, predicate, inputs, dict(columns), self.where
        )


@dataclass(frozen=True, slots=True)
class ResolvedView:
    """Definition for the columns of one version of the source. Picklable."""

    source: TableSchema
    order: tuple[str, ...]
    plain: tuple[tuple[str, str], ...]
    """Columns that the view copies: name in the view, name in the source."""
    projection: Projection | None
    predicate: Predicate | None
    inputs: tuple[str, ...]
    """Columns of the source that are read."""
    select: Mapping[str, str]
    where: str | None

    @property
    def schema(self) -> pa.Schema:
        """Columns of the view. All are nullable, since a removal has only a key."""
        arrow = self.source.arrow
        fields = {name: _copied(arrow.field(stored), name) for name, stored in self.plain}
        if self.projection is not None:
            fields |= {field.name: field for field in self.projection.schema}
        return pa.schema([*KEY_FIELDS, *(fields[name] for name in self.order)])

    @property
    def fingerprint(self) -> str:
        """Hash of everything by which rows of the view differ between definitions: its columns, its condition, and the
        identity and types of the columns that it reads."""
        read = [[name, self.source.field(name).id, str(self.source.arrow.field(name).type)] for name in self.inputs]
        columns = [[name, self.select[name], str(self.schema.field(name).type)] for name in self.order]
        described = json.dumps([columns, self.where, read])
        return hashlib.sha256(described.encode()).hexdigest()[:32]

    def column_sources(self) -> Mapping[str, tuple[str, ...]]:
        """Return the columns of the source from which each column of the view is computed."""
        computed = self.projection.compiled if self.projection else ()
        sources = {name: (stored,) for name, stored in self.plain} | {name: each.columns for name, each in computed}
        return {name: sources[name] for name in self.order if sources[name]}

    def compute_rows(self, batch: pa.RecordBatch, row_ids: pa.Array, versions: pa.Array) -> pa.RecordBatch:
        """Return rows of the view for rows of the source that match the condition."""
        arrays = {name: batch.column(stored) for name, stored in self.plain}
        if self.projection is not None:
            computed = self.projection.evaluate(batch)
            arrays |= dict(zip(computed.schema.names, computed.columns, strict=True))
        columns = [row_ids, versions, *(arrays[name] for name in self.order)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows that match the condition, and those that do not."""
        if self.predicate is None:
            return batch, batch.slice(0, 0)
        mask = self.predicate.mask(batch)
        return batch.filter(mask), batch.filter(pc.invert(mask))

    def removals(self, row_ids: pa.Array) -> pa.RecordBatch:
        """Return the rows that remove those with these row ids from the view."""
        schema = self.schema
        nulls = [pa.nulls(len(row_ids), field.type) for field in list(schema)[1:]]
        return pa.RecordBatch.from_arrays([row_ids, *nulls], schema=schema)


def _all_columns(arrow: pa.Schema) -> tuple[tuple[str, str], ...]:
    """Return all columns of a source. If it is a view itself, its own two columns are left out."""
    return tuple((name, f"`{name}`") for name in arrow.names if name not in (SOURCE_ROW_ID, SOURCE_VERSION))


def _check_inputs(names: Sequence[str], schema: TableSchema, what: str) -> None:
    for name in names:
        if name not in schema.arrow.names:
            raise InvalidInput(f"{what}: {unknown_column_message(name, schema.arrow.names)}")
        if is_blob(schema.field(name)):
            raise InvalidInput(
                f"{what}: the view reads the blob column {name!r}, which views do not support; leave it out, and take "
                f"the blobs from the source by {SOURCE_ROW_ID}"
            )


def _named_columns(select: Sequence[str] | Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if isinstance(select, Mapping):
        columns = [(name, sql) for name, sql in select.items()]
    elif isinstance(select, str):
        raise InvalidInput(
            f"select={select!r} is a text; give a list of columns, such as ['id', 'upper(city) AS city']"
        )
    else:
        columns = [_named_column(each) for each in select]
    for name, sql in columns:
        for each in (name, sql):
            validation.check_text(each, "select")
        if name in METADATA_COLUMNS or name in (SOURCE_ROW_ID, SOURCE_VERSION):
            raise InvalidInput(f"select= names a column {name!r}, which the view has by itself; give it another name")
    names = [name for name, _ in columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(f"select= names the column {twice[0]!r} twice; give each its own name with AS")
    if not names:
        raise InvalidInput("select= names no column; leave it out for all columns of the source")
    return tuple(columns)


def _named_column(text: object) -> tuple[str, str]:
    if not isinstance(text, str):
        raise InvalidInput(f"select= has {text!r:.100}; each item is the name of a column, or SQL with AS and a name")
    if match := _ALIAS.fullmatch(text):
        return match["quoted"] or match["name"], match["sql"].strip()
    return text, text


def _column_name(sql: str, arrow: pa.Schema) -> str | None:
    """Return the column that the SQL names, quoted or not; `None` if it is another expression."""
    if sql in arrow.names:
        return sql
    quoted = sql[1:-1] if len(sql) > 2 and sql[0] == sql[-1] == "`" else None
    return quoted if quoted in arrow.names else None


def _copied(field: pa.Field, name: str) -> pa.Field:
    """Return a field of the source as a field of the view."""
    kept = {key: value for key, value in (field.metadata or {}).items() if not key.startswith(_OWN_METADATA)}
    return pa.field(name, field.type, nullable=True, metadata=kept or None)
