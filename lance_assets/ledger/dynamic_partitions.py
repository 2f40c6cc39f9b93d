"""Dynamic partitions: adds keys to Dagster's partition sets, keeps those of a ledger in the order of versions, and
numbers the incarnations of a table.

To add keys, Dagster reads the existing ones and inserts the others. On SQLite, a concurrent insert between the two
steps is a database error. The key exists then, so `register_partition_keys` retries. Dagster lists keys in insertion
order, and has no way to move one: a key that is out of place is deleted and added again (`plan_keys`, which is pure).

An incarnation is one of the tables that were created one after another at the same location; the first is number 1. The
numbers are kept in a partition set of the ledger that no asset uses: it holds the identities of the tables in the
order in which they were first seen. Runs and sensors, even a sensor that lost its cursor, therefore agree on the
number, and a table that is restored gets its old one. This module never opens a table. `001-one-event-per-version.md`
gives the reasons.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import dagster as dg
from sqlalchemy.exc import IntegrityError

from lance_assets.ledger.ledger import Ledger
from lance_assets.ledger.partition_keys import partition_key

_KEYS_PER_CALL = 500
"""Keys are parameters of a query, and some databases allow a thousand of them."""
_ATTEMPTS_MAX = 5
MOVES_MAX = 200
"""Number of keys that one recorder moves. Dagster deletes partition keys one by one."""
_UNKNOWN_TABLE = "unknown"
"""Key of a table without an identity, which another library created and whose first version was removed unseen."""
_AGAIN = "#"
"""Separates the name of a table from an ordinal, in the keys of its second and later incarnations; no name contains
it."""
_PLAIN_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


def register_partition_keys(instance: dg.DagsterInstance, partition_set: str, keys: Sequence[str]) -> None:
    """Add the keys to a dynamic partition set. Existing keys stay unchanged."""
    for start in range(0, len(keys), _KEYS_PER_CALL):
        _add_with_retry(instance, partition_set, keys[start : start + _KEYS_PER_CALL])


def _add_with_retry(instance: dg.DagsterInstance, partition_set: str, keys: Sequence[str]) -> None:
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        try:
            instance.add_dynamic_partitions(partition_set, list(keys))
            return
        except IntegrityError:  # a concurrent writer added the key; the next attempt reads it
            if attempt == _ATTEMPTS_MAX:
                raise


def incarnation_of(instance: dg.DagsterInstance, ledger: Ledger, table_id: str | None) -> int:
    """Return the incarnation of the table with this identity; register the identity if it is new.

    A table without an identity counts as the table that was seen last: a table may lose its identity, but never gets
    another one. A table that was recorded again (`begin_incarnation`) has several incarnations; the last one counts.
    """
    known = list(instance.get_dynamic_partitions(ledger.table_set))
    if table_id is None and known:
        return len(known)
    name = _UNKNOWN_TABLE if table_id is None else _known_name(table_id)
    if not _positions(known, name):
        register_partition_keys(instance, ledger.table_set, [name])
        known = list(instance.get_dynamic_partitions(ledger.table_set))  # a concurrent recorder may have been first
    return _positions(known, name)[-1]


def begin_incarnation(instance: dg.DagsterInstance, ledger: Ledger, table_id: str | None) -> int:
    """Begin a new incarnation of the table with this identity, and return it.

    All versions of the table get new partitions, so partitions of lost versions no longer conflict with them.
    """
    incarnation = incarnation_of(instance, ledger, table_id)
    known = list(instance.get_dynamic_partitions(ledger.table_set))
    name = known[incarnation - 1].partition(_AGAIN)[0]
    register_partition_keys(instance, ledger.table_set, [f"{name}{_AGAIN}{len(_positions(known, name)) + 1}"])
    return _positions(instance.get_dynamic_partitions(ledger.table_set), name)[-1]


def _positions(known: Sequence[str], name: str) -> list[int]:
    """Return the incarnations of the table with this name, ascending."""
    return [position for position, key in enumerate(known, 1) if key.partition(_AGAIN)[0] == name]


def _known_name(table_id: str) -> str:
    """Return the partition key for an identity: the identity itself, or its hash if it is not a plain id.

    An identity is usually a uuid, but it is read from the table, so any writer may have set it.
    """
    if _PLAIN_ID.fullmatch(table_id) and table_id != _UNKNOWN_TABLE:
        return table_id
    return hashlib.sha256(table_id.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """Keys to add at the end of a partition set, in this order; the existing ones among them are deleted first."""

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
    """Return the plan that makes Dagster list the keys of `ordered` in that order. `listed` is its current order.

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
    """Return the keys of these versions in order. With `up_to`, later versions are left out unless they are listed."""
    keys = ((version, partition_key(version, incarnation)) for version in sorted(versions))
    existing = frozenset(listed)
    return tuple(key for version, key in keys if up_to is None or version <= up_to or key in existing)
