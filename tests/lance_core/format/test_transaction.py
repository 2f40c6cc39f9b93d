"""Transactions and operations: to bytes and back, and every operation of the format has a name."""

import pyarrow as pa
import pytest

from lance_core import Corrupt
from lance_core.format._pb import transaction_pb2
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.ids import Version
from lance_core.format.operations import Append, Operation, Other, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction

FILE = DataFile.of(path="a.lance", field_ids=[0], column_indices=[0], version=StorageVersion(2, 2), size=3)
FRAGMENT = Fragment.of(files=[FILE], physical_rows=2)
SCHEMA = TableSchema.from_arrow(pa.schema([("a", pa.int8())], metadata={"k": "v"}))
ARMS = [field.name for field in transaction_pb2.Transaction.DESCRIPTOR.oneofs_by_name["operation"].fields]


@pytest.mark.parametrize(
    "operation",
    [Append((FRAGMENT, FRAGMENT)), Append(()), Overwrite((FRAGMENT,), SCHEMA, {"c": "d"}), Overwrite((), SCHEMA)],
    ids=["append", "append nothing", "overwrite", "overwrite by nothing"],
)
def test_bytes_give_back_the_transaction(operation: Operation) -> None:
    transaction = Transaction(Version(7), "4f3c", operation, {"b": "2", "a": "1"})
    again = Transaction.decode(transaction.encode(), path="t")
    assert again == transaction
    assert again.encode() == transaction.encode()


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm not in ("append", "overwrite")])
def test_other_operations_are_kept_whole(arm: str) -> None:
    message = transaction_pb2.Transaction(read_version=3, uuid="u", transaction_properties={"a": "b"})
    getattr(message, arm).SetInParent()
    transaction = Transaction.decode(message.SerializeToString(), path="t")
    assert isinstance(transaction.operation, Other)
    assert transaction.operation.name.lower().startswith(arm.replace("_", "")[:8])
    assert transaction_pb2.Transaction.FromString(transaction.encode()) == message


def test_an_operation_of_the_future_has_no_name() -> None:
    unknown = b"\xc2\x3e\x02\x08\x01"  # field 1000, a message
    transaction = Transaction.decode(b"\x08\x03" + unknown, path="t")
    assert isinstance(transaction.operation, Other)
    assert transaction.operation.name == "unknown"
    assert unknown in transaction.encode()


@pytest.mark.parametrize("data", [b"\xff", b"\x08", b"\xa2\x06\x05abc"])
def test_damage_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match="t: the transaction does not parse"):
        Transaction.decode(data, path="t")
