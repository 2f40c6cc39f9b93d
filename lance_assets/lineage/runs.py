"""The versions that a run made, and what it read for them, by what the tables themselves say."""

from collections.abc import Iterator
from itertools import islice

from lance_assets.lineage.ancestry_reader import origin_of
from lance_assets.lineage.model import Origin
from lance_assets.provenance.properties import RUN_ID
from lance_core import NotFound, Table

VERSIONS_READ_MAX = 1000
"""Of each table, the newest."""


def versions_of_run(table: Table, run_id: str, *, versions_max: int | None = VERSIONS_READ_MAX) -> Iterator[Origin]:
    """Newest first, from the version that `table` is at. Nobody but the versions knows, so each is asked."""
    numbers = (number for number in reversed(table.version_numbers()) if number <= table.version)
    for number in islice(numbers, versions_max):
        try:
            at = table.at(number)
            made_by = at.transaction()
        except NotFound:  # a cleanup was faster
            continue
        if made_by is not None and made_by.properties.get(RUN_ID) == run_id:
            yield origin_of(at)
