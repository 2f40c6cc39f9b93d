"""Reading the versions of a table that nobody has looked at: what there is to say of each, which are left to others.

A version whose transaction names one of our runs is left to that run while it may still record it, and for ten minutes
at most. One that is damaged is passed over, and looked at again with each tick: it may be repaired. Nothing here puts
anything on a ledger; what becomes of what was read is decided in `reconcile.py`.
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

# What a table can do to whoever reads it: it is anybody's bytes, numbers out of range and types that nobody knows.
TABLE_ERRORS = (LanceError, pa.ArrowException, ArithmeticError, LookupError, OSError, RecursionError, ValueError)

_EVENT_BYTES = 6_000
_COLUMN_BYTES = 250
"""What an event weighs on its way to the daemon, besides the names and types of columns."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far a table has been looked through."""

    incarnation: int
    version: int
    settled_count: int
    """How many versions there were when nothing else was left to do; 0 where something was."""
    unreadable: tuple[int, ...] = ()
    """Versions up to `version` that are to be looked at again, since they could not be read."""


@dataclass(slots=True)
class TickBudget:
    """What one tick may do: whoever waits for its answer takes it for lost after a minute, and refuses one that is too
    large."""

    versions: int
    bytes: int
    ends: float
    clock: Callable[[], float] = time.monotonic

    def is_spent(self) -> bool:
        return self.versions <= 0 or self.bytes <= 0 or self.clock() >= self.ends

    def charge(self, facts: VersionFacts) -> None:
        self.versions -= 1
        names = sum(len(field.name) for field in facts.schema)
        self.bytes -= _EVENT_BYTES + _COLUMN_BYTES * len(facts.schema) + names


@dataclass(slots=True)
class PendingVersions:
    """What is to be said of some versions, each looked at by itself."""

    last: int
    """Up to here nothing is left to be looked at, besides `unreadable`."""
    unreadable: list[int]
    to_record: list[tuple[VersionFacts, dg.AssetMaterialization]] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    """Partitions that were recorded before."""
    notes: list[str] = field(default_factory=list)
    checked: int = 0
    last_table: Table | None = None
    """The version that was read last."""


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
    """`retained` is how many versions the ledger has so far."""
    read = PendingVersions(watermark.version, list(watermark.unreadable))
    known = recorded_data_versions(instance, ledger, [partition_key(number, incarnation) for number in versions])
    is_waiting = False
    for number in versions:
        if budget.is_spent():
            break
        read.checked += 1
        is_old = number in watermark.unreadable
        try:
            read.last_table = table.at(number)
            info = read.last_table.version_info()
            facts = discovered_facts(read.last_table, info, incarnation)
            stands = recording_state(facts, known)
            if stands is RecordingState.TAKEN:
                read.notes.append(already_recorded_message(ledger, facts.partition))
            elif stands is RecordingState.RECORDED:
                read.known.add(facts.partition)
            elif _is_left_to_its_run(instance, facts, info, now):
                read.notes.append(
                    f"{ledger.label}: version {number} is left to its run {facts.run_id}, which is not finished"
                )
                if is_old:
                    continue
                is_waiting = True
            else:
                read.to_record.append((facts, build_materialization(instance, ledger, facts, retained=retained + 1)))
                retained += 1
                budget.charge(facts)
            if is_old:
                read.unreadable.remove(number)
        except StorageError as error:  # it may pass: the next tick begins here
            read.notes.append(f"{ledger.label}: version {number}: {error_text(error)}")
            break
        except TABLE_ERRORS as error:
            if not is_old:  # said once
                read.unreadable.append(number)
                read.notes.append(
                    f"{ledger.label}: version {number} is not recorded, until it is repaired: {error_text(error)}"
                )
        if not is_waiting:
            read.last = max(read.last, number)
    return read


def _is_left_to_its_run(instance: dg.DagsterInstance, facts: VersionFacts, info: VersionInfo, now: datetime) -> bool:
    return now - info.timestamp < RUN_WAIT_MAX and _may_record(instance, facts.run_id)


def _may_record(instance: dg.DagsterInstance, run_id: str | None) -> bool:
    """Whether this run, or one that goes on for it, is at work in this instance."""
    run = instance.get_run_by_id(run_id) if run_id else None
    if run is None:
        return False
    if run.status not in FINISHED_STATUSES:
        return True
    family = {"dagster/root_run_id": run.root_run_id or run.run_id}
    return bool(instance.get_run_ids(dg.RunsFilter(tags=family, statuses=UNFINISHED_STATUSES), limit=1))


def error_text(error: Exception) -> str:
    return str(error) if isinstance(error, LanceError) else f"{type(error).__name__}: {error}"
