"""Apply: the manifest after each operation. The tests of `ManifestBuilder` cover its encoding."""

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


def new_fragment(name: str, rows: int = 1) -> Fragment:
    file = DataFile.of(path=name, field_ids=[0], column_indices=[0], version=V22, size=1)
    return Fragment.of(files=[file], physical_rows=rows)


def apply_operation(
    head: Manifest | NewTable, operation: Operation, *, properties: dict[str, str] | None = None
) -> Manifest:
    read_version = Version(0) if isinstance(head, NewTable) else head.version
    return apply(head, Transaction(read_version, "uuid", operation, properties or {}), NOW)


def create_manifest(*fragments: Fragment) -> Manifest:
    return apply_operation(NewTable(V22), Overwrite(fragments, SCHEMA))


def paths(manifest: Manifest) -> list[tuple[int, str]]:
    return [(fragment.id, file.path) for fragment in manifest.fragments for file in fragment.files]


def test_append_adds_fragments_at_the_end() -> None:
    head = create_manifest(new_fragment("a"), new_fragment("b"))
    manifest = apply_operation(head, Append((new_fragment("c"), new_fragment("d"))))
    assert paths(manifest) == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert (manifest.version, manifest.schema) == (2, SCHEMA)
    assert paths(head) == [(0, "a"), (1, "b")]


def test_overwrite_replaces_all_and_fragment_ids_continue() -> None:
    manifest = apply_operation(
        create_manifest(new_fragment("a"), new_fragment("b")), Overwrite((new_fragment("c"),), OTHER, {"k": "v"})
    )
    assert paths(manifest) == [(2, "c")]
    assert (manifest.schema, dict(manifest.config)) == (OTHER, {"k": "v"})


def test_overwrite_keeps_the_storage_version() -> None:
    old = apply_operation(NewTable(StorageVersion(2, 0)), Overwrite((), SCHEMA))
    assert str(apply_operation(old, Overwrite((), OTHER)).storage_version) == "2.0"


def test_overwrite_by_nothing_is_an_empty_table() -> None:
    manifest = apply_operation(create_manifest(new_fragment("a")), Overwrite((), SCHEMA))
    assert (paths(manifest), manifest.max_fragment_id, manifest.row_count()) == ([], 0, 0)


def test_the_same_change_applied_twice_gives_the_same_bytes() -> None:
    """Apply reads no clock and creates no names."""
    head = create_manifest(new_fragment("a"))
    assert (
        apply_operation(head, Append((new_fragment("b"),))).encode()
        == apply_operation(head, Append((new_fragment("b"),))).encode()
    )


def test_names_follow_the_table() -> None:
    head = create_manifest()
    transaction = Transaction(Version(1), "uuid", Append((new_fragment("a"),)))
    assert apply(head, transaction, replace(NOW, scheme=NamingScheme.V1)).path == "_versions/2.manifest"
    assert apply(head, transaction, NOW).path == "_versions/18446744073709551613.manifest"


def test_a_transaction_too_large_for_the_manifest_is_left_out() -> None:
    small = apply_operation(create_manifest(), Append((new_fragment("a"),)), properties={"x": "y"})
    large = apply_operation(create_manifest(), Append((new_fragment("a"),)), properties={"x": "y" * INLINE_BYTES_MAX})
    assert small.inline_transaction is not None
    assert large.inline_transaction is None
    assert large.transaction_file == "0-x.txn"


def test_a_table_with_unknown_features_is_not_written() -> None:
    message = create_manifest().copy_header()
    message.writer_feature_flags |= 32768
    head = Manifest.from_header(message, index_section=None, transaction=None, path="m")
    with pytest.raises(Unsupported, match=r"writer features 32768 \(NON_REUSABLE_FIELD_IDS\)"):
        apply_operation(head, Append((new_fragment("a"),)))


def test_overwrite_rejects_deleted_rows() -> None:
    part = new_fragment("a", rows=2)
    part.message.deletion_file.CopyFrom(table_pb2.DeletionFile(num_deleted_rows=1))
    with pytest.raises(InvalidInput, match="cannot contain fragments with deleted rows"):
        apply_operation(create_manifest(), Overwrite((part,), SCHEMA))
