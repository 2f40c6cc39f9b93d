"""Key order: keeps the partition keys of a ledger in the order of versions. Dagster lists them in insertion order.

A key that is out of place is deleted and added again: Dagster has no other way to move it. `plan_keys` is pure.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import dagster as dg

from lance_assets.ledger.dynamic_partitions import register_partition_keys
from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.partition_keys import partition_key

MOVES_MAX = 200
"""Number of keys that one recorder moves. Dagster deletes partition keys one by one."""


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """Keys to add at the end, in this order; those that exist are deleted first."""

    added: tuple[str, ...] = ()
    moved: frozenset[str] = frozenset()
    is_complete: bool = True
    """False if more keys are out of place than one recorder moves."""

    def apply(self, instance: dg.DagsterInstance, ledger: Ledger) -> None:
        """Move and add the keys."""
        for key in self.added:
            if key in self.moved:
                instance.delete_dynamic_partition(ledger.partition_set, key)
        register_partition_keys(instance, ledger.partition_set, self.added)


def plan_keys(listed: Sequence[str], ordered: Sequence[str], moves_max: int = MOVES_MAX) -> KeyPlan:
    """Return the plan after which the keys of `ordered` are listed in that order.

    >>> plan_keys(["v1", "v3", "v2"], ["v1", "v2", "v3", "v4"]).added
    ('v3', 'v4')
    """
    kept = 0
    for key in listed:
        if kept < len(ordered) and key == ordered[kept]:
            kept += 1
    existing = frozenset(listed)
    moved = [key for key in ordered[kept:] if key in existing]
    if len(moved) <= moves_max:
        return KeyPlan(tuple(ordered[kept:]), frozenset(moved))
    added = ordered[kept : ordered.index(moved[moves_max])]
    return KeyPlan(tuple(added), frozenset(moved[:moves_max]), is_complete=False)


def version_keys(
    versions: Iterable[int], incarnation: int, *, up_to: int | None = None, listed: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the ordered keys of these versions: all, or those up to one and the later ones that are listed already."""
    keys = ((version, partition_key(version, incarnation)) for version in sorted(versions))
    existing = frozenset(listed)
    return tuple(key for version, key in keys if up_to is None or version <= up_to or key in existing)
