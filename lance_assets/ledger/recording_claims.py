"""Recording claims: mutual exclusion of the recorders of a version, which are runs and ticks of a sensor.

A claim is a key in a partition set of the ledger that no asset uses: the partition, the claimant, and the time. The
database keeps the keys in insertion order, so the first claim holds, on any number of machines. A claim ends with its
release, with its run, or after ten minutes; the claim of a sensor tick after three. If several recorders claim a
version, the first one waits until the others have released their claims, since the database may have shown them their
own claim before it showed the first one. The caller must read the ledger again once its claim holds, as `recording.py`
does. `discovery/leader.py` coordinates sensors with each other. `001-one-event-per-version.md` gives the reasons.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep

import dagster as dg

from lance_assets.ledger.dynamic_partitions import register_partition_keys
from lance_assets.ledger.ledger import Ledger

CLAIM_LIFETIME = timedelta(minutes=10)
TICK_CLAIM_LIFETIME = timedelta(minutes=3)
"""Dagster waits a minute for the result of a tick, and then stores its events one after another."""
TICK_PREFIX = "tick:"
"""Prefix of the claimant name of a sensor tick; all other claimants of partitions are runs."""
WHOLE_LEDGER = "*"
"""Partition of the claim with which a sensor leads the ledger (leader election)."""

FINISHED_STATUSES = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED_STATUSES = [status for status in dg.DagsterRunStatus if status not in FINISHED_STATUSES]

_WAIT_S_MAX = 40.0
"""Longer than the interval between two ticks of a sensor, for which its claims last."""
_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of one partition by one claimant; `seconds` is the time of the claim."""

    partition: str
    claimant: str
    seconds: int

    @property
    def key(self) -> str:
        """Text of the claim as a partition key."""
        return f"{self.partition} {self.claimant} {self.seconds}"

    @classmethod
    def parse(cls, key: str) -> "Claim | None":
        """Return the claim of a partition key; `None` if the key is no claim."""
        match key.split(" "):
            case [partition, claimant, seconds] if seconds.isdecimal():
                return cls(partition, claimant, int(seconds))
        return None


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """Partitions that a call of `claim_partitions` obtained."""

    held: frozenset[str]
    """Partitions whose first claim is the caller's. The others belong to another claimant."""
    contested: frozenset[str]
    """Held partitions with later claims, whose claimants may not have seen the caller's claim."""


def claim_partitions(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    partitions: Collection[str],
    claimant: str,
    now: datetime | None = None,
) -> ClaimResult:
    """Claim the recording of these partitions for this claimant."""
    if not partitions:
        return ClaimResult(frozenset(), frozenset())
    seconds = int((now or datetime.now(UTC)).timestamp())
    register_partition_keys(
        instance, ledger.claim_set, [Claim(partition, claimant, seconds).key for partition in partitions]
    )
    claimants: dict[str, list[str]] = {}
    is_live = liveness_check(instance, claimant, seconds)
    for claim in list_claims(instance, ledger):
        if claim.partition in partitions and is_live(claim):
            claimants.setdefault(claim.partition, []).append(claim.claimant)
    held = {partition for partition, names in claimants.items() if names[0] == claimant}
    contested = {partition for partition in held if any(name != claimant for name in claimants[partition])}
    return ClaimResult(frozenset(held), frozenset(contested))


def wait_for_others(instance: dg.DagsterInstance, ledger: Ledger, partition: str, claimant: str) -> None:
    """Wait until the later claimants of a contested partition have recorded it or released their claims."""
    deadline = monotonic() + _WAIT_S_MAX
    while monotonic() < deadline:
        is_live = liveness_check(instance, claimant, int(datetime.now(UTC).timestamp()))
        live_claims = [
            claim for claim in list_claims(instance, ledger) if claim.partition == partition and is_live(claim)
        ]
        names = [claim.claimant for claim in live_claims]
        # An older claim that has become visible meanwhile belongs to a recorder that waits for this one.
        later = names[names.index(claimant) :] if claimant in names else names
        if all(name == claimant for name in later):
            return
        sleep(_POLL_INTERVAL_S)


def release_claims(
    instance: dg.DagsterInstance, ledger: Ledger, claimant: str, partitions: Iterable[str] | None = None
) -> None:
    """Release the claims of this claimant on these partitions; `None` means all its claims."""
    selected = None if partitions is None else frozenset(partitions)
    for claim in list_claims(instance, ledger):
        if claim.claimant == claimant and (selected is None or claim.partition in selected):
            instance.delete_dynamic_partition(ledger.claim_set, claim.key)


def list_claims(instance: dg.DagsterInstance, ledger: Ledger) -> list[Claim]:
    """Return all claims on the ledger, oldest first, which is Dagster's order."""
    parsed = map(Claim.parse, instance.get_dynamic_partitions(ledger.claim_set))
    return [claim for claim in parsed if claim is not None]


def liveness_check(instance: dg.DagsterInstance, claimant: str, seconds: int) -> Callable[[Claim], bool]:
    """Return a function that tells whether a claim is still valid, for this claimant at this time.

    It queries each run once.
    """
    is_run_active: dict[str, bool] = {}

    def is_live(claim: Claim) -> bool:
        if claim.claimant == claimant and claim.partition != WHOLE_LEDGER:
            return True
        is_tick = claim.claimant.startswith(TICK_PREFIX)
        if seconds - claim.seconds > (TICK_CLAIM_LIFETIME if is_tick else CLAIM_LIFETIME).total_seconds():
            return False
        if is_tick or claim.partition == WHOLE_LEDGER:
            return True
        if claim.claimant not in is_run_active:
            run = instance.get_run_by_id(claim.claimant)
            is_run_active[claim.claimant] = run is not None and run.status not in FINISHED_STATUSES
        return is_run_active[claim.claimant]

    return is_live
