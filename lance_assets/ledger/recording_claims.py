"""Recording claims: mutual exclusion of the recorders of a ledger, which are runs and ticks of a sensor.

A claim is a key in a partition set of the ledger that no asset uses: its subject, the claimant, and the time. The
database keeps the keys in insertion order, so the first claim holds, on any number of machines. A claim ends with its
release, with its run, once its last partition is on the ledger, or when an observer has seen it unchanged for its
lifetime. The clocks of two machines are compared for one purpose: a claim whose time differs by half an hour more than
its lifetime, in either direction, counts as abandoned. `recording_lock.py` claims the ledger for a recorder, and
`discovery/leader.py` elects a sensor. `001-one-event-per-version.md` gives the reasons.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

import dagster as dg

from lance_assets.ledger.ledger import Ledger

CLAIM_LIFETIME = timedelta(minutes=10)
TICK_CLAIM_LIFETIME = timedelta(minutes=3)
"""Dagster waits a minute for the result of a tick, and then stores its events one after another."""
CLOCK_DIFFERENCE_MAX = timedelta(minutes=30)
"""Difference of two clocks beyond which a claim counts as abandoned, in either direction."""
TICK_PREFIX = "tick:"
"""Prefix of the claimant name of a sensor tick; all others begin with the id of a run and a colon."""
WHOLE_LEDGER = "*"
"""Subject of the claim with which a sensor leads the ledger (leader election)."""

FINISHED_STATUSES = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED_STATUSES = [status for status in dg.DagsterRunStatus if status not in FINISHED_STATUSES]


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim by one claimant; `seconds` is the time of the claim by its own clock."""

    partition: str
    claimant: str
    seconds: int

    @property
    def key(self) -> str:
        """Text of the claim as a partition key."""
        return f"{self.partition} {self.claimant} {self.seconds}"

    @property
    def lifetime_s(self) -> float:
        """Number of seconds after which an unchanged claim is abandoned."""
        return (TICK_CLAIM_LIFETIME if self.claimant.startswith(TICK_PREFIX) else CLAIM_LIFETIME).total_seconds()

    @classmethod
    def parse(cls, key: str) -> "Claim | None":
        """Return the claim of a partition key; `None` if the key is no claim."""
        match key.split(" "):
            case [partition, claimant, seconds] if seconds.isdecimal():
                return cls(partition, claimant, int(seconds))
        return None


@dataclass(slots=True)
class ClaimObserver:
    """Decides whether claims are still valid, from how long this process has seen them.

    A process that has just started knows no claim yet, so it waits for the lifetime of an abandoned one.
    """

    clock: Callable[[], float] = time.monotonic
    _first_seen: dict[str, dict[str, float]] = field(default_factory=dict)
    """Time of the first sight of each claim, by partition set and key."""

    def liveness_check(
        self, instance: dg.DagsterInstance, ledger: Ledger, claims: Iterable[Claim], seconds: int
    ) -> Callable[[Claim], bool]:
        """Return a function that tells whether a claim is valid at this time. It queries each run once.

        `claims` are all claims on the ledger.
        """
        seen, now = self._first_seen.get(ledger.claim_set, {}), self.clock()
        first_seen = self._first_seen[ledger.claim_set] = {claim.key: seen.get(claim.key, now) for claim in claims}
        is_run_active: dict[str, bool] = {}

        def is_live(claim: Claim) -> bool:
            if now - first_seen.get(claim.key, now) >= claim.lifetime_s:
                return False
            if abs(seconds - claim.seconds) > claim.lifetime_s + CLOCK_DIFFERENCE_MAX.total_seconds():
                return False
            if claim.partition == WHOLE_LEDGER or claim.claimant.startswith(TICK_PREFIX):
                return True
            run_id = claim.claimant.partition(":")[0]
            if run_id not in is_run_active:
                run = instance.get_run_by_id(run_id)
                is_run_active[run_id] = run is not None and run.status not in FINISHED_STATUSES
            return is_run_active[run_id]

        return is_live


def release_claims(instance: dg.DagsterInstance, ledger: Ledger, claimant: str) -> None:
    """Release all claims of this claimant."""
    for claim in list_claims(instance, ledger):
        if claim.claimant == claimant:
            instance.delete_dynamic_partition(ledger.claim_set, claim.key)


def list_claims(instance: dg.DagsterInstance, ledger: Ledger) -> list[Claim]:
    """Return all claims on the ledger, oldest first, which is Dagster's order."""
    parsed = map(Claim.parse, instance.get_dynamic_partitions(ledger.claim_set))
    return [claim for claim in parsed if claim is not None]


def may_record(instance: dg.DagsterInstance, run_id: str | None) -> bool:
    """Return whether this run, or a run that retries it, is active in this instance."""
    run = instance.get_run_by_id(run_id) if run_id else None
    if run is None:
        return False
    if run.status not in FINISHED_STATUSES:
        return True
    family = {"dagster/root_run_id": run.root_run_id or run.run_id}
    return bool(instance.get_run_ids(dg.RunsFilter(tags=family, statuses=UNFINISHED_STATUSES), limit=1))
