"""A table that is broken on purpose for each thing that an examination finds, and sound ones where it finds none."""

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
from lance_core.format.row_versions import RowVersions
from lance_core.format.rowids import RowIdSequence
from lance_core.fsck import Severity
from lance_core.operations import Append
from tests.lance_core.world import cleaned

Message = table_pb2.Manifest
Section = table_pb2.IndexSection


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return made(tmp_path, stable=request.param)


@pytest.fixture
def stable(tmp_path: Path) -> str:
    return made(tmp_path, stable=True)


def made(tmp_path: Path, *, stable: bool) -> str:
    """By pylance and by us: rows, an index, a tag and a branch, more rows, deletes, an update, a compaction."""
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


def head(place: str) -> Path:
    return Path(place) / Table.open(place).manifest.path


def tamper(
    place: str, change: Callable[[Message], object] = lambda message: None, *,
    indices: Callable[[Section], object] | None = None, version: int | None = None, transaction: bytes | None = b"",
) -> None:  # fmt: skip
    """The manifest of a version, the newest unless said, with something else in it."""
    manifest = Table.open(place, version=version).manifest
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
    (Path(place) / manifest.path).write_bytes(changed.encode())


def check(place: str, rule: str, what: str, severity: Severity = Severity.ERROR) -> None:
    """This is among what is found, and nothing is written."""
    before = {path: path.read_bytes() for path in Path(place).rglob("*") if path.is_file()}
    report = Table.check(place)
    found = [finding for finding in report.findings if finding.rule == rule]
    assert found, str(report)
    assert what in found[0].what, str(report)
    assert found[0].severity is severity
    assert found[0].repair.endswith(".")
    assert report.is_sound is not bool(report.errors)
    assert {path: path.read_bytes() for path in Path(place).rglob("*") if path.is_file()} == before


# Sound ones


def test_nothing_is_wrong_with_a_sound_table(place: str) -> None:
    report = Table.open(place).fsck()
    assert report.is_sound
    assert [finding.rule for finding in report.findings] == ["index_behind"]
    assert report.versions == tuple(range(1, Table.open(place).version + 1))
    assert report.files > 8
    assert str(report).startswith(f"{place}: sound; ")
    assert Table.open(place).fsck("head").versions == (Table.open(place).version,)


def test_nothing_is_wrong_with_a_branch_or_a_clone(place: str, tmp_path: Path) -> None:
    branch = Table.open(place, branch="dev").fsck()
    assert branch.is_sound, str(branch)
    assert {finding.rule for finding in branch.findings} <= {"index_behind"}
    clone = str(tmp_path / "clone")
    Table.open(place).clone(clone)
    report = Table.open(clone, bases=[place]).fsck()
    assert {finding.rule for finding in report.findings} <= {"index_behind"}, str(report)
    refused = Table.check(clone)
    assert refused.is_sound
    assert {finding.rule for finding in refused.findings} <= {"index_behind", "outside"}


def test_nothing_is_wrong_after_a_cleanup(place: str) -> None:
    cleaned(Table.open(place))
    report = Table.open(place).fsck()
    assert {finding.rule for finding in report.findings} <= {"index_behind", "dangling_tag"}, str(report)


# Files


def some_file(place: str, kind: str) -> Path:
    fragments = Table.open(place).fragments
    if kind == "data":
        return Path(place) / fragments[0].files[0].qualified_path
    deleted = next(each.deletion_file for each in fragments if each.deletion_file)
    return Path(place) / deleted.qualified_path


def test_a_data_file_that_is_gone(place: str) -> None:
    some_file(place, "data").unlink()
    check(place, "data_file", "it does not exist")


def test_a_data_file_that_is_cut_short(place: str) -> None:
    path = some_file(place, "data")
    path.write_bytes(path.read_bytes()[:-1])
    check(place, "data_file", "bytes, but the version records")


def test_a_data_file_that_is_something_else(place: str) -> None:
    path = some_file(place, "data")
    path.write_bytes(b"x" * path.stat().st_size)
    check(place, "data_file", "it cannot be opened")


def test_a_data_file_with_other_rows(place: str) -> None:
    def change(message: Message) -> None:
        message.fragments[0].physical_rows += 1

    tamper(place, change)
    check(place, "file_rows", "rows, but fragment")


def test_a_deletion_file_that_is_gone(place: str) -> None:
    some_file(place, "deletion").unlink()
    check(place, "deletion_file", "it does not exist")


def test_a_deletion_file_that_is_something_else(place: str) -> None:
    some_file(place, "deletion").write_bytes(b"nonsense")
    check(place, "deletion_file", "it cannot be read")


def test_a_deletion_file_that_the_manifest_counts_otherwise(place: str) -> None:
    some_file(place, "deletion").write_bytes(DeletionVector.of([1, 2, 3]).encode(as_bitmap=False))
    check(place, "deletion_count", "it lists 3 rows, but the version counts 1")


def test_a_deletion_of_rows_that_are_not_there(place: str) -> None:
    some_file(place, "deletion").write_bytes(DeletionVector.of([10_000]).encode(as_bitmap=False))
    check(place, "deletion_file", "it deletes row 10000 of ")


def test_an_index_file_that_is_gone(place: str) -> None:
    next(Path(place).glob("_indices/*/*.lance")).unlink()
    check(place, "index_file", "it does not exist; queries that use index 'id_idx' fail")


def test_an_index_that_lists_no_files_and_has_none(place: str) -> None:
    def change(section: Section) -> None:
        del section.indices[0].files[:]
        section.indices[0].uuid.uuid = bytes(16)

    tamper(place, indices=change)
    check(place, "index_file", "the files of index 'id_idx' do not exist")


def test_a_file_that_leaves_its_directory(place: str) -> None:
    def change(message: Message) -> None:
        message.fragments[0].files[0].path = "../../etc/passwd"

    tamper(place, change)
    check(place, "fragment", "leaves its directory")


def test_a_base_path_that_is_not_there(place: str) -> None:
    def change(message: Message) -> None:
        message.fragments[0].files[0].base_id = 7

    tamper(place, change)
    check(place, "base_path", "the manifest has no base path with this id")


def test_orphans_are_told(place: str) -> None:
    (Path(place) / "data" / "left.lance").write_bytes(b"1234")
    check(place, "orphan", "no version references it (4 bytes", Severity.INFO)
    assert "orphan" not in [finding.rule for finding in Table.open(place).fsck("head").findings]


# Fragments, ids and counters


def duplicate(message: Message) -> None:
    message.fragments[1].id = message.fragments[0].id


def disorder(message: Message) -> None:
    first = table_pb2.DataFragment()
    first.CopyFrom(message.fragments[0])
    message.fragments[0].CopyFrom(message.fragments[1])
    message.fragments[1].CopyFrom(first)


def counter(message: Message) -> None:
    message.max_fragment_id = 1


def no_files(message: Message) -> None:
    del message.fragments[0].files[:]


def too_many_deleted(message: Message) -> None:
    next(each for each in message.fragments if each.HasField("deletion_file")).deletion_file.num_deleted_rows = 10**6


def no_rows(message: Message) -> None:
    message.fragments[0].physical_rows = 0


def no_deleted_rows(message: Message) -> None:
    next(each for each in message.fragments if each.HasField("deletion_file")).deletion_file.num_deleted_rows = 0


def half_a_layout(message: Message) -> None:
    del message.fragments[0].files[0].column_indices[:]


def no_deletion_flag(message: Message) -> None:
    message.reader_feature_flags &= ~1


def no_config_flag(message: Message) -> None:
    message.config["a"] = "b"
    message.writer_feature_flags &= ~8


def no_base_flag(message: Message) -> None:
    message.base_paths.add(id=1, path="/somewhere")


def other_version(message: Message) -> None:
    message.fragments[0].files[0].file_minor_version = 0


def oldest_version(message: Message) -> None:
    message.data_format.version = "0.1"


def without_a_column(message: Message) -> None:
    for file in message.fragments[0].files:
        file.fields[:] = [-2 if field_id == 0 else field_id for field_id in file.fields]


def dead_file(message: Message) -> None:
    message.fragments[-1].files[0].fields[:] = [-2 for _ in message.fragments[-1].files[0].fields]


def unknown_type(message: Message) -> None:
    message.fields[1].logical_type = "tensor"


def same_field(message: Message) -> None:
    message.fields[1].id = 0


@pytest.mark.parametrize(
    ("change", "rule", "what", "severity"),
    [
        (duplicate, "fragment_id_twice", "two fragments have the id", Severity.ERROR),
        (disorder, "fragment_order", "the next commit will reorder them", Severity.WARNING),
        (counter, "max_fragment_id", "max_fragment_id is 1, but fragment", Severity.ERROR),
        (counter, "max_fragment_id_goes_back", " to 1: ids may be assigned twice", Severity.WARNING),
        (no_files, "fragment_files", "has no data files", Severity.ERROR),
        (too_many_deleted, "row_count", "but more deleted rows", Severity.ERROR),
        (no_rows, "row_count", "does not record its number of rows", Severity.WARNING),
        (no_deleted_rows, "row_count", "does not record its number of deleted rows", Severity.WARNING),
        (half_a_layout, "fragment", "2 fields but 0 columns", Severity.ERROR),
        (no_deletion_flag, "flags", "there are deleted rows", Severity.ERROR),
        (no_config_flag, "flags", "there is a config", Severity.WARNING),
        (no_base_flag, "flags", "there are base paths", Severity.ERROR),
        (other_version, "storage_version", "without the feature flag for that", Severity.WARNING),
        (oldest_version, "storage_version", "the table has storage version 0.1", Severity.ERROR),
        (without_a_column, "mandatory_column", "column 'id' is not nullable", Severity.ERROR),
        (dead_file, "dead_file", "stores no column of the table", Severity.WARNING),
        (unknown_type, "schema", "'tensor'", Severity.WARNING),
        (same_field, "schema", "two fields have the id 0", Severity.ERROR),
    ],
)
def test_what_a_version_says_wrongly(
    place: str, change: Callable[[Message], None], rule: str, what: str, severity: Severity
) -> None:
    tamper(place, change)
    check(place, rule, what, severity)


@pytest.mark.parametrize("number", [2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_fragment_whose_id_has_too_many_bits(place: str, number: int) -> None:
    def change(message: Message) -> None:
        message.fragments[0].id = number

    tamper(place, change)
    check(place, "fragment", "does not fit 32 bits")
    for use in (
        lambda: Table.open(place).compact(remap="none"),
        lambda: Table.open(place).take([0], by="row_id"),
        lambda: Table.open(place).take([0], by="row_address"),
    ):
        with pytest.raises(Corrupt, match="does not fit 32 bits"):
            use()


@pytest.mark.parametrize("rows", [2**63, 2**64 - 1])
def test_a_fragment_of_too_many_rows(place: str, rows: int) -> None:
    def change(message: Message) -> None:
        message.fragments[0].physical_rows = rows

    tamper(place, change)
    check(place, "fragment", "do not fit 32 bits")
    for by in ("offset", "row_id", "row_address"):
        with pytest.raises(Corrupt):
            Table.open(place).take([0], by=by)


def test_more_deleted_rows_than_there_are(place: str) -> None:
    def change(message: Message) -> None:
        next(each for each in message.fragments if each.HasField("deletion_file")).deletion_file.num_deleted_rows = (
            2**63
        )

    tamper(place, change)
    with pytest.raises(Corrupt, match="cannot have -"):
        Table.open(place).take([0])


def test_nothing_is_compacted_under_a_wrong_count_of_ids(place: str) -> None:
    tamper(place, counter)
    with pytest.raises(Corrupt, match="but max_fragment_id is 1"):
        Table.open(place).compact(remap="none")


def no_row_ids(message: Message) -> None:
    message.fragments[0].ClearField("inline_row_ids")


def wrong_length(message: Message) -> None:
    message.fragments[0].inline_row_ids = RowIdSequence.of([1, 2]).encode()


def row_counter(message: Message) -> None:
    message.next_row_id = 5


def of_the_future(message: Message) -> None:
    rows = message.fragments[0].physical_rows
    message.fragments[0].inline_created_at_versions = RowVersions.of([99] * rows).encode()


def twice(message: Message) -> None:
    last = message.fragments[-1]
    last.inline_row_ids = RowIdSequence.of(range(20, 20 + last.physical_rows)).encode()


def no_flag(message: Message) -> None:
    message.reader_feature_flags &= ~2


@pytest.mark.parametrize(
    ("change", "rule", "what"),
    [
        (no_row_ids, "row_ids", "has no row ids"),
        (wrong_length, "row_ids", "holds 2 row ids for"),
        (row_counter, "next_row_id", "but next_row_id is 5"),
        (of_the_future, "row_versions", "has rows of version 99 in created_at"),
        (twice, "row_id_live_twice", "row id 2"),
        (no_flag, "flags", "there are stable row ids"),
    ],
)
def test_row_ids(stable: str, change: Callable[[Message], None], rule: str, what: str) -> None:
    tamper(stable, change)
    check(stable, rule, what)


def test_a_row_counter_that_goes_back(stable: str) -> None:
    tamper(stable, row_counter)
    check(stable, "next_row_id_goes_back", " to 5: ids may be assigned twice", Severity.WARNING)


# Indices


def unknown_field(section: Section) -> None:
    section.indices[0].fields[:] = [77]


def no_coverage(section: Section) -> None:
    section.indices[0].fragment_bitmap = b""


def never_was(section: Section) -> None:
    section.indices[0].fragment_bitmap = BitMap([1000]).serialize()


def no_bitmap(section: Section) -> None:
    section.indices[0].fragment_bitmap = b"nonsense"


def no_uuid(section: Section) -> None:
    section.indices[0].uuid.uuid = b"12"


def same_twice(section: Section) -> None:
    section.indices.add().CopyFrom(section.indices[0])


def overlap(section: Section) -> None:
    alive = BitMap(range(20)).serialize()
    section.indices[0].fragment_bitmap = alive
    section.indices.add().CopyFrom(section.indices[0])
    section.indices[1].uuid.uuid = b"1234567890123456"
    del section.indices[1].files[:]


@pytest.mark.parametrize(
    ("change", "rule", "what", "severity"),
    [
        (unknown_field, "index_field", "is on field 77, which the table does not have", Severity.WARNING),
        (no_coverage, "index_coverage", "does not record its coverage", Severity.WARNING),
        (never_was, "index_coverage", "covers fragment 1000, which never existed", Severity.ERROR),
        (no_bitmap, "index_section", "is not a Roaring bitmap", Severity.ERROR),
        (no_uuid, "index_section", "its uuid has 2 bytes", Severity.ERROR),
        (same_twice, "index_twice", "two indices have the uuid", Severity.ERROR),
        (overlap, "index_overlap", "two segments of index 'id_idx' cover fragment", Severity.WARNING),
    ],
)
def test_indices(place: str, change: Callable[[Section], None], rule: str, what: str, severity: Severity) -> None:
    tamper(place, indices=change)
    check(place, rule, what, severity)


# Versions, records, names, references


def test_a_damaged_head_is_told_with_its_repair_which_works(place: str) -> None:
    path = head(place)
    before = Table.open(place, version=Table.open(place).version - 1).to_table()
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptHead):
        Table.open(place)
    check(place, "head", "the newest version is damaged")
    (finding,) = Table.open(place, version=1).fsck().errors
    assert f"{path.name}.damaged" in finding.repair
    last = Table.open(place, version=int(finding.version or 0) - 1).version
    assert f"Open version {last} by" in finding.repair
    assert finding.repair.endswith(f"continues from version {last}.")
    path.rename(path.with_name(f"{path.name}.damaged"))
    assert Table.open(place).to_table().equals(before)
    assert Table.check(place).is_sound


def test_the_only_version_is_damaged(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), rows(0, 5))
    (Path(table.uri) / table.manifest.path).write_bytes(b"")
    (finding,) = Table.check(table.uri).findings
    assert finding.rule == "head"
    assert finding.repair.startswith("No version can be read. Restore this file from a copy")
    assert "version 0" not in finding.repair


@pytest.mark.parametrize("extent", ["all", "head"])
def test_a_damaged_head_sends_to_the_newest_version_that_can_be_read(
    place: str, extent: Literal["all", "head"]
) -> None:
    """The one before it is gone, the one before that damaged too."""
    numbers = [info.version for info in Table.open(place).versions()]
    paths = {number: Path(place) / Table.open(place, version=number).manifest.path for number in numbers}
    *_, whole, damaged, gone, newest = numbers
    before = Table.open(place, version=whole).to_table()
    paths[gone].unlink()
    for number in (damaged, newest):
        paths[number].write_bytes(b"nonsense")
    (finding,) = [each for each in Table.check(place, extent).findings if each.rule == "head"]
    assert finding.repair.endswith(f"continues from version {whole}.")
    for number in (damaged, newest):
        assert f"{paths[number].name}.damaged" in finding.repair
        paths[number].rename(paths[number].with_name(f"{paths[number].name}.damaged"))
    assert Table.open(place).version == whole
    assert Table.open(place).to_table().equals(before)


def test_a_stray_manifest_sends_to_the_version_that_it_hides(place: str) -> None:
    last = Table.open(place).version
    stray = head(place).with_name(manifest_path(Version(last + 40)).rpartition("/")[2])
    stray.write_bytes(head(place).read_bytes())
    (finding,) = [each for each in Table.check(place).findings if each.rule == "head"]
    assert f"Open version {last} by" in finding.repair
    stray.rename(stray.with_name(f"{stray.name}.damaged"))
    assert Table.open(place).version == last


def test_nothing_is_moved_past_a_version_of_the_future(place: str) -> None:
    def change(message: Message) -> None:
        message.reader_feature_flags |= 1 << 40

    last = Table.open(place).version
    path = head(place)
    tamper(place, change, version=last - 1)
    path.write_bytes(b"nonsense")
    (finding,) = [each for each in Table.check(place).findings if each.rule == "head"]
    assert finding.repair.startswith(f"Move nothing before version {last - 1} can be examined")


def test_an_older_version_is_damaged(place: str) -> None:
    (Path(place) / Table.open(place, version=2).manifest.path).write_bytes(b"nonsense")
    check(place, "manifest", "this version cannot be read")


def test_a_version_that_is_too_new(place: str) -> None:
    def change(message: Message) -> None:
        message.reader_feature_flags |= 1 << 40

    tamper(place, change)
    check(place, "not_understood", "it was not examined", Severity.WARNING)


def test_both_naming_schemes(place: str) -> None:
    path = Path(place) / Table.open(place, version=1).manifest.path
    path.rename(path.with_name("1.manifest"))
    check(place, "mixed_names", "both naming schemes")


def test_a_version_that_nobody_recorded(place: str) -> None:
    def change(message: Message) -> None:
        message.transaction_file = ""

    tamper(place, change, transaction=None)
    check(place, "transaction", "it has no transaction", Severity.WARNING)


def test_a_record_that_cannot_be_read(place: str) -> None:
    tamper(place, transaction=b"\xff\xff\xff")
    check(place, "transaction", "its transaction cannot be read")


def test_one_transaction_in_two_versions(place: str) -> None:
    older = Table.open(place, version=3).manifest.inline_transaction
    tamper(place, transaction=older)
    check(place, "transaction_twice", "version 3 has the same transaction")


def test_a_tag_of_what_does_not_exist(place: str) -> None:
    path = Path(place) / "_refs/tags/first.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    check(place, "dangling_tag", "tag 'first' names version 99, which does not exist", Severity.WARNING)


def test_a_tag_of_a_version_beside_the_line(place: str) -> None:
    table = Table.open(place)
    operation = table.transaction().operation  # type: ignore[union-attr]
    assert isinstance(operation, Append)
    beside = Table.open(place, version=table.version - 1).commit(operation, detached=True)
    table.tags.create("beside", beside.version)
    assert Table.open(place, tag="beside").count_rows() == lance.dataset(place, version="beside").count_rows()
    assert "dangling_tag" not in [finding.rule for finding in Table.check(place).findings]
    (Path(place) / f"_versions/d{beside.version}.manifest").unlink()
    check(place, "dangling_tag", f"tag 'beside' names version {beside.version}, which does not", Severity.WARNING)


def test_one_reference_that_cannot_be_read_hides_no_other(place: str) -> None:
    tags = Path(place) / "_refs/tags"
    (tags / "z.json").write_text(json.dumps({**json.loads((tags / "first.json").read_text()), "version": 99}))
    (tags / "first.json").write_text("{")
    (Path(place) / "_refs/branches/dev.json").write_text("{")
    found = [(finding.rule, finding.path) for finding in Table.check(place).findings if "_refs" in finding.path]
    assert found == [
        ("reference", "_refs/tags/first.json"),
        ("reference", "_refs/branches/dev.json"),
        ("dangling_tag", "_refs/tags/z.json"),
    ]


def test_a_branch_without_a_version(place: str) -> None:
    for path in (Path(place) / "tree/dev/_versions").iterdir():
        path.unlink()
    check(place, "empty_branch", "branch 'dev' has no version", Severity.WARNING)


def test_a_reference_that_cannot_be_read(place: str) -> None:
    (Path(place) / "_refs/tags/first.json").write_text("{")
    check(place, "reference", "is not JSON")


def test_a_branch_that_was_moved(place: str, tmp_path: Path) -> None:
    (Path(place) / "tree/dev").rename(tmp_path / "moved")
    check(str(tmp_path / "moved"), "branch", "branch cannot be moved by itself")


def test_another_line_that_cannot_be_read(place: str) -> None:
    for path in (Path(place) / "tree/dev/_versions").glob("*.manifest"):
        path.write_bytes(b"nonsense")
    check(place, "orphans", "orphan files cannot be determined", Severity.WARNING)


def test_no_table_and_no_such_extent(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no Lance table"):
        Table.check(str(tmp_path))
    with pytest.raises(InvalidInput, match="versions must be one of all, head"):
        Table.check(str(tmp_path), "some")  # type: ignore[arg-type]


def test_nothing_is_wrong_where_appends_of_several_threads_share_a_version(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 1), durable=False)
    with ThreadPoolExecutor(6) as pool:
        committed = list(pool.map(lambda number: table.append(rows(number, 1), intent=f"load {number}"), range(1, 19)))
    assert len({each.version for each in committed}) < 18
    report = table.fsck()
    assert report.findings == (), str(report)
    assert report.chain.verified == report.versions[:-1]
