"""Reconciliation: compares one table with its ledger, records the missing versions, and decides which partitions to
retire.

`pending_versions.py` reads the versions. One sensor at a time leads a ledger (`leader.py`), and the recording lock
prevents its ticks and the runs from recording a version twice (`ledger/recording_lock.py`). A tick stores its events
itself, under the lock: if it returned them, Dagster would store them later, and no recorder could tell whether they are
about to be stored or lost. `sensor.py` decides when to reconcile a table. Start with `reconcile`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import context_at, evaluate_all, evaluation_event
from lance_assets.discovery.leader import elect_leader, new_tick_claimant
from lance_assets.discovery.pending_versions import PendingVersions, RunWaits, TickBudget, Watermark, read_pending
from lance_assets.ledger.dynamic_partitions import KeyPlan, incarnation_of, plan_keys, version_keys
from lance_assets.ledger.ledger import Ledger, growth_warning, latest_partition, recorded_data_versions
from lance_assets.ledger.partition_keys import is_version_key, partition_key, version_of
from lance_assets.ledger.recording import newest_behind_others, restate_newest
from lance_assets.ledger.recording_lock import ClaimObserver, RecordingLock
from lance_assets.ledger.version_metadata import TABLE_ERRORS
from lance_core import Table, VersionListing, VersionWatch

RETIRED_PER_TICK = 200
"""Dagster deletes partition keys one by one."""
UNREADABLE_MAX = 100
"""Maximum number of damaged versions that each tick checks again; these are the newest ones."""
AUDIT_INTERVAL_S = 600.0
"""Interval between two comparisons of a watermark with the events of its ledger."""
STORING_S_MAX = 10.0
"""Seconds after which a tick leaves the remaining events of a table to the next tick. It is a third of the lifetime of
its claim, so that a tick which is suspended while it stores events notices that before the next event."""
CLAIM_CHECK_INTERVAL_S = 1.0
"""Minimum interval between two events before which a tick checks that its claim still exists."""


@dataclass(slots=True)
class DiscoveryCache:
    """Cache of facts about the ledgers, which saves database queries. A process may lose it at any time."""

    clock: Callable[[], float] = time.monotonic
    incarnations: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Identity and incarnation of the current table, by the label of its ledger."""
    observer: ClaimObserver = field(init=False)
    run_waits: RunWaits = field(init=False)
    _audited: dict[str, float] = field(default_factory=dict)
    """Time of the last audit, by the label of the ledger."""
    _watches: dict[str, VersionWatch] = field(default_factory=dict)
    """Watches on the tables that were opened, by the label of the ledger."""
    _settled: dict[str, tuple[Watermark, VersionListing]] = field(default_factory=dict)
    """Watermark and versions of the tables for which the last tick had nothing to do."""

    def __post_init__(self) -> None:
        self.observer = ClaimObserver(self.clock)
        self.run_waits = RunWaits(self.clock)

    def knows(self, ledger: Ledger, identity: str | None, watermark: Watermark | None) -> bool:
        """Return whether the cache shows that the table with this identity has the incarnation of the watermark."""
        cached = self.incarnations.get(ledger.label)
        return watermark is not None and identity is not None and cached == (identity, watermark.incarnation)

    def incarnation(self, instance: dg.DagsterInstance, ledger: Ledger, identity: str | None) -> int:
        """Return the incarnation of the table with this identity, from the database."""
        incarnation = incarnation_of(instance, ledger, identity)
        if identity is not None:
            self.incarnations[ledger.label] = (identity, incarnation)
        return incarnation

    def is_audit_due(self, ledger: Ledger) -> bool:
        """Return whether the watermark of a ledger should be compared with its events."""
        audited = self._audited.get(ledger.label)
        return audited is None or self.clock() - audited >= AUDIT_INTERVAL_S

    def list_versions(self, ledger: Ledger) -> VersionListing | None:
        """List the versions of a table that was opened before; `None` if it was not."""
        watch = self._watches.get(ledger.label)
        return None if watch is None else watch.read()

    def is_settled(self, ledger: Ledger, watermark: Watermark | None, listing: VersionListing | None) -> bool:
        """Return whether a tick that saw the same versions had nothing to do, and no audit is due."""
        is_same = listing is not None and self._settled.get(ledger.label) == (watermark, listing)
        return is_same and not self.is_audit_due(ledger)

    def note_opened(self, ledger: Ledger, opened: "OpenedTable") -> None:
        """Keep a watch on a table, which may be another one than before."""
        if opened.watch is not None:
            self._watches[ledger.label] = opened.watch

    def note_settled(self, ledger: Ledger, watermark: Watermark, opened: "OpenedTable") -> None:
        """Record the watermark of a tick if it leaves nothing to do, and if the tick certainly opened the table that
        was listed."""
        listing = opened.listing
        if listing is None or not opened.is_as_listed:
            return
        if watermark == watermark.settled_at(opened.table.version, len(listing.numbers)):
            self._settled[ledger.label] = watermark, listing

    def note_audit(self, ledger: Ledger) -> None:
        """Record that the watermark was compared now, so that the next interval begins."""
        self._audited[ledger.label] = self.clock()


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """Table at its newest version with its identity and its versions, read without access to Dagster."""

    table: Table
    identity: str | None
    versions: tuple[int, ...]
    watch: VersionWatch | None = None
    listing: VersionListing | None = None
    """Listing that `versions` come from."""
    is_as_listed: bool = False
    """True if the versions were the same before the table was opened, so that they are those of this table."""

    @classmethod
    def open(cls, ledger: Ledger) -> "OpenedTable":
        """Open the table of a ledger."""
        table = ledger.open()
        identity, watch = ledger.identity_of(table), table.watch()
        listing = watch.read()
        return cls(table, identity, listing.numbers, watch, listing)


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """Result of reconciling one table."""

    watermark: Watermark | None
    recorded: int = 0
    """Number of versions that this tick recorded."""
    retired: tuple[str, ...] = ()
    """Partitions of versions that no longer exist."""
    has_more: bool = False
    """True if the budget ended before the last version."""
    notes: tuple[str, ...] = ()
    """Messages for the log and the page of the sensor."""


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
    """Compare a table with its ledger and record the missing versions. Return the partitions to retire and the new
    watermark."""
    table, is_audit = opened.table, cache.is_audit_due(ledger)
    cache.note_opened(ledger, opened)
    is_known = cache.knows(ledger, opened.identity, watermark) and not is_audit
    if is_known and watermark and watermark == watermark.settled_at(table.version, len(opened.versions)):
        cache.note_settled(ledger, watermark, opened)
        return ReconcileResult(watermark)
    incarnation = cache.incarnation(instance, ledger, opened.identity)
    leadership = elect_leader(instance, ledger, sensor, now, cache.observer)
    if leadership.other_leader:
        note = f"{ledger.label}: the versions of other writers are recorded by {leadership.other_leader}"
        return ReconcileResult(watermark, notes=(note,))
    # Keys are read before versions, so a key without a version belongs to a removed version and not to a new one.
    keys = instance.get_dynamic_partitions(ledger.partition_set)
    versions = table.version_numbers()
    start = _starting_watermark(instance, ledger, watermark, incarnation, versions, keys, is_audit=is_audit)
    unprocessed = [version for version in versions if version > start.version or version in start.unreadable]
    retained = sum(map(is_version_key, keys))
    retired_max = min(budget.versions, RETIRED_PER_TICK)
    is_left_to_run = partial(cache.run_waits.is_left_to_run, instance, ledger, now=now)
    pending = read_pending(
        instance, ledger, incarnation, table, unprocessed[: budget.versions], start, budget, is_left_to_run, retained
    )
    notes = [_recreated_message(ledger, incarnation)] if watermark and watermark.incarnation != incarnation else []
    if pending.last_table is not None and ledger.identity_of(pending.last_table) != opened.identity:
        note = f"{ledger.label}: the table was replaced during this tick; the next tick reads the new one"
        return ReconcileResult(watermark, notes=(*notes, note))
    is_complete = pending.checked == len(unprocessed) and not pending.is_waiting
    recorder = _TickRecorder(instance, ledger, table, incarnation, versions, pending, is_complete, cache.observer, now)
    recorded = recorder.record()
    removed = sorted(filter(is_version_key, set(keys) - set(version_keys(versions, incarnation))))
    is_settled = len(removed) <= retired_max and leadership.is_idle and recorded.is_settled
    unreadable = [version for version in pending.unreadable if version in versions and version <= recorded.last]
    notes += [*pending.notes, *recorded.notes, *_ledger_notes(ledger, unreadable, retained, len(recorded.events))]
    if is_audit:
        cache.note_audit(ledger)
    # Results of checks are stored once or never, since the next tick finds their versions recorded.
    for evaluation in _evaluate_checks(instance, ledger, checks, table, recorded.events, now):
        instance.report_runless_asset_event(evaluation)
    settled_count = len(versions) if is_settled else 0
    after = Watermark(incarnation, recorded.last, settled_count, tuple(unreadable[-UNREADABLE_MAX:]))
    cache.note_settled(ledger, after, opened)
    return ReconcileResult(
        after,
        len(recorded.events),
        tuple(removed[:retired_max]),
        recorded.has_more or not (is_complete or pending.is_waiting),
        tuple(notes),
    )


def _starting_watermark(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    watermark: Watermark | None,
    incarnation: int,
    versions: Sequence[int],
    keys: Sequence[str],
    *,
    is_audit: bool,
) -> Watermark:
    """Return the watermark that this tick begins with. If keys or events were lost, it is before the first lost one.

    A table that was restored to an older state outside of Lance is read from its first version again.
    """
    newest = max(versions, default=0)
    is_valid = watermark and watermark.incarnation == incarnation and watermark.version <= newest
    start = watermark if watermark and is_valid else Watermark(incarnation, 0, 0)
    latest = latest_partition(instance, ledger)
    # A run may have recorded a later version, so only a latest event before the watermark indicates lost events.
    if is_audit or latest is None or latest < partition_key(max(start.version, 1), incarnation):
        return _before_first_gap(instance, ledger, start, versions, keys)
    return start


def _ledger_notes(ledger: Ledger, unreadable: Sequence[int], retained: int, recorded: int) -> list[str]:
    """Return the notes about damaged versions and about the growth of the ledger."""
    growth = growth_warning(ledger, retained, retained + recorded)
    if len(unreadable) <= UNREADABLE_MAX:
        return [growth] if growth else []
    damaged = (
        f"{ledger.label}: {len(unreadable)} versions are damaged, and only the newest {UNREADABLE_MAX} are checked "
        "again. After the repair of an older one, reset the cursor of this sensor"
    )
    return [damaged, growth] if growth else [damaged]


def _before_first_gap(
    instance: dg.DagsterInstance, ledger: Ledger, start: Watermark, versions: Sequence[int], keys: Sequence[str]
) -> Watermark:
    """Return a watermark before the first processed version that is not on the ledger; `start` if there is none.

    Events and keys can be lost while the sensor keeps its cursor: a user wipes the asset, or restores the database from
    a backup.
    """
    recorded = instance.get_materialized_partitions(ledger.key)
    complete = recorded.intersection(keys)
    for version in versions:
        if version > start.version:
            break
        if version not in start.unreadable and partition_key(version, start.incarnation) not in complete:
            return Watermark(start.incarnation, version - 1, 0, start.unreadable)
    return start


@dataclass(slots=True)
class _TickRecords:
    """Events that this tick has stored."""

    last: int
    """Version up to which all versions are processed."""
    events: list[dg.AssetMaterialization] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_settled: bool = False
    """True if the ledger needed no change."""
    has_more: bool = False
    """True if this tick had no time for all events."""


@dataclass(frozen=True, slots=True)
class _TickRecorder:
    """Recorder of the pending versions of one tick."""

    instance: dg.DagsterInstance
    ledger: Ledger
    table: Table
    incarnation: int
    versions: Sequence[int]
    pending: PendingVersions
    is_complete: bool
    """True if no version is left for later ticks."""
    observer: ClaimObserver
    now: datetime

    def record(self) -> _TickRecords:
        """Bring the partition keys into the order of versions, and store the events of the pending versions."""
        plan, last = self._plan(), self.pending.last
        if plan.is_complete and self.pending.to_record:
            return self._with_lock(self.pending.to_record[-1][0].partition, self._record_pending, is_repair=False)
        if plan.added:
            return self._with_lock(plan.added[-1], self._move_keys, is_repair=True)
        if self.is_complete and newest_behind_others(self.instance, self.ledger, self.table, self.incarnation):
            return self._with_lock(partition_key(max(last, 1), self.incarnation), self._restate, is_repair=True)
        return _TickRecords(last, is_settled=True)

    def _with_lock(
        self, last: str, action: Callable[[RecordingLock], _TickRecords], *, is_repair: bool
    ) -> _TickRecords:
        """Run the action under the recording lock; leave the versions to its holder if this tick does not get it."""
        lock = RecordingLock(self.instance, self.ledger, new_tick_claimant(), self.observer)
        if not lock.acquire(last, is_repair=is_repair, now=self.now):
            return self._leave_to_others()
        try:
            return action(lock)
        finally:
            lock.release()

    def _leave_to_others(self) -> _TickRecords:
        """Return the result of a tick that leaves the pending versions to the recorder that holds the lock."""
        records = self._defer()
        for facts, _ in self.pending.to_record[:1]:
            records.notes.append(
                f"{self.ledger.label}: version {facts.version} is being recorded by a run or by another tick"
            )
        return records

    def _defer(self) -> _TickRecords:
        """Return the result of a tick that leaves the pending versions to the next one."""
        first = min((facts.version for facts, _ in self.pending.to_record), default=self.pending.last + 1)
        return _TickRecords(first - 1)

    def _record_pending(self, lock: RecordingLock) -> _TickRecords:
        """Store the events of the pending versions, in their order."""
        to_record, clock = self.pending.to_record, self.observer.clock
        recorded = recorded_data_versions(self.instance, self.ledger, [facts.partition for facts, _ in to_record])
        plan = self._plan()
        if to_record[-1][0].partition in recorded or not plan.is_complete:
            return self._leave_to_others()
        # Keys are added before the events: no page lists an event without a key.
        plan.apply(self.instance, self.ledger)
        records, next_check, end = _TickRecords(self.pending.last), clock(), clock() + STORING_S_MAX
        for facts, event in to_record:
            if facts.partition in recorded:
                continue
            if clock() >= next_check:
                if clock() > end or not lock.is_held():
                    records.last, records.has_more = facts.version - 1, True
                    return records
                next_check = clock() + CLAIM_CHECK_INTERVAL_S
            self.instance.report_runless_asset_event(event)
            records.events.append(event)
        return records

    def _move_keys(self, _lock: RecordingLock) -> _TickRecords:
        self._plan().apply(self.instance, self.ledger)
        return self._defer()

    def _restate(self, _lock: RecordingLock) -> _TickRecords:
        restate_newest(self.instance, self.ledger, self.table, self.incarnation)
        return _TickRecords(self.pending.last)

    def _plan(self) -> KeyPlan:
        """Return the plan for the keys of all versions up to the last one of this tick."""
        keys = self.instance.get_dynamic_partitions(self.ledger.partition_set)
        ordered = version_keys(self.versions, self.incarnation, up_to=self.pending.last, listed=keys)
        return plan_keys(keys, ordered)


def _evaluate_checks(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    checks: Sequence[Check],
    head: Table,
    events: Sequence[dg.AssetMaterialization],
    now: datetime,
) -> list[dg.AssetCheckEvaluation]:
    """Evaluate the checks that read no rows on the versions of `events`."""
    metadata_checks = [check for check in checks if not check.reads_data]
    evaluations: list[dg.AssetCheckEvaluation] = []
    for event in events if metadata_checks else ():
        assert event.partition is not None
        version = version_of(event.partition)
        try:
            context = context_at(head.at(version), instance=instance, is_head=version == head.version, now=now)
        except TABLE_ERRORS:  # the version was removed or is damaged; its recording reports that
            continue
        evaluations += [
            evaluation_event(ledger, evaluated, event.partition) for evaluated in evaluate_all(metadata_checks, context)
        ]
    return evaluations


def _recreated_message(ledger: Ledger, incarnation: int) -> str:
    return (
        f"{ledger.label}: the table at {ledger.shown_uri} was replaced by another one; its versions have their own "
        f"partition keys, beginning with {partition_key(1, incarnation)}"
    )
