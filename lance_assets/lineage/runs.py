"""Committed versions: finds the versions of a run by the run id that each version of a table records."""

from collections.abc import Iterator
from itertools import islice

from lance_assets.lineage.ancestry_reader import origin_of
from lance_assets.lineage.model import Origin
from lance_assets.provenance.properties import RUN_ID
from lance_core import NotFound, Table

VERSIONS_READ_MAX = 1000
"""Number of versions that are read of each table, from the newest."""


def versions_of_run(table: Table, run_id: str, *, versions_max: int | None = VERSIONS_READ_MAX) -> Iterator[Origin]:
    """Yield the versions that a run committed, newest first, from the version that `table` is at. A table has no index
    of its runs, so this reads up to `versions_max` versions."""
    numbers = (number for number in reversed(table.version_numbers()) if number <= table.version)
    for number in islice(numbers, versions_max):
        try:
            table_at = table.at(number)
            transaction = table_at.transaction()
        except NotFound:  # removed by a concurrent cleanup
            continue
        if transaction is not None and transaction.properties.get(RUN_ID) == run_id:
            yield origin_of(table_at)
