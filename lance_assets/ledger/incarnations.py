"""Incarnations: numbers the tables that were created one after another at the same location, beginning with 1.

The numbers are kept in Dagster, in a partition set of the ledger that no asset uses: it holds the identities of the
tables in the order in which they were first seen. Runs, the sensor, and a sensor that lost its cursor therefore agree,
and a table that is restored gets its old number. This module never opens a table. `001-one-event-per-version.md` gives
the reasons.
"""

import hashlib
import re

import dagster as dg

from lance_assets.ledger.dynamic_partitions import register_partition_keys
from lance_assets.ledger.ledger import Ledger

_UNKNOWN_TABLE = "unknown"
"""Key of a table without an identity, which another library created and whose first version was removed unseen."""
_PLAIN_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


def incarnation_of(instance: dg.DagsterInstance, ledger: Ledger, table_id: str | None) -> int:
    """Return the incarnation of the table with this identity; register the identity if it is new.

    A table without an identity counts as the table that was seen last: a table may lose its identity, but never gets
    another one.
    """
    known = list(instance.get_dynamic_partitions(ledger.table_set))
    if table_id is None and known:
        return len(known)
    name = _UNKNOWN_TABLE if table_id is None else _known_name(table_id)
    if name not in known:
        register_partition_keys(instance, ledger.table_set, [name])
        known = list(instance.get_dynamic_partitions(ledger.table_set))  # a concurrent recorder may have been first
    return known.index(name) + 1


def _known_name(table_id: str) -> str:
    """Return the partition key for an identity, hashed if it is no plain text.

    An identity is usually a uuid, but it is read from the table, so any writer may have set it.
    """
    if _PLAIN_ID.fullmatch(table_id) and table_id != _UNKNOWN_TABLE:
        return table_id
    return hashlib.sha256(table_id.encode(errors="surrogatepass")).hexdigest()
