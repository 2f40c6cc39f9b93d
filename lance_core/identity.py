"""Which table this is. The format has no answer, so we write one into the config of the tables we create."""

from lance_core.errors import Corrupt, NotFound, Unsupported
from lance_core.format.ids import Version
from lance_core.snapshot import Snapshot, load_at, load_transaction

TABLE_ID = "lance_assets.table_id"
"""Config key. Its value is the uuid of the transaction that created the table, which is also the answer for a
table of another library, as long as its first version exists."""


def table_id(snapshot: Snapshot) -> str | None:
    if known := snapshot.manifest.config.get(TABLE_ID):
        return known
    try:
        first = load_at(snapshot.location, Version(1))
        transaction = load_transaction(first.location, first.manifest)
    except (Corrupt, NotFound, Unsupported):
        return None
    return transaction.uuid if transaction else None
