"""Manifest builder: assigned ids, fields that the next version inherits, and fields of one version alone."""

import pyarrow as pa
import pytest

from lance_core.errors import Corrupt
from lance_core.format._pb import rowids_pb2
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.manifest import Manifest
from lance_core.format.manifest_builder import ManifestBuilder
from lance_core.format.naming import NamingScheme
from lance_core.format.schema import TableSchema

V22, V20 = StorageVersion(2, 2), StorageVersion(2, 0)
SCHEMA = TableSchema.from_arrow(pa.schema([("a", pa.int8())], metadata={"k": "v"}))


def new_fragment(rows: int, id: int = 0, version: StorageVersion = V22) -> Fragment:
    file = DataFile.of(path="a.lance", field_ids=[0], column_indices=[0], version=version, size=1)
    fragment = Fragment.of(files=[file], physical_rows=rows)
    fragment.message.id = id
    return fragment


def finish(draft: ManifestBuilder, *, transaction: bytes | None = b"txn") -> Manifest:
    return draft.finish(
        now_ns=1_500_000_001,
        library_version="1.2.3",
        transaction_file="0-x.txn",
        transaction=transaction,
        scheme=NamingScheme.V2,
    )


def create_manifest(*fragments: Fragment, stable_row_ids: bool = False) -> Manifest:
    draft = ManifestBuilder.for_new_table(V22, stable_row_ids=stable_row_ids)
    draft.replace_contents(SCHEMA)
    draft.add_fragments(fragments, keep_ids=False)
    return finish(draft)


def ids(manifest: Manifest) -> list[int]:
    return [fragment.id for fragment in manifest.fragments]


def test_version_1() -> None:
    manifest = create_manifest(new_fragment(3), new_fragment(4))
    message = manifest.message
    assert (manifest.version, manifest.path) == (1, "_versions/18446744073709551614.manifest")
    assert (ids(manifest), manifest.max_fragment_id) == ([0, 1], 1)
    assert (message.timestamp.seconds, message.timestamp.nanos) == (1, 500_000_001)
    assert (message.writer_version.library, message.writer_version.version) == ("lance-assets", "1.2.3")
    assert (message.reader_feature_flags, message.writer_feature_flags) == (0, 0)
    assert manifest.schema == SCHEMA
    assert (manifest.transaction_file, manifest.inline_transaction) == ("0-x.txn", b"txn")


def test_a_table_without_rows_has_assigned_no_id() -> None:
    empty = create_manifest()
    assert not empty.message.HasField("max_fragment_id")
    draft = ManifestBuilder.for_successor(empty)
    draft.add_fragments([new_fragment(1)], keep_ids=True)
    assert ids(finish(draft)) == [0]


@pytest.mark.parametrize(
    ("ids_of_fragments", "keep", "expected"),
    [
        ([0, 0], True, [2, 3]),
        ([50, 0], True, [50, 51]),
        ([0, 50], True, [2, 50]),
        ([50, 50], False, [2, 3]),
        ([1, 0], False, [2, 3]),
    ],
)
def test_ids_continue_after_the_highest_ever_assigned(
    ids_of_fragments: list[int], keep: bool, expected: list[int]
) -> None:
    draft = ManifestBuilder.for_successor(create_manifest(new_fragment(1), new_fragment(1)))
    draft.replace_contents(SCHEMA)
    draft.add_fragments([new_fragment(1, id) for id in ids_of_fragments], keep_ids=keep)
    manifest = finish(draft)
    assert ids(manifest) == expected
    assert manifest.max_fragment_id == expected[-1]
    assert [fragment.id for fragment in draft.added_fragments] == expected


def test_fields_of_one_version_are_not_carried() -> None:
    before = create_manifest(new_fragment(1)).copy_header()
    before.tag = "old"
    before.version_aux_data = 7
    before.legacy_transaction_section = 3
    head = Manifest.from_header(before, index_section=b"indices", transaction=b"old", path="m")
    after = finish(ManifestBuilder.for_successor(head), transaction=None)
    assert (after.message.tag, after.message.version_aux_data) == ("", 0)
    assert not after.message.HasField("legacy_transaction_section")
    assert (after.index_section, after.inline_transaction) == (b"indices", None)
    assert after.version == 2
    assert head.version == 1


def test_settings_are_carried_and_replaced_contents_are_not() -> None:
    message = create_manifest(new_fragment(1)).copy_header()
    message.config["a"] = "b"
    message.table_metadata["c"] = "d"
    message.branch = "dev"
    head = Manifest.from_header(message, index_section=b"indices", transaction=None, path="m")
    draft = ManifestBuilder.for_successor(head)
    draft.replace_contents(TableSchema.from_arrow(pa.schema([("z", pa.string())])))
    draft.set_config({**draft.config, "e": "f"})
    after = finish(draft)
    assert dict(after.config) == {"a": "b", "e": "f"}
    assert (dict(after.table_metadata), after.branch) == ({"c": "d"}, "dev")
    assert (after.index_section, len(after.fragments), after.max_fragment_id) == (None, 0, 0)
    assert after.schema.arrow.equals(pa.schema([("z", pa.string())]), check_metadata=True)
    assert (after.message.reader_feature_flags, after.message.writer_feature_flags) == (0, 8)


def test_row_ids_continue_and_are_stamped_with_the_version() -> None:
    head = create_manifest(new_fragment(3), stable_row_ids=True)
    draft = ManifestBuilder.for_successor(head)
    draft.add_fragments([new_fragment(2), new_fragment(4)], keep_ids=True)
    after = finish(draft)
    assert (head.next_row_id, after.next_row_id) == (3, 9)
    spans = []
    for fragment in after.fragments:
        (segment,) = rowids_pb2.RowIdSequence.FromString(fragment.message.inline_row_ids).segments
        (run,) = rowids_pb2.RowDatasetVersionSequence.FromString(fragment.message.inline_created_at_versions).runs
        assert fragment.message.inline_last_updated_at_versions == fragment.message.inline_created_at_versions
        assert (run.span.range.start, run.span.range.end) == (0, fragment.physical_rows)
        spans.append((segment.range.start, segment.range.end, run.version))
    assert spans == [(0, 3, 1), (3, 5, 2), (5, 9, 2)]
    assert (after.message.reader_feature_flags, after.message.writer_feature_flags) == (2, 2)


@pytest.mark.parametrize(
    ("flags", "replaced", "expected"),
    [
        (0, False, 0),
        (1, False, 1),
        (1, True, 0),
        (2, True, 2),
        (4, False, 0),
        (32, False, 0),
        (256, True, 256),
        (1 | 2 | 256, False, 1 | 2 | 256),
    ],
)
def test_flags_follow_the_content(flags: int, replaced: bool, expected: int) -> None:
    message = create_manifest().copy_header()
    message.reader_feature_flags = message.writer_feature_flags = flags
    draft = ManifestBuilder.for_successor(Manifest.from_header(message, index_section=None, transaction=None, path="m"))
    if replaced:
        draft.replace_contents(SCHEMA)
    after = finish(draft)
    assert (after.message.reader_feature_flags, after.message.writer_feature_flags) == (expected, expected)


def test_files_of_another_version_set_the_flag_for_mixed_ones() -> None:
    draft = ManifestBuilder.for_successor(create_manifest())
    draft.add_fragments([new_fragment(1, version=V20)], keep_ids=True)
    assert finish(draft).message.reader_feature_flags == 256


@pytest.mark.parametrize("version", [2**63 - 1, 2**63, 2**64 - 1])
def test_the_highest_version_numbers_have_no_successor(version: int) -> None:
    message = create_manifest().copy_header()
    message.version = version
    with pytest.raises(Corrupt, match=f"m: is version {version}, the highest version number of a branch"):
        ManifestBuilder.for_successor(Manifest.from_header(message, index_section=None, transaction=None, path="m"))
