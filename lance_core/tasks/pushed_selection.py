"""What indices know of a condition, on its way to workers: which fragments are looked at, and which of their rows.

    driver    looked_at(base, predicate) -> fragments, Sent     indices are asked once
    workers   Sent.selection()                                  for the fragments of a part

What travels is bounded: where rows of more fragments are known than fit, the others are scanned.
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

_BYTES_MAX = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class PushedRows:
    """Rows of a fragment as they travel."""

    rows: bytes
    residual: Predicate | None

    @property
    def selection(self) -> FragmentSelection:
        return FragmentSelection(BitMap.deserialize(self.rows), self.residual)


@dataclass(frozen=True, slots=True)
class PushedSelection:
    """A selection as it travels; of fragments that are not in it nothing is known."""

    fragments: tuple[tuple[int, PushedRows], ...] = ()

    @classmethod
    def of(cls, tasks: Sequence[ScanTask]) -> "PushedSelection":
        together = zip(tasks, pack_rows(tasks), strict=True)
        return cls(tuple((task.fragment.id, rows) for task, rows in together if rows is not None))

    def selection_for(self, part: Snapshot) -> Selection:
        """Of the fragments that a worker has."""
        there = {message.id for message in part.manifest.message.fragments}
        chosen = {id: sent.selection for id, sent in self.fragments if id in there}
        return Selection(BitMap(chosen), chosen)


def fragments_to_scan(base: Snapshot, predicate: Predicate) -> tuple[Sequence[Fragment], PushedSelection]:
    """The fragments that may have rows that match, in order."""
    plan = plan_scan(base.manifest, columns=(), filter=predicate, select=lookup.selector_of(base))
    return [task.fragment for task in plan.tasks], PushedSelection.of(plan.tasks)


def pack_rows(tasks: Iterable[ScanTask]) -> Sequence[PushedRows | None]:
    """The rows that each is known to be about; None where it is scanned."""
    found: list[PushedRows | None] = []
    left = _BYTES_MAX
    for task in tasks:
        chosen, rows = task.selection, None
        if chosen is not None and not chosen.is_most_of(task.fragment.physical_rows):
            data = bytes(chosen.rows.serialize())
            left -= len(data)
            rows = PushedRows(data, chosen.residual) if left >= 0 else None
        found.append(rows)
    return found
