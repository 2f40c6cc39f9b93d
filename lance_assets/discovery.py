"""Finding the versions that others committed, by looking: one sensor for one table or many.

Each tick opens the tables, and reads more of those alone that have changed. A version whose transaction names one of
our runs is left to that run while it may still record it, and for ten minutes at most; after that the sensor speaks for
it. The cursor says how far each table has been looked through; what keeps a version from being recorded twice is the
ledger itself, so a lost or renamed cursor does no harm.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import dagster as dg

from lance_assets.ledger import Ledger, check_word
from lance_assets.metadata import VersionFacts, found_facts
from lance_assets.recording import Standing, add_partitions, materialization, recorded, standing, taken_message
from lance_core import InvalidInput, LanceError, NotFound, Table

INTERVAL_S = 30
VERSIONS_PER_TICK = 100
WAIT_MAX = timedelta(minutes=10)

_FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_UNFINISHED = [status for status in dg.DagsterRunStatus if status not in _FINISHED]


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a table has been looked through. `identity` is empty where nobody could tell which table it is."""

    identity: str
    version: int


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
            seen = {label: Seen(str(identity), int(last)) for label, (identity, last) in fields["tables"].items()}
            return cls(seen, str(fields["first"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()

    def encode(self) -> str:
        tables = {label: [seen.identity, seen.version] for label, seen in self.tables.items()}
        return json.dumps({"tables": tables, "first": self.first}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look at one table brought."""

    seen: Seen | None
    fresh: tuple[VersionFacts, ...] = ()
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
        description="Registers versions that others committed to " + ", ".join(each.label for each in ledgers) + ".",
    )


def look(
    context: dg.SensorEvaluationContext, ledgers: Sequence[Ledger], *, versions_max: int, now: datetime
) -> dg.SensorResult:
    instance, cursor = context.instance, Cursor.parse(context.cursor)
    events: list[dg.AssetMaterialization] = []
    notes: list[str] = []
    first = ""
    for ledger in _beginning_with(ledgers, cursor.first):
        room = versions_max - len(events)
        if room == 0:
            first = first or ledger.label
            break
        try:
            looked = look_at(instance, ledger, cursor.tables.get(ledger.label), versions_max=room, now=now)
        except LanceError as error:  # one damaged table must not keep the others from being looked at
            looked = Looked(cursor.tables.get(ledger.label), notes=(f"{ledger.label}: {error}",))
        # Before the events that Dagster stores when this returns: an event without its key is a partition on no page.
        add_partitions(instance, ledger, [facts.version for facts in looked.fresh])
        events += [_event(instance, ledger, facts) for facts in looked.fresh]
        notes += looked.notes
        if looked.seen:
            cursor.tables[ledger.label] = looked.seen
        if looked.more:
            first = first or ledger.label
    for note in notes:
        context.log.warning(note)
    cursor.first = first
    # A tick that asks for no runs counts as skipped, and its reason is what the page shows of it.
    told = [f"recorded {len(events)} versions"] if events else []
    reason = "; ".join([*told, *notes]) or "no new versions"
    return dg.SensorResult(asset_events=events, skip_reason=reason, cursor=cursor.encode())


def look_at(
    instance: dg.DagsterInstance, ledger: Ledger, seen: Seen | None, *, versions_max: int, now: datetime
) -> Looked:
    try:
        table = ledger.open()
    except NotFound:
        return Looked(seen, notes=(f"{ledger.label}: there is no table at {ledger.shown_uri} yet",))
    if seen and table.version == seen.version:
        return Looked(seen)
    identity = table.id or ""
    if seen and _is_another(identity, table, seen):
        return Looked(seen, notes=(_recreated_message(ledger),))
    last = seen.version if seen else 0
    unseen = [info for info in table.versions() if info.version > last]
    infos = unseen[:versions_max]
    known = recorded(instance, ledger, [info.version for info in infos])
    fresh: list[VersionFacts] = []
    notes: list[str] = []
    is_waiting = False
    for info in infos:
        facts = found_facts(table.at(info.version), info)
        stands = standing(facts, known)
        if stands is Standing.TAKEN:
            notes.append(taken_message(ledger, info.version))
        elif stands is Standing.MISSING and now - info.timestamp < WAIT_MAX and _may_record(instance, facts.run_id):
            notes.append(
                f"{ledger.label}: version {info.version} is left to its run {facts.run_id}, which is not finished"
            )
            is_waiting = True
        elif stands is Standing.MISSING:
            fresh.append(facts)
        if not is_waiting:
            last = info.version
    return Looked(
        Seen(identity or (seen.identity if seen else ""), last), tuple(fresh), len(unseen) > len(infos), tuple(notes)
    )


def _may_record(instance: dg.DagsterInstance, run_id: str | None) -> bool:
    """Whether this run, or one that goes on for it, is at work in this instance."""
    run = instance.get_run_by_id(run_id) if run_id else None
    if run is None:
        return False
    if run.status not in _FINISHED:
        return True
    family = {"dagster/root_run_id": run.root_run_id or run.run_id}
    return bool(instance.get_run_ids(dg.RunsFilter(tags=family, statuses=_UNFINISHED), limit=1))


def _is_another(identity: str, table: Table, seen: Seen) -> bool:
    """Versions never go back and a table keeps its identity, which is lost at most."""
    return table.version < seen.version or bool(identity and seen.identity and identity != seen.identity)


def _recreated_message(ledger: Ledger) -> str:
    return (
        f"{ledger.label}: the table at {ledger.shown_uri} is not the one whose versions are on the ledger; that one "
        "was deleted, and another created in its place. Nothing of it is recorded, since the partitions belong to the "
        f"old one. To follow the new one wipe the materializations of the asset {ledger.label}, delete its partitions, "
        "and reset the cursor of this sensor"
    )


def _event(instance: dg.DagsterInstance, ledger: Ledger, facts: VersionFacts) -> dg.AssetMaterialization:
    known = facts.run_id is not None and instance.has_run(facts.run_id)
    return materialization(ledger, facts, run_is_known=known)


def _beginning_with(ledgers: Sequence[Ledger], label: str) -> Sequence[Ledger]:
    start = next((place for place, ledger in enumerate(ledgers) if ledger.label == label), 0)
    return [*ledgers[start:], *ledgers[:start]]
