"""Rows that others append beside an upsert: whether one of them has a key that the upsert brings.

An append tells no keys, so to the rules it could bring any, and an upsert beside steady appends would be planned again
until it gives up. To read the key columns of what was appended costs less than to plan, and settles it. Where the rows
cannot be read, or the upsert has not told its keys, nothing is known.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from lance_core.data.read import read_fragment
from lance_core.errors import LanceError
from lance_core.format.ids import Version
from lance_core.format.operations import Append, KeysBrought, Update
from lance_core.format.transaction import Transaction
from lance_core.snapshot import Snapshot
from lance_core.transactions.landed import Landed


class NewKeys:
    """Of one commit. What it has read it remembers from turn to turn."""

    def __init__(self, ours: Transaction) -> None:
        operation = ours.operation
        self._keys = operation.keys_brought if isinstance(operation, Update) else None
        self._told: dict[Version, bool] = {}

    def told(self, others: Sequence[Landed], head: Snapshot | None) -> list[Landed]:
        """The same, their appends telling whether they bring such a key."""
        if head is None or self._keys is None:
            return list(others)
        return [self._told_of(landed, head, self._keys) for landed in others]

    def _told_of(self, landed: Landed, head: Snapshot, keys: KeysBrought) -> Landed:
        transaction = landed.transaction
        if transaction is None or not isinstance(transaction.operation, Append):
            return landed
        if landed.version not in self._told:
            try:
                self._told[landed.version] = _brings_one(transaction.operation, head, keys)
            except (LanceError, pa.ArrowException):
                return landed
        told = replace(transaction.operation, meets=self._told[landed.version])
        return replace(landed, transaction=replace(transaction, operation=told))


def _brings_one(append: Append, head: Snapshot, keys: KeysBrought) -> bool:
    schema, path = head.manifest.schema, f"{head.location.uri}/{head.manifest.path}"
    by_id = {field.id: field.name for field in schema.fields}
    if any(number not in by_id for number in keys.fields):
        return True
    names = [by_id[number] for number in keys.fields]
    for fragment in append.fragments:
        store, codec = head.location.store, head.location.codec
        for rows in read_fragment(store, codec, fragment, schema, columns=names, path=path):
            if rows.batch.num_rows and keys.has_any([pa.chunked_array([column]) for column in rows.batch.columns]):
                return True
    return False
