"""Computed column: a column whose values are a function of other columns of the same row, declared once and filled
again for the rows that need it.

    embedding                 the values
    embedding__fingerprint    for each row, the hash of the inputs and of the version of the code that made its value

A row is stale if its fingerprint is missing or differs from that of its present inputs under the present version of the
code. The fingerprint is part of the row: it moves with it, whichever engine rewrites, compacts or restores the row. The
declaration is stored in the metadata of the field. `004-computed-columns.md` has the reasons. Start with
`ComputedColumn`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from lance_core import validation
from lance_core.datafiles.blob_files import is_blob_v2
from lance_core.dml.call_settings import CallSettings
from lance_core.errors import InvalidInput
from lance_core.expressions import Projection, with_metadata_columns
from lance_core.format.field_paths import unknown_column_message

FINGERPRINT = "__fingerprint"
"""Suffix of the name of the column with the fingerprints."""
DECLARATION_KEY = "lance_assets.computed"
"""Key of the declaration in the metadata of a field."""
EARLIER_VERSIONS_MAX = 16
"""Number of earlier versions of the code that a declaration names, so that their rows can be counted."""

Function: TypeAlias = Callable[[Any], object]
"""Function from a batch of the inputs to one value for each row: an array, a batch of one column, or a list, array or
series of numpy, pandas or another library. `CallSettings` has the other forms, such as a coroutine for each row."""
ErrorPolicy: TypeAlias = Literal["fail", "null", "skip"]


@dataclass(frozen=True, slots=True)
class ComputedColumn(CallSettings):
    """Declaration of a computed column. `CallSettings` has its settings of calls.

    ComputedColumn("words", pa.int64(), fn=count_words, inputs=["title", "body"], code_version="1")
    ComputedColumn("total", sql="price * quantity")
    """

    name: str
    type: pa.DataType | None = None
    """Type of the values. `None` means the type of the existing column, or else that of the expression."""
    fn: Function | None = None
    inputs: Sequence[str] = ()
    """Columns that the function receives, in this order; empty for SQL, which names its columns."""
    code_version: str = "1"
    """Text that changes with the meaning of the function: rows that another version has computed are stale."""
    sql: str | None = None
    setup: Callable[[], object] | None = None
    """Function that returns `fn`, called once in each worker process, such as one that loads a model; it may be
    asynchronous."""
    on_error: ErrorPolicy = "fail"
    """Policy for rows for which the function raises: `fail` ends the run, `null` stores null and does not try the row
    again, `skip` leaves it stale for the next run. Both keep the error in the side table."""
    blob_identity: Sequence[str] = ()
    """Columns that change whenever a blob among the inputs does, such as its hash or its time: then only the blobs of
    stale rows are read. Without them, the content of blobs is compared where files have changed."""
    errors_uri: str | None = None
    """Table for failed rows; by default `pages_errors.lance` beside `pages.lance`."""
    error_keys: Sequence[str] = ()
    """Columns whose values identify a failed row in that table, besides its row id."""

    @property
    def fingerprint(self) -> str:
        """Name of the column with the fingerprints."""
        return f"{self.name}{FINGERPRINT}"

    @property
    def schema(self) -> pa.Schema:
        """Columns that a run writes."""
        return pa.schema([pa.field(self.name, self.type), pa.field(self.fingerprint, pa.uint64())])

    def check(self) -> None:
        """Raise `InvalidInput` if the declaration contradicts itself."""
        what = f"computed column {self.name!r}"
        name: object = self.name
        if not isinstance(name, str) or not name or "." in name:
            raise InvalidInput(f"{what}: the name is the text of a top-level column")
        self._check_type(what)
        given = [name for name in ("fn", "sql", "setup") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidInput(f"{what}: give exactly one of fn=, setup= and sql=, not {' and '.join(given) or 'none'}")
        if self.sql is None:
            names = validation.check_names(self.inputs, "inputs")
            if len(set(names)) < len(names):
                raise InvalidInput(f"{what}: inputs= names a column twice; the function gets each once")
            if not names:
                raise InvalidInput(f"{what}: inputs= names the columns that the function receives; give at least one")
        version: object = self.code_version
        if not isinstance(version, str) or not version:
            raise InvalidInput(f"{what}: code_version= is a text, not {self.code_version!r}")
        self.check_calls(what, self.fn)
        validation.check_names(self.error_keys, "error_keys")
        validation.check_names(self.blob_identity, "blob_identity")
        if self.errors_uri is not None:
            validation.check_uri(self.errors_uri)
        if self.on_error not in ("fail", "null", "skip"):
            raise InvalidInput(f"{what}: on_error={self.on_error!r}: it must be 'fail', 'null' or 'skip'")

    def _check_type(self, what: str) -> None:
        if self.type is None and self.sql is None:
            raise InvalidInput(f"{what}: type= is missing; it may be left out only with sql=")
        if self.type is not None and not isinstance(self.type, pa.DataType):
            raise InvalidInput(f"{what}: type= is an Arrow type such as pa.int64(), not {self.type!r}")

    def resolve(self, columns: pa.Schema, *, what: str) -> "ComputedColumn":
        """Return the declaration with the inputs and the type of its expression. Raise if an input is not a column."""
        declared = self
        if self.sql is not None:
            readable, arrow = with_metadata_columns(columns), self.type
            if arrow is None and self.name in columns.names:
                arrow = columns.field(self.name).type
            types = {} if arrow is None else {self.name: arrow}
            projection = Projection.parse({self.name: self.sql}, readable, types=types)
            declared = replace(self, inputs=projection.columns, type=arrow or projection.schema.field(self.name).type)
        for name in (*declared.inputs, *declared.error_keys, *declared.blob_identity):
            if name not in columns.names:  # a row's id or version changes with each run, so no value would be fresh
                raise InvalidInput(
                    f"{what}: computed column {self.name!r}: {unknown_column_message(name, columns.names)}"
                )
        if declared.blob_identity and not any(is_blob_column(columns.field(name)) for name in declared.inputs):
            raise InvalidInput(f"{what}: computed column {self.name!r}: blob_identity= needs a blob among the inputs")
        if {self.name, self.fingerprint} & {*declared.inputs, *declared.blob_identity}:
            raise InvalidInput(f"{what}: computed column {self.name!r} cannot be computed from itself")
        return declared

    @property
    def code(self) -> str:
        """Version of the code as it enters the fingerprint. An SQL expression is code, so its text is included."""
        return self.code_version if self.sql is None else f"{self.code_version}: {self.sql}"

    @property
    def source(self) -> str:
        """Name of the function, or the expression."""
        function = self.fn or self.setup
        if function is None:
            return str(self.sql)
        return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"


@dataclass(frozen=True, slots=True)
class Declaration:
    """Declaration as it is stored with the column: everything that tells fresh rows from stale ones."""

    name: str
    inputs: tuple[str, ...]
    source: str
    """Name of the function, or the expression."""
    code_version: str
    code: str
    earlier: tuple[str, ...] = ()
    """Earlier versions of the code, as they enter the fingerprint; the latest is the last."""
    identity: tuple[str, ...] = ()
    """Columns that enter the fingerprint in place of blobs."""
    unread: tuple[str, ...] = ()
    """Blob inputs that do not enter the fingerprint, since `identity` does."""

    @property
    def fingerprinted(self) -> tuple[str, ...]:
        """Columns of which the fingerprint is made."""
        return (*(name for name in self.inputs if name not in self.unread), *self.identity)

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns whose change may make a row stale."""
        return tuple(dict.fromkeys((*self.inputs, *self.identity)))

    @classmethod
    def of(cls, column: ComputedColumn, before: "Declaration | None", schema: pa.Schema) -> "Declaration":
        """Return the declaration of a column, which remembers the versions of the code before it."""
        codes = () if before is None else dict.fromkeys((*before.earlier, before.code))
        earlier = tuple(code for code in codes if code != column.code)[-EARLIER_VERSIONS_MAX:]
        inputs, identity = tuple(column.inputs), tuple(column.blob_identity)
        unread = tuple(name for name in inputs if identity and is_blob_column(schema.field(name)))
        return cls(column.name, inputs, column.source, column.code_version, column.code, earlier, identity, unread)

    @property
    def fingerprint(self) -> str:
        """Name of the column with the fingerprints."""
        return f"{self.name}{FINGERPRINT}"

    def encode(self) -> str:
        stored = {
            "inputs": list(self.inputs),
            "source": self.source,
            "code_version": self.code_version,
            "code": self.code,
            "earlier": list(self.earlier),
        }
        if self.identity:
            stored |= {"identity": list(self.identity), "unread": list(self.unread)}
        return json.dumps(stored)

    @classmethod
    def decode(cls, column: pa.Field) -> "Declaration | None":
        """Return the declaration in the metadata of a column; `None` if there is none that can be read."""
        encoded = (column.metadata or {}).get(DECLARATION_KEY.encode())
        if encoded is None:
            return None
        try:
            stored = json.loads(encoded)
            earlier = tuple(map(str, stored["earlier"]))
            inputs, source = tuple(map(str, stored["inputs"])), str(stored["source"])
            identity, unread = (tuple(map(str, stored.get(name, ()))) for name in ("identity", "unread"))
            code_version, code = str(stored["code_version"]), str(stored["code"])
            return cls(column.name, inputs, source, code_version, code, earlier, identity, unread)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


def is_blob_column(column: pa.Field) -> bool:
    """Return whether a column of a table is one of blobs."""
    return is_blob_v2(column) or (column.metadata or {}).get(b"lance-encoding:blob") == b"true"


def declared_columns(schema: pa.Schema) -> Mapping[str, Declaration]:
    """Return the declarations of the computed columns of a table."""
    declarations = (Declaration.decode(each) for each in schema)
    return {each.name: each for each in declarations if each is not None}


def in_order(columns: Sequence[ComputedColumn]) -> tuple[ComputedColumn, ...]:
    """Return the columns so that each follows those from which it is computed. Raise `InvalidInput` for a cycle. The
    inputs of an expression count once they are resolved."""
    by_name: dict[str, ComputedColumn] = {}
    for column in columns:
        column.check()
        if column.name in by_name:
            raise InvalidInput(f"computed column {column.name!r} is declared twice")
        by_name[column.name] = column
    ordered: dict[str, ComputedColumn] = {}

    def visit(column: ComputedColumn, path: tuple[str, ...]) -> None:
        if column.name in path:
            cycle = " from ".join((*path[path.index(column.name) :], column.name))
            raise InvalidInput(f"computed columns cannot be computed from each other: {cycle}")
        if column.name not in ordered:
            for name in (*column.inputs, *column.blob_identity):
                if name in by_name:
                    visit(by_name[name], (*path, column.name))
            ordered[column.name] = column

    for column in columns:
        visit(column, ())
    return tuple(ordered.values())


def resolve_all(columns: Sequence[ComputedColumn], table: pa.Schema, *, what: str) -> tuple[ComputedColumn, ...]:
    """Return the columns with the inputs and types of their expressions, in the order in which they are computed. The
    type of an expression may depend on another computed column, so expressions with an unknown column are retried."""
    known, resolved, waiting = {each.name: each for each in table}, list[ComputedColumn](), list(columns)
    for each in columns:
        if each.type is not None:
            known.setdefault(each.name, pa.field(each.name, each.type))
    while waiting:
        failed: dict[str, InvalidInput] = {}
        for each in waiting:
            try:
                resolved.append(each.resolve(pa.schema(known.values()), what=what))
            except InvalidInput as error:
                failed[each.name] = error
            else:
                known.setdefault(each.name, pa.field(each.name, resolved[-1].type))
        if len(failed) == len(waiting):
            raise failed[waiting[0].name]
        waiting = [each for each in waiting if each.name in failed]
    return in_order(resolved)


def fingerprint_columns(columns: pa.Schema) -> frozenset[str]:
    """Return the names of the columns with the fingerprints of computed columns."""
    declared = (field.name for field in columns if DECLARATION_KEY.encode() in (field.metadata or {}))
    return frozenset(columns.names) & {name + FINGERPRINT for name in declared}
