"""Column history: the version that recorded the sources of each column of a table, from its versions."""

from collections.abc import Mapping
from dataclasses import dataclass

from lance_assets.provenance.column_sources import ColumnSource, parse_column_sources
from lance_core import NotFound, Table
from lance_core.operations import Overwrite, Restore

VERSIONS_READ_MAX = 1000
"""Number of versions that are read, from the newest."""


@dataclass(frozen=True, slots=True)
class ColumnOrigin:
    """Newest recorded sources of a column."""

    version: int
    """Version that recorded them."""
    sources: tuple[ColumnSource, ...]


def column_origins(table: Table, *, versions_max: int = VERSIONS_READ_MAX) -> Mapping[str, ColumnOrigin]:
    """Return the newest recorded sources of the columns of the version that `table` is at, in the order of its columns.

    The history is read back to the version that replaced all rows, since earlier ones say nothing about the values of
    today. A version that restores an older one continues there.
    """
    found: dict[str, ColumnOrigin] = {}
    columns = table.schema.names
    retained = {int(version) for version in table.version_numbers()}
    number, read = int(table.version), 0
    while number > 0 and read < versions_max and len(found) < len(columns):
        if number not in retained and number != table.version:
            break
        read += 1
        try:
            transaction = table.at(number).transaction()
        except NotFound:  # removed by a concurrent cleanup
            break
        if transaction is None:
            break
        for column, sources in parse_column_sources(transaction.properties).items():
            if column in columns and column not in found:
                found[column] = ColumnOrigin(number, tuple(sources))
        operation = transaction.operation
        if isinstance(operation, Overwrite):
            break
        number = operation.version if isinstance(operation, Restore) else number - 1
    return {column: found[column] for column in columns if column in found}
