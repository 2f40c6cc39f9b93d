"""Rows that others bring beside an upsert, or beside the overwrite of a slice: whether one of them is meant by it.

An append tells no keys, so to the rules it could bring any, and an upsert beside steady appends would be planned again
until it gives up. To read the key columns of what was appended costs less than to plan, and settles it. Nor does any
change tell whether its rows are of a slice. Where the rows cannot be read, or ours has not told what it means, nothing
is known.
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
    """Of one commit. What it has read it remembers from turn to turn."""

    def __init__(self, ours: Transaction) -> None:
        operation = ours.operation
        self._slice = operation.replaced_slice if isinstance(operation, Update) else None
        self._meant = self._slice or (operation.source_keys if isinstance(operation, Update) else None)
        self._told: dict[Version, bool] = {}

    def annotate(self, others: Sequence[CommittedTransaction], head: Snapshot | None) -> list[CommittedTransaction]:
        """The same, telling whether they bring such a row: appends, and beside a slice whatever changes rows."""
        if head is None or self._meant is None:
            return list(others)
        return [self._told_of(landed, head, self._meant) for landed in others]

    def _told_of(self, landed: CommittedTransaction, head: Snapshot, meant: AffectedRows) -> CommittedTransaction:
        transaction = landed.transaction
        operation = transaction.operation if transaction else None
        looked = Append | Update if self._slice is not None else Append
        if transaction is None or operation is None or not isinstance(operation, looked):
            return landed
        if landed.version not in self._told:
            try:
                self._told[landed.version] = _brings_one(operation, head, meant)
            except (LanceError, pa.ArrowException):
                return landed
        told = replace(operation, overlaps=self._told[landed.version])
        return replace(landed, transaction=replace(transaction, operation=told))


def _brings_one(operation: Operation, head: Snapshot, meant: AffectedRows) -> bool:
    schema, path = head.manifest.schema, f"{head.location.uri}/{head.manifest.path}"
    by_id = {field.id: field.name for field in schema.fields}
    if any(number not in by_id for number in meant.fields):
        return True
    names = [by_id[number] for number in meant.fields]
    for fragment in _arrived(operation):
        store, codec = head.location.store, head.location.codec
        for rows in read_fragment(store, codec, fragment, schema, columns=names, path=path):
            if rows.batch.num_rows and meant.has_any([pa.chunked_array([column]) for column in rows.batch.columns]):
                return True
    return False


def _arrived(operation: Operation) -> tuple[Fragment, ...]:
    """With rows that were not there before, or not with these values."""
    match operation:
        case Append():
            return operation.fragments
        case Update() if operation.mode is UpdateMode.REWRITE_COLUMNS or operation.fields_modified:
            return (*operation.new, *operation.updated)
        case Update():
            return operation.new
    return ()
