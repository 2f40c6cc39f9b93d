"""One recorder at a time for each version: who may put it on the ledger, where a run and another, or a sensor, meet.

A claim is a key in a partition set of the ledger's own, which no asset uses: the partition, the claimant, and when. The
database keeps them in order, so that the first is the one that holds, on however many machines the claimants are. A
claim ends with its release, with its run or after ten minutes; that of a tick of a sensor after three. Where claims
meet, the first waits until the others have let go: a database may have shown them theirs before ours. Looking at the
ledger again, once the claim holds, is the caller's part; `recording.py` does it. What sensors agree on among themselves
is in `discovery/leader.py`. `001-one-event-per-version.md` says why.
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from lance_assets.ledger.dynamic_partitions import register_partition_keys
from lance_assets.ledger.ledger import Ledger

_sleep = time.sleep
CLAIM_LIFETIME = timedelta(minutes=10)
TICK_CLAIM_LIFETIME = timedelta(minutes=3)
"""Dagster waits a minute for what a tick found, and then stores it, an event after the other."""
TICK_PREFIX = "tick:"
"""Begins the name of a claimant that is no run: one tick of a sensor."""
WHOLE_LEDGER = "*"
"""What a sensor claims by its name: to be the one that looks after this ledger."""

FINISHED_STATUSES = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED_STATUSES = [status for status in dg.DagsterRunStatus if status not in FINISHED_STATUSES]

_WAIT_S_MAX = 40.0
"""Longer than from one tick of a sensor to the next, which is how long its claims last."""
_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Claim:
    partition: str
    claimant: str
    seconds: int

    @property
    def key(self) -> str:
        return f"{self.partition} {self.claimant} {self.seconds}"

    @classmethod
    def parse(cls, key: str) -> "Claim | None":
        match key.split(" "):
            case [partition, claimant, seconds] if seconds.isdecimal():
                return cls(partition, claimant, int(seconds))
        return None


@dataclass(frozen=True, slots=True)
class ClaimResult:
    held: frozenset[str]
    """Those whose claim is the first. The others are somebody else's."""
    contested: frozenset[str]
    """Of those held: others have claimed them later, and may not have seen this claim."""


def claim_partitions(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    partitions: Collection[str],
    claimant: str,
    now: datetime | None = None,
) -> ClaimResult:
    """Claim the recording of these partitions."""
    if not partitions:
        return ClaimResult(frozenset(), frozenset())
    seconds = int((now or datetime.now(UTC)).timestamp())
    register_partition_keys(
        instance, ledger.claim_set, [Claim(partition, claimant, seconds).key for partition in partitions]
    )
    claimants: dict[str, list[str]] = {}
    is_live = liveness_check(instance, claimant, seconds)
    for each in list_claims(instance, ledger):
        if each.partition in partitions and is_live(each):
            claimants.setdefault(each.partition, []).append(each.claimant)
    held = {partition for partition, names in claimants.items() if names[0] == claimant}
    contested = {partition for partition in held if any(name != claimant for name in claimants[partition])}
    return ClaimResult(frozenset(held), frozenset(contested))


def wait_for_others(instance: dg.DagsterInstance, ledger: Ledger, partition: str, claimant: str) -> None:
    """Of a contested claim: until those who came later have recorded, or seen that it is not for them."""
    ends = time.monotonic() + _WAIT_S_MAX
    while time.monotonic() < ends:
        is_live = liveness_check(instance, claimant, int(datetime.now(UTC).timestamp()))
        names = [
            each.claimant for each in list_claims(instance, ledger) if each.partition == partition and is_live(each)
        ]
        # One that shows before ours by now waits for us.
        later = names[names.index(claimant) :] if claimant in names else names
        if all(name == claimant for name in later):
            return
        _sleep(_POLL_INTERVAL_S)


def release_claims(
    instance: dg.DagsterInstance, ledger: Ledger, claimant: str, partitions: Iterable[str] | None = None
) -> None:
    """Give up this claimant's claims: those on these partitions, or all it has."""
    chosen = None if partitions is None else frozenset(partitions)
    for each in list_claims(instance, ledger):
        if each.claimant == claimant and (chosen is None or each.partition in chosen):
            instance.delete_dynamic_partition(ledger.claim_set, each.key)


def list_claims(instance: dg.DagsterInstance, ledger: Ledger) -> list[Claim]:
    """Oldest first, which is the order that Dagster keeps."""
    parsed = map(Claim.parse, instance.get_dynamic_partitions(ledger.claim_set))
    return [each for each in parsed if each is not None]


def liveness_check(instance: dg.DagsterInstance, claimant: str, seconds: int) -> Callable[[Claim], bool]:
    """Each run is asked for once."""
    runs: dict[str, bool] = {}

    def is_live(each: Claim) -> bool:
        if each.claimant == claimant and each.partition != WHOLE_LEDGER:
            return True
        is_tick = each.claimant.startswith(TICK_PREFIX)
        if seconds - each.seconds > (TICK_CLAIM_LIFETIME if is_tick else CLAIM_LIFETIME).total_seconds():
            return False
        if is_tick or each.partition == WHOLE_LEDGER:
            return True
        if each.claimant not in runs:
            run = instance.get_run_by_id(each.claimant)
            runs[each.claimant] = run is not None and run.status not in FINISHED_STATUSES
        return runs[each.claimant]

    return is_live
