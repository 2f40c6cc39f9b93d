"""One look at one table: which of its versions are to be put on the ledger, and which partitions have lost theirs.

What is to be said of each version is read in `pending_versions.py`. What keeps a version from being recorded twice is
the ledger itself, and that one tick at a time records (`leader.py`). When a look is due, and what becomes of what it
brought, is decided in `sensor.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import context_at, evaluate_all, evaluation_event
from lance_assets.discovery.leader import claim_tick, elect_leader, new_tick_claimant
from lance_assets.discovery.pending_versions import TABLE_ERRORS, PendingVersions, TickBudget, Watermark, read_pending
from lance_assets.ledger.incarnations import incarnation_of
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.partition_keys import is_version_key, partition_key, version_of
from lance_assets.ledger.recording import add_partitions, recorded_data_versions
from lance_assets.ledger.recording_claims import claim_partitions, release_claims
from lance_assets.ledger.version_budget import growth_warning
from lance_assets.ledger.version_metadata import VersionFacts
from lance_core import Table

RETIRED_PER_TICK = 200
"""Dagster deletes them one by one."""
UNREADABLE_MAX = 100
"""Damaged versions that are looked at with each tick; of more, the newest."""


@dataclass(slots=True)
class DiscoveryCache:
    """What this process has learnt of tables and need not ask the database for again. It may be lost at any time."""

    incarnations: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By ledger: the identity of the table there, and its epoch."""

    def incarnation(
        self, instance: dg.DagsterInstance, ledger: Ledger, identity: str | None, seen: Watermark | None
    ) -> int:
        if identity is not None and seen and self.incarnations.get(ledger.label) == (identity, seen.incarnation):
            return seen.incarnation
        epoch = incarnation_of(instance, ledger, identity)
        if identity is not None:
            self.incarnations[ledger.label] = (identity, epoch)
        return epoch


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """A table as it was found, read without a look at Dagster."""

    table: Table
    identity: str | None
    versions: tuple[int, ...]

    @classmethod
    def open(cls, ledger: Ledger) -> "OpenedTable":
        table = ledger.open()
        return cls(table, ledger.identity_of(table), table.version_numbers())


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """What one look at one table brought."""

    watermark: Watermark | None
    events: tuple[dg.AssetMaterialization, ...] = ()
    check_evaluations: tuple[dg.AssetCheckEvaluation, ...] = ()
    """What checks found of the versions that the events are about."""
    retired: tuple[str, ...] = ()
    """Partitions of versions that do not exist any more."""
    has_more: bool = False
    notes: tuple[str, ...] = ()


def reconcile(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    opened: OpenedTable,
    watermark: Watermark | None,
    *,
    sensor: str,
    budget: TickBudget,
    cache: DiscoveryCache,
    now: datetime,
    checks: Sequence[Check] = (),
) -> ReconcileResult:
    table = opened.table
    epoch = cache.incarnation(instance, ledger, opened.identity, watermark)
    if watermark == Watermark(epoch, table.version, len(opened.versions)):
        return ReconcileResult(watermark)
    watch = elect_leader(instance, ledger, sensor, now)
    if watch.other_leader:
        return ReconcileResult(
            watermark, notes=(f"{ledger.label}: the versions of others are registered by {watch.other_leader}",)
        )
    # Keys before versions: one that has a key and is not listed then is gone, not new.
    keys = set(instance.get_dynamic_partitions(ledger.partition_set))
    numbers = table.version_numbers()
    notes = []
    if watermark and watermark.incarnation != epoch:
        notes.append(_recreated_message(ledger, epoch))
    # A table that was put back to an older state is looked through again.
    known = (
        watermark
        if watermark and watermark.incarnation == epoch and watermark.version <= table.version
        else Watermark(epoch, 0, 0)
    )
    unseen = [number for number in numbers if number > known.version or number in known.unreadable]
    retired_max = min(budget.versions, RETIRED_PER_TICK)
    retained = sum(map(is_version_key, keys))
    read = read_pending(instance, ledger, epoch, table, unseen[: budget.versions], known, budget, now, retained)
    if read.last_table is not None and ledger.identity_of(read.last_table) != opened.identity:
        return ReconcileResult(
            watermark, notes=(*notes, f"{ledger.label}: the table was replaced while it was looked at")
        )
    found = _claim_records(instance, ledger, read, now)
    fresh = [event.partition for event in found.events if event.partition is not None]
    exist = {partition_key(number, epoch) for number in numbers}
    # Before the events that Dagster stores when this returns: an event without its key is a partition on no page.
    add_partitions(instance, ledger, [*fresh, *sorted(read.known - keys)])
    gone = sorted(key for key in keys - exist if is_version_key(key))
    many = growth_warning(ledger, retained, retained + len(found.events))
    is_done = len(gone) <= retired_max and watch.is_idle and not read.to_record
    again = [number for number in read.unreadable if number in numbers and number <= found.last]
    if len(again) > UNREADABLE_MAX:
        notes.append(
            f"{ledger.label}: of {len(again)} damaged versions the newest {UNREADABLE_MAX} are looked at again; once others "
            "are repaired, reset the cursor of this sensor"
        )
    return ReconcileResult(
        Watermark(epoch, found.last, len(numbers) if is_done else 0, tuple(again[-UNREADABLE_MAX:])),
        tuple(found.events),
        tuple(_evaluate_checks(instance, ledger, checks, table, found.events, now)),
        tuple(gone[:retired_max]),
        read.checked < len(unseen),
        (*notes, *read.notes, *found.notes, *([many] if many else [])),
    )


@dataclass(slots=True)
class _ClaimedRecords:
    last: int
    events: list[dg.AssetMaterialization] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _claim_records(
    instance: dg.DagsterInstance, ledger: Ledger, read: PendingVersions, now: datetime
) -> _ClaimedRecords:
    """The events that are this tick's to record; the others are looked at again."""
    found = _ClaimedRecords(read.last)
    held = _claim_for_tick(instance, ledger, [facts for facts, _ in read.to_record], now)
    for facts, event in read.to_record:
        if facts.partition in held:
            found.events.append(event)
        else:
            found.notes.append(f"{ledger.label}: version {facts.version} is being recorded by a run, or another tick")
            found.last = min(found.last, facts.version - 1)
    return found


def _claim_for_tick(
    instance: dg.DagsterInstance, ledger: Ledger, fresh: Sequence[VersionFacts], now: datetime
) -> frozenset[str]:
    """The partitions that are for this tick to record. No run can come along for a version that no run has made; of
    others it may, and one that came later may not have seen the claim, and then it records. The claims stay until a
    tick finds the events stored."""
    tick = new_tick_claimant()
    shared = [facts.partition for facts in fresh if facts.run_id is not None]
    claimed = claim_partitions(instance, ledger, shared, tick, now)
    held = claimed.held - claimed.contested
    if left := set(shared) - held:
        release_claims(instance, ledger, tick, left)
    ours = [facts.partition for facts in fresh if facts.run_id is None or facts.partition in held]
    if not ours or not claim_tick(instance, ledger, tick, ours[-1], now):
        return frozenset()
    since = recorded_data_versions(instance, ledger, ours)
    if ours[-1] in since:  # by that one this tick is known to be done, and it would be now
        release_claims(instance, ledger, tick)
        return frozenset()
    return frozenset(ours) - since.keys()


def _evaluate_checks(
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
            seen = context_at(head.at(number), instance=instance, is_head=number == head.version, now=now)
        except TABLE_ERRORS:  # it went, or is damaged; that is told where it is recorded
            continue
        found += [evaluation_event(ledger, each, event.partition) for each in evaluate_all(cheap, seen)]
    return found


def _recreated_message(ledger: Ledger, epoch: int) -> str:
    return (
        f"{ledger.label}: the table at {ledger.shown_uri} is not the one that was there before; its versions have "
        f"partitions of their own, from {partition_key(1, epoch)} on"
    )
