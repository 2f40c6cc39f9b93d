"""One tick at a time records the versions of others: among the sensors of several code locations, and among the daemons
that evaluate one and the same sensor, as for a while when one replaces another.

A sensor claims the ledger by its name, and keeps it from tick to tick. Each tick that found something claims it once
more, for itself, under the name of the last version that it is about to record. Dagster stores a tick's events when its
code has returned, in their order: so when that version is on the ledger, all of them are, and the claim is over. Where
the daemon died before, it is over after three minutes. Nothing here waits for that; the next ticks come anyway.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
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
"""Before the last partition of a tick; no version's key begins with it."""
_CHECKS_MAX = 20
_POLL_INTERVAL_S = 0.1
_sleep = time.sleep
_NO_CLAIMANT = ""


@dataclass(frozen=True, slots=True)
class Leadership:
    other_leader: str | None
    """The sensor that speaks for the versions of others, if it is another one."""
    is_idle: bool
    """Nobody is recording."""


def new_tick_claimant() -> str:
    """A claimant like no other."""
    return f"{TICK_PREFIX}{uuid4().hex[:16]}"


def elect_leader(instance: dg.DagsterInstance, ledger: Ledger, sensor: str, now: datetime) -> Leadership:
    """Be the one sensor that speaks for the versions of others, until ten minutes after the last time, or learn which
    is. Removes what died with its claimants, and the claims of ticks whose events are stored.

    Of two that begin at once neither speaks at first: the later one goes, the earlier waits until it has.
    """
    seconds = int(now.timestamp())
    is_live = liveness_check(instance, _NO_CLAIMANT, seconds)
    there = list_claims(instance, ledger)
    dead = [each for each in there if not is_live(each)]
    looking = [each for each in there if each.partition == WHOLE_LEDGER and each not in dead]
    own = [each for each in looking if each.claimant == sensor]
    if looking == own and not any(_is_recent(each, seconds) for each in own):
        dead += own
        own = [Claim(WHOLE_LEDGER, sensor, seconds)]
        register_partition_keys(instance, ledger.claim_set, [own[0].key])
        there = list_claims(instance, ledger)
        looking = [each for each in there if each.partition == WHOLE_LEDGER and each not in dead]
    others = [each.claimant for each in looking if each.claimant != sensor]
    if others and looking[0].claimant != sensor:
        dead += own
    dead += _stored_tick_claims(instance, ledger, (each for each in there if each not in dead))
    for each in dict.fromkeys(dead):
        instance.delete_dynamic_partition(ledger.claim_set, each.key)
    is_quiet = all(each.partition == WHOLE_LEDGER or each in dead for each in there)
    return Leadership(others[0] if others else None, is_quiet)


def claim_tick(instance: dg.DagsterInstance, ledger: Ledger, tick: str, last: str, now: datetime) -> bool:
    """Whether this tick may record what it found, of which `last` is the last partition. From then on no other may,
    until that is on the ledger; what was recorded before is for the caller to look at again.

    Of two at once the later one goes. The earlier waits for that a moment: one that stays has not seen it, as where a
    database shows a key late, and may be recording. Then both leave it, and the next ticks come to it.
    """
    own = Claim(f"{_TICK_END_PREFIX}{last}", tick, int(now.timestamp()))
    register_partition_keys(instance, ledger.claim_set, [own.key])
    is_live = liveness_check(instance, tick, own.seconds)
    for look in range(_CHECKS_MAX):
        if look:
            _sleep(_POLL_INTERVAL_S)
        ticks = [
            each
            for each in list_claims(instance, ledger)
            if each.partition.startswith(_TICK_END_PREFIX) and is_live(each)
        ]
        others = [each for each in ticks if each != own]
        over = _stored_tick_claims(instance, ledger, others)
        left = [each for each in ticks if each not in over or each == own]
        if left == [own]:
            return True
        if not left or left[0] != own:
            break
    release_claims(instance, ledger, tick)
    return False


def _stored_tick_claims(instance: dg.DagsterInstance, ledger: Ledger, claims: Iterable[Claim]) -> list[Claim]:
    """Of these, the ticks' claims on what is on the ledger."""
    by_partition: dict[str, list[Claim]] = {}
    for each in claims:
        if each.claimant.startswith(TICK_PREFIX):
            by_partition.setdefault(each.partition.removeprefix(_TICK_END_PREFIX), []).append(each)
    stored = recorded_data_versions(instance, ledger, by_partition) if by_partition else {}
    return [each for partition in stored for each in by_partition[partition]]


def _is_recent(each: Claim, seconds: int) -> bool:
    """Far from its end, so that it need not be made anew."""
    return seconds - each.seconds < CLAIM_LIFETIME.total_seconds() / 2
