"""One recorder at a time for each version: who may put it on the ledger, where a run and another, or a sensor, meet.

A claim is a key in a partition set of the ledger's own, which no asset uses: the partition, the claimant, and when. The
database keeps them in order, so that the first is the one that holds, on however many machines the claimants are. A
claim ends with its release, with its run, or after ten minutes. Where claims meet, the first waits until the others
have let go: a database may have shown them theirs before ours. Looking at the ledger again, once the claim holds, is
the caller's part; `recording.py` does it. `001-one-version-one-event.md` says why.
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from lance_assets.keys import add_keys
from lance_assets.ledger import Ledger

_pause = time.sleep
LASTS = timedelta(minutes=10)
SENSOR = "sensor"
"""The claimant that is no run."""
WHOLE = "*"
"""What a sensor claims besides: to be the one that looks after this ledger."""

FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = [status for status in dg.DagsterRunStatus if status not in FINISHED]

_WAIT_S_MAX = 40.0
"""Longer than from one tick of a sensor to the next, which is how long its claims last."""
_LOOK_AGAIN_S = 0.05


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
class Claimed:
    held: frozenset[str]
    """Those whose claim is the first. The others are somebody else's."""
    contested: frozenset[str]
    """Of those held: others have claimed them later, and may not have seen this claim."""


def claim(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    partitions: Collection[str],
    claimant: str,
    now: datetime | None = None,
) -> Claimed:
    """Claim the recording of these partitions."""
    if not partitions:
        return Claimed(frozenset(), frozenset())
    seconds = int((now or datetime.now(UTC)).timestamp())
    add_keys(instance, ledger.claim_set, [Claim(partition, claimant, seconds).key for partition in partitions])
    claimants: dict[str, list[str]] = {}
    is_live = _liveness(instance, claimant, seconds)
    for each in _claims(instance, ledger):
        if each.partition in partitions and is_live(each):
            claimants.setdefault(each.partition, []).append(each.claimant)
    held = {partition for partition, names in claimants.items() if names[0] == claimant}
    contested = {partition for partition in held if any(name != claimant for name in claimants[partition])}
    return Claimed(frozenset(held), frozenset(contested))


def wait_for_others(instance: dg.DagsterInstance, ledger: Ledger, partition: str, claimant: str) -> None:
    """Of a contested claim: until those who came later have recorded, or seen that it is not for them."""
    ends = time.monotonic() + _WAIT_S_MAX
    while time.monotonic() < ends:
        is_live = _liveness(instance, claimant, int(datetime.now(UTC).timestamp()))
        names = [each.claimant for each in _claims(instance, ledger) if each.partition == partition and is_live(each)]
        # One that shows before ours by now waits for us.
        later = names[names.index(claimant) :] if claimant in names else names
        if all(name == claimant for name in later):
            return
        _pause(_LOOK_AGAIN_S)


def release(
    instance: dg.DagsterInstance, ledger: Ledger, claimant: str, partitions: Iterable[str] | None = None
) -> None:
    """Give up this claimant's claims: those on these partitions, or all it has."""
    chosen = None if partitions is None else frozenset(partitions)
    for each in _claims(instance, ledger):
        if each.claimant == claimant and (chosen is None or each.partition in chosen):
            instance.delete_dynamic_partition(ledger.claim_set, each.key)


@dataclass(frozen=True, slots=True)
class Watch:
    other: str | None
    """The sensor that speaks for the versions of others, if it is another one."""
    is_quiet: bool
    """Nobody is recording."""


def look_after(instance: dg.DagsterInstance, ledger: Ledger, sensor: str, now: datetime) -> Watch:
    """Be the one sensor that speaks for the versions of others, until ten minutes after the last time, or learn which
    is. Removes what died with its claimants, and what the last tick held until its events were stored.

    Of two that begin at once neither speaks at first: the later one goes, the earlier waits until it has.
    """
    seconds = int(now.timestamp())
    is_live = _liveness(instance, SENSOR, seconds)
    there = _claims(instance, ledger)
    dead = [each for each in there if not is_live(each)]
    looking = [each for each in there if each.partition == WHOLE and each not in dead]
    own = [each for each in looking if each.claimant == sensor]
    if looking == own and not any(_is_young(each, seconds) for each in own):
        dead += own
        own = [Claim(WHOLE, sensor, seconds)]
        add_keys(instance, ledger.claim_set, [own[0].key])
        there = _claims(instance, ledger)
        looking = [each for each in there if each.partition == WHOLE and each not in dead]
    others = [each.claimant for each in looking if each.claimant != sensor]
    if others and looking[0].claimant != sensor:
        dead += own
    if not others:
        dead += [each for each in there if each.claimant == SENSOR]
    for each in dict.fromkeys(dead):
        instance.delete_dynamic_partition(ledger.claim_set, each.key)
    is_quiet = all(each.partition == WHOLE or each in dead for each in there)
    return Watch(others[0] if others else None, is_quiet)


def _claims(instance: dg.DagsterInstance, ledger: Ledger) -> list[Claim]:
    """Oldest first, which is the order that Dagster keeps."""
    parsed = map(Claim.parse, instance.get_dynamic_partitions(ledger.claim_set))
    return [each for each in parsed if each is not None]


def _is_young(each: Claim, seconds: int) -> bool:
    """Far from its end, so that it need not be made anew."""
    return seconds - each.seconds < LASTS.total_seconds() / 2


def _liveness(instance: dg.DagsterInstance, claimant: str, seconds: int) -> Callable[[Claim], bool]:
    """Each run is asked for once."""
    runs: dict[str, bool] = {}

    def is_live(each: Claim) -> bool:
        if each.claimant == claimant and each.partition != WHOLE:
            return True
        if seconds - each.seconds > LASTS.total_seconds():
            return False
        if each.claimant == SENSOR or each.partition == WHOLE:
            return True
        if each.claimant not in runs:
            run = instance.get_run_by_id(each.claimant)
            runs[each.claimant] = run is not None and run.status not in FINISHED
        return runs[each.claimant]

    return is_live
