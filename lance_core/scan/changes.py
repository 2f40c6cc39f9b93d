"""Change data: finds the rows that were inserted, updated or deleted between two versions.

Rows are compared by their stable row ids and by the version that last changed them, so the table must have stable row
ids. A row that was only moved, as by a compaction, is not a change. Fragments that both versions share are not read.
Start with `read_changes`.
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
    """Live rows of some fragments of a version, as parallel arrays in scan order."""

    fragments: Sequence[LiveFragment]
    number: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    row_id: npt.NDArray[np.uint64]
    updated_at: npt.NDArray[np.uint64]


def read_changes(since: Snapshot, until: Snapshot) -> pa.Table:
    """Return one row for each change, with `_change` (insert, update or delete), its row id and its row versions.

    Inserted and updated rows come first, in the order and with the values of `until`; then deleted rows, with the
    values of `since`.
    """
    for snapshot in (since, until):
        if not snapshot.manifest.has_stable_row_ids:
            raise InvalidInput(
                f"{snapshot.location.uri}: version {snapshot.version} has no stable row ids, by which changes are "
                "found; only a table that was created with stable_row_ids=True has them"
            )
    if since.version > until.version:
        raise InvalidInput(
            f"changes since version {since.version} until {until.version}: since must not be later than until"
        )
    before, after = _rows_only_in(since, until.manifest), _rows_only_in(until, since.manifest)
    known, position = _look_up(after.row_id, before.row_id)
    is_updated = known.copy()
    is_updated[known] = after.updated_at[known] != before.updated_at[position[known]]
    still_exists, _ = _look_up(before.row_id, after.row_id)
    names = (*until.manifest.schema.arrow.names, ROW_ID, CREATED_AT, LAST_UPDATED_AT)
    changed, deleted = np.flatnonzero(~known | is_updated), np.flatnonzero(~still_exists)
    kinds = [UPDATE if each else INSERT for each in is_updated[changed].tolist()]
    # Deleted rows also have the columns of the later version: columns added since are null in them.
    return pa.concat_tables(
        [
            _read_rows(until, until.manifest.schema, names, after, changed, kinds),
            _read_rows(since, until.manifest.schema, names, before, deleted, [DELETE] * len(deleted)),
        ]
    )


def _rows_only_in(snapshot: Snapshot, other: Manifest) -> _RowLineage:
    """Return the live rows of the fragments that the other version does not share."""
    others = {fragment.id: fragment for fragment in other.fragments}
    unshared = [
        each for each in snapshot.manifest.fragments if each.id not in others or not each.is_same(others[each.id])
    ]
    fragments = [LiveFragment(snapshot.location, snapshot.manifest, each) for each in unshared]
    lineages = list(map_in_order(_live_rows, fragments))
    return _RowLineage(
        fragments,
        np.repeat(np.arange(len(lineages)), [len(offsets) for offsets, _, _ in lineages]),
        np.concatenate([np.empty(0, np.int64), *(offsets for offsets, _, _ in lineages)]),
        np.concatenate([np.empty(0, np.uint64), *(ids for _, ids, _ in lineages)]),
        np.concatenate([np.empty(0, np.uint64), *(versions for _, _, versions in lineages)]),
    )


def _live_rows(each: LiveFragment) -> tuple[Offsets, Ids, Ids]:
    rows, deletions = each.fragment.physical_rows, each.deletions
    offsets = np.arange(rows) if deletions is None else np.flatnonzero(deletions.live_mask(0, rows))
    return offsets, each.system_columns.values(ROW_ID, offsets), each.system_columns.values(LAST_UPDATED_AT, offsets)


def _look_up(requested: Ids, ids: Ids) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Return which of the requested ids exist in `ids`, and where."""
    if not len(ids):
        return np.zeros(len(requested), dtype=np.bool_), np.zeros(len(requested), dtype=np.int64)
    order = np.argsort(ids, kind="stable")
    position = order[np.minimum(np.searchsorted(ids[order], requested), len(ids) - 1)]
    return ids[position] == requested, position


def _read_rows(
    snapshot: Snapshot,
    table: TableSchema,
    names: Sequence[str],
    rows: _RowLineage,
    indices: Offsets,
    kinds: Sequence[str],
) -> pa.Table:
    plan = plan_columns(snapshot.manifest, names, table=table)
    reader = RowReader(snapshot.location, plan)

    def read_fragment(number: int) -> pa.RecordBatch:
        return reader.pick(rows.fragments[number], rows.offset[indices[rows.number[indices] == number]])

    batches = map_in_order(read_fragment, np.unique(rows.number[indices]).tolist())
    return pa.Table.from_batches(batches, plan.schema).add_column(0, CHANGE, pa.array(kinds, pa.string()))
