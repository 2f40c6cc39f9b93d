"""Transactions and operations: encoding and decoding, and a name for every operation of the format."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_core import Corrupt, Table, Unsupported
from lance_core.format._pb import transaction_pb2
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.ids import Version
from lance_core.format.operations import Append, DataOverlay, Operation, Other, Overwrite
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


def test_an_overlay_is_kept_complete() -> None:
    message = transaction_pb2.Transaction(read_version=3, uuid="u", transaction_properties={"a": "b"})
    message.data_overlay.SetInParent()
    transaction = Transaction.decode(message.SerializeToString(), path="t")
    assert isinstance(transaction.operation, DataOverlay)
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


def transactions_of_pylance(folder: Path) -> list[Transaction]:
    """Return the transactions of a table with every operation that pylance writes by itself."""
    uri = str(folder / "t")
    rows = pa.table({"a": range(20), "b": [str(n) for n in range(20)]})
    table = lance.write_dataset(rows, uri, max_rows_per_file=5, enable_stable_row_ids=True)
    table.insert(rows)
    table.delete("a = 3")
    table.update({"b": "'x'"}, where="a < 4")
    table.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(
        pa.table({"a": [1, 99], "b": ["m", "n"]})
    )
    table.create_scalar_index("a", "BTREE")
    table.add_columns({"c": "a * 2"})
    changes: list[dict[str, Any]] = [{"path": "c", "name": "d"}, {"path": "d", "data_type": pa.int32()}]
    for change in changes:
        table.alter_columns(change)  # type: ignore[arg-type]
    table.drop_columns(["d"])
    table.update_config({"k": "v"})
    table.update_metadata({"m": "1"})
    table.optimize.compact_files(target_rows_per_fragment=100)
    table.restore()
    ours = Table.open(uri)
    return [created for version in ours.versions() if (created := ours.transaction(version.version))]


def test_transactions_of_pylance_are_reencoded_unchanged(tmp_path: Path) -> None:
    created = transactions_of_pylance(tmp_path)
    names = {transaction.operation.name for transaction in created}
    assert names >= {
        "Append", "CreateIndex", "Delete", "Merge", "Overwrite", "Project", "ReserveFragments", "Rewrite", "Update",
        "UpdateConfig",
    }  # fmt: skip
    for transaction in created:
        assert not isinstance(transaction.operation, Other)
        assert Transaction.decode(transaction.encode(), path="t") == transaction


def test_an_impossible_index_version_is_rejected() -> None:
    message = transaction_pb2.Transaction(uuid="x")
    message.rewrite.rewritten_indices.add(new_index_version=2**31)
    with pytest.raises(Unsupported, match="2147483648"):
        Transaction.decode(message.SerializeToString(), path="t")
