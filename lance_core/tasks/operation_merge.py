"""Operation merge: encodes the operations that partitions plan, and merges them into one operation on the driver."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from lance_core.format import operations as op
from lance_core.format.ids import FragmentId, Version
from lance_core.format.operations import Operation
from lance_core.format.transaction import Transaction

_WIRE = pa.schema(
    [
        pa.field("transaction", pa.binary()),
        pa.field("affected_fragments", pa.list_(pa.uint64())),
        pa.field("affected_rows", pa.list_(pa.binary())),
    ]
)


def encode_operation(operation: Operation) -> bytes:
    """Return the operation as bytes. A transaction message holds all of it except the affected rows, which no version
    stores; they travel in columns of their own."""
    affected = operation.affected if isinstance(operation, op.Delete | op.Update) else None
    row = {
        "transaction": Transaction(Version(0), "", operation).encode(),
        "affected_fragments": None if affected is None else list(affected),
        "affected_rows": None if affected is None else list(affected.values()),
    }
    return bytes(pa.RecordBatch.from_pylist([row], _WIRE).serialize())


def decode_operation(data: bytes) -> Operation:
    (row,) = pa.ipc.read_record_batch(pa.py_buffer(data), _WIRE).to_pylist()
    operation = Transaction.decode(row["transaction"], path="result of a worker").operation
    if row["affected_rows"] is None:
        return operation
    assert isinstance(operation, op.Delete | op.Update)
    affected = dict(zip(map(FragmentId, row["affected_fragments"]), row["affected_rows"], strict=True))
    return replace(operation, affected=affected)


def decode_operations(results: Mapping[int, Sequence[bytes]]) -> list[Operation]:
    """Return the operations of all partitions that change anything, in partition order."""
    return [decode_operation(result) for _, encoded in sorted(results.items()) for result in encoded]


def merge_deletes(operations: Sequence[Operation], predicate: str) -> op.Delete:
    """Return one delete with the changes of all partitions."""
    deletes = [delete for delete in operations if isinstance(delete, op.Delete)]
    return op.Delete(
        updated=tuple(chain.from_iterable(delete.updated for delete in deletes)),
        removed_ids=tuple(chain.from_iterable(delete.removed_ids for delete in deletes)),
        predicate=predicate,
        affected={number: rows for delete in deletes for number, rows in (delete.affected or {}).items()},
    )


def merge_updates(operations: Sequence[Operation], template: op.Update) -> op.Update:
    """Return one update with the changes of all partitions. `template` has the fields that are equal in all of them."""
    updates = [update for update in operations if isinstance(update, op.Update)]
    return replace(
        template,
        removed_ids=tuple(chain.from_iterable(update.removed_ids for update in updates)),
        updated=tuple(chain.from_iterable(update.updated for update in updates)),
        new=tuple(chain.from_iterable(update.new for update in updates)),
        updated_offsets={number: rows for update in updates for number, rows in update.updated_offsets.items()},
        affected={number: rows for update in updates for number, rows in (update.affected or {}).items()},
    )
