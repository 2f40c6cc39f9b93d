"""Pending versions: reads the versions above a table's watermark and decides which of them the sensor records.

A version whose transaction names a Dagster run is left to that run while the run may still record it, for at most ten
minutes; later versions wait for it, since versions are recorded in order. A damaged version is skipped and checked
again with each tick, since it may be repaired. This module records nothing; `reconcile.py` uses its results. Start with
`read_pending`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import dagster as dg

from lance_assets.ledger.ledger import Ledger, recorded_data_versions
from lance_assets.ledger.partition_keys import partition_key
from lance_assets.ledger.recording import (
    RecordingState,
    already_recorded_message,
    build_materialization,
    recording_state,
)
from lance_assets.ledger.recording_lock import may_record
from lance_assets.ledger.version_metadata import TABLE_ERRORS, VersionFacts, discovered_facts
from lance_core import LanceError, StorageError, Table

RUN_WAIT_MAX = timedelta(minutes=10)

_EVENT_BYTES = 6_000
_COLUMN_BYTES = 250
"""Estimated size of an event and of each of its columns, without the column names."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """High-water mark of discovery in one table, stored in the sensor's cursor."""

    incarnation: int
    version: int
    """All versions up to this one are processed, except the unreadable ones."""
    settled_count: int
    """Number of versions of the table after a tick that left nothing to do; 0 after any other tick."""
    unreadable: tuple[int, ...] = ()
    """Versions up to `version` that could not be read and are checked again."""

    def settled_at(self, version: int, count: int) -> "Watermark":
        """Return the watermark after a tick that processes all `count` versions of a table, up to `version`."""
        return Watermark(self.incarnation, version, count)


@dataclass(slots=True)
class TickBudget:
    """Limits of one tick. The daemon drops the result of a tick that takes longer than a minute."""

    versions: int
    bytes: int
    ends: float
    clock: Callable[[], float] = time.monotonic

    def is_spent(self) -> bool:
        """Return whether the tick has reached a limit."""
        return self.versions <= 0 or self.bytes <= 0 or self.clock() >= self.ends

    def charge(self, facts: VersionFacts) -> None:
        """Subtract the event of one version from the budget."""
        self.versions -= 1
        names = sum(len(field.name) for field in facts.schema)
        self.bytes -= _EVENT_BYTES + _COLUMN_BYTES * len(facts.schema) + names


@dataclass(slots=True)
class RunWaits:
    """Cache of the versions that are left to their runs, with the start of each wait. After its loss, waits restart."""

    clock: Callable[[], float] = time.monotonic
    _since: dict[str, tuple[str, float]] = field(default_factory=dict)
    """First such version of each ledger and the start of its wait, by the label of the ledger."""

    def is_left_to_run(self, instance: dg.DagsterInstance, ledger: Ledger, facts: VersionFacts, now: datetime) -> bool:
        """Return whether a version is left to its run. It is left for ten minutes after its commit, and for at most ten
        minutes after the first call, as the clock of the writer may be ahead."""
        if now - facts.timestamp >= RUN_WAIT_MAX or not may_record(instance, facts.run_id):
            return False
        partition, since = self._since.get(ledger.label, ("", 0.0))
        if partition != facts.partition:
            since = self.clock()
            self._since[ledger.label] = (facts.partition, since)
        return self.clock() - since < RUN_WAIT_MAX.total_seconds()


@dataclass(slots=True)
class PendingVersions:
    """Result of reading some versions one by one."""

    last: int
    """All versions up to this one are processed, except the unreadable ones."""
    unreadable: list[int]
    to_record: list[tuple[VersionFacts, dg.AssetMaterialization]] = field(default_factory=list)
    is_waiting: bool = False
    """True if the next version is left to its run, which is still active."""
    notes: list[str] = field(default_factory=list)
    """Messages for the log and the page of the sensor."""
    checked: int = 0
    last_table: Table | None = None
    """The table at the version that was read last."""


def read_pending(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    incarnation: int,
    table: Table,
    versions: Sequence[int],
    watermark: Watermark,
    budget: TickBudget,
    is_left_to_run: Callable[[VersionFacts], bool],
    retained: int,
) -> PendingVersions:
    """Read these versions within the budget. `retained` is the number of versions that are on the ledger.

    Reading ends before a version that is left to its run.
    """
    pending = PendingVersions(watermark.version, list(watermark.unreadable))
    recorded = recorded_data_versions(instance, ledger, [partition_key(version, incarnation) for version in versions])
    for version in versions:
        if budget.is_spent():
            break
        pending.checked += 1
        was_unreadable = version in watermark.unreadable
        try:
            pending.last_table = table.at(version)
            facts = discovered_facts(pending.last_table, pending.last_table.version_info(), incarnation)
            state = recording_state(facts, recorded)
            if state is RecordingState.TAKEN:
                pending.notes.append(already_recorded_message(ledger, facts.partition))
            elif state is RecordingState.RECORDED:
                pass
            elif is_left_to_run(facts):
                pending.notes.append(
                    f"{ledger.label}: version {version} is left to its run {facts.run_id}, which is still active"
                )
                if was_unreadable:
                    continue
                pending.is_waiting = True
                break
            else:
                pending.to_record.append((facts, build_materialization(instance, ledger, facts, retained=retained + 1)))
                retained += 1
                budget.charge(facts)
            if was_unreadable:
                pending.unreadable.remove(version)
        except StorageError as error:  # it may be temporary, so the next tick begins with this version
            pending.notes.append(f"{ledger.label}: version {version}: {error_text(error)}")
            break
        except TABLE_ERRORS as error:
            if not was_unreadable:  # the version is reported once
                pending.unreadable.append(version)
                pending.notes.append(
                    f"{ledger.label}: version {version} cannot be read and is recorded once it is repaired: "
                    f"{error_text(error)}"
                )
        pending.last = max(pending.last, version)
    return pending


def error_text(error: Exception) -> str:
    """Return the message of an error, with its type if it is not an error of the core."""
    return str(error) if isinstance(error, LanceError) else f"{type(error).__name__}: {error}"
