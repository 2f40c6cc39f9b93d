"""Recording lock: one recorder at a time adds versions to a ledger, so that they are added once and in order.

Recorders are runs and ticks of a sensor. A claim is a key in a partition set of the ledger that no asset uses: its
subject, the claimant, and the time. The database keeps the keys in insertion order, so the first claim holds, on any
number of machines. A claim ends with its release, with its run, once its last partition is on the ledger, or when an
observer has seen it unchanged for its lifetime. The clocks of two machines are compared for one purpose: a claim whose
time differs by half an hour more than its lifetime, in either direction, counts as abandoned.

A recorder claims the whole ledger under the last partition that it is about to record, and then reads the ledger again.
Once that partition is on the ledger, the claim is over even if it has not been released: Dagster stores the events of a
sensor tick after the code of the tick has returned. A database may show a later claim before an earlier one, so the
holder of the oldest claim waits until later ones have been withdrawn, and the others withdraw. A tick does not wait for
an older claim, since later ticks retry; a run does. `discovery/leader.py` elects a sensor by claims too.
`001-one-event-per-version.md` gives the reasons. Start at `RecordingLock`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep

import dagster as dg

from lance_assets.ledger.dynamic_partitions import register_partition_keys
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.recorded_versions import recorded_data_versions

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
_LAST_PREFIX = ".."
"""Prefix of the last partition in a claim; no partition key of a version begins with it."""
_REPAIR_PREFIX = "="
"""Prefix of the partition if the recorder adds no new event, so that only a release ends its claim."""
CHECKS_MAX = 20
"""Reads of the claims before a tick that competes with another recorder gives up."""
RUN_CHECKS_MAX = 400
"""Reads of the claims before a run gives up. It waits longer than the interval between two ticks of a sensor."""
_POLL_INTERVAL_S = 0.1


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

    clock: Callable[[], float] = monotonic
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


@dataclass(frozen=True, slots=True)
class RecordingLock:
    """Lock of a ledger for one claimant, a run or a tick."""

    instance: dg.DagsterInstance
    ledger: Ledger
    claimant: str
    observer: ClaimObserver = field(default_factory=ClaimObserver)

    def acquire(self, last: str, *, is_repair: bool = False, now: datetime | None = None) -> bool:
        """Return whether this claimant may record versions up to the partition `last`; wait if it is a run.

        With `is_repair`, `last` is on the ledger already. The caller must read the ledger again after this call.
        """
        is_tick = self.claimant.startswith(TICK_PREFIX)
        seconds = int((now or datetime.now(UTC)).timestamp())
        own = Claim(f"{_LAST_PREFIX}{_REPAIR_PREFIX if is_repair else ''}{last}", self.claimant, seconds)
        self.release()  # an earlier attempt of this recorder may have left a claim
        if is_tick:
            self._add(own)
        for attempt in range(CHECKS_MAX if is_tick else RUN_CHECKS_MAX):
            if attempt:
                sleep(_POLL_INTERVAL_S)
            contenders = self.contenders(own)
            if contenders == [own]:
                return True
            if not contenders:
                self._add(own)
            elif contenders[0] != own and own in contenders:
                self.release()
                if is_tick:
                    return False
        self.release()
        return False

    def is_held(self) -> bool:
        """Return whether no other recorder has ended the claim, as it does with that of a suspended recorder."""
        return any(claim.claimant == self.claimant for claim in list_claims(self.instance, self.ledger))

    def release(self) -> None:
        """Withdraw the claim."""
        release_claims(self.instance, self.ledger, self.claimant)

    def _add(self, own: Claim) -> None:
        register_partition_keys(self.instance, self.ledger.claim_set, [own.key])

    def contenders(self, own: Claim) -> list[Claim]:
        """Return the valid claims on the ledger, oldest first, and end the abandoned ones."""
        claims = list_claims(self.instance, self.ledger)
        is_live = self.observer.liveness_check(self.instance, self.ledger, claims, own.seconds)
        on_versions = [claim for claim in claims if claim.partition != WHOLE_LEDGER]
        live = [claim for claim in on_versions if claim == own or is_live(claim)]
        for claim in on_versions:
            if claim not in live:
                self.instance.delete_dynamic_partition(self.ledger.claim_set, claim.key)
        stored = finished_claims(self.instance, self.ledger, (claim for claim in live if claim != own))
        return [claim for claim in live if claim not in stored]


def finished_claims(instance: dg.DagsterInstance, ledger: Ledger, claims: Iterable[Claim]) -> list[Claim]:
    """Return those of the claims whose last partition is on the ledger."""
    by_partition: dict[str, list[Claim]] = {}
    for claim in claims:
        if claim.partition != WHOLE_LEDGER:
            by_partition.setdefault(claim.partition.removeprefix(_LAST_PREFIX), []).append(claim)
    recorded = recorded_data_versions(instance, ledger, by_partition) if by_partition else {}
    return [claim for partition in recorded for claim in by_partition.get(partition, ())]
