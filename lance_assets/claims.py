"""One recorder at a time for each version: who may put it on the ledger, where a run and another, or the sensor, meet.

A claim is a key in a partition set of the ledger's own, which no asset uses: the partition, the claimant, and when. The
database keeps them in order, so that the first is the one that holds, on however many machines the claimants are. A
claim ends with its release, with its run, or after ten minutes. Looking at the ledger again, once the claim holds, is
the caller's part; `recording.py` does it. `001-one-version-one-event.md` says why.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from lance_assets.ledger import Ledger

LASTS = timedelta(minutes=10)
SENSOR = "sensor"
"""The claimant that is no run."""

FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = [status for status in dg.DagsterRunStatus if status not in FINISHED]


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


def claim(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    partitions: Collection[str],
    claimant: str,
    now: datetime | None = None,
) -> frozenset[str]:
    """Claim the recording of these partitions; answers those whose claim holds. The others are somebody else's."""
    if not partitions:
        return frozenset()
    seconds = int((now or datetime.now(UTC)).timestamp())
    ours = [Claim(partition, claimant, seconds).key for partition in partitions]
    instance.add_dynamic_partitions(ledger.claim_set, ours)
    holders: dict[str, str] = {}
    for each in _claims(instance, ledger):
        if (
            each.partition in partitions
            and each.partition not in holders
            and _is_live(instance, each, claimant, seconds)
        ):
            holders[each.partition] = each.claimant
    return frozenset(partition for partition, holder in holders.items() if holder == claimant)


def release(
    instance: dg.DagsterInstance, ledger: Ledger, claimant: str, partitions: Iterable[str] | None = None
) -> None:
    """Give up this claimant's claims: those on these partitions, or all it has."""
    chosen = None if partitions is None else frozenset(partitions)
    for each in _claims(instance, ledger):
        if each.claimant == claimant and (chosen is None or each.partition in chosen):
            instance.delete_dynamic_partition(ledger.claim_set, each.key)


def sweep(instance: dg.DagsterInstance, ledger: Ledger, now: datetime) -> None:
    """Remove what died with its claimants, and what the sensor's last tick held until its events were stored."""
    seconds = int(now.timestamp())
    for each in _claims(instance, ledger):
        if each.claimant == SENSOR or not _is_live(instance, each, SENSOR, seconds):
            instance.delete_dynamic_partition(ledger.claim_set, each.key)


def _claims(instance: dg.DagsterInstance, ledger: Ledger) -> list[Claim]:
    """Oldest first, which is the order that Dagster keeps."""
    parsed = map(Claim.parse, instance.get_dynamic_partitions(ledger.claim_set))
    return [each for each in parsed if each is not None]


def _is_live(instance: dg.DagsterInstance, each: Claim, claimant: str, seconds: int) -> bool:
    if each.claimant == claimant:
        return True
    if seconds - each.seconds > LASTS.total_seconds():
        return False
    if each.claimant == SENSOR:
        return True
    run = instance.get_run_by_id(each.claimant)
    return run is not None and run.status not in FINISHED
