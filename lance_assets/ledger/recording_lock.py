"""Recording lock: one recorder at a time adds versions to a ledger, so that they are added once and in order.

A recorder claims the whole ledger (`recording_claims.py`) under the last partition that it is about to record, and then
reads the ledger again. Once that partition is on the ledger, the claim is over even if it has not been released:
Dagster stores the events of a sensor tick after the code of the tick has returned. A database may show a later claim
before an earlier one, so the holder of the oldest claim waits until later ones have been withdrawn, and the others
withdraw. A tick does not wait for an older claim, since later ticks retry; a run does.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import sleep

import dagster as dg

from lance_assets.ledger.dynamic_partitions import register_partition_keys
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.recorded_versions import recorded_data_versions
from lance_assets.ledger.recording_claims import (
    TICK_PREFIX,
    WHOLE_LEDGER,
    Claim,
    ClaimObserver,
    list_claims,
    release_claims,
)

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
