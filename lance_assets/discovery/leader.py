"""Leader election: one sensor at a time records the versions of other writers on a ledger.

Sensors of several code locations may declare the same table. A sensor becomes the leader by a claim under its own name,
which it keeps from tick to tick. A tick with versions to record takes the recording lock as well
(`ledger/recording_lock.py`), since several daemons may evaluate the same sensor, for example while one replaces the
other.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

import dagster as dg

from lance_assets.ledger.dynamic_partitions import register_partition_keys
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.recording_lock import (
    CLAIM_LIFETIME,
    TICK_PREFIX,
    WHOLE_LEDGER,
    Claim,
    ClaimObserver,
    finished_claims,
    list_claims,
)


@dataclass(frozen=True, slots=True)
class Leadership:
    """Result of a leader election, from the point of view of one sensor."""

    other_leader: str | None
    """Another sensor that leads the ledger or competes for it; `None` if the calling sensor leads."""
    is_idle: bool
    """True if no recorder holds or requests the recording lock."""


def new_tick_claimant() -> str:
    """Return a unique claimant name for a tick."""
    return f"{TICK_PREFIX}{uuid4().hex[:16]}"


def elect_leader(
    instance: dg.DagsterInstance, ledger: Ledger, sensor: str, now: datetime, observer: ClaimObserver
) -> Leadership:
    """Try to become the sensor that records the versions of other writers, and return the leader.

    The leader keeps its role until ten minutes after its last call. If two sensors begin concurrently, neither leads at
    first: the later one withdraws its claim, and from then on the earlier one leads. The call also deletes abandoned
    claims, and claims of recorders whose last version is on the ledger.
    """
    seconds = int(now.timestamp())
    claims = list_claims(instance, ledger)
    is_live = observer.liveness_check(instance, ledger, claims, seconds)
    dead = [claim for claim in claims if not is_live(claim)]
    candidates = [claim for claim in claims if claim.partition == WHOLE_LEDGER and claim not in dead]
    own = [claim for claim in candidates if claim.claimant == sensor]
    if candidates == own and not any(_is_recent(claim, seconds) for claim in own):
        dead += own
        own = [Claim(WHOLE_LEDGER, sensor, seconds)]
        dead = [claim for claim in dead if claim not in own]
        register_partition_keys(instance, ledger.claim_set, [own[0].key])
        claims = list_claims(instance, ledger)
        candidates = [claim for claim in claims if claim.partition == WHOLE_LEDGER and claim not in dead]
    others = [claim.claimant for claim in candidates if claim.claimant != sensor]
    if others and candidates[0].claimant != sensor:
        dead += own
    dead += finished_claims(instance, ledger, (claim for claim in claims if claim not in dead))
    for claim in dict.fromkeys(dead):
        instance.delete_dynamic_partition(ledger.claim_set, claim.key)
    is_idle = all(claim.partition == WHOLE_LEDGER or claim in dead for claim in claims)
    return Leadership(others[0] if others else None, is_idle)


def _is_recent(claim: Claim, seconds: int) -> bool:
    """Return whether a claim is far from its end, so that it need not be renewed."""
    return abs(seconds - claim.seconds) < CLAIM_LIFETIME.total_seconds() / 2
