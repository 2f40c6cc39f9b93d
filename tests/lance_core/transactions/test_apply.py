"""The manifest after a change, operation by operation. How the message holds it is tested beside `Draft`."""

from dataclasses import replace

import pyarrow as pa
import pytest

from lance_core import InvalidInput, Unsupported
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.naming import NamingScheme
from lance_core.format.operations import Append, Operation, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import INLINE_BYTES_MAX, Transaction
from lance_core.transactions.apply import CommitContext, NewTable, apply

V22 = StorageVersion(2, 2)
SCHEMA = TableSchema.from_arrow(pa.schema([("a", pa.int8())]))
OTHER = TableSchema.from_arrow(pa.schema([("z", pa.string())]))
NOW = CommitContext(now_ns=10**18, library_version="1.2.3", transaction_file="0-x.txn")


def fresh(name: str, rows: int = 1) -> Fragment:
    file = DataFile.of(path=name, field_ids=[0], column_indices=[0], version=V22, size=1)
    return Fragment.of(files=[file], physical_rows=rows)


def after(head: Manifest | NewTable, operation: Operation, *, properties: dict[str, str] | None = None) -> Manifest:
    read_version = Version(0) if isinstance(head, NewTable) else head.version
    return apply(head, Transaction(read_version, "uuid", operation, properties or {}), NOW)


def born(*fragments: Fragment) -> Manifest:
    return after(NewTable(V22), Overwrite(fragments, SCHEMA))


def paths(manifest: Manifest) -> list[tuple[int, str]]:
    return [(fragment.id, file.path) for fragment in manifest.fragments for file in fragment.files]


def test_append_adds_behind() -> None:
    head = born(fresh("a"), fresh("b"))
    manifest = after(head, Append((fresh("c"), fresh("d"))))
    assert paths(manifest) == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert (manifest.version, manifest.schema) == (2, SCHEMA)
    assert paths(head) == [(0, "a"), (1, "b")]


def test_overwrite_replaces_all_and_ids_go_on() -> None:
    manifest = after(born(fresh("a"), fresh("b")), Overwrite((fresh("c"),), OTHER, {"k": "v"}))
    assert paths(manifest) == [(2, "c")]
    assert (manifest.schema, dict(manifest.config)) == (OTHER, {"k": "v"})


def test_overwrite_keeps_the_storage_version() -> None:
    old = after(NewTable(StorageVersion(2, 0)), Overwrite((), SCHEMA))
    assert str(after(old, Overwrite((), OTHER)).storage_version) == "2.0"


def test_overwrite_by_nothing_is_an_empty_table() -> None:
    manifest = after(born(fresh("a")), Overwrite((), SCHEMA))
    assert (paths(manifest), manifest.max_fragment_id, manifest.row_count()) == ([], 0, 0)


def test_the_same_change_applied_twice_gives_the_same_bytes() -> None:
    """Nothing in here reads a clock or makes a name."""
    head = born(fresh("a"))
    assert after(head, Append((fresh("b"),))).encode() == after(head, Append((fresh("b"),))).encode()


def test_names_follow_the_table() -> None:
    head = born()
    transaction = Transaction(Version(1), "uuid", Append((fresh("a"),)))
    assert apply(head, transaction, replace(NOW, scheme=NamingScheme.V1)).path == "_versions/2.manifest"
    assert apply(head, transaction, NOW).path == "_versions/18446744073709551613.manifest"


def test_a_transaction_too_large_for_the_manifest_is_left_out() -> None:
    small = after(born(), Append((fresh("a"),)), properties={"x": "y"})
    large = after(born(), Append((fresh("a"),)), properties={"x": "y" * INLINE_BYTES_MAX})
    assert small.inline_transaction is not None
    assert large.inline_transaction is None
    assert large.transaction_file == "0-x.txn"


def test_a_table_that_we_cannot_write_is_not_written() -> None:
    message = born().copy_header()
    message.writer_feature_flags |= 32768
    head = Manifest.from_header(message, index_section=None, transaction=None, path="m")
    with pytest.raises(Unsupported, match=r"writer features 32768 \(NON_REUSABLE_FIELD_IDS\)"):
        after(head, Append((fresh("a"),)))


def test_overwrite_takes_no_deleted_rows() -> None:
    part = fresh("a", rows=2)
    part.message.deletion_file.CopyFrom(table_pb2.DeletionFile(num_deleted_rows=1))
    with pytest.raises(InvalidInput, match="cannot contain fragments with deleted rows"):
        after(born(), Overwrite((part,), SCHEMA))
