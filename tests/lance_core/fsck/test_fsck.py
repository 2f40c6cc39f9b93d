"""fsck: a table with a deliberate defect for each rule, and sound tables without findings."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core import Corrupt, CorruptHead, InvalidInput, NotFound, Table
from lance_core.format._pb import table_pb2
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.naming import manifest_path
from lance_core.format.row_lineage import RowIdSequence, RowVersions
from lance_core.fsck import Severity
from lance_core.operations import Append
from tests.lance_core.in_memory_table import clean_up

Message = table_pb2.Manifest
Section = table_pb2.IndexSection


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return create_history(tmp_path, stable=request.param)


@pytest.fixture
def stable(tmp_path: Path) -> str:
    return create_history(tmp_path, stable=True)


def create_history(tmp_path: Path, *, stable: bool) -> str:
    """Create a table by alternate writes of pylance and this library: rows, an index, a tag and a branch, more rows,
    deletes, an update, a compaction.
    """
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(rows(0, 300), uri, max_rows_per_file=100, enable_stable_row_ids=stable)
    dataset.create_scalar_index("id", "BITMAP")
    dataset.tags.create("first", 1)
    dataset.create_branch("dev", 2).insert(rows(900, 5))
    table = Table.open(uri).append(rows(300, 100)).table.delete("id % 10 = 3").table
    lance.dataset(uri).update({"word": "'new'"}, where="id = 7")
    table.refresh().compact(remap="none").table.delete("id = 8").table.append(rows(500, 10))
    return uri


def rows(first: int, count: int) -> pa.Table:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("word", pa.string())])
    numbers = range(first, first + count)
    return pa.table({"id": numbers, "word": [f"w{number}" for number in numbers]}, schema=schema)


def head(uri: str) -> Path:
    return Path(uri) / Table.open(uri).manifest.path


def tamper(
    uri: str, change: Callable[[Message], object] = lambda message: None, *,
    indices: Callable[[Section], object] | None = None, version: int | None = None, transaction: bytes | None = b"",
) -> None:  # fmt: skip
    """Rewrite the manifest of a version, by default the newest, with a change applied to it."""
    manifest = Table.open(uri, version=version).manifest
    message = Message()
    message.CopyFrom(manifest.message)
    change(message)
    section = manifest.index_section
    if indices is not None:
        decoded = Section.FromString(section or b"")
        indices(decoded)
        section = decoded.SerializeToString()
    record = manifest.inline_transaction if transaction == b"" else transaction
    changed = Manifest.from_header(message, index_section=section, transaction=record, path=manifest.path)
    (Path(uri) / manifest.path).write_bytes(changed.encode())


def check(uri: str, rule: str, what: str, severity: Severity = Severity.ERROR) -> None:
    """Check that the finding is reported and that nothing is written."""
    before = {path: path.read_bytes() for path in Path(uri).rglob("*") if path.is_file()}
    report = Table.check(uri)
    actual = [finding for finding in report.findings if finding.rule == rule]
    assert actual, str(report)
    assert what in actual[0].what, str(report)
    assert actual[0].severity is severity
    assert actual[0].repair.endswith(".")
    assert report.is_sound is not bool(report.errors)
    assert {path: path.read_bytes() for path in Path(uri).rglob("*") if path.is_file()} == before


# Sound tables


def test_a_sound_table_has_no_findings(uri: str) -> None:
    report = Table.open(uri).fsck()
    assert report.is_sound
    assert [finding.rule for finding in report.findings] == ["index_behind"]
    assert report.versions == tuple(range(1, Table.open(uri).version + 1))
    assert report.files > 8
    assert str(report).startswith(f"{uri}: sound; ")
    assert Table.open(uri).fsck("head").versions == (Table.open(uri).version,)


def test_branches_and_clones_have_no_findings(uri: str, tmp_path: Path) -> None:
    branch = Table.open(uri, branch="dev").fsck()
    assert branch.is_sound, str(branch)
    assert {finding.rule for finding in branch.findings} <= {"index_behind"}
    clone = str(tmp_path / "clone")
    Table.open(uri).clone(clone)
    report = Table.open(clone, bases=[uri]).fsck()
    assert {finding.rule for finding in report.findings} <= {"index_behind"}, str(report)
    refused = Table.check(clone)
    assert refused.is_sound
    assert {finding.rule for finding in refused.findings} <= {"index_behind", "outside"}


def test_a_cleaned_table_has_no_findings(uri: str) -> None:
    clean_up(Table.open(uri))
    report = Table.open(uri).fsck()
    assert {finding.rule for finding in report.findings} <= {"index_behind", "dangling_tag"}, str(report)


# Files


def some_file(uri: str, kind: str) -> Path:
    fragments = Table.open(uri).fragments
    if kind == "data":
        return Path(uri) / fragments[0].files[0].qualified_path
    deleted = next(each.deletion_file for each in fragments if each.deletion_file)
    return Path(uri) / deleted.qualified_path


def replace_deletion_file(uri: str, rows: list[int]) -> None:
    """Let the newest version refer to another deletion file, without a recorded checksum."""

    def change(message: Message) -> None:
        file = next(each.deletion_file for each in message.fragments if each.HasField("deletion_file"))
        file.id += 1
        file.ClearField("xxh3")
        file.ClearField("size_bytes")

    tamper(uri, change)
    some_file(uri, "deletion").write_bytes(DeletionVector.of(rows).encode(as_bitmap=False))


def test_a_missing_data_file(uri: str) -> None:
    some_file(uri, "data").unlink()
    check(uri, "data_file", "it does not exist")


def test_a_truncated_data_file(uri: str) -> None:
    path = some_file(uri, "data")
    path.write_bytes(path.read_bytes()[:-1])
    check(uri, "data_file", "bytes, but the version records")


def test_a_data_file_of_another_format(uri: str) -> None:
    path = some_file(uri, "data")
    path.write_bytes(b"x" * path.stat().st_size)
    check(uri, "data_file", "it cannot be opened")


def test_a_data_file_with_other_rows(uri: str) -> None:
    def change(message: Message) -> None:
        message.fragments[0].physical_rows += 1

    tamper(uri, change)
    check(uri, "file_rows", "rows, but fragment")


def test_a_missing_deletion_file(uri: str) -> None:
    some_file(uri, "deletion").unlink()
    check(uri, "deletion_file", "it does not exist")


def test_a_deletion_file_of_another_format(uri: str) -> None:
    some_file(uri, "deletion").write_bytes(b"nonsense")
    check(uri, "deletion_file", "it cannot be read")


def test_a_deletion_file_with_another_count_than_the_manifest(uri: str) -> None:
    replace_deletion_file(uri, [1, 2, 3])
    check(uri, "deletion_count", "it lists 3 rows, but the version counts 1")


def test_a_deletion_of_missing_rows(uri: str) -> None:
    replace_deletion_file(uri, [10_000])
    check(uri, "deletion_file", "it deletes row 10000 of ")


def test_a_missing_index_file(uri: str) -> None:
    next(Path(uri).glob("_indices/*/*.lance")).unlink()
    check(uri, "index_file", "it does not exist; queries that use index 'id_idx' fail")


def test_an_index_without_any_files(uri: str) -> None:
    def change(section: Section) -> None:
        del section.indices[0].files[:]
        section.indices[0].uuid.uuid = bytes(16)

    tamper(uri, indices=change)
    check(uri, "index_file", "the files of index 'id_idx' do not exist")


def test_a_file_that_leaves_its_directory(uri: str) -> None:
    def change(message: Message) -> None:
        message.fragments[0].files[0].path = "../../etc/passwd"

    tamper(uri, change)
    check(uri, "fragment", "leaves its directory")


def test_a_missing_base_path(uri: str) -> None:
    def change(message: Message) -> None:
        message.fragments[0].files[0].base_id = 7

    tamper(uri, change)
    check(uri, "base_path", "the manifest has no base path with this id")


def test_orphan_files_are_reported(uri: str) -> None:
    (Path(uri) / "data" / "left.lance").write_bytes(b"1234")
    check(uri, "orphan", "no version references it (4 bytes", Severity.INFO)
    assert "orphan" not in [finding.rule for finding in Table.open(uri).fsck("head").findings]


# Fragments, ids and counters


def duplicate_fragment_id(message: Message) -> None:
    message.fragments[1].id = message.fragments[0].id


def reorder_fragments(message: Message) -> None:
    first = table_pb2.DataFragment()
    first.CopyFrom(message.fragments[0])
    message.fragments[0].CopyFrom(message.fragments[1])
    message.fragments[1].CopyFrom(first)


def lower_fragment_counter(message: Message) -> None:
    message.max_fragment_id = 1


def remove_files(message: Message) -> None:
    del message.fragments[0].files[:]


def delete_too_many_rows(message: Message) -> None:
    next(each for each in message.fragments if each.HasField("deletion_file")).deletion_file.num_deleted_rows = 10**6


def remove_rows(message: Message) -> None:
    message.fragments[0].physical_rows = 0


def delete_no_rows(message: Message) -> None:
    next(each for each in message.fragments if each.HasField("deletion_file")).deletion_file.num_deleted_rows = 0


def remove_column_indices(message: Message) -> None:
    del message.fragments[0].files[0].column_indices[:]


def clear_deletion_flag(message: Message) -> None:
    message.reader_feature_flags &= ~1


def clear_config_flag(message: Message) -> None:
    message.config["a"] = "b"
    message.writer_feature_flags &= ~8


def add_base_without_flag(message: Message) -> None:
    message.base_paths.add(id=1, path="/somewhere")


def set_other_storage_version(message: Message) -> None:
    message.fragments[0].files[0].file_minor_version = 0


def set_oldest_storage_version(message: Message) -> None:
    message.data_format.version = "0.1"


def remove_column(message: Message) -> None:
    for file in message.fragments[0].files:
        file.fields[:] = [-2 if field_id == 0 else field_id for field_id in file.fields]


def tombstone_all_fields(message: Message) -> None:
    message.fragments[-1].files[0].fields[:] = [-2 for _ in message.fragments[-1].files[0].fields]


def set_unknown_type(message: Message) -> None:
    message.fields[1].logical_type = "tensor"


def repeat_field_id(message: Message) -> None:
    message.fields[1].id = 0


@pytest.mark.parametrize(
    ("change", "rule", "what", "severity"),
    [
        (duplicate_fragment_id, "fragment_id_twice", "two fragments have the id", Severity.ERROR),
        (reorder_fragments, "fragment_order", "the next commit will reorder them", Severity.WARNING),
        (lower_fragment_counter, "max_fragment_id", "max_fragment_id is 1, but fragment", Severity.ERROR),
        (lower_fragment_counter, "max_fragment_id_goes_back", " to 1: ids may be assigned twice", Severity.WARNING),
        (remove_files, "fragment_files", "has no data files", Severity.ERROR),
        (delete_too_many_rows, "row_count", "but more deleted rows", Severity.ERROR),
        (remove_rows, "row_count", "does not record its number of rows", Severity.WARNING),
        (delete_no_rows, "row_count", "does not record its number of deleted rows", Severity.WARNING),
        (remove_column_indices, "fragment", "2 fields but 0 columns", Severity.ERROR),
        (clear_deletion_flag, "flags", "there are deleted rows", Severity.ERROR),
        (clear_config_flag, "flags", "there is a config", Severity.WARNING),
        (add_base_without_flag, "flags", "there are base paths", Severity.ERROR),
        (set_other_storage_version, "storage_version", "without the feature flag for that", Severity.WARNING),
        (set_oldest_storage_version, "storage_version", "the table has storage version 0.1", Severity.ERROR),
        (remove_column, "mandatory_column", "column 'id' is not nullable", Severity.ERROR),
        (tombstone_all_fields, "dead_file", "stores no column of the table", Severity.WARNING),
        (set_unknown_type, "schema", "'tensor'", Severity.WARNING),
        (repeat_field_id, "schema", "two fields have the id 0", Severity.ERROR),
    ],
)
def test_wrong_statements_of_a_version(
    uri: str, change: Callable[[Message], None], rule: str, what: str, severity: Severity
) -> None:
    tamper(uri, change)
    check(uri, rule, what, severity)


@pytest.mark.parametrize("number", [2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_fragment_whose_id_has_too_many_bits(uri: str, number: int) -> None:
    def change(message: Message) -> None:
        message.fragments[0].id = number

    tamper(uri, change)
    check(uri, "fragment", "does not fit 32 bits")
    for use in (
        lambda: Table.open(uri).compact(remap="none"),
        lambda: Table.open(uri).take([0], by="row_id"),
        lambda: Table.open(uri).take([0], by="row_address"),
    ):
        with pytest.raises(Corrupt, match="does not fit 32 bits"):
            use()


@pytest.mark.parametrize("rows", [2**63, 2**64 - 1])
def test_a_fragment_of_too_many_rows(uri: str, rows: int) -> None:
    def change(message: Message) -> None:
        message.fragments[0].physical_rows = rows

    tamper(uri, change)
    check(uri, "fragment", "do not fit 32 bits")
    for by in ("offset", "row_id", "row_address"):
        with pytest.raises(Corrupt):
            Table.open(uri).take([0], by=by)


def test_more_deleted_rows_than_there_are(uri: str) -> None:
    def change(message: Message) -> None:
        next(each for each in message.fragments if each.HasField("deletion_file")).deletion_file.num_deleted_rows = (
            2**63
        )

    tamper(uri, change)
    with pytest.raises(Corrupt, match="cannot have -"):
        Table.open(uri).take([0])


def test_a_compaction_rejects_a_wrong_fragment_counter(uri: str) -> None:
    tamper(uri, lower_fragment_counter)
    with pytest.raises(Corrupt, match="but max_fragment_id is 1"):
        Table.open(uri).compact(remap="none")


def remove_row_ids(message: Message) -> None:
    message.fragments[0].ClearField("inline_row_ids")


def change_row_id_count(message: Message) -> None:
    message.fragments[0].inline_row_ids = RowIdSequence.of([1, 2]).encode()


def lower_row_id_counter(message: Message) -> None:
    message.next_row_id = 5


def set_future_row_version(message: Message) -> None:
    rows = message.fragments[0].physical_rows
    message.fragments[0].inline_created_at_versions = RowVersions.of([99] * rows).encode()


def repeat_row_id(message: Message) -> None:
    last = message.fragments[-1]
    last.inline_row_ids = RowIdSequence.of(range(20, 20 + last.physical_rows)).encode()


def clear_row_id_flag(message: Message) -> None:
    message.reader_feature_flags &= ~2


@pytest.mark.parametrize(
    ("change", "rule", "what"),
    [
        (remove_row_ids, "row_ids", "has no row ids"),
        (change_row_id_count, "row_ids", "holds 2 row ids for"),
        (lower_row_id_counter, "next_row_id", "but next_row_id is 5"),
        (set_future_row_version, "row_versions", "has rows of version 99 in created_at"),
        (repeat_row_id, "row_id_live_twice", "row id 2"),
        (clear_row_id_flag, "flags", "there are stable row ids"),
    ],
)
def test_row_ids(stable: str, change: Callable[[Message], None], rule: str, what: str) -> None:
    tamper(stable, change)
    check(stable, rule, what)


def test_a_row_id_counter_that_decreases(stable: str) -> None:
    tamper(stable, lower_row_id_counter)
    check(stable, "next_row_id_goes_back", " to 5: ids may be assigned twice", Severity.WARNING)


# Indices


def set_unknown_field(section: Section) -> None:
    section.indices[0].fields[:] = [77]


def remove_coverage(section: Section) -> None:
    section.indices[0].fragment_bitmap = b""


def cover_missing_fragment(section: Section) -> None:
    section.indices[0].fragment_bitmap = BitMap([1000]).serialize()


def set_invalid_bitmap(section: Section) -> None:
    section.indices[0].fragment_bitmap = b"nonsense"


def set_invalid_uuid(section: Section) -> None:
    section.indices[0].uuid.uuid = b"12"


def repeat_index(section: Section) -> None:
    section.indices.add().CopyFrom(section.indices[0])


def overlap_coverage(section: Section) -> None:
    alive = BitMap(range(20)).serialize()
    section.indices[0].fragment_bitmap = alive
    section.indices.add().CopyFrom(section.indices[0])
    section.indices[1].uuid.uuid = b"1234567890123456"
    del section.indices[1].files[:]


@pytest.mark.parametrize(
    ("change", "rule", "what", "severity"),
    [
        (set_unknown_field, "index_field", "is on field 77, which the table does not have", Severity.WARNING),
        (remove_coverage, "index_coverage", "does not record its coverage", Severity.WARNING),
        (cover_missing_fragment, "index_coverage", "covers fragment 1000, which never existed", Severity.ERROR),
        (set_invalid_bitmap, "index_section", "is not a Roaring bitmap", Severity.ERROR),
        (set_invalid_uuid, "index_section", "its uuid has 2 bytes", Severity.ERROR),
        (repeat_index, "index_twice", "two indices have the uuid", Severity.ERROR),
        (overlap_coverage, "index_overlap", "two segments of index 'id_idx' cover fragment", Severity.WARNING),
    ],
)
def test_indices(uri: str, change: Callable[[Section], None], rule: str, what: str, severity: Severity) -> None:
    tamper(uri, indices=change)
    check(uri, rule, what, severity)


# Versions, records, names, references


def test_a_damaged_newest_version_is_reported_with_a_repair_that_works(uri: str) -> None:
    path = head(uri)
    before = Table.open(uri, version=Table.open(uri).version - 1).to_table()
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptHead):
        Table.open(uri)
    check(uri, "head", "the newest version is damaged")
    (finding,) = Table.open(uri, version=1).fsck().errors
    assert f"{path.name}.damaged" in finding.repair
    last = Table.open(uri, version=int(finding.version or 0) - 1).version
    assert f"Open version {last} by" in finding.repair
    assert finding.repair.endswith(f"continues from version {last}.")
    path.rename(path.with_name(f"{path.name}.damaged"))
    assert Table.open(uri).to_table().equals(before)
    assert Table.check(uri).is_sound


def test_a_damaged_only_version(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), rows(0, 5))
    (Path(table.uri) / table.manifest.path).write_bytes(b"")
    (finding,) = Table.check(table.uri).findings
    assert finding.rule == "head"
    assert finding.repair.startswith("No version can be read. Restore this file from a copy")
    assert "version 0" not in finding.repair


@pytest.mark.parametrize("extent", ["all", "head"])
def test_a_damaged_newest_version_names_the_newest_readable_one(uri: str, extent: Literal["all", "head"]) -> None:
    """The version before it is missing, and the one before that is damaged too."""
    numbers = [info.version for info in Table.open(uri).versions()]
    paths = {number: Path(uri) / Table.open(uri, version=number).manifest.path for number in numbers}
    *_, original, damaged, missing, newest = numbers
    before = Table.open(uri, version=original).to_table()
    paths[missing].unlink()
    for number in (damaged, newest):
        paths[number].write_bytes(b"nonsense")
    (finding,) = [each for each in Table.check(uri, extent).findings if each.rule == "head"]
    assert finding.repair.endswith(f"continues from version {original}.")
    for number in (damaged, newest):
        assert f"{paths[number].name}.damaged" in finding.repair
        paths[number].rename(paths[number].with_name(f"{paths[number].name}.damaged"))
    assert Table.open(uri).version == original
    assert Table.open(uri).to_table().equals(before)


def test_a_stray_manifest_names_the_version_that_it_hides(uri: str) -> None:
    last = Table.open(uri).version
    stray = head(uri).with_name(manifest_path(Version(last + 40)).rpartition("/")[2])
    stray.write_bytes(head(uri).read_bytes())
    (finding,) = [each for each in Table.check(uri).findings if each.rule == "head"]
    assert f"Open version {last} by" in finding.repair
    stray.rename(stray.with_name(f"{stray.name}.damaged"))
    assert Table.open(uri).version == last


def test_nothing_is_moved_with_a_future_version_present(uri: str) -> None:
    def change(message: Message) -> None:
        message.reader_feature_flags |= 1 << 40

    last = Table.open(uri).version
    path = head(uri)
    tamper(uri, change, version=last - 1)
    path.write_bytes(b"nonsense")
    (finding,) = [each for each in Table.check(uri).findings if each.rule == "head"]
    assert finding.repair.startswith(f"Move nothing before version {last - 1} can be examined")


def test_a_damaged_older_version(uri: str) -> None:
    (Path(uri) / Table.open(uri, version=2).manifest.path).write_bytes(b"nonsense")
    check(uri, "manifest", "this version cannot be read")


def test_a_version_that_is_too_new(uri: str) -> None:
    def change(message: Message) -> None:
        message.reader_feature_flags |= 1 << 40

    tamper(uri, change)
    check(uri, "not_understood", "it was not examined", Severity.WARNING)


def test_both_naming_schemes(uri: str) -> None:
    path = Path(uri) / Table.open(uri, version=1).manifest.path
    path.rename(path.with_name("1.manifest"))
    check(uri, "mixed_names", "both naming schemes")


def test_a_version_without_a_transaction(uri: str) -> None:
    def change(message: Message) -> None:
        message.transaction_file = ""

    tamper(uri, change, transaction=None)
    check(uri, "transaction", "it has no transaction", Severity.WARNING)


def test_an_unreadable_transaction(uri: str) -> None:
    tamper(uri, transaction=b"\xff\xff\xff")
    check(uri, "transaction", "its transaction cannot be read")


def test_one_transaction_in_two_versions(uri: str) -> None:
    older = Table.open(uri, version=3).manifest.inline_transaction
    tamper(uri, transaction=older)
    check(uri, "transaction_twice", "version 3 has the same transaction")


def test_a_tag_of_a_missing_version(uri: str) -> None:
    path = Path(uri) / "_refs/tags/first.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    check(uri, "dangling_tag", "tag 'first' names version 99, which does not exist", Severity.WARNING)


def test_a_tag_of_a_detached_version(uri: str) -> None:
    table = Table.open(uri)
    operation = table.transaction().operation  # type: ignore[union-attr]
    assert isinstance(operation, Append)
    detached = Table.open(uri, version=table.version - 1).commit(operation, detached=True)
    table.tags.create("detached", detached.version)
    assert Table.open(uri, tag="detached").count_rows() == lance.dataset(uri, version="detached").count_rows()
    assert "dangling_tag" not in [finding.rule for finding in Table.check(uri).findings]
    (Path(uri) / f"_versions/d{detached.version}.manifest").unlink()
    check(uri, "dangling_tag", f"tag 'detached' names version {detached.version}, which does not", Severity.WARNING)


def test_an_unreadable_reference_does_not_hide_others(uri: str) -> None:
    tags = Path(uri) / "_refs/tags"
    (tags / "z.json").write_text(json.dumps({**json.loads((tags / "first.json").read_text()), "version": 99}))
    (tags / "first.json").write_text("{")
    (Path(uri) / "_refs/branches/dev.json").write_text("{")
    actual = [(finding.rule, finding.path) for finding in Table.check(uri).findings if "_refs" in finding.path]
    assert actual == [
        ("reference", "_refs/tags/first.json"),
        ("reference", "_refs/branches/dev.json"),
        ("dangling_tag", "_refs/tags/z.json"),
    ]


def test_a_branch_without_a_version(uri: str) -> None:
    for path in (Path(uri) / "tree/dev/_versions").iterdir():
        path.unlink()
    check(uri, "empty_branch", "branch 'dev' has no version", Severity.WARNING)


def test_an_unreadable_reference(uri: str) -> None:
    (Path(uri) / "_refs/tags/first.json").write_text("{")
    check(uri, "reference", "is not JSON")


def test_a_branch_that_was_moved(uri: str, tmp_path: Path) -> None:
    (Path(uri) / "tree/dev").rename(tmp_path / "moved")
    check(str(tmp_path / "moved"), "branch", "branch cannot be moved by itself")


def test_another_branch_that_cannot_be_read(uri: str) -> None:
    for path in (Path(uri) / "tree/dev/_versions").glob("*.manifest"):
        path.write_bytes(b"nonsense")
    check(uri, "orphans", "orphan files cannot be determined", Severity.WARNING)


def test_no_table_and_no_such_extent(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no Lance table"):
        Table.check(str(tmp_path))
    with pytest.raises(InvalidInput, match="versions must be one of all, head"):
        Table.check(str(tmp_path), "some")  # type: ignore[arg-type]


def test_concurrent_appends_that_share_a_version_have_no_findings(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 1), durable=False)
    with ThreadPoolExecutor(6) as pool:
        committed = list(pool.map(lambda number: table.append(rows(number, 1), intent=f"load {number}"), range(1, 19)))
    assert len({each.version for each in committed}) < 18
    report = table.fsck()
    assert report.findings == (), str(report)
    assert report.chain.verified == report.versions[:-1]
