"""Failed rows: the entries of the side table of a table with computed columns, one for each row for which a function
raised.

An entry has the fingerprint that its row has after the run that failed. It is current while the row has that
fingerprint: once the row is computed, the entry is superseded. So it does not matter whether entries are appended
before or after the version of their run, or twice. `006-failed-rows.md` has the reasons. Start with `current_entries`.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.dml.column_files import read_live_rows
from lance_core.dml.computed_column import FINGERPRINT
from lance_core.errors import NotFound
from lance_core.scan.system_columns import ROW_ID
from lance_core.scan.take import By, rows_exist, take
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_latest

SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.uint64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("column", pa.string(), nullable=False),
        pa.field("error_type", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
        pa.field("code_version", pa.string(), nullable=False),
        pa.field("run", pa.string(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("branch", pa.string()),
        pa.field("fingerprint", pa.uint64()),
    ]
)
"""Schema of the side table. `row_id` is the address of the row in a table without stable row ids. `key` is a JSON
object of the declared key columns, `run` the intent of the run or its own name, `branch` null for the main branch."""
SHOWN = tuple(name for name in SCHEMA.names if name not in ("branch", "fingerprint"))
GRACE = timedelta(hours=1)
_SUFFIX = ".lance"
Mask = npt.NDArray[np.bool_]


def locate_errors(base: Snapshot, errors_uri: str | None) -> Location:
    """Return the location of the side table: `errors_uri`, or by default the name of the table with `_errors`."""
    location = base.location
    if errors_uri is None:
        branch = base.manifest.branch
        main = (location.main_branch_uri(branch) if branch else None) or location.uri
        errors_uri = default_errors_uri(main)
    return location.locate_other(errors_uri)


def default_errors_uri(uri: str) -> str:
    """Return the URI of the side table of a table.

    >>> default_errors_uri("s3://bucket/pages.lance"), default_errors_uri("/data/pages")
    ('s3://bucket/pages_errors.lance', '/data/pages_errors')
    """
    uri = uri.rstrip("/")
    return f"{uri.removesuffix(_SUFFIX)}_errors{_SUFFIX if uri.endswith(_SUFFIX) else ''}"


def load_errors(location: Location) -> Snapshot | None:
    """Load the side table; `None` if no row has failed so far."""
    try:
        return load_latest(location)
    except NotFound:
        return None


def current_entries(base: Snapshot, errors: Snapshot | None, column: str | None = None) -> pa.Table:
    """Return the current entries of a version, for one column or all, ordered by column and row."""
    entries = [SCHEMA.empty_table()]
    if errors is not None:
        found = read_entries(errors, base.manifest.branch, column)
        entries.append(found.filter(pa.array(are_current(base, found))).select(SCHEMA.names))
    return pa.concat_tables(entries).sort_by([("column", "ascending"), ("row_id", "ascending")]).select(list(SHOWN))


def read_entries(errors: Snapshot, branch: str | None, column: str | None) -> pa.Table:
    """Read all entries of a branch, superseded ones included, with their own row ids."""
    parts = list(_read_all(errors))
    entries = pa.concat_tables(parts) if parts else SCHEMA.append(pa.field(ROW_ID, pa.uint64())).empty_table()
    is_wanted = pc.is_null(entries["branch"]) if branch is None else pc.equal(entries["branch"], branch)
    if column is not None:
        is_wanted = pc.and_(is_wanted, pc.equal(entries["column"], column))
    return entries.filter(is_wanted)


def _read_all(errors: Snapshot) -> Iterator[pa.Table]:
    for fragment in errors.manifest.fragments:
        for rows in read_live_rows(errors, fragment, [*SCHEMA.names, ROW_ID], errors.manifest.schema):
            yield pa.Table.from_batches([rows.batch]).cast(SCHEMA.append(rows.batch.schema.field(ROW_ID)))


def are_current(base: Snapshot, entries: pa.Table) -> Mask:
    """Return a mask of the entries that describe the present state of their rows: the newest one of each row, if the
    row has the fingerprint that the entry names."""
    current = np.zeros(entries.num_rows, dtype=np.bool_)
    for column in pc.unique(entries["column"]).to_pylist():
        if f"{column}{FINGERPRINT}" in base.manifest.schema.arrow.names:
            rows = np.flatnonzero(pc.equal(entries["column"], column).to_numpy())
            current[rows] = _are_current_of(base, entries.take(pa.array(rows)), f"{column}{FINGERPRINT}")
    return current


def find_removable(base: Snapshot, entries: pa.Table, now: datetime) -> Mask:
    """Return a mask of the superseded entries that no run needs. A run that stores nulls appends its entries shortly
    before it commits the fingerprints that they name, so these are kept for `GRACE`."""
    is_old = pc.less(entries["time"], pa.scalar(now - GRACE, SCHEMA.field("time").type))
    exists = rows_exist(base.location, base.manifest, entries["row_id"].combine_chunks(), by=By.ROW_ID)
    removable = pc.or_(is_old, entries["fingerprint"].is_null()).to_numpy() | ~exists
    mask: Mask = removable & ~are_current(base, entries)
    return mask


def _are_current_of(base: Snapshot, entries: pa.Table, fingerprint: str) -> Mask:
    row_ids = entries["row_id"].combine_chunks().to_numpy().astype(np.int64)
    current = rows_exist(base.location, base.manifest, row_ids, by=By.ROW_ID)
    existing = np.flatnonzero(current)
    if not len(existing):
        return current
    present = take(base.location, base.manifest, row_ids[existing], [fingerprint], by=By.ROW_ID).column(0)
    named = entries["fingerprint"].take(pa.array(existing))
    is_equal = pc.fill_null(pc.equal(present, named), False)
    both_null = pc.and_(present.is_null(), named.is_null())
    current[existing] = pc.or_(is_equal, both_null).to_numpy(zero_copy_only=False)
    newest: dict[int, int] = {}
    times = entries["time"].cast(pa.int64()).to_pylist()
    for number in np.flatnonzero(current).tolist():
        row = int(row_ids[number])
        if row not in newest or times[number] >= times[newest[row]]:
            newest[row] = number
    only_newest = np.zeros_like(current)
    only_newest[list(newest.values())] = True
    return only_newest


def entries_batch(rows: Sequence[dict[str, object]], time: datetime) -> pa.RecordBatch:
    """Return entries with the time of their run."""
    return pa.RecordBatch.from_pylist([{**row, "time": time} for row in rows], SCHEMA)
