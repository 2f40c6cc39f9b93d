"""Finding the versions that others committed, by looking: one sensor for one table or many.

Each tick opens the tables, and reads more of those alone that have changed (`reconcile.py`). It ends in time whatever
there is to tell: versions beyond its bounds come with the next tick, which begins with the tables that this one did not
reach. The cursor says how far each table has been looked through; what keeps a version from being recorded twice is the
ledger itself, so a lost or renamed cursor does no harm.
"""

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.discovery.pending_versions import TABLE_ERRORS, TickBudget, Watermark, error_text
from lance_assets.discovery.reconcile import DiscoveryCache, OpenedTable, ReconcileResult, reconcile
from lance_assets.ledger.ledger import Ledger, check_name
from lance_core import InvalidInput, NotFound

INTERVAL_S = 30
VERSIONS_PER_TICK = 2_000
SECONDS_PER_TICK = 20.0
"""Dagster gives a sensor's code a minute, and then forgets what it did."""
BYTES_PER_TICK = 40_000_000
"""Of a hundred million that Dagster takes."""
_OPENED_AHEAD = 8
_OPENING_S_MIN = 5.0


@dataclass(slots=True)
class Cursor:
    tables: dict[str, Watermark] = field(default_factory=dict)
    first: str = ""
    """The table that the next tick begins with."""

    @classmethod
    def parse(cls, text: str | None) -> "Cursor":
        """What does not parse was written by another version of this code; the ledger keeps that harmless."""
        try:
            fields = json.loads(text or "{}")
            seen = {label: _watermark_of(*map(int, numbers)) for label, numbers in fields["tables"].items()}
            return cls(seen, str(fields["first"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()

    def encode(self) -> str:
        tables = {
            label: [seen.incarnation, seen.version, seen.settled_count, *seen.unreadable]
            for label, seen in self.tables.items()
        }
        return json.dumps({"tables": tables, "first": self.first}, sort_keys=True)


def discovery_sensor(
    name: str,
    ledgers: Sequence[Ledger],
    *,
    interval_s: int = INTERVAL_S,
    versions_per_tick: int = VERSIONS_PER_TICK,
    seconds_per_tick: float = SECONDS_PER_TICK,
    checks: Mapping[str, Sequence[Check]] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    clock: Callable[[], float] = time.monotonic,
) -> dg.SensorDefinition:
    """Registers the versions that others commit to these tables. `checks` are asked about them, by the label of their
    ledger: those of them that read no data, for a tick is short."""
    check_name(name, subject="a sensor's name")
    if interval_s < 1 or versions_per_tick < 1 or seconds_per_tick <= 0:
        raise InvalidInput(f"sensor {name!r}: interval_s, versions_per_tick and seconds_per_tick count from 1")
    memory = DiscoveryCache()

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        budget = TickBudget(versions_per_tick, BYTES_PER_TICK, clock() + seconds_per_tick, clock)
        return run_tick(
            context,
            ledgers,
            sensor=_sensor_claimant(context, name),
            budget=budget,
            cache=memory,
            checks=checks or {},
            now=now(),
        )

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=evaluate,
        minimum_interval_seconds=interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Registers versions that others committed, and retires those that were cleaned up, of "
        + ", ".join(each.label for each in ledgers)
        + ".",
    )


def run_tick(
    context: dg.SensorEvaluationContext,
    ledgers: Sequence[Ledger],
    *,
    sensor: str,
    budget: TickBudget,
    cache: DiscoveryCache,
    checks: Mapping[str, Sequence[Check]],
    now: datetime,
) -> dg.SensorResult:
    instance, cursor = context.instance, Cursor.parse(context.cursor)
    events: list[dg.AssetMaterialization] = []
    judged: list[dg.AssetCheckEvaluation] = []
    retired: list[dg.DeleteDynamicPartitionsRequest] = []
    notes: list[str] = []
    order = _rotate_to(ledgers, cursor.first)
    first = ""
    for position, (ledger, opened) in enumerate(_open_ahead(order, budget)):
        if budget.is_spent():
            first = ledger.label
            break
        seen = cursor.tables.get(ledger.label)
        try:
            table = opened()
            looked = reconcile(
                instance,
                ledger,
                table,
                seen,
                sensor=sensor,
                budget=budget,
                cache=cache,
                checks=checks.get(ledger.label, ()),
                now=now,
            )
        except NotFound:
            looked = ReconcileResult(
                seen, notes=(f"{ledger.label}: there is no {ledger.description} at {ledger.shown_uri} yet",)
            )
        except TimeoutError:
            looked = ReconcileResult(seen, notes=(f"{ledger.label}: {ledger.shown_uri} did not answer in time",))
        except TABLE_ERRORS as error:  # one damaged table must not keep the others from being looked at
            looked = ReconcileResult(seen, notes=(f"{ledger.label}: {error_text(error)}",))
        events += looked.events
        judged += looked.check_evaluations
        notes += looked.notes
        if looked.retired:
            retired.append(ledger.partitions.build_delete_request(list(looked.retired)))
        if looked.watermark:
            cursor.tables[ledger.label] = looked.watermark
        if looked.has_more:  # the others are not to wait until it has told everything
            first = order[(position + 1) % len(order)].label
    for note in notes:
        context.log.warning(note)
    cursor.first = first
    # A tick that asks for no runs counts as skipped, and its reason is what the page shows of it.
    told = [f"recorded {len(events)} versions"] if events else []
    if retired:
        told.append(f"retired {sum(len(request.partition_keys) for request in retired)} versions that are gone")
    if first:
        told.append("more with the next tick")
    reason = "; ".join([*told, *notes]) or "no new versions"
    # Judgements come last. They are told once or not at all; the next tick finds the versions recorded.
    return dg.SensorResult(
        asset_events=[*events, *judged], dynamic_partitions_requests=retired, skip_reason=reason, cursor=cursor.encode()
    )


def _watermark_of(epoch: int, version: int, kept: int, *again: int) -> Watermark:
    return Watermark(epoch, version, kept, again)


def _open_ahead(ledgers: Sequence[Ledger], budget: TickBudget) -> Iterator[tuple[Ledger, Callable[[], OpenedTable]]]:
    """Each table, opened some places ahead of its turn: most of the time of a look is a store's time to answer, and one
    that does not is not to hold up the others."""
    pool = ThreadPoolExecutor(_OPENED_AHEAD, thread_name_prefix="lance-discovery")
    ahead: deque[tuple[Ledger, Future[OpenedTable]]] = deque()
    left = iter(ledgers)
    try:
        while True:
            while len(ahead) < _OPENED_AHEAD and (ledger := next(left, None)) is not None:
                ahead.append((ledger, pool.submit(OpenedTable.open, ledger)))
            if not ahead:
                return
            ledger, opening = ahead.popleft()
            yield ledger, partial(opening.result, max(_OPENING_S_MIN, budget.ends - budget.clock()))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _sensor_claimant(context: dg.SensorEvaluationContext, name: str) -> str:
    """This sensor among others, of other code locations too."""
    origin = context.code_location_origin
    location = f"{origin.location_name}:" if origin else ""
    return re.sub(r"\s", "_", f"sensor:{location}{name}")


def _rotate_to(ledgers: Sequence[Ledger], label: str) -> Sequence[Ledger]:
    start = next((position for position, ledger in enumerate(ledgers) if ledger.label == label), 0)
    return [*ledgers[start:], *ledgers[:start]]
