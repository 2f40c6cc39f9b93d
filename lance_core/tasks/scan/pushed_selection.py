"""Selection pushdown: sends the rows that indices select for a predicate to workers, with the fragments to scan.

    driver    fragments_to_scan(base, predicate) -> fragments, PushedSelection    queries the indices once
    workers   PushedSelection.selection_for(snapshot)                             for the fragments of a partition

The size is bounded: fragments whose row sets do not fit are scanned without a selection.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from lance_core.expressions import Predicate
from lance_core.format.fragment import Fragment
from lance_core.index import lookup
from lance_core.scan.plan import ScanTask, plan_scan
from lance_core.scan.selection import FragmentSelection, Selection
from lance_core.versions.snapshot import Snapshot

SELECTION_BYTES_MAX = 16 * 1024**2
"""Upper bound of the row bitmaps that travel with one scan."""


@dataclass(frozen=True, slots=True)
class PushedRows:
    """Row set of one fragment in serialized form."""

    rows: bytes
    residual: Predicate | None

    @property
    def selection(self) -> FragmentSelection:
        return FragmentSelection(BitMap.deserialize(self.rows), self.residual)


@dataclass(frozen=True, slots=True)
class PushedSelection:
    """Selection in serialized form. Any row of a fragment that it does not list may match."""

    fragments: tuple[tuple[int, PushedRows], ...] = ()

    @classmethod
    def of(cls, tasks: Sequence[ScanTask]) -> "PushedSelection":
        pairs = zip(tasks, pack_rows(tasks), strict=True)
        return cls(tuple((task.fragment.id, rows) for task, rows in pairs if rows is not None))

    def selection_for(self, snapshot: Snapshot) -> Selection:
        """Return the selection for the fragments that the worker has."""
        present = {message.id for message in snapshot.manifest.message.fragments}
        selections = {fragment_id: rows.selection for fragment_id, rows in self.fragments if fragment_id in present}
        return Selection(BitMap(selections), selections)


def fragments_to_scan(base: Snapshot, predicate: Predicate) -> tuple[Sequence[Fragment], PushedSelection]:
    """Return the fragments that may hold matching rows, in order, and the rows that the indices select in them."""
    plan = plan_scan(base.manifest, columns=(), filter=predicate, select=lookup.selector_of(base))
    return [task.fragment for task in plan.tasks], PushedSelection.of(plan.tasks)


def pack_rows(tasks: Iterable[ScanTask]) -> Sequence[PushedRows | None]:
    """Return the candidate rows of each task; `None` for a fragment that is scanned without a selection."""
    packed: list[PushedRows | None] = []
    bytes_left = SELECTION_BYTES_MAX
    for task in tasks:
        selection, rows = task.selection, None
        if selection is not None and not selection.is_most_of(task.fragment.physical_rows):
            data = bytes(selection.rows.serialize())
            bytes_left -= len(data)
            rows = PushedRows(data, selection.residual) if bytes_left >= 0 else None
        packed.append(rows)
    return packed
