"""Recording lock: lets one recorder at a time add versions to a ledger, so that they are added once and in order.

Recorders are runs and ticks of a sensor. A recorder locks the ledger by a claim, which is a key in a partition set of
the ledger that no asset uses. The key names the last partition that the recorder is about to record, the claimant and
the time. The database returns the keys in insertion order, so the oldest claim holds the lock, for recorders on any
number of machines.

A claim ends when it is released, when its run ends, once its last partition is on the ledger, or when another recorder
has seen it unchanged for its lifetime. The last case is needed for sensors: a tick has no status that another process
can query. That lifetime is short, so that a run outwaits a tick whose process was killed. The clocks of two machines
are compared for one purpose: a claim whose time differs by half an hour more than its lifetime, in either direction,
counts as abandoned.

A database may show a later claim before an earlier one. The holder of the oldest claim therefore waits until later
claims have been withdrawn, and all other recorders withdraw theirs. After that, a run waits and claims again, and a
tick leaves the versions to the next tick. The holder reads the ledger again before it records. `discovery/leader.py`
elects a leading sensor by claims in the same partition set.
`001-one-event-per-version.md` gives the reasons. Start at `RecordingLock`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep

import dagster as dg

from lance_assets.ledger.dynamic_partitions import register_partition_keys
from lance_assets.ledger.ledger import Ledger, recorded_data_versions

CLAIM_LIFETIME = timedelta(minutes=10)
TICK_CLAIM_LIFETIME = timedelta(seconds=30)
"""Lifetime of the claim of a tick, which stores events for ten seconds at most. A run waits longer for the lock, so it
records the versions of a tick that was killed."""
CLOCK_DIFFERENCE_MAX = timedelta(minutes=30)
"""Difference of two clocks beyond which a claim counts as abandoned, in either direction."""
TICK_PREFIX = "tick:"
"""Prefix of the claimant name of a sensor tick; all others begin with the id of a run and a colon."""
WHOLE_LEDGER = "*"
"""Stands in place of a partition in the claim with which a sensor leads the ledger (`discovery/leader.py`)."""

FINISHED_STATUSES = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED_STATUSES = [status for status in dg.DagsterRunStatus if status not in FINISHED_STATUSES]
_LAST_PREFIX = ".."
"""Prefix of the partition in the claim of a recorder; no partition key of a version begins with it."""
_REPAIR_PREFIX = "="
"""Second prefix if the partition is on the ledger already, so that its presence does not end the claim."""
CHECKS_MAX = 20
"""Number of times that a tick which competes with another recorder reads the claims before it gives up."""
RUN_CHECKS_MAX = 400
"""Number of times that a run reads the claims before it gives up: it waits longer than a tick's claim is valid."""
_POLL_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim by one claimant; `seconds` is the time of the claim by the claimant's clock."""

    partition: str
    """Last partition to record, with its prefix, or `WHOLE_LEDGER`."""
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
        """Return the claim that a partition key encodes; `None` if it encodes none."""
        match key.split(" "):
            case [partition, claimant, seconds] if seconds.isdecimal():
                return cls(partition, claimant, int(seconds))
        return None


@dataclass(slots=True)
class ClaimObserver:
    """Decides whether claims are still valid, by how long this process has observed them.

    A process that has just started has observed no claim, so it waits for the whole lifetime of an abandoned one.
    """

    clock: Callable[[], float] = monotonic
    _first_seen: dict[str, dict[str, float]] = field(default_factory=dict)
    """Time at which this process first read each claim, by partition set and key."""

    def liveness_check(
        self, instance: dg.DagsterInstance, ledger: Ledger, claims: Iterable[Claim], seconds: int
    ) -> Callable[[Claim], bool]:
        """Return a predicate for claims that are valid at this time. It queries each run once.

        `claims` are all claims on the ledger.
        """
        earlier, now = self._first_seen.get(ledger.claim_set, {}), self.clock()
        first_seen = self._first_seen[ledger.claim_set] = {claim.key: earlier.get(claim.key, now) for claim in claims}
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
    """Return whether this run, or a run that retries it, is active in this Dagster instance."""
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
        """Return whether this claimant holds the lock and may record versions up to the partition `last`.

        A run waits for the lock. `is_repair` says that `last` is on the ledger already. The caller must read the ledger
        again after this call.
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
        """Return whether the claim still exists; another recorder ends the claim of a recorder that was suspended."""
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
        finished = finished_claims(self.instance, self.ledger, (claim for claim in live if claim != own))
        return [claim for claim in live if claim not in finished]


def finished_claims(instance: dg.DagsterInstance, ledger: Ledger, claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims of recorders whose last partition is on the ledger."""
    by_partition: dict[str, list[Claim]] = {}
    for claim in claims:
        if claim.partition != WHOLE_LEDGER:
            by_partition.setdefault(claim.partition.removeprefix(_LAST_PREFIX), []).append(claim)
    recorded = recorded_data_versions(instance, ledger, by_partition) if by_partition else {}
    return [claim for partition in recorded for claim in by_partition.get(partition, ())]
