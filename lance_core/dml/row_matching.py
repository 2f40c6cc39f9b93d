"""Row matching: finds the rows that match a predicate, and reads rows of a fragment with system columns.

Only the columns of the predicate are read, and not all of their rows if indices know the rows. Start with
`find_matching_rows`.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from lance_core.datafiles.fragment_reader import load_deletions, read_fragment
from lance_core.datafiles.row_offsets import consecutive_offsets
from lance_core.errors import InvalidInput
from lance_core.expressions import Predicate
from lance_core.format.field_paths import suggest_name
from lance_core.format.fragment import Fragment
from lance_core.format.schema import TableSchema
from lance_core.index import lookup
from lance_core.scan.executor import matching_rows
from lance_core.scan.morsels import LiveFragment
from lance_core.scan.plan import plan_columns, plan_scan
from lance_core.scan.row_reader import RowReader
from lance_core.scan.selection import FragmentSelection, Offsets, Selection
from lance_core.scan.system_columns import SYSTEM_COLUMN_NAMES, SystemColumns
from lance_core.storage.concurrency import map_requests
from lance_core.versions.snapshot import Snapshot


def find_matching_rows(
    base: Snapshot, predicate: Predicate | None, selection: Selection | None = None
) -> Iterator[tuple[Fragment, Offsets]]:
    """Yield the fragments with a matching row and the offsets of these rows; all live rows without a predicate.
    `selection` is the result of an earlier index lookup."""
    if predicate is None:
        fragments, store = base.manifest.fragments, base.location.store
        vectors = map_requests(store, partial(load_deletions, store), fragments)
        for fragment, deleted in zip(fragments, vectors, strict=True):
            rows = fragment.physical_rows
            yield (
                fragment,
                consecutive_offsets(0, rows) if deleted is None else np.flatnonzero(deleted.live_mask(0, rows)),
            )
        return
    select = lookup.selector_of(base) if selection is None else lambda _predicate: selection
    yield from matching_rows(base.location, plan_scan(base.manifest, columns=(), filter=predicate, select=select))


def read_rows(base: Snapshot, fragment: Fragment, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read the live rows of a fragment with these columns, which may be system columns. Blobs are read as
    descriptions of their location."""
    location, manifest = base.location, base.manifest
    path = f"{location.uri}/{manifest.path}"
    system_columns = SystemColumns(manifest, fragment, path=path)
    stored = [name for name in columns if name not in SYSTEM_COLUMN_NAMES]
    for rows in read_fragment(
        location.store, location.codec, fragment, manifest.schema, columns=stored, path=path, describe_blobs=True
    ):
        yield system_columns.add_to(rows, columns)


def read_selected_rows(
    base: Snapshot, fragment: Fragment, columns: Sequence[str], chosen: FragmentSelection | None
) -> pa.Table:
    """Read the selected rows of a fragment; no rows for `None`."""
    plan = plan_columns(base.manifest, columns)
    live = LiveFragment(base.location, base.manifest, fragment)
    offsets = None if chosen is None else chosen.live_offsets(live.deletions)
    is_empty = offsets is None or not len(offsets)
    batches = [] if is_empty or offsets is None else [RowReader(base.location, plan).pick(live, offsets)]
    return pa.Table.from_batches(batches, plan.schema)


def check_columns(names: Iterable[str], schema: TableSchema, *, what: str, where: str) -> None:
    """Raise `InvalidInput` unless all names are top-level columns of the table. `where` says where they are named, and
    `what` is the table."""
    known = {field.name: None for field in schema.fields}
    for name in names:
        if name in known:
            continue
        parent = name.partition(".")[0]
        if parent in known:
            raise InvalidInput(
                f"{what}: {where} names {name!r}, a field inside column {parent!r}; name the whole column {parent!r}"
            )
        raise InvalidInput(
            f"{what}: {where} names {name!r}, but there is no such column; {suggest_name(name, list(known))}"
        )
