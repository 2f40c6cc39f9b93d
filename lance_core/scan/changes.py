"""Which rows a later version has that an earlier one had not, has otherwise, or has no more.

Told by row ids, which a row keeps for life, and by the version that last changed it. So this needs a table with stable
row ids. A row that was moved and not changed, as compaction does, is no change. Fragments that both versions share are
not looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.format.manifest import Manifest
from lance_core.format.schema import TableSchema
from lance_core.scan.morsels import LiveFragment
from lance_core.scan.parallel import map_in_order
from lance_core.scan.plan import plan_columns
from lance_core.scan.row_reader import RowReader
from lance_core.scan.selection import Offsets
from lance_core.scan.system_columns import CREATED_AT, LAST_UPDATED_AT, ROW_ID
from lance_core.versions.snapshot import Snapshot

Ids = npt.NDArray[np.uint64]
CHANGE = "_change"
INSERT, UPDATE, DELETE = "insert", "update", "delete"


@dataclass(frozen=True, slots=True)
class _RowLineage:
    """Live rows of some fragments of a version, parallel arrays in scan order."""

    fragments: Sequence[LiveFragment]
    number: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    row_id: npt.NDArray[np.uint64]
    updated_at: npt.NDArray[np.uint64]


def read_changes(since: Snapshot, until: Snapshot) -> pa.Table:
    """One row for each that changed, with `_change` (insert, update or delete), its id and its versions: inserted and
    updated ones as they are in `until`, in its order, then deleted ones as they were in `since`."""
    for snapshot in (since, until):
        if not snapshot.manifest.has_stable_row_ids:
            raise InvalidInput(
                f"{snapshot.location.uri}: version {snapshot.version} has no stable row ids, by which changes are "
                "told; a table has them that was created with stable_row_ids=True"
            )
    if since.version > until.version:
        raise InvalidInput(f"changes since version {since.version} until {until.version}: the later one comes second")
    before, after = _rows_only_in(since, until.manifest), _rows_only_in(until, since.manifest)
    known, place = _look_up(after.row_id, before.row_id)
    is_updated = known.copy()
    is_updated[known] = after.updated_at[known] != before.updated_at[place[known]]
    stays, _ = _look_up(before.row_id, after.row_id)
    names = (*until.manifest.schema.arrow.names, ROW_ID, CREATED_AT, LAST_UPDATED_AT)
    chosen, gone = np.flatnonzero(~known | is_updated), np.flatnonzero(~stays)
    kinds = [UPDATE if each else INSERT for each in is_updated[chosen].tolist()]
    # Deleted rows too have the columns of the later version: those that came since are null in them.
    return pa.concat_tables(
        [
            _read_rows(until, until.manifest.schema, names, after, chosen, kinds),
            _read_rows(since, until.manifest.schema, names, before, gone, [DELETE] * len(gone)),
        ]
    )


def _rows_only_in(snapshot: Snapshot, other: Manifest) -> _RowLineage:
    same = {fragment.id: fragment.message for fragment in other.fragments}
    own = [each for each in snapshot.manifest.fragments if each.message != same.get(each.id)]
    fragments = [LiveFragment(snapshot.location, snapshot.manifest, each) for each in own]
    read = list(map_in_order(_live_rows, fragments))
    return _RowLineage(
        fragments,
        np.repeat(np.arange(len(read)), [len(offsets) for offsets, _, _ in read]),
        np.concatenate([np.empty(0, np.int64), *(offsets for offsets, _, _ in read)]),
        np.concatenate([np.empty(0, np.uint64), *(ids for _, ids, _ in read)]),
        np.concatenate([np.empty(0, np.uint64), *(versions for _, _, versions in read)]),
    )


def _live_rows(each: LiveFragment) -> tuple[Offsets, Ids, Ids]:
    rows, deletions = each.fragment.physical_rows, each.deletions
    offsets = np.arange(rows) if deletions is None else np.flatnonzero(deletions.live_mask(0, rows))
    return offsets, each.system_columns.values(ROW_ID, offsets), each.system_columns.values(LAST_UPDATED_AT, offsets)


def _look_up(wanted: Ids, ids: Ids) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which of the wanted are among the ids, and where."""
    if not len(ids):
        return np.zeros(len(wanted), dtype=np.bool_), np.zeros(len(wanted), dtype=np.int64)
    order = np.argsort(ids, kind="stable")
    place = order[np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)]
    return ids[place] == wanted, place


def _read_rows(
    snapshot: Snapshot,
    table: TableSchema,
    names: Sequence[str],
    rows: _RowLineage,
    chosen: Offsets,
    kinds: Sequence[str],
) -> pa.Table:
    plan = plan_columns(snapshot.manifest, names, table=table)
    reading = RowReader(snapshot.location, plan)

    def of_one(number: int) -> pa.RecordBatch:
        return reading.pick(rows.fragments[number], rows.offset[chosen[rows.number[chosen] == number]])

    batches = map_in_order(of_one, np.unique(rows.number[chosen]).tolist())
    return pa.Table.from_batches(batches, plan.schema).add_column(0, CHANGE, pa.array(kinds, pa.string()))
