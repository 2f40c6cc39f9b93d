"""Which of the tables that have been at one place this one is: the first has epoch 1, one created anew has 2, and on.

Dagster remembers it, in a partition set of the ledger's own that no asset uses: the identities of the tables, in the
order in which they were first seen. So a run, the sensor, and a sensor that lost its cursor give the same answer, and a
table that is put back is known again. Nothing here looks at a table. `001-one-event-per-version.md` says why.
"""

import hashlib
import re

import dagster as dg

from lance_assets.ledger.dynamic_partitions import register_partition_keys
from lance_assets.ledger.ledger import Ledger

_UNKNOWN_TABLE = "unknown"
"""A table of another library that had lost its first version before anybody looked."""
_PLAIN_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


def incarnation_of(instance: dg.DagsterInstance, ledger: Ledger, table_id: str | None) -> int:
    """The epoch of the table with this identity, which is remembered from now on.

    Without an identity it is the table that was seen last: a table may lose its identity, it does not get another.
    """
    known = list(instance.get_dynamic_partitions(ledger.table_set))
    if table_id is None and known:
        return len(known)
    name = _UNKNOWN_TABLE if table_id is None else _known_name(table_id)
    if name not in known:
        register_partition_keys(instance, ledger.table_set, [name])
        known = list(instance.get_dynamic_partitions(ledger.table_set))  # somebody else may have been faster
    return known.index(name) + 1


def _known_name(table_id: str) -> str:
    """Mostly a uuid; but it is read from the table, so anyone may have written it."""
    if _PLAIN_ID.fullmatch(table_id) and table_id != _UNKNOWN_TABLE:
        return table_id
    return hashlib.sha256(table_id.encode(errors="surrogatepass")).hexdigest()
