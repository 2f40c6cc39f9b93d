"""Actions: what a version did, in the words of a user, such as "upsert" where the format's operation is Update.

The writer's verb is recorded with the transaction. For versions of other engines, the operation tells.
"""

from lance_core.format import operations as op
from lance_core.format.transaction import Transaction

UNKNOWN = "unknown"
_BY_VERB = {
    "overwrite of a slice": "replace where",
    "set_config": "set config",
}
_BY_OPERATION: dict[str, str] = {
    op.Append.name: "append",
    op.DataReplacement.name: "replace columns",
    op.Delete.name: "delete",
    op.Merge.name: "change schema",
    op.Overwrite.name: "overwrite",
    op.Project.name: "change schema",
    op.ReserveFragments.name: "reserve ids",
    op.Restore.name: "restore",
    op.Rewrite.name: "compact",
    op.Update.name: "update",
    op.UpdateBases.name: "add base paths",
    op.UpdateConfig.name: "change settings",
    op.UpdateMemWalState.name: "update MemWAL",
}


def action_of(transaction: Transaction | None, *, is_first: bool) -> str:
    """Return what the transaction did. `is_first` says that it committed the first version of a table.

    >>> from lance_core.format.ids import Version
    >>> action_of(Transaction(Version(0), "uuid", op.Append(())), is_first=True)
    'create'
    >>> action_of(Transaction(Version(3), "uuid", op.Update(), verb="upsert"), is_first=False)
    'upsert'
    """
    if transaction is None:
        return UNKNOWN
    operation = transaction.operation
    if isinstance(operation, op.Clone):
        return "create branch" if operation.branch_name else "clone"
    if is_first and isinstance(operation, op.Append | op.Overwrite):
        return "create"
    if isinstance(operation, op.ReserveFragments):  # a compaction commits it first, under its own verb
        return _BY_OPERATION[operation.name]
    if transaction.verb is not None and transaction.verb.isprintable() and not transaction.verb.startswith("commit "):
        return _BY_VERB.get(transaction.verb, transaction.verb.replace("_", " "))
    if isinstance(operation, op.CreateIndex):
        return "create index" if operation.new else "drop index"
    return _BY_OPERATION.get(operation.name, operation.name)
