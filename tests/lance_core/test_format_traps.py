"""Traps of the format, by number: content that means something else than it seems to, tested against pylance or on
bytes.

Each trap has at least one test, `test_trap_NN_...`. `ELSEWHERE` lists the tests of traps that are in the test modules
of their subjects; a test checks that they exist and that no number is missing.
"""

import ast
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core import ConflictError, Corrupt, IncompatibleConflict, RetryableConflict, Table, Unsupported
from lance_core.format import index_metadata, manifest_file
from lance_core.format._pb import rowids_pb2, table_pb2
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.manifest import Manifest
from lance_core.format.transaction import Transaction
from lance_core.operations import Append, CreateIndex, Delete, Fragment
from lance_core.operations import Overwrite as OverwriteOperation

TRAPS = 38
TESTS = Path(__file__).parent
ELSEWHERE: dict[int, tuple[str, ...]] = {
    7: ("dml/test_schema_evolution.py::test_trap_7_only_files_of_2_0_store_parents",),
    8: ("dml/test_schema_evolution.py::test_trap_8_files_list_fields_in_their_own_order_with_dropped_ones",),
    9: (
        "dml/test_schema_evolution.py::test_trap_9_a_field_id_is_assigned_once",
        "dml/test_schema_evolution.py::test_trap_9_the_highest_field_id_survives_other_writers",
        "dml/test_schema_evolution.py::test_trap_9_a_stale_append_tombstones_dropped_columns",
        "dml/test_schema_evolution.py::test_trap_9_a_stale_append_conflicts_with_a_reused_field_id",
    ),
    15: ("maintenance/test_compaction.py::test_the_reuse_entry_equals_that_of_pylance",),
    17: ("maintenance/test_compaction.py::test_a_compaction_commits_twice_and_plans_the_rewrite_first",),
    19: ("dml/test_schema_evolution.py::test_trap_19_missing_row_versions_mean_version_1",),
    20: ("dml/test_schema_evolution.py::test_trap_20_new_values_change_every_row_and_new_nulls_none",),
    23: ("dml/test_schema_evolution.py::test_trap_23_appends_are_compatible_with_new_nullable_columns",),
    25: (
        "commit/test_loop.py::test_a_commit_with_a_lost_answer_is_found_by_the_next_read",
        "commit/test_loop.py::test_a_late_put_loses_against_its_own_repetition",
        "commit/test_loop.py::test_nothing_is_ever_deleted",
    ),
    26: ("test_version_discovery.py::test_trap_26_a_low_hint_is_probed_upwards",),
    27: ("test_branches.py::test_trap_27_a_branch_goes_on_from_its_parents_number",),
    28: (
        "test_clone.py::test_trap_28_base_zero_is_a_base",
        "test_clone.py::test_files_of_pylance_in_a_base_are_read",
    ),
    33: ("test_time_travel.py::test_trap_33_clocks_may_run_backwards",),
    34: ("dml/test_schema_evolution.py::test_trap_34_schema_metadata_survives_a_merge_without_it",),
    35: (
        "test_version_discovery.py::test_trap_35_leftovers_of_writers_are_no_versions",
        "dml/test_schema_evolution.py::test_trap_35_partial_files_are_not_versions",
    ),
    36: ("dml/test_schema_evolution.py::test_trap_36_an_index_on_a_dropped_column",),
    37: (
        "test_clone.py::test_trap_37_a_source_knows_the_clones_we_make",
        "maintenance/test_cleanup.py::test_a_branch_keeps_the_version_it_started_from",
    ),
}


def test_every_trap_has_a_test() -> None:
    names = {name for name in functions(Path(__file__)) if name.startswith("test_trap_")}
    numbers = {int(name.split("_")[2]) for name in names}
    assert numbers | set(ELSEWHERE) == set(range(1, TRAPS + 1))
    for references in ELSEWHERE.values():
        for reference in references:
            file, _, name = reference.partition("::")
            assert name in functions(TESTS / file), reference


def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


# Tables and their newest manifests


def numbers(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([str(each) for each in ids])})


def create_table(uri: Path | str, *parts: pa.Table, stable: bool = False, version: str = "2.2") -> Table:
    """Create a table by this library, with a fragment for each part."""
    table = Table.create(str(uri), parts[0], stable_row_ids=stable, storage_version=version, durable=False)
    for part in parts[1:]:
        table = table.append(part).table
    return table


def ids_of(table: Table) -> list[int]:
    return table.to_table(["id"])["id"].to_pylist()


def ids_by_pylance(uri: str) -> list[int]:
    return lance.dataset(uri).to_table(["id"])["id"].to_pylist()


def newest_manifest_path(uri: str) -> Path:
    table = Table.open(uri)
    return Path(uri, table.manifest.path)


def decode_manifest(path: Path) -> table_pb2.Manifest:
    return table_pb2.Manifest.FromString(manifest_file.extract_manifest_message(path.read_bytes(), path=path.name))


def edit_manifest(uri: str, change: Callable[[table_pb2.Manifest], None]) -> None:
    """Change the message of the newest manifest; the sections before it in the file stay."""
    path = newest_manifest_path(uri)
    data, message = path.read_bytes(), decode_manifest(path)
    change(message)
    start = manifest_file.find_manifest_position(data, size=len(data), path=path.name)
    body = message.SerializeToString()
    footer = manifest_file.FOOTER.pack(start, 0, 2, manifest_file.MAGIC)
    path.write_bytes(data[:start] + struct.pack("<I", len(body)) + body + footer)


def field_numbers(message: bytes) -> set[int]:
    """Return the numbers of the fields that occur in the bytes of a message."""
    actual = set()
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        actual.add(key >> 3)
        match key & 7:
            case 0:
                _, at = _varint(message, at)
            case 1:
                at += 8
            case 2:
                length, at = _varint(message, at)
                at += length
            case _:
                at += 4
    return actual


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def messages(uri: str) -> list[bytes]:
    paths = sorted(Path(uri, "_versions").glob("*.manifest"), reverse=True)
    return [manifest_file.extract_manifest_message(path.read_bytes(), path=path.name) for path in paths]


def create_with_both(tmp_path: Path, rows: pa.Table, **options: object) -> tuple[str, str]:
    """Create the same table with this library and with pylance."""
    ours, others = str(tmp_path / "ours"), str(tmp_path / "theirs")
    Table.create(ours, rows, durable=False, **options)  # type: ignore[arg-type]
    renamed = {"enable_stable_row_ids": options.get("stable_row_ids", False)}
    lance.write_dataset(rows, others, **renamed)  # type: ignore[arg-type]
    return ours, others


# Manifests


def test_trap_1_the_transaction_is_in_field_23_then_in_21_then_in_its_file(tmp_path: Path) -> None:
    ours, others = create_with_both(tmp_path, numbers(1))
    for uri in (ours, others):
        (message,) = messages(uri)
        assert {23, 21} & field_numbers(message) == {23}
        referenced = lance.dataset(uri).read_transaction(1)
        assert referenced is not None
        actual = Table.open(uri).transaction()
        assert actual is not None
        position = decode_manifest(newest_manifest_path(uri)).transaction_section

        def moved(message: table_pb2.Manifest, current: tuple[str, ...]) -> None:
            for field in ("transaction_section", "legacy_transaction_section"):
                message.ClearField(field)
            for field in current:
                setattr(message, field, position)  # noqa: B023

        for places in (("legacy_transaction_section",), ("transaction_section", "legacy_transaction_section"), ()):
            edit_manifest(uri, lambda message: moved(message, places))  # noqa: B023
            assert Table.open(uri).transaction() == actual, places
            observed = lance.dataset(uri).read_transaction(1)
            assert observed is not None
            assert observed.uuid == referenced.uuid == actual.uuid

        def wrong(message: table_pb2.Manifest) -> None:
            message.transaction_section = 10**6

        edit_manifest(uri, wrong)
        with pytest.raises(Corrupt, match="transaction_section"):
            Table.open(uri).transaction()
        with pytest.raises(OSError, match=r"file size|out of|beyond|section|range"):
            lance.dataset(uri).read_transaction(1)


def test_trap_2_a_section_at_byte_0_exists(tmp_path: Path) -> None:
    ours, others = create_with_both(tmp_path, numbers(1, 2, 3))
    for uri in (ours, others):
        assert decode_manifest(newest_manifest_path(uri)).transaction_section == 0
        assert decode_manifest(newest_manifest_path(uri)).HasField("transaction_section")
        assert not decode_manifest(newest_manifest_path(uri)).HasField("index_section")
        lance.dataset(uri).create_scalar_index("id", "BTREE")
        Table.open(uri, durable=False).append(numbers(4))
        message = decode_manifest(newest_manifest_path(uri))
        assert (message.HasField("index_section"), message.index_section) == (True, 0)
        assert message.transaction_section > 0
        assert [index.name for index in indices_of(uri)] == ["id_idx"]
        assert [index.name for index in lance.dataset(uri).describe_indices()] == ["id_idx"]


def test_trap_3_fields_of_one_version_are_not_carried_to_the_next(tmp_path: Path) -> None:
    """A restore does not carry them either, nor does a successor of a manifest that references sections outside its
    file.
    """
    table = create_table(tmp_path / "t", numbers(1, 2), numbers(3)).delete("id = 1").table

    def strange(message: table_pb2.Manifest) -> None:
        message.legacy_transaction_section = 10**6
        message.tag = "release"
        message.version_aux_data = 77
        message.writer_version.library = "another"
        message.writer_version.prerelease = "beta"
        message.reader_feature_flags |= 4
        message.writer_feature_flags |= 4 | 32

    edit_manifest(table.uri, strange)
    before = decode_manifest(newest_manifest_path(table.uri))
    for change in (
        lambda: Table.open(table.uri, durable=False).append(numbers(4)),
        lambda: Table.open(table.uri, durable=False).restore(2),
    ):
        change()
        after = decode_manifest(newest_manifest_path(table.uri))
        assert not after.HasField("legacy_transaction_section")
        assert (after.tag, after.writer_version.prerelease) == ("", "")
        assert after.writer_version.library != "another"
        assert after.transaction_section != before.transaction_section or after.transaction_file
        assert after.transaction_file != before.transaction_file
        assert (after.timestamp.seconds, after.timestamp.nanos) > (before.timestamp.seconds, before.timestamp.nanos)
        assert not after.reader_feature_flags & 4
        assert not after.writer_feature_flags & 32
        assert Table.open(table.uri).transaction() is not None
    assert decode_manifest(newest_manifest_path(table.uri)).reader_feature_flags == 0
    assert ids_by_pylance(table.uri) == [1, 2, 3]


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.1", "2.2"])
def test_trap_4_the_footer_says_nothing_about_the_data(version: str, tmp_path: Path) -> None:
    uris = [str(tmp_path / "theirs")]
    lance.write_dataset(numbers(1), uris[0], data_storage_version=version)  # type: ignore[arg-type]
    if version != "legacy":
        uris.append(create_table(tmp_path / "ours", numbers(1), version=version).uri)
    for uri in uris:
        path = newest_manifest_path(uri)
        data = path.read_bytes()
        assert data[-8:] == struct.pack("<HH", 0, 2) + b"LANC"
        for stamp in ((9, 9), (2, 0), (0, 1)):
            path.write_bytes(data[:-8] + struct.pack("<HH", *stamp) + b"LANC")
            assert ids_of(Table.open(uri)) == ids_by_pylance(uri) == [1]
        if version != "legacy":
            Table.open(uri, durable=False).append(numbers(2))
            assert newest_manifest_path(uri).read_bytes()[-8:] == struct.pack("<HH", 0, 2) + b"LANC"


def test_trap_5_the_storage_version_of_a_new_table_is_22(tmp_path: Path) -> None:
    ours, others = create_with_both(tmp_path, numbers(1))
    stable = [Table.create(tmp_path / "stable", numbers(1), storage_version="stable", durable=False).uri]
    lance.write_dataset(numbers(1), str(tmp_path / "their stable"), data_storage_version="stable")
    for uri in (ours, others, *stable, str(tmp_path / "their stable")):
        message = decode_manifest(newest_manifest_path(uri))
        assert (message.data_format.file_format, message.data_format.version) == ("lance", "2.2")
        file = message.fragments[0].files[0]
        assert (file.file_major_version, file.file_minor_version) == (2, 2)


def test_trap_6_files_of_01_are_stamped_02_and_name_no_columns(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(numbers(1, 2), uri, data_storage_version="legacy")
    (file,) = decode_manifest(newest_manifest_path(uri)).fragments[0].files
    assert (file.file_major_version, file.file_minor_version, list(file.column_indices)) == (0, 2, [])
    assert decode_manifest(newest_manifest_path(uri)).data_format.version == "0.1"
    for minor in (0, 1, 2):

        def stamped(message: table_pb2.Manifest) -> None:
            message.fragments[0].files[0].file_minor_version = minor  # noqa: B023

        edit_manifest(uri, stamped)
        assert str(Table.open(uri).fragments[0].files[0].version) == "0.1"
        assert ids_of(Table.open(uri)) == ids_by_pylance(uri) == [1, 2]


def test_trap_8_a_tombstone_is_not_a_field(tmp_path: Path) -> None:
    """A cast leaves the old values in their file under field id -2, or under an id that the schema no longer has."""
    ours, others = create_with_both(tmp_path, numbers(1, 2))
    for uri in (ours, others):
        dataset = lance.dataset(uri)
        change = pa.table({"id": pa.array([2], pa.int64()), "v": ["new"]})
        dataset.merge_insert("id").when_matched_update_all().execute(change)
        partly = pa.table({"id": pa.array([1], pa.int64()), "v": ["newer"]}).select(["id", "v"])
        dataset.merge_insert("id").when_matched_update_all().execute(partly)
    rows = [sorted(Table.open(uri).to_table().to_pylist(), key=str) for uri in (ours, others)]
    assert rows[0] == rows[1]

    def buried(message: table_pb2.Manifest) -> None:
        for fragment in message.fragments:
            for file in fragment.files:
                file.fields[list(file.fields).index(1)] = -2

    edit_manifest(ours, buried)
    assert (
        Table.open(ours).to_table()["v"].to_pylist() == lance.dataset(ours).to_table()["v"].to_pylist() == [None, None]
    )


def test_trap_10_an_overwrite_continues_fragment_ids_and_restarts_field_ids(tmp_path: Path) -> None:
    for uri in create_with_both(tmp_path, numbers(1, 2), stable_row_ids=True):
        Table.open(uri, durable=False).append(numbers(3))
        wide = pa.table({"x": [1], "y": [2], "z": [3]})
        if uri.endswith("ours"):
            Table.open(uri, durable=False).overwrite(wide)
        else:
            lance.write_dataset(wide, uri, mode="overwrite")
        message = decode_manifest(newest_manifest_path(uri))
        assert [field.id for field in message.fields] == [0, 1, 2]
        assert [fragment.id for fragment in message.fragments] == [2]
        assert (message.max_fragment_id, message.next_row_id) == (2, 4)
        assert Table.open(uri).to_table(with_row_id=True)["_rowid"].to_pylist() == [3]
        assert lance.dataset(uri).to_table(with_row_id=True)["_rowid"].to_pylist() == [3]


def test_trap_11_a_fragment_id_of_zero_is_unassigned_and_others_are_kept(tmp_path: Path) -> None:
    for uri in create_with_both(tmp_path, numbers(1)):
        places = []
        for number in (0, 50, 0):
            (result,) = lance.fragment.write_fragments(numbers(number), uri)
            message = table_pb2.DataFragment(id=number, physical_rows=1)
            (file,) = result.files
            message.files.add(
                path=file.path,
                fields=file.fields,
                column_indices=file.column_indices,
                file_major_version=2,
                file_minor_version=2,
                file_size_bytes=file.file_size_bytes or 0,
            )
            Table.open(uri, durable=False).commit(Append((Fragment(message),)))
            places.append(decode_manifest(newest_manifest_path(uri)).fragments[-1].id)
        assert places == [1, 50, 51]
        assert ids_by_pylance(uri) == ids_of(Table.open(uri)) == [1, 0, 50, 0]
        (explicit,) = lance.fragment.write_fragments(numbers(60), uri)
        explicit.id = 60
        lance.LanceDataset.commit(uri, lance.LanceOperation.Append([explicit]), read_version=lance.dataset(uri).version)
        assert decode_manifest(newest_manifest_path(uri)).fragments[-1].id == 60
        assert ids_of(Table.open(uri)) == [1, 0, 50, 0, 60]


def test_trap_12_a_restore_restores_all_but_the_counters(tmp_path: Path) -> None:
    actual = []
    for uri in create_with_both(tmp_path, numbers(1, 2), stable_row_ids=True):
        table = Table.open(uri, durable=False).set_config({"a": "1"}).table.append(numbers(3)).table
        table.set_config({"a": "2", "b": "3"}).table.set_metadata({"m": "1"})
        if uri.endswith("ours"):
            Table.open(uri, durable=False).restore(2)
        else:
            lance.dataset(uri).checkout_version(2).restore()
        message = decode_manifest(newest_manifest_path(uri))
        table = Table.open(uri)
        assert (dict(table.config)["a"], dict(table.config).get("b"), dict(table.metadata)) == ("1", None, {})
        assert (message.max_fragment_id, message.next_row_id) == (1, 3)
        lance.write_dataset(numbers(4), uri, mode="append")
        table = Table.open(uri)
        assert [fragment.id for fragment in table.fragments] == [0, 2]
        actual.append(table.to_table(["id"], with_row_id=True).to_pylist())
    assert actual[0] == actual[1] == [{"id": n, "_rowid": r} for n, r in ((1, 0), (2, 1), (4, 3))]


# Deletion vectors


def with_deletions(uri: str, data: bytes, count: int, *, bitmap: bool, number: int) -> None:
    """Record a deletion file with this content for fragment 0."""

    def deleted(message: table_pb2.Manifest) -> None:
        file = message.fragments[0].deletion_file
        file.read_version, file.id, file.num_deleted_rows = 1, number, count
        file.file_type = table_pb2.DeletionFile.BITMAP if bitmap else table_pb2.DeletionFile.ARROW_ARRAY
        message.reader_feature_flags = message.writer_feature_flags = 1

    edit_manifest(uri, deleted)
    path = Path(uri, "_deletions")
    path.mkdir(exist_ok=True)
    (path / f"0-1-{number}.{'bin' if bitmap else 'arrow'}").write_bytes(data)


def arrow_file(offsets: list[int], field: pa.Field) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([pa.array(offsets, field.type)], pa.schema([field]))
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


ROW_ID = pa.field("row_id", pa.uint32(), nullable=False)
LARGEST = 2**64 - 1


@pytest.mark.parametrize(
    ("data", "bitmap"),
    [
        (arrow_file([3, 0], ROW_ID), False),
        (DeletionVector.of([3, 0]).encode(as_bitmap=False), False),
        (bytes(BitMap([0, 3]).serialize()), True),
        (DeletionVector.of([3, 0]).encode(as_bitmap=True), True),
    ],
    ids=["arrow unsorted", "ours as arrow", "two rows as a bitmap", "ours as a bitmap"],
)
def test_trap_13_deletions_in_any_order_size_and_under_any_number(data: bytes, bitmap: bool, tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", numbers(1, 2, 3, 4))
    with_deletions(table.uri, data, 2, bitmap=bitmap, number=LARGEST)
    assert ids_of(table.refresh()) == ids_by_pylance(table.uri) == [2, 3]
    assert table.refresh().count_rows() == lance.dataset(table.uri).count_rows() == 2
    table.refresh().delete("id = 2")
    assert ids_of(table.refresh()) == ids_by_pylance(table.uri) == [3]


@pytest.mark.parametrize(
    "field",
    [pa.field("row_id", pa.uint32()), pa.field("row_id", pa.int32(), nullable=False)],
    ids=["nullable", "int32"],
)
def test_trap_13_another_schema_is_no_deletion_file(field: pa.Field, tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", numbers(1, 2, 3, 4))
    with_deletions(table.uri, arrow_file([0, 3], field), 2, bitmap=False, number=7)
    with pytest.raises(Corrupt, match="row_id: uint32 not null"):
        table.refresh().to_table()
    with pytest.raises(pa.ArrowInvalid, match="Expected schema"):
        lance.dataset(table.uri).to_table()


def test_trap_13_a_wrong_count_is_corruption(tmp_path: Path) -> None:
    """pylance counts by one number and scans by the other; this library requires that both agree before it returns a
    row.
    """
    table = create_table(tmp_path / "t", numbers(1, 2, 3, 4))
    with_deletions(table.uri, arrow_file([0, 3], ROW_ID), 1, bitmap=False, number=7)
    assert (lance.dataset(table.uri).count_rows(), len(ids_by_pylance(table.uri))) == (3, 2)
    with pytest.raises(Corrupt, match="lists 2 deleted rows, but the manifest counts 1"):
        table.refresh().to_table()


@pytest.mark.parametrize(
    ("steps", "suffixes"),
    [
        (["id < 4999"], ["arrow"]),
        (["id < 5000"], ["bin"]),
        (["id = 5999", "id < 4999"], ["arrow", "arrow"]),
        (["id = 5999", "id < 5000"], ["arrow", "bin"]),
        (["id < 5000", "id = 5999"], ["bin", "bin"]),
        (["id < 6000"], []),
    ],
)
def test_trap_13_encodings_are_chosen_and_rows_counted_as_by_pylance(
    steps: list[str], suffixes: list[str], tmp_path: Path
) -> None:
    """A fragment without remaining rows is removed and leaves no deletion file."""
    rows = pa.table({"id": pa.array(range(6000), pa.int64())})
    for uri in create_with_both(tmp_path, rows):
        actual = []
        for step in steps:
            if uri.endswith("ours"):
                Table.open(uri, durable=False).delete(step)
            else:
                lance.dataset(uri).delete(step)
            for fragment in decode_manifest(newest_manifest_path(uri)).fragments:
                file = fragment.deletion_file
                suffix = "bin" if file.file_type else "arrow"
                path = Path(uri, "_deletions", f"0-{file.read_version}-{file.id}.{suffix}")
                decode = DeletionVector.decode_bitmap if file.file_type else DeletionVector.decode_arrow
                assert len(decode(path.read_bytes(), path="d")) == file.num_deleted_rows
                actual.append(suffix)
        assert actual == suffixes
        assert len(ids_by_pylance(uri)) == Table.open(uri).count_rows()
    assert [len(list((tmp_path / name / "_deletions").glob("*"))) for name in ("ours", "theirs")] == [len(suffixes)] * 2


def test_trap_13_a_small_bitmap_stays_a_bitmap(tmp_path: Path) -> None:
    """A merge of two deletions creates one."""
    for uri in create_with_both(tmp_path, numbers(1, 2, 3, 4)):
        with_deletions(uri, bytes(BitMap([0]).serialize()), 1, bitmap=True, number=7)
        if uri.endswith("ours"):
            Table.open(uri, durable=False).delete("id = 2")
        else:
            lance.dataset(uri).delete("id = 2")
        assert (
            decode_manifest(newest_manifest_path(uri)).fragments[0].deletion_file.file_type
            == table_pb2.DeletionFile.BITMAP
        )
        assert ids_of(Table.open(uri)) == ids_by_pylance(uri) == [3, 4]


# Indices


def indices_of(uri: str) -> tuple[IndexMetadata, ...]:
    manifest = Table.open(uri).manifest
    return index_metadata.decode_section(manifest.index_section, path=manifest.path)


def test_trap_14_an_index_covers_fragments_that_no_longer_exist(tmp_path: Path) -> None:
    for uri in create_with_both(tmp_path, numbers(1, 2)):
        Table.open(uri, durable=False).append(numbers(3))
        lance.dataset(uri).create_scalar_index("id", "BTREE")
        if uri.endswith("ours"):
            Table.open(uri, durable=False).delete("id < 3")
        else:
            lance.dataset(uri).delete("id < 3")
        assert [fragment.id for fragment in Table.open(uri).fragments] == [1]
        assert [index.covers for index in indices_of(uri)] == [BitMap([0, 1])]
        Table.open(uri, durable=False).delete("id = 3")
        assert [index.covers for index in indices_of(uri)] == [BitMap([0, 1])]
        assert lance.dataset(uri).to_table(filter="id = 3").num_rows == 0


def test_trap_14_no_bytes_are_not_the_empty_set() -> None:
    unknown = IndexMetadata(table_pb2.IndexMetadata(name="i"))
    nothing = unknown.with_coverage(BitMap())
    assert unknown.covers is None
    assert nothing.covers == BitMap()
    assert len(nothing.message.fragment_bitmap) == 8
    again = index_metadata.decode_section(index_metadata.encode_section([unknown, nothing]), path="m")
    assert [index.covers for index in again] == [None, BitMap()]


def test_trap_16_an_index_is_not_replaced_by_a_reuse_of_its_name(tmp_path: Path) -> None:
    for uri in create_with_both(tmp_path, numbers(1, 2)):
        Table.open(uri, durable=False).append(numbers(3))
        lance.dataset(uri).create_scalar_index("id", "BTREE")
        (first,) = indices_of(uri)
        copy = table_pb2.IndexMetadata()
        copy.CopyFrom(first.message)
        copy.uuid.uuid = bytes(range(16))
        directory = Path(uri, "_indices")
        other = IndexMetadata(copy)
        shutil.copytree(directory / str(first.uuid), directory / str(other.uuid))
        segments = [first.with_coverage(BitMap([0])), other.with_coverage(BitMap([1]))]
        Table.open(uri, durable=False).commit(CreateIndex(new=(segments[0],), removed=(first,)))
        Table.open(uri, durable=False).commit(CreateIndex(new=(segments[1],)))
        assert [index.uuid for index in indices_of(uri)] == [first.uuid, other.uuid]
        assert {index.name for index in indices_of(uri)} == {"id_idx"}
        assert lance.dataset(uri).to_table(filter="id = 3").num_rows == 1
        Table.open(uri, durable=False).commit(CreateIndex(new=(first,), removed=(other,)))
        assert [index.uuid for index in indices_of(uri)] == [first.uuid]


# Row ids


def test_trap_18_a_bitmap_begins_at_its_lowest_bit_and_holes_are_ids(tmp_path: Path) -> None:
    segment = rowids_pb2.U64Segment
    holes = rowids_pb2.EncodedU64Array(u16_array={"base": 350, "offsets": struct.pack("<H", 0)})
    forms = {
        (10, 11, 19): segment(range_with_bitmap={"start": 10, "end": 20, "bitmap": b"\x03\x02"}),
        (349, 351, 352): segment(range_with_holes={"start": 349, "end": 353, "holes": holes}),
    }
    for number, (ids, form) in enumerate(forms.items()):
        table = create_table(tmp_path / str(number), numbers(1, 2, 3), stable=True)

        def given(message: table_pb2.Manifest) -> None:
            sequence = rowids_pb2.RowIdSequence(segments=[form])  # noqa: B023
            message.fragments[0].inline_row_ids = sequence.SerializeToString()
            message.next_row_id = 1000

        edit_manifest(table.uri, given)
        assert table.refresh().to_table(with_row_id=True)["_rowid"].to_pylist() == list(ids)
        assert lance.dataset(table.uri).to_table(with_row_id=True)["_rowid"].to_pylist() == list(ids)
        taken = table.refresh().take([ids[2], ids[0]], ["id"], by="row_id")
        assert taken["id"].to_pylist() == [3, 1]


def test_trap_18_a_span_of_versions_counts_by_its_length_alone(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", numbers(1, 2, 3), stable=True)
    segment, run = rowids_pb2.U64Segment, rowids_pb2.RowDatasetVersionRun
    runs = [
        run(span=segment(range={"start": 100, "end": 101}), version=4),
        run(span=segment(range_with_bitmap={"start": 0, "end": 8, "bitmap": b"\x81"}), version=2),
    ]

    def given(message: table_pb2.Manifest) -> None:
        sequence = rowids_pb2.RowDatasetVersionSequence(runs=runs).SerializeToString()
        message.fragments[0].inline_last_updated_at_versions = sequence

    edit_manifest(table.uri, given)
    columns = ["_row_last_updated_at_version"]
    assert table.refresh().to_table(columns)[columns[0]].to_pylist() == [4, 2, 2]
    assert lance.dataset(table.uri).to_table(columns)[columns[0]].to_pylist() == [4, 2, 2]


# Commits


def test_trap_21_a_commit_without_affected_rows_is_not_merged(tmp_path: Path) -> None:
    """A Delete does not contain the rows that it affects, so two of one fragment conflict."""
    for uri in create_with_both(tmp_path, numbers(1, 2, 3, 4)):
        table = Table.open(uri, durable=False)
        deletions = table.delete("id = 1").table.transaction()
        assert deletions is not None
        assert isinstance(deletions.operation, Delete)
        with pytest.raises(RetryableConflict):
            table.commit(deletions.operation, read_version=1, retries=2)
        dataset = lance.dataset(uri, version=1)
        stale = dataset.get_fragment(0)
        assert stale is not None
        fragment = stale.delete("id = 4")
        assert fragment is not None
        with pytest.raises(OSError, match="Retryable commit conflict"):
            lance.LanceDataset.commit(uri, lance.LanceOperation.Delete([fragment], [], "id = 4"), read_version=1)
        assert ids_of(Table.open(uri)) == ids_by_pylance(uri) == [2, 3, 4]


def test_trap_21_operations_of_pylance_merge_with_ours(tmp_path: Path) -> None:
    for uri in create_with_both(tmp_path, numbers(1, 2, 3, 4)):
        stale = lance.dataset(uri)
        Table.open(uri, durable=False).delete("id = 1")
        stale.delete("id in (1, 4)")
        assert ids_of(Table.open(uri)) == ids_by_pylance(uri) == [2, 3]
        (fragment,) = Table.open(uri).fragments
        assert fragment.deletion_file is not None
        assert fragment.deletion_file.deleted_rows == 2


def test_trap_22_a_version_without_a_transaction_conflicts(tmp_path: Path) -> None:
    for uri in create_with_both(tmp_path, numbers(1)):
        stale = lance.dataset(uri)
        (fragment,) = lance.fragment.write_fragments(numbers(9), uri)
        Table.open(uri, durable=False).append(numbers(2))
        name = decode_manifest(newest_manifest_path(uri)).transaction_file
        edit_manifest(uri, lambda message: message.ClearField("transaction_section"))
        assert Table.open(uri).transaction() is not None
        Path(uri, "_transactions", name).unlink()
        edit_manifest(uri, lambda message: message.ClearField("transaction_file"))
        assert Table.open(uri).transaction() is None
        with pytest.raises(OSError, match="does not have a transaction file"):
            lance.LanceDataset.commit(uri, lance.LanceOperation.Append([fragment]), read_version=stale.version)
        with pytest.raises(ConflictError, match="unrecorded change of version 2"):
            Table.open(uri, version=1, durable=False).append(numbers(9))
        assert ids_of(Table.open(uri, durable=False).append(numbers(3)).table) == [1, 2, 3]


def test_trap_22_a_transaction_is_stored_inline_and_in_its_file(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", numbers(1), numbers(2))
    message = decode_manifest(newest_manifest_path(table.uri))
    stored = Path(table.uri, "_transactions", message.transaction_file).read_bytes()
    assert table.transaction() == replace(Transaction.decode(stored, path=""), parent=table.at(1).manifest.as_parent)


def test_trap_24_retryable_conflicts(tmp_path: Path) -> None:
    for uri in create_with_both(tmp_path, numbers(1)):
        stale = Table.open(uri, durable=False)
        (fragment,) = lance.fragment.write_fragments(numbers(9), uri)
        Table.open(uri, durable=False).overwrite(numbers(2))
        with pytest.raises(IncompatibleConflict):
            stale.append(numbers(9))
        with pytest.raises(OSError, match="Incompatible transaction"):
            lance.LanceDataset.commit(uri, lance.LanceOperation.Append([fragment]), read_version=1)
        schema = lance.dataset(uri).schema
        with pytest.raises(OSError, match="Retryable commit conflict"):
            lance.LanceDataset.commit(uri, lance.LanceOperation.Overwrite(schema, [fragment]), read_version=1)
        planned = OverwriteOperation((), stale.manifest.schema)
        with pytest.raises(RetryableConflict):
            stale.commit(planned, read_version=1)
        assert ids_by_pylance(uri) == [2]


# Flags, types and encoding


@pytest.mark.parametrize("flag", [256, 1024, 16384])
@pytest.mark.parametrize("half", ["reader_feature_flags", "writer_feature_flags"])
def test_trap_29_half_of_a_pair_is_unreadable(flag: int, half: str, tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", numbers(1))
    edit_manifest(table.uri, lambda message: setattr(message, half, flag))
    with pytest.raises(Unsupported, match=str(flag)):
        Table.open(table.uri)
    with pytest.raises(ValueError, match=r"feature bits set|feature flags"):
        lance.dataset(table.uri)


def test_trap_29_non_reusable_field_ids_concern_writers(tmp_path: Path) -> None:
    """This library reads such a table and does not write to it. With the reader's bit, or without the counter, it is
    corrupt.
    """

    def flagged(reader: int, counter: bool) -> Callable[[table_pb2.Manifest], None]:
        def change(message: table_pb2.Manifest) -> None:
            message.reader_feature_flags, message.writer_feature_flags = reader, 32768
            if counter:
                message.MergeFromString(b"\xc0\x01\x07")  # field 24, a varint

        return change

    table = create_table(tmp_path / "t", numbers(1))
    edit_manifest(table.uri, flagged(0, counter=True))
    assert ids_of(table.refresh()) == ids_by_pylance(table.uri) == [1]
    with pytest.raises(Unsupported, match="NON_REUSABLE_FIELD_IDS"):
        table.refresh().append(numbers(2))
    edit_manifest(table.uri, flagged(32768, counter=True))
    with pytest.raises(Unsupported, match="NON_REUSABLE_FIELD_IDS"):
        table.refresh()
    with pytest.raises(ValueError, match="only require writer support"):
        lance.dataset(table.uri)


def test_trap_30_the_kind_of_a_field_is_not_on_disk(tmp_path: Path) -> None:
    rows = pa.table({"s": [{"l": [1, 2]}], "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8()))})
    for uri in create_with_both(tmp_path, rows):
        assert {field.type for field in decode_manifest(newest_manifest_path(uri)).fields} == {0}
        assert not any(
            1 in field_numbers(field.SerializeToString()) for field in decode_manifest(newest_manifest_path(uri)).fields
        )

        def kinds(message: table_pb2.Manifest) -> None:
            for number, field in enumerate(message.fields):
                field.type = number % 3  # type: ignore[assignment]

        edit_manifest(uri, kinds)
        assert Table.open(uri).to_table() == lance.dataset(uri).to_table() == rows


@pytest.mark.parametrize(("version", "kind"), [("2.1", "large_binary"), ("2.2", "struct")])
def test_trap_31_a_blob_column_becomes_a_struct_from_22_on(version: str, kind: str, tmp_path: Path) -> None:
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    rows = pa.table([pa.array([b"one", None], pa.large_binary())], pa.schema([field]))
    uris = [str(tmp_path / "ours"), str(tmp_path / "theirs")]
    Table.create(uris[0], rows, storage_version=version, durable=False)
    lance.write_dataset(rows, uris[1], data_storage_version=version)  # type: ignore[arg-type]
    actual = [
        [
            (each.name, each.logical_type, dict(each.metadata))
            for each in decode_manifest(newest_manifest_path(uri)).fields
        ]
        for uri in uris
    ]
    assert actual[0] == actual[1]
    assert actual[0][0][1] == kind
    if version == "2.2":
        assert actual[0][0][2]["ARROW:extension:name"] == b"lance.blob.v2"
        assert [list(decode_manifest(newest_manifest_path(uri)).fragments[0].files[0].fields) for uri in uris] == [
            [0],
            [0],
        ]
    for uri in uris:
        first, none = Table.open(uri).blobs("b", [0, 1])
        assert first is not None
        assert (first.read(), none) == (b"one", None)


def test_trap_32_zero_values_are_not_encoded(tmp_path: Path) -> None:
    for uri in create_with_both(tmp_path, numbers(1, 2)):
        message = decode_manifest(newest_manifest_path(uri))
        assert 1 not in field_numbers(message.fragments[0].SerializeToString())
        assert 3 not in field_numbers(message.fields[0].SerializeToString())
        made_by = Table.open(uri).manifest.inline_transaction
        assert made_by is not None
        assert 1 not in field_numbers(made_by)
        Table.open(uri, durable=False).update({"v": "'x'"}, where="id = 1")
        updated = Table.open(uri).manifest.inline_transaction
        assert updated is not None
        changed = decode_manifest(newest_manifest_path(uri))
        assert changed.fragments[0].HasField("deletion_file")
        assert 1 not in field_numbers(changed.fragments[0].deletion_file.SerializeToString())
        assert Table.open(uri).to_table(filter="id = 1")["v"].to_pylist() == ["x"]
        assert lance.dataset(uri).to_table(filter="id = 1")["v"].to_pylist() == ["x"]


def test_trap_38_entries_of_maps_come_in_any_order(tmp_path: Path) -> None:
    config = {f"k{number}": str(number) for number in range(12)}
    table = Table.create(tmp_path / "t", numbers(1), config=config, durable=False)
    table = table.set_metadata(config).table
    path = newest_manifest_path(table.uri)
    message, rest = decode_manifest(path), decode_manifest(path)
    for name in ("config", "table_metadata"):
        rest.ClearField(name)
    entries = [
        table_pb2.Manifest(**{name: {key: value}}).SerializeToString()  # type: ignore[arg-type]
        for name in ("config", "table_metadata")
        for key, value in getattr(message, name).items()
    ]
    random.Random(3).shuffle(entries)
    rest.ClearField("transaction_section")
    message.ClearField("transaction_section")
    shuffled = rest.SerializeToString() + b"".join(entries)
    assert shuffled != message.SerializeToString()
    path.write_bytes(manifest_file.frame_manifest(None, None, shuffled))
    again = Manifest.decode(path.read_bytes(), path="m")
    assert again.message == message
    assert again.config == table.config
    assert lance.dataset(table.uri).config() == dict(table.config)
    assert dict(table.refresh().append(numbers(2)).table.config) == dict(table.config)
    assert ids_by_pylance(table.uri) == [1, 2]
