"""Rows that others append beside an upsert: whether one of them has a key that it inserts.

An append tells no keys, so to the rules it could bring any, and an upsert beside steady appends would be planned again
until it gives up. To read the key columns of what was appended costs less than to plan, and settles it. The filter that
the upsert carries is asked, as another upsert's would be; where the rows cannot be read, nothing is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from lance_core.data.comparable import comparable
from lance_core.data.read import read_fragment
from lance_core.errors import LanceError
from lance_core.format.ids import Version
from lance_core.format.key_filter import fields_of, may_hold_any
from lance_core.format.operations import Append, Update
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from lance_core.snapshot import Snapshot
from lance_core.transactions.landed import Landed


class NewKeys:
    """Of one commit. What it has read it remembers from turn to turn."""

    def __init__(self, ours: Transaction) -> None:
        operation = ours.operation
        self._filter = operation.inserted_keys if isinstance(operation, Update) else None
        self._fields = () if self._filter is None else fields_of(self._filter)
        self._told: dict[Version, bool] = {}

    def looked_for(self, others: Sequence[Landed], head: Snapshot | None) -> list[Landed]:
        """The same, their appends told apart by whether they bring such a key."""
        if head is None or not self._fields:
            return list(others)
        return [self._told_of(landed, head) for landed in others]

    def _told_of(self, landed: Landed, head: Snapshot) -> Landed:
        transaction = landed.transaction
        if transaction is None or not isinstance(transaction.operation, Append):
            return landed
        if landed.version not in self._told:
            try:
                self._told[landed.version] = self._meets(transaction.operation, head)
            except LanceError:
                return landed
        told = replace(transaction.operation, meets=self._told[landed.version])
        return replace(landed, transaction=replace(transaction, operation=told))

    def _meets(self, append: Append, head: Snapshot) -> bool:
        assert self._filter is not None
        schema = head.manifest.schema
        names = _names(schema, self._fields)
        if names is None:
            return True
        for fragment in append.fragments:
            rows = read_fragment(
                head.location.store,
                head.location.codec,
                fragment,
                schema,
                columns=names,
                path=f"{head.location.uri}/{head.manifest.path}",
            )
            for batch in rows:
                keys = pa.Table.from_batches([batch.batch]).drop_null()
                columns = [pa.concat_arrays(comparable(column).chunks) for column in keys.columns]
                if keys.num_rows and may_hold_any(self._filter, columns):
                    return True
        return False


def _names(schema: TableSchema, fields: Sequence[int]) -> list[str] | None:
    """Top-level columns; None where one of them is gone."""
    by_id: Mapping[int, str] = {field.id: field.name for field in schema.fields}
    return [by_id[number] for number in fields] if all(number in by_id for number in fields) else None
