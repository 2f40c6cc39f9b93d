"""Discovery sensor: finds the versions that writers outside of Dagster commit, for one table or many.

Each tick lists the versions of all tables, and opens those that have changed (`reconcile.py`). It ends within its
budget: versions beyond it follow with the next tick, which begins with the tables that this one did not reach. The
cursor holds the watermark of each table. The ledger itself shows which versions are recorded, so a lost cursor or a
renamed sensor is harmless. Start with `discovery_sensor`.
"""

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.common.text import format_count
from lance_assets.discovery.pending_versions import TickBudget, Watermark, error_text
from lance_assets.discovery.reconcile import DiscoveryCache, OpenedTable, ReconcileResult, reconcile
from lance_assets.ledger.ledger import Ledger, check_name
from lance_assets.ledger.version_metadata import TABLE_ERRORS
from lance_core import InvalidInput, NotFound

INTERVAL_S = 30
VERSIONS_PER_TICK = 2_000
SECONDS_PER_TICK = 20.0
"""Dagster drops the result of a tick that takes longer than a minute."""
BYTES_PER_TICK = 40_000_000
"""Limit of the events that a tick holds in memory."""
_OPENED_AHEAD = 64
"""Tables that are listed or opened at the same time: the time of a tick is mostly the latency of stores."""
OPENING_S_MIN = 5.0
"""Minimum number of seconds for which a tick waits for a table to open, even if its own time is over."""


@dataclass(slots=True)
class Cursor:
    """Cursor of the sensor: the watermark of each table by the label of its ledger."""

    tables: dict[str, Watermark] = field(default_factory=dict)
    first: str = ""
    """Label of the ledger that the next tick begins with."""

    @classmethod
    def parse(cls, text: str | None) -> "Cursor":
        """Parse a cursor.

        A cursor that does not parse was written by another version of this code and counts as empty, which is harmless.
        """
        try:
            fields = json.loads(text or "{}")
            tables = {label: _watermark_of(*map(int, numbers)) for label, numbers in fields["tables"].items()}
            return cls(tables, str(fields["first"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()

    def encode(self) -> str:
        """Return the cursor as text."""
        tables = {
            label: [watermark.incarnation, watermark.version, watermark.settled_count, *watermark.unreadable]
            for label, watermark in self.tables.items()
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
    """Return a sensor that records the versions which other writers commit to these tables.

    `checks` has the checks to evaluate on these versions, by the label of the ledger. The sensor omits checks that read
    rows, since a tick must be short.
    """
    check_name(name, subject="a sensor's name")
    if interval_s < 1 or versions_per_tick < 1 or seconds_per_tick <= 0:
        raise InvalidInput(f"sensor {name!r}: interval_s, versions_per_tick and seconds_per_tick must be positive")
    cache = DiscoveryCache(clock)

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        budget = TickBudget(versions_per_tick, BYTES_PER_TICK, clock() + seconds_per_tick, clock)
        return run_tick(
            context,
            ledgers,
            sensor=_sensor_claimant(context, name),
            budget=budget,
            cache=cache,
            checks=checks or {},
            now=now(),
        )

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=evaluate,
        minimum_interval_seconds=interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Records the versions that other writers commit, and retires the partitions of versions that were "
        "cleaned up. Tables: " + ", ".join(ledger.label for ledger in ledgers) + ".",
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
    """Reconcile the tables within the budget, and return the new cursor and the partitions to retire."""
    instance, cursor = context.instance, Cursor.parse(context.cursor)
    recorded = 0
    retirements: list[dg.DeleteDynamicPartitionsRequest] = []
    notes: list[str] = []
    order = _rotate_to(ledgers, cursor.first)
    first = ""
    for position, (ledger, wait_for_table) in enumerate(_open_ahead(order, cursor, budget, cache)):
        if budget.is_spent():
            first = ledger.label
            break
        watermark = cursor.tables.get(ledger.label)
        try:
            result = _reconcile_if_changed(
                wait_for_table,
                partial(
                    reconcile,
                    instance,
                    ledger,
                    watermark=watermark,
                    sensor=sensor,
                    budget=budget,
                    cache=cache,
                    checks=checks.get(ledger.label, ()),
                    now=now,
                ),
                watermark,
            )
        except NotFound:
            note = f"{ledger.label}: there is no {ledger.description} at {ledger.shown_uri} yet"
            result = ReconcileResult(watermark, notes=(note,))
        except TimeoutError:
            note = f"{ledger.label}: {ledger.shown_uri} did not answer in time; the next tick tries again"
            result = ReconcileResult(watermark, notes=(note,))
        except TABLE_ERRORS as error:  # one damaged table must not block the others
            result = ReconcileResult(watermark, notes=(f"{ledger.label}: {error_text(error)}",))
        recorded += result.recorded
        notes += result.notes
        if result.retired:
            retirements.append(ledger.partitions.build_delete_request(list(result.retired)))
        if result.watermark:
            cursor.tables[ledger.label] = result.watermark
        if result.has_more:  # the next tick begins with the next table, so that one table does not delay the others
            first = order[(position + 1) % len(order)].label
    for note in notes:
        context.log.warning(note)
    cursor.first = first
    # Dagster counts a tick without run requests as skipped, and its page shows the skip reason only.
    summary = [f"recorded {format_count(recorded, 'version')}"] if recorded else []
    if retirements:
        count = sum(len(request.partition_keys) for request in retirements)
        summary.append(f"retired {format_count(count, 'partition')} of versions that no longer exist")
    if first:
        summary.append("more follows with the next tick")
    reason = "; ".join([*summary, *notes]) or "no new versions"
    return dg.SensorResult(
        dynamic_partitions_requests=retirements,
        skip_reason=reason,
        cursor=cursor.encode(),
    )


def _watermark_of(incarnation: int, version: int, settled_count: int, *unreadable: int) -> Watermark:
    return Watermark(incarnation, version, settled_count, unreadable)


def _open_ahead(
    ledgers: Sequence[Ledger], cursor: Cursor, budget: TickBudget, cache: DiscoveryCache
) -> Iterator[tuple[Ledger, Callable[[], OpenedTable | None]]]:
    """Yield each ledger with a function that waits for its table, while the next tables are opened in the background.
    The function returns `None` for a table that has not changed since a tick that had nothing to do.

    Most of the time of a tick is the latency of the stores, and a store that does not answer must not delay the others.
    """
    pool = ThreadPoolExecutor(_OPENED_AHEAD, thread_name_prefix="lance-discovery")
    opening: deque[tuple[Ledger, Future[OpenedTable | None]]] = deque()
    remaining = iter(ledgers)
    try:
        while True:
            while len(opening) < _OPENED_AHEAD and (ledger := next(remaining, None)) is not None:
                watermark = cursor.tables.get(ledger.label)
                opening.append((ledger, pool.submit(_open_if_changed, ledger, watermark, cache)))
            if not opening:
                return
            ledger, future = opening.popleft()
            yield ledger, partial(future.result, max(OPENING_S_MIN, budget.ends - budget.clock()))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _reconcile_if_changed(
    wait_for_table: Callable[[], OpenedTable | None],
    reconcile_table: Callable[[OpenedTable], ReconcileResult],
    watermark: Watermark | None,
) -> ReconcileResult:
    opened = wait_for_table()
    return ReconcileResult(watermark) if opened is None else reconcile_table(opened)


def _open_if_changed(ledger: Ledger, watermark: Watermark | None, cache: DiscoveryCache) -> OpenedTable | None:
    before = cache.list_versions(ledger)
    if cache.is_settled(ledger, watermark, before):
        return None
    opened = OpenedTable.open(ledger)
    return replace(opened, is_as_listed=before is not None and before == opened.listing)


def _sensor_claimant(context: dg.SensorEvaluationContext, name: str) -> str:
    """Return a claimant name for this sensor that is unique among code locations."""
    origin = context.code_location_origin
    location = f"{origin.location_name}:" if origin else ""
    return re.sub(r"\s", "_", f"sensor:{location}{name}")


def _rotate_to(ledgers: Sequence[Ledger], label: str) -> Sequence[Ledger]:
    """Return the ledgers in cyclic order, beginning with the one of this label."""
    start = next((position for position, ledger in enumerate(ledgers) if ledger.label == label), 0)
    return [*ledgers[start:], *ledgers[:start]]
