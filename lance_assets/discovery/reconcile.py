"""Reconciliation: compares one table with its ledger and decides what to record and which partitions to retire.

`pending_versions.py` reads the versions. The ledger itself prevents that a version is recorded twice, together with the
rule that one tick at a time records (`leader.py`). `sensor.py` decides when to reconcile a table, and returns the
results to Dagster. Start with `reconcile`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import context_at, evaluate_all, evaluation_event
from lance_assets.discovery.leader import claim_tick, elect_leader, new_tick_claimant
from lance_assets.discovery.pending_versions import TABLE_ERRORS, PendingVersions, TickBudget, Watermark, read_pending
from lance_assets.ledger.dynamic_partitions import incarnation_of
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.partition_keys import is_version_key, partition_key, version_of
from lance_assets.ledger.recording import add_partitions, recorded_data_versions
from lance_assets.ledger.recording_claims import claim_partitions, release_claims
from lance_assets.ledger.version_budget import growth_warning
from lance_assets.ledger.version_metadata import VersionFacts
from lance_core import Table

RETIRED_PER_TICK = 200
"""Dagster deletes partition keys one by one."""
UNREADABLE_MAX = 100
"""Number of damaged versions that are checked again with each tick; of more, only the newest."""


@dataclass(slots=True)
class DiscoveryCache:
    """Cache of table incarnations in this process, which saves queries to the database. It may be lost at any time."""

    incarnations: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Identity and incarnation of the current table, by the label of its ledger."""

    def incarnation(
        self, instance: dg.DagsterInstance, ledger: Ledger, identity: str | None, watermark: Watermark | None
    ) -> int:
        """Return the incarnation of the table with this identity."""
        cached = self.incarnations.get(ledger.label)
        if identity is not None and watermark and cached == (identity, watermark.incarnation):
            return watermark.incarnation
        incarnation = incarnation_of(instance, ledger, identity)
        if identity is not None:
            self.incarnations[ledger.label] = (identity, incarnation)
        return incarnation


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """Table at its newest version with its identity and its versions, read without access to Dagster."""

    table: Table
    identity: str | None
    versions: tuple[int, ...]

    @classmethod
    def open(cls, ledger: Ledger) -> "OpenedTable":
        """Open the table of a ledger."""
        table = ledger.open()
        return cls(table, ledger.identity_of(table), table.version_numbers())


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """Result of reconciling one table."""

    watermark: Watermark | None
    events: tuple[dg.AssetMaterialization, ...] = ()
    check_evaluations: tuple[dg.AssetCheckEvaluation, ...] = ()
    """Results of the checks on the versions of `events`."""
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
    """Compare a table with its ledger; return the events to store, the partitions to retire and the new watermark."""
    table = opened.table
    incarnation = cache.incarnation(instance, ledger, opened.identity, watermark)
    if watermark == Watermark(incarnation, table.version, len(opened.versions)):
        return ReconcileResult(watermark)
    leadership = elect_leader(instance, ledger, sensor, now)
    if leadership.other_leader:
        note = f"{ledger.label}: the versions of other writers are recorded by {leadership.other_leader}"
        return ReconcileResult(watermark, notes=(note,))
    # Keys are read before versions: a version with a key that is not listed was removed, and is not new.
    keys = set(instance.get_dynamic_partitions(ledger.partition_set))
    versions = table.version_numbers()
    notes = []
    if watermark and watermark.incarnation != incarnation:
        notes.append(_recreated_message(ledger, incarnation))
    # A table that was restored to an older state outside of Lance is read from its first version again.
    is_valid = watermark and watermark.incarnation == incarnation and watermark.version <= table.version
    start = watermark if watermark and is_valid else Watermark(incarnation, 0, 0)
    unprocessed = [version for version in versions if version > start.version or version in start.unreadable]
    retired_max = min(budget.versions, RETIRED_PER_TICK)
    retained = sum(map(is_version_key, keys))
    pending = read_pending(
        instance, ledger, incarnation, table, unprocessed[: budget.versions], start, budget, now, retained
    )
    if pending.last_table is not None and ledger.identity_of(pending.last_table) != opened.identity:
        note = f"{ledger.label}: the table was replaced during this tick; the next tick reads the new one"
        return ReconcileResult(watermark, notes=(*notes, note))
    claimed = _claim_records(instance, ledger, pending, now)
    new_keys = [event.partition for event in claimed.events if event.partition is not None]
    existing = {partition_key(version, incarnation) for version in versions}
    # Keys come before the events, which Dagster stores when this returns: no page lists an event without its key.
    add_partitions(instance, ledger, [*new_keys, *sorted(pending.known - keys)])
    removed = sorted(key for key in keys - existing if is_version_key(key))
    growth = growth_warning(ledger, retained, retained + len(claimed.events))
    is_settled = len(removed) <= retired_max and leadership.is_idle and not pending.to_record
    unreadable = [version for version in pending.unreadable if version in versions and version <= claimed.last]
    if len(unreadable) > UNREADABLE_MAX:
        notes.append(
            f"{ledger.label}: {len(unreadable)} versions are damaged, and only the newest {UNREADABLE_MAX} are checked "
            "again. After the repair of an older one, reset the cursor of this sensor"
        )
    return ReconcileResult(
        Watermark(incarnation, claimed.last, len(versions) if is_settled else 0, tuple(unreadable[-UNREADABLE_MAX:])),
        tuple(claimed.events),
        tuple(_evaluate_checks(instance, ledger, checks, table, claimed.events, now)),
        tuple(removed[:retired_max]),
        pending.checked < len(unprocessed),
        (*notes, *pending.notes, *claimed.notes, *([growth] if growth else [])),
    )


@dataclass(slots=True)
class _ClaimedRecords:
    """Events that this tick stores, and the version up to which everything is processed then."""

    last: int
    events: list[dg.AssetMaterialization] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _claim_records(
    instance: dg.DagsterInstance, ledger: Ledger, pending: PendingVersions, now: datetime
) -> _ClaimedRecords:
    """Claim the pending versions and return the events that this tick stores. Later ticks check the others again."""
    claimed = _ClaimedRecords(pending.last)
    held = _claim_for_tick(instance, ledger, [facts for facts, _ in pending.to_record], now)
    for facts, event in pending.to_record:
        if facts.partition in held:
            claimed.events.append(event)
        else:
            claimed.notes.append(
                f"{ledger.label}: version {facts.version} is being recorded by a run or by another tick"
            )
            claimed.last = min(claimed.last, facts.version - 1)
    return claimed


def _claim_for_tick(
    instance: dg.DagsterInstance, ledger: Ledger, pending: Sequence[VersionFacts], now: datetime
) -> frozenset[str]:
    """Return the partitions that this tick may record.

    Only a version that a run committed can be recorded by a run too, so only such versions need claims. A run that
    claims one later may not have seen the claim of this tick, so a contested version is left to the run. The claims
    stay until a later tick finds the events stored.
    """
    tick = new_tick_claimant()
    shared = [facts.partition for facts in pending if facts.run_id is not None]
    claims = claim_partitions(instance, ledger, shared, tick, now)
    held = claims.held - claims.contested
    if not_held := set(shared) - held:
        release_claims(instance, ledger, tick, not_held)
    own = [facts.partition for facts in pending if facts.run_id is None or facts.partition in held]
    if not own or not claim_tick(instance, ledger, tick, own[-1], now):
        return frozenset()
    recorded = recorded_data_versions(instance, ledger, own)
    if own[-1] in recorded:  # this partition marks the tick as finished, and it would count as finished already
        release_claims(instance, ledger, tick)
        return frozenset()
    return frozenset(own) - recorded.keys()


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
        except TABLE_ERRORS:  # the version was removed or is damaged, which its recording reports
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
