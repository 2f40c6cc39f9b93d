"""Table identity: a uuid that distinguishes tables created one after another at the same location. The format defines
none, so tables that this library creates store one in their config."""

from lance_core.errors import Corrupt, NotFound, Unsupported
from lance_core.format.config_keys import TABLE_ID
from lance_core.format.operations import Clone
from lance_core.versions.snapshot import Snapshot, list_versions, load_at, load_transaction

__all__ = ["TABLE_ID", "table_id"]


def table_id(snapshot: Snapshot) -> str | None:
    """Return the table id: the one in the config or, for tables of other writers, the uuid of the transaction that
    created or cloned the table. `None` if that transaction is missing or damaged."""
    if known := snapshot.manifest.config.get(TABLE_ID):
        return known
    location, branch = snapshot.location, snapshot.manifest.branch
    try:
        if branch is not None and location.main_branch_uri(branch) is not None:
            location = location.locate_main_branch(branch)
        numbers = list_versions(location).numbers
        first = load_at(location, numbers[0] if numbers else snapshot.version)
        transaction = load_transaction(first.location, first.manifest)
    except (Corrupt, NotFound, Unsupported):
        return None
    if transaction is None or not (first.version == 1 or isinstance(transaction.operation, Clone)):
        return None
    return transaction.uuid
