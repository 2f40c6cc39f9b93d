"""Pending versions: reads the versions above a table's watermark and decides which of them the sensor records.

A version whose transaction names a Dagster run is left to that run while the run may still record it, for at most ten
minutes. A damaged version is skipped and checked again with each tick, since it may be repaired. This module records
nothing; `reconcile.py` uses its results. Start with `read_pending`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import dagster as dg
import pyarrow as pa

from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.partition_keys import partition_key
from lance_assets.ledger.recording import (
    RecordingState,
    already_recorded_message,
    build_materialization,
    recorded_data_versions,
    recording_state,
)
from lance_assets.ledger.recording_claims import FINISHED_STATUSES, UNFINISHED_STATUSES
from lance_assets.ledger.version_metadata import VersionFacts, discovered_facts
from lance_core import LanceError, StorageError, Table, VersionInfo

RUN_WAIT_MAX = timedelta(minutes=10)

# Errors that reading an untrusted table can raise: its bytes may hold numbers out of range and unknown types.
TABLE_ERRORS = (LanceError, pa.ArrowException, ArithmeticError, LookupError, OSError, RecursionError, ValueError)

_EVENT_BYTES = 6_000
_COLUMN_BYTES = 250
"""Estimated size of an event and of each of its columns in the result of a tick, without the column names."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """High-water mark of discovery in one table, stored in the sensor's cursor."""

    incarnation: int
    version: int
    """All versions up to this one are processed, except the unreadable ones."""
    settled_count: int
    """Number of versions when nothing else was left to do; 0 if something was."""
    unreadable: tuple[int, ...] = ()
    """Versions up to `version` that could not be read and are checked again."""


@dataclass(slots=True)
class TickBudget:
    """Limits of one tick. The daemon drops a result that takes longer than a minute or is too large."""

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
class PendingVersions:
    """Result of reading some versions, each on its own."""

    last: int
    """All versions up to this one are processed, except the unreadable ones."""
    unreadable: list[int]
    to_record: list[tuple[VersionFacts, dg.AssetMaterialization]] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    """Partitions that were recorded before."""
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
    now: datetime,
    retained: int,
) -> PendingVersions:
    """Read these versions within the budget. `retained` is the number of versions that are on the ledger."""
    pending = PendingVersions(watermark.version, list(watermark.unreadable))
    recorded = recorded_data_versions(instance, ledger, [partition_key(version, incarnation) for version in versions])
    is_waiting = False
    for version in versions:
        if budget.is_spent():
            break
        pending.checked += 1
        was_unreadable = version in watermark.unreadable
        try:
            pending.last_table = table.at(version)
            info = pending.last_table.version_info()
            facts = discovered_facts(pending.last_table, info, incarnation)
            state = recording_state(facts, recorded)
            if state is RecordingState.TAKEN:
                pending.notes.append(already_recorded_message(ledger, facts.partition))
            elif state is RecordingState.RECORDED:
                pending.known.add(facts.partition)
            elif _is_left_to_its_run(instance, facts, info, now):
                pending.notes.append(
                    f"{ledger.label}: version {version} is left to its run {facts.run_id}, which is still active"
                )
                if was_unreadable:
                    continue
                is_waiting = True
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
            if not was_unreadable:  # reported once
                pending.unreadable.append(version)
                pending.notes.append(
                    f"{ledger.label}: version {version} cannot be read and is recorded once it is repaired: "
                    f"{error_text(error)}"
                )
        if not is_waiting:
            pending.last = max(pending.last, version)
    return pending


def _is_left_to_its_run(instance: dg.DagsterInstance, facts: VersionFacts, info: VersionInfo, now: datetime) -> bool:
    return now - info.timestamp < RUN_WAIT_MAX and _may_record(instance, facts.run_id)


def _may_record(instance: dg.DagsterInstance, run_id: str | None) -> bool:
    """Return whether this run, or a run that retries it, is active in this instance."""
    run = instance.get_run_by_id(run_id) if run_id else None
    if run is None:
        return False
    if run.status not in FINISHED_STATUSES:
        return True
    family = {"dagster/root_run_id": run.root_run_id or run.run_id}
    return bool(instance.get_run_ids(dg.RunsFilter(tags=family, statuses=UNFINISHED_STATUSES), limit=1))


def error_text(error: Exception) -> str:
    """Return the message of an error, with its type if it is not an error of the core."""
    return str(error) if isinstance(error, LanceError) else f"{type(error).__name__}: {error}"
