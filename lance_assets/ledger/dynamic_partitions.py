"""Keys of Dagster's dynamic partition sets, added beside others who may be adding the very same ones.

Dagster looks which are there and inserts the rest. On SQLite somebody can come between the two, which the database
tells as an error; it is none here, since what was wanted is there. What a key means is none of this module's business.
"""

from collections.abc import Sequence

import dagster as dg
from sqlalchemy.exc import IntegrityError

_KEYS_PER_CALL = 500
"""They are parameters of a query, of which some databases take a thousand."""
_ATTEMPTS_MAX = 5


def register_partition_keys(instance: dg.DagsterInstance, partition_set: str, keys: Sequence[str]) -> None:
    for start in range(0, len(keys), _KEYS_PER_CALL):
        _add_with_retry(instance, partition_set, keys[start : start + _KEYS_PER_CALL])


def _add_with_retry(instance: dg.DagsterInstance, partition_set: str, keys: Sequence[str]) -> None:
    for tried in range(1, _ATTEMPTS_MAX + 1):
        try:
            instance.add_dynamic_partitions(partition_set, list(keys))
            return
        except IntegrityError:  # the next try finds that key there
            if tried == _ATTEMPTS_MAX:
                raise
