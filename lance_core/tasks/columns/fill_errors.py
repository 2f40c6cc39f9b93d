"""Fill errors: the side table of the failed rows of computed columns, as a run uses it.

    errors_target        before the first job: where workers write entries
    append_entries       before the version of the run is committed, so that a killed run loses none
    skipped_rows         before it: which rows a bounded run tries last
    remove_superseded    after it: entries of rows that have a value now

`dml/failed_rows.py` says which entries are current.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.dml.computed_column import ComputedColumn
from lance_core.dml.failed_rows import (
    SCHEMA,
    are_current,
    find_removable,
    load_errors,
    locate_errors,
    read_entries,
)
from lance_core.format.fragment import Fragment
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.scan.system_columns import ROW_ID
from lance_core.table.table import Table
from lance_core.tasks.columns.fill_task import ErrorsTarget, RowIds
from lance_core.tasks.side_table import SideTable
from lance_core.versions.snapshot import Snapshot

SIDE_TABLE = SideTable(SCHEMA, "failed rows", "errors_uri", "append", stable_row_ids=True)
_IDS_MAX = 10_000
"""Number of entries that one deletion names."""


def errors_target(base: Snapshot, column: ComputedColumn, run: str) -> ErrorsTarget:
    """Return the side table of a column, to which workers write."""
    location = locate_errors(base, column.errors_uri)
    return ErrorsTarget(location.uri, SIDE_TABLE.target(location), run)


def append_entries(base: Snapshot, errors: ErrorsTarget, fragments: Iterable[bytes]) -> None:
    """Append what workers have written, without files that the table has already: a replanned or resumed run has them
    again."""
    location = base.location.locate_other(errors.uri)
    written = {fragment.files[0].path: fragment for fragment in map(Fragment.decode, fragments)}
    if not written:
        return
    if (before := load_errors(location)) is not None:
        for fragment in before.manifest.fragments:
            for file in fragment.files:
                written.pop(file.path, None)
    if written:
        SIDE_TABLE.append(location, tuple(written.values()), None)


def skipped_rows(base: Snapshot, errors: ErrorsTarget, column: ComputedColumn) -> RowIds:
    """Return the ids of the rows that the present code of a column has skipped, the one that failed longest ago
    first."""
    side_table = load_errors(base.location.locate_other(errors.uri))
    if side_table is None:
        return np.array([], dtype=np.int64)
    entries = read_entries(side_table, base.manifest.branch, column.name)
    is_of_code = pc.equal(entries["code_version"], column.code_version).to_numpy()
    current = entries.filter(pa.array(are_current(base, entries) & is_of_code)).sort_by("time")
    row_ids: RowIds = current["row_id"].to_numpy().astype(np.int64)
    return row_ids


def remove_superseded(at: Snapshot, uri: str, column: str) -> int:
    """Remove the entries of a column that are superseded in a version. Return the number of current ones."""
    location = at.location.locate_other(uri)
    errors = load_errors(location)
    if errors is None:
        return 0
    entries = read_entries(errors, at.manifest.branch, column)
    now = datetime.fromtimestamp(SYSTEM_RUNTIME.now_ns() / 1e9, UTC)
    removable = entries.column(ROW_ID).to_numpy()[np.flatnonzero(find_removable(at, entries, now))]
    table = Table.open(
        location.uri,
        storage_options=location.access.storage_options,
        manifest_store=location.access.manifest_store,
        durable=location.access.durable,
    )
    for start in range(0, len(removable), _IDS_MAX):
        row_ids = ", ".join(map(str, removable[start : start + _IDS_MAX].tolist()))
        table = table.delete(f"{ROW_ID} IN ({row_ids})").table
    return int(are_current(at, entries).sum())
