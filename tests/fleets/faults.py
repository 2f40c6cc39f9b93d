"""Faults of pylance releases in a mixed fleet: what each release breaks or misreads, in indices of every writer.

A fault allows the answers of pylance by an index to differ from a scan; answers of this project must equal it
always. `docs/compatibility.md` tells users the same, and `make fleets` reports faults that did not occur.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.fleets.histories import OURS, Setting, Step

ZONES = frozenset({"ZONEMAP", "BLOOMFILTER"})
BY_ROW_ID = frozenset({"BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "INVERTED", "IVF_FLAT"})
OLDEST_IN_FLEETS = 8
ALL = (OLDEST_IN_FLEETS, 14)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: after a step, some releases give wrong answers or errors for conditions by some index types."""

    what: str
    kinds: frozenset[str]
    readers: tuple[int, int] = ALL
    """First and last release whose answers are wrong."""
    step: str | None = None
    """Step that causes it; `None` if it is there from the beginning."""
    actors: tuple[int, int] = ALL
    """First and last release whose step causes it."""
    by_ours: bool = False
    """True if the step causes it also if this project performs it."""
    stable: bool | None = None
    """True for tables with stable row ids only, False for the others only."""
    deferred: bool | None = None
    """For compactions: whether the remapping was deferred."""
    merge: bool | None = None
    """For index maintenance: whether the segments are merged."""
    after: str | None = None
    """Step that must have happened before."""


FAULTS: tuple[Fault, ...] = (
    Fault("a query finds nothing through zones where row ids are stable", ZONES, readers=(8, 8), stable=True),
    Fault(
        "a compaction extends the coverage of zones to fragments without zones, where row ids are stable",
        ZONES,
        step="compact",
        actors=(8, 11),
        stable=True,
    ),
    Fault(
        "a reader counts fragments that a deferred compaction wrote as covered by zones",
        ZONES,
        readers=(8, 11),
        step="compact",
        deferred=True,
        stable=False,
    ),
    Fault(
        "a merge copies old values of changed rows into a new segment of row ids",
        BY_ROW_ID,
        step="optimize",
        actors=(8, 8),
        stable=True,
        after="change",
    ),
    Fault(
        "a merge copies old values of changed lists or vectors into a new segment of row ids",
        frozenset({"LABEL_LIST"}),
        step="optimize",
        actors=(9, 12),
        stable=True,
        after="change",
    ),
    Fault(
        "a merge copies old values of changed lists or vectors into a new segment of row ids",
        frozenset({"IVF_FLAT"}),
        step="optimize",
        actors=(9, 11),
        stable=True,
        after="change",
    ),
    Fault(
        "a new segment of row ids is added, and the others still list old values of changed rows",
        BY_ROW_ID,
        step="optimize",
        actors=(9, 13),
        merge=False,
        stable=True,
        after="change",
    ),
    Fault(
        "a new segment of row ids is added, and the others still list old values of changed rows",
        BY_ROW_ID - {"BTREE"},
        step="optimize",
        actors=(14, 14),
        merge=False,
        stable=True,
        after="change",
    ),
    Fault(
        "a search returns too few vectors, after a compaction removed deleted rows whose ids the index still lists",
        frozenset({"IVF_FLAT"}),
        step="compact",
        by_ours=True,
        stable=True,
    ),
    Fault(
        "the rows of a b-tree that depends on a fragment reuse index are lost",
        frozenset({"BTREE"}),
        step="optimize",
        actors=(8, 8),
        stable=False,
        after="deferred compaction",
    ),
    Fault(
        "rows that depend on a fragment reuse index are lost",
        frozenset({"BTREE", "INVERTED", "NGRAM"}),
        step="compact",
        deferred=False,
        stable=False,
        after="deferred compaction",
    ),
)


def faults_of(setting: Setting, step: Step | None, before: frozenset[str], release: int) -> Iterator[Fault]:
    """Yield the faults that a step causes, performed by this release or by this project, or that are there from the
    beginning (`step` is None). `before` names what happened earlier."""
    for fault in FAULTS:
        if fault.stable not in (None, setting.stable) or fault.step != (None if step is None else step.verb):
            continue
        if step is not None and not _is_caused_by(fault, step, before, release):
            continue
        yield fault


def _is_caused_by(fault: Fault, step: Step, before: frozenset[str], release: int) -> bool:
    if fault.after is not None and fault.after not in before:
        return False
    if fault.deferred not in (None, step.arguments.get("deferred")):
        return False
    if fault.merge not in (None, step.arguments.get("merge")):
        return False
    return fault.by_ours if step.actor == OURS else fault.actors[0] <= release <= fault.actors[1]
