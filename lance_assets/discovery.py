"""Finding the versions that others committed, by looking: one sensor for one table or many.

Each tick opens the tables, and reads more of those alone that have changed. A version whose transaction names one of
our runs is left to that run while it may still record it, and for ten minutes at most; after that the sensor speaks for
it. Partitions of versions that cleanup has removed are retired. The cursor says how far each table has been looked
through; what keeps a version from being recorded twice is the ledger itself, so a lost or renamed cursor does no harm.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import dagster as dg
import pyarrow as pa

from lance_assets.claims import FINISHED, SENSOR, UNFINISHED, claim, sweep
from lance_assets.epochs import epoch_of
from lance_assets.ledger import Ledger, check_word
from lance_assets.metadata import VersionFacts, found_facts
from lance_assets.partitions import is_version_key, partition_key
from lance_assets.recording import Standing, add_partitions, materialization, recorded, standing, taken_message
from lance_core import InvalidInput, LanceError, NotFound, StorageError, Table, VersionInfo

INTERVAL_S = 30
VERSIONS_PER_TICK = 100
WAIT_MAX = timedelta(minutes=10)

# What a table can do to whoever reads it: it is anybody's bytes, numbers out of range and types that nobody knows.
_TABLES_FAULT = (LanceError, pa.ArrowException, ArithmeticError, LookupError, OSError, RecursionError, ValueError)


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a table has been looked through."""

    epoch: int
    version: int
    kept: int
    """How many versions there were when every other partition had been retired; 0 where some had not."""


@dataclass(slots=True)
class Cursor:
    tables: dict[str, Seen] = field(default_factory=dict)
    first: str = ""
    """The table that the next tick begins with: one that had more to tell than fitted."""

    @classmethod
    def parse(cls, text: str | None) -> "Cursor":
        """What does not parse was written by another version of this code; the ledger keeps that harmless."""
        try:
            fields = json.loads(text or "{}")
            seen = {label: Seen(*map(int, numbers)) for label, numbers in fields["tables"].items()}
            return cls(seen, str(fields["first"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()

    def encode(self) -> str:
        tables = {label: [seen.epoch, seen.version, seen.kept] for label, seen in self.tables.items()}
        return json.dumps({"tables": tables, "first": self.first}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look at one table brought."""

    seen: Seen | None
    events: tuple[dg.AssetMaterialization, ...] = ()
    gone: tuple[str, ...] = ()
    """Partitions of versions that do not exist any more."""
    more: bool = False
    notes: tuple[str, ...] = ()


def discovery_sensor(
    name: str,
    ledgers: Sequence[Ledger],
    *,
    interval_s: int = INTERVAL_S,
    versions_per_tick: int = VERSIONS_PER_TICK,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> dg.SensorDefinition:
    """Registers the versions that others commit to these tables."""
    check_word(name, what="a sensor's name")
    if interval_s < 1 or versions_per_tick < 1:
        raise InvalidInput(f"sensor {name!r}: interval_s and versions_per_tick count from 1")

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return look(context, ledgers, versions_max=versions_per_tick, now=now())

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=evaluate,
        minimum_interval_seconds=interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Registers versions that others committed, and retires those that were cleaned up, of "
        + ", ".join(each.label for each in ledgers)
        + ".",
    )


def look(
    context: dg.SensorEvaluationContext, ledgers: Sequence[Ledger], *, versions_max: int, now: datetime
) -> dg.SensorResult:
    instance, cursor = context.instance, Cursor.parse(context.cursor)
    events: list[dg.AssetMaterialization] = []
    retired: list[dg.DeleteDynamicPartitionsRequest] = []
    notes: list[str] = []
    first = ""
    for ledger in _beginning_with(ledgers, cursor.first):
        room = versions_max - len(events)
        if room == 0:
            first = first or ledger.label
            break
        seen = cursor.tables.get(ledger.label)
        try:
            looked = look_at(instance, ledger, seen, versions_max=room, now=now)
        except _TABLES_FAULT as error:  # one damaged table must not keep the others from being looked at
            looked = Looked(seen, notes=(f"{ledger.label}: {_said(error)}",))
        events += looked.events
        notes += looked.notes
        if looked.gone:
            retired.append(ledger.partitions.build_delete_request(list(looked.gone)))
        if looked.seen:
            cursor.tables[ledger.label] = looked.seen
        if looked.more:
            first = first or ledger.label
    for note in notes:
        context.log.warning(note)
    cursor.first = first
    # A tick that asks for no runs counts as skipped, and its reason is what the page shows of it.
    told = [f"recorded {len(events)} versions"] if events else []
    if retired:
        told.append(f"retired {sum(len(request.partition_keys) for request in retired)} versions that are gone")
    reason = "; ".join([*told, *notes]) or "no new versions"
    return dg.SensorResult(
        asset_events=events, dynamic_partitions_requests=retired, skip_reason=reason, cursor=cursor.encode()
    )


def look_at(
    instance: dg.DagsterInstance, ledger: Ledger, seen: Seen | None, *, versions_max: int, now: datetime
) -> Looked:
    sweep(instance, ledger, now)
    try:
        table = ledger.open()
    except NotFound:
        return Looked(seen, notes=(f"{ledger.label}: there is no {ledger.what} at {ledger.shown_uri} yet",))
    epoch = epoch_of(instance, ledger, ledger.identity_of(table))
    if seen == Seen(epoch, table.version, len(table.version_numbers())):
        return Looked(seen)
    # Keys before versions: one that has a key and is not listed then is gone, not new.
    keys = set(instance.get_dynamic_partitions(ledger.partition_set))
    numbers = table.version_numbers()
    notes = []
    if seen and seen.epoch != epoch:
        notes.append(_recreated_message(ledger, epoch))
    # A table that was put back to an older state is looked through again.
    last = seen.version if seen and seen.epoch == epoch and seen.version <= table.version else 0
    unseen = [number for number in numbers if number > last]
    found = _found(instance, ledger, epoch, table, unseen[:versions_max], last, now)
    fresh = [event.partition for event in found.events if event.partition is not None]
    exist = {partition_key(number, epoch) for number in numbers}
    # Before the events that Dagster stores when this returns: an event without its key is a partition on no page.
    add_partitions(instance, ledger, [*fresh, *sorted(found.known - keys)])
    gone = sorted(key for key in keys - exist if is_version_key(key))
    return Looked(
        Seen(epoch, found.last, len(numbers) if len(gone) <= versions_max else 0),
        tuple(found.events),
        tuple(gone[:versions_max]),
        len(unseen) > versions_max,
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


def _found(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    epoch: int,
    table: Table,
    numbers: Sequence[int],
    last: int,
    now: datetime,
) -> _Found:
    """What is to be said of these versions, each looked at by itself."""
    found = _Found(last)
    known = recorded(instance, ledger, [partition_key(number, epoch) for number in numbers])
    to_claim: list[tuple[VersionFacts, dg.AssetMaterialization]] = []
    is_waiting = False
    for number in numbers:
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
        except StorageError as error:  # it may pass: the next tick begins here
            found.notes.append(f"{ledger.label}: version {number}: {_said(error)}")
            break
        except _TABLES_FAULT as error:
            found.notes.append(f"{ledger.label}: version {number} is not recorded: {_said(error)}")
        if not is_waiting:
            found.last = number
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
    claims stay until the next tick, when the events are stored."""
    shared = [facts.partition for facts in fresh if facts.run_id is not None]
    held = claim(instance, ledger, shared, SENSOR, now)
    recorded_since = recorded(instance, ledger, held)
    foreign = frozenset(facts.partition for facts in fresh if facts.run_id is None)
    return foreign | (held - recorded_since.keys())


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


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, LanceError) else f"{type(error).__name__}: {error}"


def _beginning_with(ledgers: Sequence[Ledger], label: str) -> Sequence[Ledger]:
    start = next((place for place, ledger in enumerate(ledgers) if ledger.label == label), 0)
    return [*ledgers[start:], *ledgers[:start]]
