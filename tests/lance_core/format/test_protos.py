"""Protocol buffers: our messages against bytes that pylance wrote and against bytes of older and newer writers."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import lance
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import any_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-not-found]
from lance.file import LanceFileReader

from lance_core.format._pb import file_pb2, index_pb2, rowids_pb2, table_pb2, transaction_pb2

ROOT = Path(__file__).resolve().parents[3]
Transaction = transaction_pb2.Transaction
M = TypeVar("M", bound=Message)
SEQUENCES = (
    ("inline_row_ids", rowids_pb2.RowIdSequence),
    ("inline_created_at_versions", rowids_pb2.RowDatasetVersionSequence),
    ("inline_last_updated_at_versions", rowids_pb2.RowDatasetVersionSequence),
)


# --- what pylance writes ------------------------------------------------------------------------------


def rows(start: int, count: int) -> pa.Table:
    numbers = np.arange(start, start + count)
    vectors = pa.array(np.outer(numbers % 17, np.ones(8)).astype(np.float32).ravel())
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "label": pa.array([f"row number {n}" for n in numbers]),
            "kind": pa.array(numbers % 7, pa.int32()),
            "tags": pa.array([[str(n % 3)] for n in numbers]),
            "vector": pa.FixedSizeListArray.from_arrays(vectors, 8),
        }
    )


@pytest.fixture(scope="module", params=[True, False], ids=["stable row ids", "row addresses"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with every operation that the API of pylance can cause."""
    stable: bool = request.param
    root = tmp_path_factory.mktemp("table") / "t"
    uri = str(root)
    ds = lance.write_dataset(rows(0, 600), uri, enable_stable_row_ids=stable, max_rows_per_file=200)
    ds.insert(rows(1000, 100))
    ds = lance.dataset(uri)
    ds.delete("id % 5 = 0")
    ds.create_scalar_index("id", "BTREE")
    ds.create_scalar_index("kind", "BITMAP")
    ds.create_scalar_index("tags", "LABEL_LIST")
    ds.create_scalar_index("label", "INVERTED", name="words")
    ds.create_scalar_index("label", "NGRAM", name="trigrams")
    ds.create_scalar_index("kind", "ZONEMAP", name="zones")
    ds.create_scalar_index("kind", "BLOOMFILTER", name="bloom")
    ds.create_index("vector", "IVF_PQ", num_partitions=2, num_sub_vectors=2)
    ds.tags.create("first", 1)
    ds.create_branch("side", 1)
    ds.update_config({"team": "blue"})
    ds.update_metadata({"owner": "us"})
    ds.update_field_metadata({"id": {"unit": "none"}})
    ds.update({"kind": "kind + 1"}, where="id < 10")
    ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(1090, 20))
    ds.add_columns({"twice": "id * 2"})
    ds.drop_columns(["twice"])
    ds.optimize.compact_files(defer_index_remap=not stable)
    lance.dataset(uri).shallow_clone(f"{uri}_clone", "first")
    lance.dataset(uri, version=4).restore()
    lance.dataset(uri).initialize_mem_wal(unsharded=True)
    return root


def block(data: bytes, position: int, kind: type[M]) -> M:
    (length,) = struct.unpack_from("<I", data, position)
    return kind.FromString(data[position + 4 : position + 4 + length])


def decode(path: Path) -> tuple[table_pb2.Manifest, Transaction, table_pb2.IndexSection]:
    data = path.read_bytes()
    (position,) = struct.unpack_from("<q", data, len(data) - 16)
    manifest = block(data, position, table_pb2.Manifest)
    assert manifest.HasField("transaction_section")
    transaction = block(data, manifest.transaction_section, Transaction)
    indices = table_pb2.IndexSection()
    if manifest.HasField("index_section"):
        indices = block(data, manifest.index_section, table_pb2.IndexSection)
    return manifest, transaction, indices


def versions(root: Path) -> list[tuple[table_pb2.Manifest, Transaction, table_pb2.IndexSection]]:
    """Return all versions of the table, its branch and its clone; those of the table last and in order."""
    others = [decode(path) for side in (root / "tree/side", Path(f"{root}_clone")) for path in manifests(side)]
    return [*others, *sorted(map(decode, manifests(root)), key=lambda actual: actual[0].version)]


def manifests(root: Path) -> list[Path]:
    return list((root / "_versions").glob("*.manifest"))


def unknown(message: Message, path: str = "") -> Iterator[str]:
    """Yield every undeclared field below the message, also in messages that it contains as bytes."""
    name = message.DESCRIPTOR.full_name
    for field in UnknownFieldSet(message):
        yield f"{path}{name}.{field.field_number}"
    for child in children(message):
        yield from unknown(child, f"{path}{name} > ")


def children(message: Message) -> Iterator[Message]:
    if isinstance(message, any_pb2.Any):
        actual = descriptor_pool.Default().FindMessageTypeByName(message.TypeName())
        yield message_factory.GetMessageClass(actual).FromString(message.value)
    if isinstance(message, table_pb2.DataFragment):
        for name, kind in SEQUENCES:
            yield kind.FromString(getattr(message, name))
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if not field.message_type.GetOptions().map_entry:
            yield from [value] if isinstance(value, Message) else value
        elif field.message_type.fields_by_name["value"].message_type is not None:
            yield from value.values()


def test_nothing_that_pylance_writes_is_unknown(table: Path) -> None:
    for actual in versions(table):
        for message in actual:
            assert list(unknown(message)) == []
            assert type(message).FromString(message.SerializeToString()) == message


def test_every_operation_was_seen(table: Path) -> None:
    observed = {transaction.WhichOneof("operation") for _, transaction, _ in versions(table)}
    assert observed >= {
        *("append", "clone", "create_index", "delete", "merge", "overwrite", "project"),
        *("reserve_fragments", "restore", "rewrite", "update", "update_config"),
    }


def test_the_transaction_file_is_the_inline_transaction(table: Path) -> None:
    for path in manifests(table):
        manifest, transaction, _ = decode(path)
        content = (table / "_transactions" / manifest.transaction_file).read_bytes()
        assert Transaction.FromString(content) == transaction


def test_every_kind_of_index_has_details(table: Path) -> None:
    observed = {index.index_details.type_url for *_, indices in versions(table) for index in indices.indices}
    expected = {
        *("/lance.table.BTreeIndexDetails", "/lance.table.BitmapIndexDetails"),
        *("/lance.table.LabelListIndexDetails", "/lance.table.InvertedIndexDetails"),
        *("/lance.table.NGramIndexDetails", "/lance.table.ZoneMapIndexDetails"),
        *("/lance.index.pb.BloomFilterIndexDetails", "/lance.index.pb.VectorIndexDetails"),
        "/lance.table.MemWalIndexDetails",
    }
    if not decode(manifests(table)[0])[0].reader_feature_flags & 2:  # tables with stable row ids need no such index
        expected.add("/lance.table.FragmentReuseIndexDetails")
    assert observed == expected


def test_the_values_are_those_that_pylance_reports(table: Path) -> None:
    for path in manifests(table):
        manifest, transaction, indices = decode(path)
        ds = lance.dataset(str(table), version=manifest.version)
        theirs = ds.get_fragments()
        assert [f.id for f in manifest.fragments] == [f.fragment_id for f in theirs]
        assert [f.physical_rows for f in manifest.fragments] == [f.physical_rows for f in theirs]
        assert [f.deletion_file.num_deleted_rows for f in manifest.fragments] == [f.num_deletions for f in theirs]
        assert [f.name for f in manifest.fields if f.parent_id == -1] == ds.schema.names
        assert dict(manifest.config) == ds.config()
        assert manifest.data_format.version == ds.data_storage_version
        assert len(transaction.uuid) == 36
        assert {i.name for i in indices.indices} >= {i.name for i in ds.describe_indices()}


def test_a_data_file_describes_itself(tmp_path: Path) -> None:
    data = rows(0, 10).replace_schema_metadata({"made": "here"})
    ds = lance.write_dataset(data, tmp_path / "t", data_storage_version="2.2")
    (file,) = ds.get_fragments()[0].data_files()
    content = bytes(LanceFileReader(str(tmp_path / "t" / "data" / file.path)).read_global_buffer(0))
    actual = file_pb2.FileDescriptor.FromString(content)
    assert list(unknown(actual)) == []
    assert actual.length == 10
    assert [f.name for f in actual.schema.fields] == ["id", "label", "kind", "tags", "item", "vector"]
    assert [f.parent_id for f in actual.schema.fields] == [-1, -1, -1, -1, 3, -1]


# --- what older and newer writers write ---------------------------------------------------------------


def field(number: int, value: bytes | int) -> bytes:
    """Encode one field by hand: a varint or a length-delimited value."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def entry(key: bytes, value: bytes) -> bytes:
    return field(1, key) + field(2, value)


def check_round_trip(message: Message, data: bytes) -> None:
    assert list(unknown(message)) == []
    assert type(message).FromString(message.SerializeToString()) == message
    assert len(message.SerializeToString()) == len(data)


def test_a_rewrite_without_groups() -> None:
    data = field(104, field(1, field(1, 4)) + field(1, field(1, 5)) + field(2, field(1, 6)))
    transaction = Transaction.FromString(data)
    assert [f.id for f in transaction.rewrite.legacy_old_fragments] == [4, 5]
    assert [f.id for f in transaction.rewrite.legacy_new_fragments] == [6]
    assert not transaction.rewrite.groups
    check_round_trip(transaction, data)


def test_a_config_update_of_the_first_form() -> None:
    metadata = field(4, field(1, 3) + field(2, field(5, entry(b"unit", b"m"))))
    operation = field(1, entry(b"a", b"1")) + field(2, b"b") + field(3, entry(b"c", b"2")) + metadata
    data = field(110, operation)
    update = Transaction.FromString(data).update_config
    assert dict(update.legacy_upsert_values) == {"a": "1"}
    assert list(update.legacy_delete_keys) == ["b"]
    assert dict(update.legacy_schema_metadata) == {"c": "2"}
    assert dict(update.legacy_field_metadata[3].metadata) == {"unit": "m"}
    assert not update.HasField("config_updates")
    check_round_trip(Transaction.FromString(data), data)


def test_an_update_that_lists_its_offsets() -> None:
    offsets = field(9, field(1, 7) + field(2, field(1, varint(1) + varint(300))))
    data = field(108, field(7, 1) + offsets)
    update = Transaction.FromString(data).update
    assert update.update_mode == Transaction.REWRITE_COLUMNS
    assert list(update.legacy_updated_fragment_offsets[7].values) == [1, 300]
    check_round_trip(Transaction.FromString(data), data)


def test_a_manifest_with_the_transaction_where_it_used_to_be() -> None:
    data = field(3, 1) + field(6, 0) + field(11, 0) + field(21, 0)
    manifest = table_pb2.Manifest.FromString(data)
    assert manifest.HasField("index_section")
    assert manifest.HasField("max_fragment_id")
    assert manifest.HasField("legacy_transaction_section")
    assert not manifest.HasField("transaction_section")
    check_round_trip(manifest, data)


def test_a_row_lineage_column_takes_the_place_of_bytes() -> None:
    fragment = table_pb2.DataFragment.FromString(field(12, b"") + field(13, b"") + field(14, b""))
    assert fragment.WhichOneof("row_id_sequence") == "column_row_ids"
    assert fragment.WhichOneof("last_updated_at_version_sequence") == "column_last_updated_at_versions"
    assert fragment.WhichOneof("created_at_version_sequence") == "column_created_at_versions"


UNDECLARED = [
    (table_pb2.Manifest, field(22, field(1, 1))),
    (table_pb2.Manifest, field(25, field(1, 1))),
    (table_pb2.Manifest, field(26, 1)),
    (table_pb2.DataFragment, field(15, 1)),
    (table_pb2.DataFragment, field(16, entry(b"a", b"b"))),
    (table_pb2.IndexMetadata, field(12, 1)),
    (table_pb2.IndexMetadata, field(13, entry(b"a", b"b"))),
    (table_pb2.InvertedIndexDetails, field(16, b"flat")),
    (table_pb2.InvertedIndexDetails, field(17, 1)),
    (table_pb2.FragmentReuseIndexDetails.InlineContent, field(2, b"")),
    (Transaction, field(116, b"")),
    (Transaction.UpdateMemWalState, field(2, b"")),
    (Transaction.UpdateMemWalState, field(3, b"")),
]


@pytest.mark.parametrize(("kind", "data"), UNDECLARED)
def test_deliberately_undeclared_fields_survive(kind: type[Message], data: bytes) -> None:
    message = kind.FromString(data)
    assert len(list(unknown(message))) == 1
    assert message.SerializeToString() == data
    copy = kind()
    copy.CopyFrom(message)
    assert copy.SerializeToString() == data


def test_an_unknown_operation_is_none() -> None:
    assert Transaction.FromString(field(116, b"")).WhichOneof("operation") is None


# --- the messages themselves --------------------------------------------------------------------------


PRESENCE = [
    (table_pb2.Manifest, "index_section"),
    (table_pb2.Manifest, "max_fragment_id"),
    (table_pb2.Manifest, "branch"),
    (table_pb2.Manifest, "transaction_section"),
    (table_pb2.Manifest, "legacy_transaction_section"),
    (table_pb2.Manifest, "max_allocated_field_id"),
    (table_pb2.BasePath, "name"),
    (table_pb2.DataFile, "base_id"),
    (table_pb2.DeletionFile, "base_id"),
    (table_pb2.IndexMetadata, "index_version"),
    (table_pb2.IndexMetadata, "created_at"),
    (table_pb2.IndexMetadata, "base_id"),
    (table_pb2.MemWalIndexDetails, "maintain_all_indexes"),
    (Transaction.Clone, "ref_name"),
    (Transaction.Clone, "branch_name"),
    (Transaction.UpdateMapEntry, "value"),
]


@pytest.mark.parametrize(("kind", "name"), PRESENCE)
def test_absent_differs_from_zero(kind: type[Message], name: str) -> None:
    message = kind()
    assert not message.HasField(name)
    setattr(message, name, getattr(message, name))
    assert kind.FromString(message.SerializeToString()).HasField(name)


def test_packing_gives_the_type_urls_of_the_wire() -> None:
    packed = any_pb2.Any()
    for details, url in (
        (table_pb2.BTreeIndexDetails(), "/lance.table.BTreeIndexDetails"),
        (table_pb2.VectorIndexDetails(), "/lance.table.VectorIndexDetails"),
        (index_pb2.VectorIndexDetails(), "/lance.index.pb.VectorIndexDetails"),
    ):
        packed.Pack(details, type_url_prefix="")
        assert packed.type_url == url


MODULES = "from lance_core.format._pb import file_pb2, index_pb2, rowids_pb2, table_pb2, transaction_pb2"


@pytest.mark.parametrize(
    "program",
    [
        f"{MODULES}; import sys; assert 'lance' not in sys.modules",
        f"{MODULES}; import lance; table_pb2.Manifest(version=1)",
        f"import lance; {MODULES}; table_pb2.Manifest(version=1)",
    ],
    ids=["alone", "before pylance", "after pylance"],
)
def test_the_messages_work_with_and_without_pylance(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_generated_code_runs_with_protobuf_5_29() -> None:
    generated = sorted(Path(table_pb2.__file__).parent.glob("*_pb2.py"))
    assert len(generated) == len(list((ROOT / "protos" / "lance").glob("*.proto")))
    for path in generated:
        assert "# Protobuf Python Version: 5.29." in path.read_text(encoding="utf-8")
