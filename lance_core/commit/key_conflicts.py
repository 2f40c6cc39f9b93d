"""Key conflicts: decides whether concurrent changes contain rows that an upsert or a replace-where affects.

An append records no keys, so by the conflict rules alone it might contain any key, and an upsert that is concurrent
with a stream of appends would be replanned until it fails. Reading the key columns of the appended rows costs less than
a new plan and decides the question. In the same way no change records whether its rows belong to a replaced slice. If
the rows cannot be read, or our operation does not record which rows it affects, the conflict rules alone decide.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from lance_core.datafiles.fragment_reader import read_fragment
from lance_core.errors import LanceError
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.operations import AffectedRows, Append, Operation, Update, UpdateMode
from lance_core.format.transaction import Transaction
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.versions.snapshot import Snapshot


class KeyConflicts:
    """Key conflicts of one commit. Answers are cached from attempt to attempt."""

    def __init__(self, ours: Transaction) -> None:
        operation = ours.operation
        self._slice = operation.replaced_slice if isinstance(operation, Update) else None
        self._affected = self._slice or (operation.source_keys if isinstance(operation, Update) else None)
        self._overlaps: dict[Version, bool] = {}

    def annotate(self, others: Sequence[CommittedTransaction], head: Snapshot | None) -> list[CommittedTransaction]:
        """Return the transactions, with `overlaps` set where it can be decided: for appends, and, if our operation
        replaces a slice, for every operation that changes rows."""
        if head is None or self._affected is None:
            return list(others)
        return [self._annotate_one(committed, head, self._affected) for committed in others]

    def _annotate_one(
        self, committed: CommittedTransaction, head: Snapshot, affected: AffectedRows
    ) -> CommittedTransaction:
        transaction = committed.transaction
        operation = transaction.operation if transaction else None
        decidable = Append | Update if self._slice is not None else Append
        if transaction is None or operation is None or not isinstance(operation, decidable):
            return committed
        if committed.version not in self._overlaps:
            try:
                self._overlaps[committed.version] = _has_affected_row(operation, head, affected)
            except (LanceError, pa.ArrowException):
                return committed
        annotated = replace(operation, overlaps=self._overlaps[committed.version])
        return replace(committed, transaction=replace(transaction, operation=annotated))


def _has_affected_row(operation: Operation, head: Snapshot, affected: AffectedRows) -> bool:
    schema, path = head.manifest.schema, f"{head.location.uri}/{head.manifest.path}"
    names_by_id = {field.id: field.name for field in schema.fields}
    if any(field_id not in names_by_id for field_id in affected.fields):
        return True
    names = [names_by_id[field_id] for field_id in affected.fields]
    for fragment in _new_or_changed_fragments(operation):
        store, codec = head.location.store, head.location.codec
        for rows in read_fragment(store, codec, fragment, schema, columns=names, path=path):
            if rows.batch.num_rows and affected.has_any([pa.chunked_array([column]) for column in rows.batch.columns]):
                return True
    return False


def _new_or_changed_fragments(operation: Operation) -> tuple[Fragment, ...]:
    """Return the fragments with rows that are new, or that have new values."""
    match operation:
        case Append():
            return operation.fragments
        case Update() if operation.mode is UpdateMode.REWRITE_COLUMNS or operation.fields_modified:
            return (*operation.new, *operation.updated)
        case Update():
            return operation.new
    return ()
