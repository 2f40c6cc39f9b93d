"""Leader election: one sensor and one tick at a time records the versions of other writers on a ledger.

Sensors of several code locations may declare the same table, and several daemons may evaluate the same sensor, for
example while one replaces the other. A sensor claims the ledger under its name and keeps the claim from tick to tick
(`elect_leader`). A tick that found versions also claims the ledger for itself, under the last partition that it is
about to record (`claim_tick`). Dagster stores the events of a tick in order, after its code has returned: once that
partition is on the ledger, all of them are, and the claim is over. If the daemon dies before, the claim expires after
three minutes. No tick waits for that, since later ticks retry anyway.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from time import sleep
from uuid import uuid4

import dagster as dg

from lance_assets.ledger.dynamic_partitions import register_partition_keys
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.recording import recorded_data_versions
from lance_assets.ledger.recording_claims import (
    CLAIM_LIFETIME,
    TICK_PREFIX,
    WHOLE_LEDGER,
    Claim,
    list_claims,
    liveness_check,
    release_claims,
)

_TICK_END_PREFIX = ".."
"""Prefix of the last partition of a tick in its claim; no partition key of a version begins with it."""
CHECKS_MAX = 20
"""Reads of the claims before a tick that competes with another one gives up."""
_POLL_INTERVAL_S = 0.1
_NO_CLAIMANT = ""


@dataclass(frozen=True, slots=True)
class Leadership:
    """Result of a leader election, from the point of view of one sensor."""

    other_leader: str | None
    """Another sensor that leads the ledger or competes for it; `None` if the calling sensor leads."""
    is_idle: bool
    """True if no recorder has a claim on a version."""


def new_tick_claimant() -> str:
    """Return a unique claimant name for a tick."""
    return f"{TICK_PREFIX}{uuid4().hex[:16]}"


def elect_leader(instance: dg.DagsterInstance, ledger: Ledger, sensor: str, now: datetime) -> Leadership:
    """Try to become the sensor that records the versions of other writers, and return the leader.

    The leader keeps its role until ten minutes after its last call. If two sensors begin concurrently, neither
    leads at first: the later one withdraws, and the earlier one leads once it has. The call also deletes the claims of
    dead claimants and the claims of ticks whose events are stored.
    """
    seconds = int(now.timestamp())
    is_live = liveness_check(instance, _NO_CLAIMANT, seconds)
    claims = list_claims(instance, ledger)
    dead = [claim for claim in claims if not is_live(claim)]
    candidates = [claim for claim in claims if claim.partition == WHOLE_LEDGER and claim not in dead]
    own = [claim for claim in candidates if claim.claimant == sensor]
    if candidates == own and not any(_is_recent(claim, seconds) for claim in own):
        dead += own
        own = [Claim(WHOLE_LEDGER, sensor, seconds)]
        register_partition_keys(instance, ledger.claim_set, [own[0].key])
        claims = list_claims(instance, ledger)
        candidates = [claim for claim in claims if claim.partition == WHOLE_LEDGER and claim not in dead]
    others = [claim.claimant for claim in candidates if claim.claimant != sensor]
    if others and candidates[0].claimant != sensor:
        dead += own
    dead += _stored_tick_claims(instance, ledger, (claim for claim in claims if claim not in dead))
    for claim in dict.fromkeys(dead):
        instance.delete_dynamic_partition(ledger.claim_set, claim.key)
    is_idle = all(claim.partition == WHOLE_LEDGER or claim in dead for claim in claims)
    return Leadership(others[0] if others else None, is_idle)


def claim_tick(instance: dg.DagsterInstance, ledger: Ledger, tick: str, last: str, now: datetime) -> bool:
    """Return whether this tick may record the versions that it found, the last of which has the partition `last`.

    No other tick may record until that partition is on the ledger. The caller must read the ledger again after this
    call. If two ticks claim concurrently, the later one withdraws, and the earlier one waits a moment for that.
    If the later claim stays, its tick may not have seen the earlier one, as on a database that shows a key late, and
    may be recording. Then both withdraw, and later ticks record the versions.
    """
    own = Claim(f"{_TICK_END_PREFIX}{last}", tick, int(now.timestamp()))
    register_partition_keys(instance, ledger.claim_set, [own.key])
    is_live = liveness_check(instance, tick, own.seconds)
    for attempt in range(CHECKS_MAX):
        if attempt:
            sleep(_POLL_INTERVAL_S)
        claims = list_claims(instance, ledger)
        ticks = [claim for claim in claims if claim.partition.startswith(_TICK_END_PREFIX) and is_live(claim)]
        stored = _stored_tick_claims(instance, ledger, [claim for claim in ticks if claim != own])
        active = [claim for claim in ticks if claim not in stored or claim == own]
        if active == [own]:
            return True
        if not active or active[0] != own:
            break
    release_claims(instance, ledger, tick)
    return False


def _stored_tick_claims(instance: dg.DagsterInstance, ledger: Ledger, claims: Iterable[Claim]) -> list[Claim]:
    """Return those of the claims that belong to ticks whose last partition is on the ledger."""
    by_partition: dict[str, list[Claim]] = {}
    for claim in claims:
        if claim.claimant.startswith(TICK_PREFIX):
            by_partition.setdefault(claim.partition.removeprefix(_TICK_END_PREFIX), []).append(claim)
    stored = recorded_data_versions(instance, ledger, by_partition) if by_partition else {}
    return [claim for partition in stored for claim in by_partition[partition]]


def _is_recent(claim: Claim, seconds: int) -> bool:
    """Return whether a claim is far from its end, so that it need not be renewed."""
    return seconds - claim.seconds < CLAIM_LIFETIME.total_seconds() / 2
