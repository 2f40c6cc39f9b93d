"""Change data: finds the rows that were inserted, updated or deleted between two versions.

Rows are compared by their stable row ids and by the version that last changed them, so the table must have stable row
ids. A row that was only moved, as by a compaction, is not a change. Fragments that both versions share are not read.

    Comparison.between(since, until)     the fragments of each version that the other one does not share
    plan_changes(until, columns, ...)    the columns that are read of the changed rows
    read_rows(comparison, plan, ...)     the changed rows among some rows of one side

`read_changes` runs these steps in one process, and `tasks/scan/change_plan.py` runs the last one in workers. The rows
of a worker are compared with one fragment of the other side at a time, so that memory is bounded by the rows of the
worker and of one fragment, and not by the table. Start with `read_changes`.
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions import Predicate
from lance_core.expressions.arrow_filters import Condition
from lance_core.format.fragment import Fragment
from lance_core.format.id_runs import Counts, last_ids
from lance_core.format.manifest import Manifest
from lance_core.format.row_id_index import FragmentRowIds, RowIdIndex
from lance_core.scan.morsels import LiveFragment, Morsel, manifest_path, morsels_of_rows
from lance_core.scan.parallel import map_in_order
from lance_core.scan.plan import ScanPlan, plan_scan
from lance_core.scan.row_reader import RowReader
from lance_core.scan.selection import Offsets
from lance_core.scan.system_columns import CREATED_AT, LAST_UPDATED_AT, ROW_ID, ROW_OFFSET
from lance_core.versions.snapshot import Snapshot

Ids = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
CHANGE_FIELD = pa.field("_change", pa.string())
_INSERTED, _UPDATED, _DELETED = range(3)
_KINDS = ("insert", "update", "delete")
"""Values of `_change`."""


class Side(enum.Enum):
    """Version whose rows are compared with those of the other one."""

    UNTIL = "until"
    """Rows that are not in the other version are inserted; rows that differ are updated."""
    SINCE = "since"
    """Rows that are not in the other version are deleted."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Live rows `skip` to `skip + take` of a fragment; all remaining ones if `take` is `None`."""

    fragment: Fragment
    skip: int = 0
    take: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two versions, each with only the fragments that the other one does not share."""

    since: Snapshot
    until: Snapshot

    @classmethod
    def between(cls, since: Snapshot, until: Snapshot) -> "Comparison":
        """Return the comparison. Raise `InvalidInput` unless both have stable row ids, in this order."""
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
        return cls(_with_unshared(since, until.manifest), _with_unshared(until, since.manifest))

    def own(self, side: Side) -> Snapshot:
        """Return the version of a side."""
        return self.until if side is Side.UNTIL else self.since

    def other(self, side: Side) -> Snapshot:
        """Return the version with which a side is compared."""
        return self.since if side is Side.UNTIL else self.until


def read_changes(
    since: Snapshot,
    until: Snapshot,
    *,
    columns: Sequence[str] | None = None,
    filter: Condition | None = None,
    with_row_id: bool = True,
) -> pa.Table:
    """Return one row for each change, with `_change` (insert, update or delete), its row id and its row versions.

    Inserted and updated rows come first, in the order and with the values of `until`; then deleted rows, with the
    values of `since`.
    """
    comparison = Comparison.between(since, until)
    plan = plan_changes(until, columns, filter, with_row_id=with_row_id)
    batches = (
        batch
        for side in Side
        for batch in read_rows(comparison, plan, side, list(map(RowRange, comparison.own(side).manifest.fragments)))
    )
    return pa.Table.from_batches(batches, change_schema(plan))


def plan_changes(
    until: Snapshot, columns: Sequence[str] | None, filter: Condition | Predicate | None, *, with_row_id: bool
) -> ScanPlan:
    """Plan which columns to read of changed rows, and their filter.

    Both versions are read with the schema of the later one: columns that were added since are null in deleted rows.
    """
    stored = until.manifest.schema.arrow.names if columns is None else columns
    lineage = [*([ROW_ID] if with_row_id else []), CREATED_AT, LAST_UPDATED_AT]
    return plan_scan(until.manifest, columns=list(dict.fromkeys([*stored, *lineage])), filter=filter)


def change_schema(plan: ScanPlan) -> pa.Schema:
    """Return the Arrow schema of the changes that are read by a plan."""
    return plan.schema.insert(0, CHANGE_FIELD)


def read_rows(
    comparison: Comparison, plan: ScanPlan, side: Side, ranges: Sequence[RowRange]
) -> Iterator[pa.RecordBatch]:
    """Yield the changed rows among these ranges of one side, in their order."""
    own, schema = comparison.own(side), change_schema(plan)
    plan = replace(plan, manifest=own.manifest, output=_with_offsets(plan).output)
    reader, sizes = RowReader(own.location, plan), plan.morsel_sizes()

    def read(item: tuple[Morsel, _ChangedRows]) -> list[pa.RecordBatch]:
        morsel, rows = item
        return [rows.with_kinds(batch, schema) for batch in reader.pick_matching(morsel, None)]

    morsels = (
        (morsel, rows)
        for rows in _changed_rows(comparison, side, ranges)
        for morsel in morsels_of_rows(
            rows.source, rows.offsets, sizes.rows_per_morsel(sizes.row_bytes(rows.source.fragment))
        )
    )
    return (batch for batches in map_in_order(read, morsels) for batch in batches if batch.num_rows)


@dataclass(frozen=True, slots=True)
class _ChangedRows:
    """Changed rows of one fragment. `kinds` has the index of the kind of each row in `_KINDS`."""

    source: LiveFragment
    offsets: Offsets
    kinds: npt.NDArray[np.int8]

    def with_kinds(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return the columns of the schema, for a batch of some of these rows with their offsets."""
        positions = np.searchsorted(self.offsets, np.asarray(batch.column(ROW_OFFSET)).astype(np.int64))
        kinds = pa.array(_KINDS, pa.string()).take(pa.array(self.kinds[positions]))
        return pa.RecordBatch.from_arrays([kinds, *(batch.column(name) for name in schema.names[1:])], schema=schema)


@dataclass(frozen=True, slots=True)
class _LiveRows:
    """Live rows of one range, as parallel arrays in scan order."""

    source: LiveFragment
    offsets: Offsets
    row_ids: Ids
    updated_at: Ids


def _with_unshared(snapshot: Snapshot, other: Manifest) -> Snapshot:
    others = {fragment.id: fragment for fragment in other.fragments}
    unshared = [
        each for each in snapshot.manifest.fragments if each.id not in others or not each.is_same(others[each.id])
    ]
    return replace(snapshot, manifest=snapshot.manifest.with_fragments(unshared))


def _with_offsets(plan: ScanPlan) -> ScanPlan:
    return plan_scan(plan.manifest, columns=list(dict.fromkeys([*plan.columns, ROW_OFFSET])))


def _changed_rows(comparison: Comparison, side: Side, ranges: Sequence[RowRange]) -> Iterator[_ChangedRows]:
    """Yield the changed rows among these ranges, by fragment and in their order."""
    live = list(map_in_order(partial(_live_rows, comparison.own(side)), ranges))
    row_ids = np.concatenate([np.empty(0, np.uint64), *(rows.row_ids for rows in live)])
    is_known, updated_there = _look_up(row_ids, comparison.other(side))
    start = 0
    for rows in live:
        stop = start + len(rows.offsets)
        known, there = is_known[start:stop], updated_there[start:stop]
        start = stop
        if side is Side.SINCE:
            changed, kinds = ~known, np.full(len(known), _DELETED, np.int8)
        else:
            changed, kinds = ~known | (there != rows.updated_at), np.where(known, _UPDATED, _INSERTED).astype(np.int8)
        if changed.any():
            yield _ChangedRows(rows.source, rows.offsets[changed], kinds[changed])


def _live_rows(own: Snapshot, rows: RowRange) -> _LiveRows:
    source = LiveFragment(own.location, own.manifest, rows.fragment)
    count, deletions = rows.fragment.physical_rows, source.deletions
    live = np.arange(count) if deletions is None else np.flatnonzero(deletions.live_mask(0, count))
    offsets = live[rows.skip : None if rows.take is None else rows.skip + rows.take]
    columns = source.system_columns
    return _LiveRows(source, offsets, columns.values(ROW_ID, offsets), columns.values(LAST_UPDATED_AT, offsets))


def _look_up(row_ids: Ids, other: Snapshot) -> tuple[Mask, Ids]:
    """Return which rows are live in the other version, and the version that last changed them there."""
    order = np.argsort(row_ids, kind="stable")
    ordered = row_ids[order]
    is_known, updated_at = np.zeros(len(row_ids), np.bool_), np.zeros(len(row_ids), np.uint64)
    for positions, versions in map_in_order(partial(_look_up_in, ordered, other), other.manifest.fragments):
        is_known[positions], updated_at[positions] = True, versions
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    return is_known[position], updated_at[position]


def _look_up_in(ordered: Ids, other: Snapshot, fragment: Fragment) -> tuple[Counts, Ids]:
    """Return the positions of the ids that are live in one fragment, and the versions that last changed their rows."""
    source = LiveFragment(other.location, other.manifest, fragment)
    sequence = source.system_columns.row_id_sequence
    first = stop = 0
    if len(sequence.starts):
        first = int(np.searchsorted(ordered, sequence.starts.min(), side="left"))
        stop = int(np.searchsorted(ordered, last_ids(sequence.starts, sequence.lengths).max(), side="right"))
    if first == stop:
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    deleted = source.deletions
    row_ids = FragmentRowIds(fragment.id, sequence, deleted.offsets if deleted else None)
    index = RowIdIndex([row_ids], path=manifest_path(other.location, other.manifest))
    positions, _, offsets = index.locate_ascending(ordered[first:stop])
    return first + positions, source.system_columns.values(LAST_UPDATED_AT, offsets.astype(np.int64))
