"""What the parts of a version planned, on its way to the driver, and put together there: one operation for all."""

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
    """A transaction tells all of it but which rows are affected, which no version keeps."""
    affected = operation.affected if isinstance(operation, op.Delete | op.Update) else None
    row = {
        "transaction": Transaction(Version(0), "", operation).encode(),
        "affected_fragments": None if affected is None else list(affected),
        "affected_rows": None if affected is None else list(affected.values()),
    }
    return bytes(pa.RecordBatch.from_pylist([row], _WIRE).serialize())


def decode_operation(data: bytes) -> Operation:
    (row,) = pa.ipc.read_record_batch(pa.py_buffer(data), _WIRE).to_pylist()
    operation = Transaction.decode(row["transaction"], path="what a worker gave back").operation
    if row["affected_rows"] is None:
        return operation
    assert isinstance(operation, op.Delete | op.Update)
    affected = dict(zip(map(FragmentId, row["affected_fragments"]), row["affected_rows"], strict=True))
    return replace(operation, affected=affected)


def decode_operations(results: Mapping[int, Sequence[bytes]]) -> list[Operation]:
    """By all parts that have anything to change, in their order."""
    return [decode_operation(result) for _part, each in sorted(results.items()) for result in each]


def merge_deletes(parts: Sequence[Operation], predicate: str) -> op.Delete:
    deletes = [part for part in parts if isinstance(part, op.Delete)]
    return op.Delete(
        updated=tuple(chain.from_iterable(part.updated for part in deletes)),
        removed_ids=tuple(chain.from_iterable(part.removed_ids for part in deletes)),
        predicate=predicate,
        affected={number: rows for part in deletes for number, rows in (part.affected or {}).items()},
    )


def merge_updates(parts: Sequence[Operation], whole: op.Update) -> op.Update:
    """`whole` says what all parts say alike."""
    updates = [part for part in parts if isinstance(part, op.Update)]
    return replace(
        whole,
        removed_ids=tuple(chain.from_iterable(part.removed_ids for part in updates)),
        updated=tuple(chain.from_iterable(part.updated for part in updates)),
        new=tuple(chain.from_iterable(part.new for part in updates)),
        updated_offsets={number: rows for part in updates for number, rows in part.updated_offsets.items()},
        affected={number: rows for part in updates for number, rows in (part.affected or {}).items()},
    )
