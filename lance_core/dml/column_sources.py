"""Column sources: the columns from which a change computes the columns that it writes.

The SQL of a change, the condition of its rows and the declared inputs of a function name them. They become a property
of the transaction, which the command line, the ledger and OpenLineage events read. A function that gets all columns
does not say which ones it uses, so its columns have no entry, which means that their sources are unknown. Each
column of rows that the caller passes is the source of the column of the same name; the origin of the rows is unknown,
so their table has an empty URI. A record of the caller replaces this one (`commit/write_protocol.py`). Start with
`with_column_sources`.
"""

import json
from collections.abc import Collection, Mapping

from lance_core.commit.openlineage import COLUMNS, GIVEN_ROWS
from lance_core.commit.write_protocol import Planned
from lance_core.expressions import Predicate, Projection
from lance_core.format.operations import Operation, Update, UpdateMode
from lance_core.versions.snapshot import Snapshot

OwnColumnSources = Mapping[str, Collection[str]]
"""Columns of the same row, by the column that is computed from them. A column without known sources is left out."""
_CHARACTERS_MAX = 64_000


def with_column_sources(base: Snapshot, operation: Operation | None, sources: OwnColumnSources) -> Planned | None:
    """Return the planned operation with the property that records the sources. `None` stays `None`."""
    if operation is None:
        return None
    return Planned(operation, encode_column_sources(base.location.uri, sources, base.manifest.schema.arrow.names))


def with_given_columns(base: Snapshot, operation: Operation | None, given: Collection[str]) -> Planned | None:
    """Return the planned operation with the property for the columns `given`, each of which gets its values from the
    column of the same name in the caller's rows. An update that only deletes rows gets no such property."""
    if operation is None:
        return None
    if isinstance(operation, Update) and not operation.new and operation.mode is not UpdateMode.REWRITE_COLUMNS:
        return Planned(operation)
    stored = base.manifest.schema.arrow.names
    return Planned(operation, encode_column_sources(base.location.uri, {}, stored, given=given))


def encode_column_sources(
    uri: str, sources: OwnColumnSources, stored: Collection[str], *, given: Collection[str] = ()
) -> Mapping[str, str]:
    """Return the property for columns that are computed from the `stored` columns of the table `uri`, and for the
    columns `given`, which get their values from the caller's rows. The result is empty without sources, and if they
    exceed the size that a transaction should hold.

    >>> encode_column_sources("/t.lance", {"gross": ["net"], "note": [], "at": ["_rowid"]}, ["net"])
    {'lance_assets.columns': '{"columns": {"gross": [[0, "net"]]}, "tables": [["/t.lance", null]]}'}
    >>> encode_column_sources("/t.lance", {}, ["id"], given=["stars"])
    {'lance_assets.columns': '{"columns": {"stars": [[0, "stars"]]}, "tables": [["", null]]}'}
    """
    columns = {column: sorted(set(names) & set(stored)) for column, names in sources.items()}
    known = {column: [[0, name] for name in names] for column, names in columns.items() if names}
    tables = [[uri, None]] if known or not given else []
    known |= {name: [[len(tables), name]] for name in given}
    tables += [[GIVEN_ROWS, None]] if given else []
    text = json.dumps({"columns": known, "tables": tables}, sort_keys=True)
    return {COLUMNS: text} if known and len(text) <= _CHARACTERS_MAX else {}


def sources_of_sql(projection: Projection, predicate: Predicate | None) -> OwnColumnSources:
    """Return the columns that decide about each value: those of its expression, and of the condition of its rows."""
    in_condition = () if predicate is None else predicate.columns
    return {name: {*expression.columns, *in_condition} for name, expression in projection.compiled}


def with_condition(sources: OwnColumnSources, predicate: Predicate | None) -> OwnColumnSources:
    """Return the sources, and for each column also the columns of the condition of its rows."""
    in_condition = () if predicate is None else predicate.columns
    return {name: {*columns, *in_condition} for name, columns in sources.items()}
