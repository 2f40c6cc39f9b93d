"""One look at one table: which of its versions are to be put on the ledger, and which partitions have lost theirs.

A version whose transaction names one of our runs is left to that run while it may still record it, and for ten minutes
at most. What keeps a version from being recorded twice is the ledger itself. When a look is due, and what becomes of
what it brought, is decided in `discovery.py`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import dagster as dg
import pyarrow as pa

from lance_assets.checks.check import Check
from lance_assets.checks.judging import evaluation, judge_all, seen_at
from lance_assets.claims import FINISHED, SENSOR, UNFINISHED, claim, look_after, release
from lance_assets.epochs import epoch_of
from lance_assets.ledger import Ledger
from lance_assets.metadata import VersionFacts, found_facts
from lance_assets.partitions import is_version_key, partition_key, version_of
from lance_assets.recording import Standing, add_partitions, materialization, recorded, standing, taken_message
from lance_core import LanceError, StorageError, Table, VersionInfo

WAIT_MAX = timedelta(minutes=10)
RETIRED_PER_LOOK = 200
"""Dagster deletes them one by one."""

# What a table can do to whoever reads it: it is anybody's bytes, numbers out of range and types that nobody knows.
TABLES_FAULT = (LanceError, pa.ArrowException, ArithmeticError, LookupError, OSError, RecursionError, ValueError)

_EVENT_BYTES = 6_000
_COLUMN_BYTES = 250
"""What an event weighs on its way to the daemon, besides the names and types of columns."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a table has been looked through."""

    epoch: int
    version: int
    kept: int
    """How many versions there were when nothing else was left to do; 0 where something was."""


@dataclass(slots=True)
class Budget:
    """What one tick may do: whoever waits for its answer takes it for lost after a minute, and refuses one that is too
    large."""

    versions: int
    bytes: int
    ends: float
    clock: Callable[[], float] = time.monotonic

    def is_spent(self) -> bool:
        return self.versions <= 0 or self.bytes <= 0 or self.clock() >= self.ends

    def take(self, facts: VersionFacts) -> None:
        self.versions -= 1
        names = sum(len(field.name) for field in facts.schema)
        self.bytes -= _EVENT_BYTES + _COLUMN_BYTES * len(facts.schema) + names


@dataclass(slots=True)
class Memory:
    """What this process has learnt of tables and need not ask the database for again. It may be lost at any time."""

    epochs: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By ledger: the identity of the table there, and its epoch."""

    def epoch(self, instance: dg.DagsterInstance, ledger: Ledger, identity: str | None, seen: Seen | None) -> int:
        if identity is not None and seen and self.epochs.get(ledger.label) == (identity, seen.epoch):
            return seen.epoch
        epoch = epoch_of(instance, ledger, identity)
        if identity is not None:
            self.epochs[ledger.label] = (identity, epoch)
        return epoch


@dataclass(frozen=True, slots=True)
class Opened:
    """A table as it was found, read without a look at Dagster."""

    table: Table
    identity: str | None
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, ledger: Ledger) -> "Opened":
        table = ledger.open()
        return cls(table, ledger.identity_of(table), table.version_numbers())


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look at one table brought."""

    seen: Seen | None
    events: tuple[dg.AssetMaterialization, ...] = ()
    judged: tuple[dg.AssetCheckEvaluation, ...] = ()
    """What checks found of the versions that the events are about."""
    gone: tuple[str, ...] = ()
    """Partitions of versions that do not exist any more."""
    more: bool = False
    notes: tuple[str, ...] = ()


def look_at(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    opened: Opened,
    seen: Seen | None,
    *,
    sensor: str,
    budget: Budget,
    memory: Memory,
    now: datetime,
    checks: Sequence[Check] = (),
) -> Looked:
    table = opened.table
    epoch = memory.epoch(instance, ledger, opened.identity, seen)
    if seen == Seen(epoch, table.version, len(opened.numbers)):
        return Looked(seen)
    watch = look_after(instance, ledger, sensor, now)
    if watch.other:
        return Looked(seen, notes=(f"{ledger.label}: the versions of others are registered by {watch.other}",))
    # Keys before versions: one that has a key and is not listed then is gone, not new.
    keys = set(instance.get_dynamic_partitions(ledger.partition_set))
    numbers = table.version_numbers()
    notes = []
    if seen and seen.epoch != epoch:
        notes.append(_recreated_message(ledger, epoch))
    # A table that was put back to an older state is looked through again.
    last = seen.version if seen and seen.epoch == epoch and seen.version <= table.version else 0
    unseen = [number for number in numbers if number > last]
    retired_max = min(budget.versions, RETIRED_PER_LOOK)
    found = _found(instance, ledger, epoch, table, unseen[: budget.versions], last, budget, now)
    fresh = [event.partition for event in found.events if event.partition is not None]
    exist = {partition_key(number, epoch) for number in numbers}
    # Before the events that Dagster stores when this returns: an event without its key is a partition on no page.
    add_partitions(instance, ledger, [*fresh, *sorted(found.known - keys)])
    gone = sorted(key for key in keys - exist if is_version_key(key))
    is_done = len(gone) <= retired_max and watch.is_quiet and not found.has_claims
    return Looked(
        Seen(epoch, found.last, len(numbers) if is_done else 0),
        tuple(found.events),
        tuple(_judged(instance, ledger, checks, table, found.events, now)),
        tuple(gone[:retired_max]),
        found.looked_at < len(unseen),
        (*notes, *found.notes),
    )


@dataclass(slots=True)
class _Found:
    last: int
    """Up to here nothing is left to be looked at again."""
    events: list[dg.AssetMaterialization] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    """Partitions that were recorded before."""
    notes: list[str] = field(default_factory=list)
    looked_at: int = 0
    has_claims: bool = False


def _found(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    epoch: int,
    table: Table,
    numbers: Sequence[int],
    last: int,
    budget: Budget,
    now: datetime,
) -> _Found:
    """What is to be said of these versions, each looked at by itself."""
    found = _Found(last)
    known = recorded(instance, ledger, [partition_key(number, epoch) for number in numbers])
    to_claim: list[tuple[VersionFacts, dg.AssetMaterialization]] = []
    is_waiting = False
    for number in numbers:
        if budget.is_spent():
            break
        found.looked_at += 1
        try:
            at = table.at(number)
            info = at.version_info()
            facts = found_facts(at, info, epoch)
            stands = standing(facts, known)
            if stands is Standing.TAKEN:
                found.notes.append(taken_message(ledger, facts.partition))
            elif stands is Standing.RECORDED:
                found.known.add(facts.partition)
            elif _is_left_to_its_run(instance, facts, info, now):
                found.notes.append(
                    f"{ledger.label}: version {number} is left to its run {facts.run_id}, which is not finished"
                )
                is_waiting = True
            else:
                to_claim.append((facts, materialization(instance, ledger, facts)))
                budget.take(facts)
        except StorageError as error:  # it may pass: the next tick begins here
            found.notes.append(f"{ledger.label}: version {number}: {said(error)}")
            break
        except TABLES_FAULT as error:
            found.notes.append(f"{ledger.label}: version {number} is not recorded: {said(error)}")
        if not is_waiting:
            found.last = number
    found.has_claims = any(facts.run_id is not None for facts, _ in to_claim)
    held = _claimed(instance, ledger, [facts for facts, _ in to_claim], now)
    for facts, event in to_claim:
        if facts.partition in held:
            found.events.append(event)
        else:
            found.notes.append(f"{ledger.label}: version {facts.version} is being recorded by a run")
            found.last = min(found.last, facts.version - 1)
    return found


def _claimed(
    instance: dg.DagsterInstance, ledger: Ledger, fresh: Sequence[VersionFacts], now: datetime
) -> frozenset[str]:
    """The partitions that are for the sensor to record. No run can come along for a version that no run has made. The
    claims stay until the next tick, when the events are stored; a run that came later may not have seen them, and then
    it records."""
    shared = [facts.partition for facts in fresh if facts.run_id is not None]
    claimed = claim(instance, ledger, shared, SENSOR, now)
    held = claimed.held - claimed.contested
    if left := set(shared) - held:
        release(instance, ledger, SENSOR, left)
    recorded_since = recorded(instance, ledger, held)
    foreign = frozenset(facts.partition for facts in fresh if facts.run_id is None)
    return foreign | (held - recorded_since.keys())


def _judged(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    checks: Sequence[Check],
    head: Table,
    events: Sequence[dg.AssetMaterialization],
    now: datetime,
) -> list[dg.AssetCheckEvaluation]:
    cheap = [check for check in checks if not check.reads_data]
    found: list[dg.AssetCheckEvaluation] = []
    for event in events if cheap else ():
        assert event.partition is not None
        number = version_of(event.partition)
        try:
            seen = seen_at(head.at(number), instance=instance, is_head=number == head.version, now=now)
        except TABLES_FAULT:  # it went, or is damaged; that is told where it is recorded
            continue
        found += [evaluation(ledger, each, event.partition) for each in judge_all(cheap, seen)]
    return found


def _is_left_to_its_run(instance: dg.DagsterInstance, facts: VersionFacts, info: VersionInfo, now: datetime) -> bool:
    return now - info.timestamp < WAIT_MAX and _may_record(instance, facts.run_id)


def _may_record(instance: dg.DagsterInstance, run_id: str | None) -> bool:
    """Whether this run, or one that goes on for it, is at work in this instance."""
    run = instance.get_run_by_id(run_id) if run_id else None
    if run is None:
        return False
    if run.status not in FINISHED:
        return True
    family = {"dagster/root_run_id": run.root_run_id or run.run_id}
    return bool(instance.get_run_ids(dg.RunsFilter(tags=family, statuses=UNFINISHED), limit=1))


def _recreated_message(ledger: Ledger, epoch: int) -> str:
    return (
        f"{ledger.label}: the table at {ledger.shown_uri} is not the one that was there before; its versions have "
        f"partitions of their own, from {partition_key(1, epoch)} on"
    )


def said(error: Exception) -> str:
    return str(error) if isinstance(error, LanceError) else f"{type(error).__name__}: {error}"
