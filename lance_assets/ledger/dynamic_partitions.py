"""Dynamic partitions: adds keys to Dagster's dynamic partition sets, concurrently with writers that add the same keys.

Dagster reads the existing keys and inserts the others. On SQLite a concurrent insert between the two steps is a
database error. The key exists then, so this module retries instead. It knows nothing about the meaning of a key.
"""

from collections.abc import Sequence

import dagster as dg
from sqlalchemy.exc import IntegrityError

_KEYS_PER_CALL = 500
"""Keys are parameters of a query, and some databases allow a thousand of them."""
_ATTEMPTS_MAX = 5


def register_partition_keys(instance: dg.DagsterInstance, partition_set: str, keys: Sequence[str]) -> None:
    """Add the keys to a dynamic partition set. Keys that exist already are left as they are."""
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
