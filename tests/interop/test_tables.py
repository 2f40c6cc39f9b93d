"""Tables of pylance: what we read of a table that pylance wrote and changed, and that our commits preserve all of it.

Each test lets pylance change a table and compares our rows with those of pylance, then appends with our library and
compares again.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from lance_core import Corrupt, SchemaMismatch, Table, Unsupported
from lance_core.format.config_keys import TABLE_ID
from lance_core.format.manifest_file import FOOTER
from lance_core.operations import Append, DataFile, Fragment, StorageVersion
from lance_core.versions.version_hint import HINT
from tests.interop.table_comparison import (
    assert_same_rows,
    comparable_manifest,
    history_by_pylance,
    history_by_us,
    read_by_pylance,
    read_by_us,
)

IndexType = Literal["BTREE", "BITMAP", "ZONEMAP"]
Change = Callable[[str], object]


def make_rows(start: int, stop: int) -> pa.Table:
    values = range(start, stop)
    return pa.table(
        {
            "a": pa.array(values, pa.int64()),
            "b": [f"b{value}" for value in values],
            "c": [value / 2 for value in values],
        }
    )


def check_agreement(uri: str) -> None:
    """Check that both libraries read the same rows, schema and history."""
    assert_same_rows(read_by_us(uri), read_by_pylance(uri))
    assert history_by_us(uri) == history_by_pylance(uri)
    assert Table.open(uri).count_rows() == lance.dataset(uri).count_rows()
    lance.dataset(uri).validate()


def batch_reader(rows: int) -> pa.RecordBatchReader:
    table = make_rows(0, rows)
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=1000))


def alter_column(uri: str, **change: object) -> None:
    lance.dataset(uri).alter_columns(change)  # type: ignore[arg-type]


CHANGES: dict[str, Change] = {
    "delete few": lambda uri: lance.dataset(uri).delete("a in (1, 3, 5000)"),
    "delete many": lambda uri: lance.dataset(uri).delete("a % 2 = 0"),
    "delete a fragment": lambda uri: lance.dataset(uri).delete("a < 6000"),
    "delete all": lambda uri: lance.dataset(uri).delete("true"),
    "delete twice": lambda uri: [lance.dataset(uri).delete(f"a % 7 = {rest}") for rest in (1, 2)],
    "update": lambda uri: lance.dataset(uri).update({"b": "'changed'"}, where="a % 3 = 0"),
    "rename": lambda uri: alter_column(uri, path="b", name="renamed"),
    "drop": lambda uri: lance.dataset(uri).drop_columns(["b"]),
    "drop first": lambda uri: lance.dataset(uri).drop_columns(["a"]),
    "add": lambda uri: lance.dataset(uri).add_columns({"d": "a * 2"}),
    "add null": lambda uri: lance.dataset(uri).add_columns(pa.field("n", pa.struct([pa.field("x", pa.int8())]))),
    "cast": lambda uri: alter_column(uri, path="a", data_type=pa.int32()),
    "add, drop, add": lambda uri: [
        lance.dataset(uri).add_columns({"d": "a * 2"}),
        lance.dataset(uri).drop_columns(["d"]),
        lance.dataset(uri).add_columns({"e": "a * 3"}),
    ],
    "drop, then delete": lambda uri: [
        lance.dataset(uri).drop_columns(["a"]),
        lance.dataset(uri).delete("c < 10"),
    ],
    "compact": lambda uri: [
        lance.dataset(uri).delete("a % 2 = 0"),
        lance.dataset(uri).optimize.compact_files(),
    ],
    "merge insert": lambda uri: lance.dataset(uri)
    .merge_insert("a")
    .when_matched_update_all()
    .when_not_matched_insert_all()
    .execute(make_rows(11_990, 12_010)),
    "merge insert of some columns": lambda uri: lance.dataset(uri)
    .merge_insert("a")
    .when_matched_update_all()
    .execute(make_rows(5, 12).select(["a", "c"])),
    "restore": lambda uri: [lance.dataset(uri).delete("true"), lance.dataset(uri, version=1).restore()],
    "overwrite": lambda uri: lance.write_dataset(pa.table({"z": [1, 2]}), uri, mode="overwrite"),
    "config": lambda uri: lance.dataset(uri).update_config({"team": "blue", "lance.auto_cleanup.interval": "1000"}),
    "schema metadata": lambda uri: lance.dataset(uri).update_schema_metadata({"who": "them", "ü": "ö"}),
    "table metadata": lambda uri: lance.dataset(uri).update_metadata({"who": "them"}),
    "field metadata": lambda uri: lance.dataset(uri).update_field_metadata({"b": {"unit": "m"}}),
}  # fmt: skip


@pytest.mark.parametrize("stable_row_ids", [False, True], ids=["addresses", "row-ids"])
@pytest.mark.parametrize("change", CHANGES)
def test_we_read_and_append_after_a_change(change: str, stable_row_ids: bool, tmp_path: Path) -> None:
    """Our append preserves the manifest: rows, indices and settings of pylance."""
    uri = str(tmp_path / "table")
    lance.write_dataset(batch_reader(12_000), uri, max_rows_per_file=6000, enable_stable_row_ids=stable_row_ids)
    CHANGES[change](uri)
    check_agreement(uri)
    before = read_by_pylance(uri)
    lineage = read_lineage(uri) if stable_row_ids else None

    table = Table.open(uri)
    more = before.slice(0, 3) if before.num_rows else make_rows(0, 3).select(before.schema.names)
    more = more.cast(table.schema) if more.schema != table.schema else more
    table.append(more)
    check_agreement(uri)
    after = read_by_pylance(uri)
    assert_same_rows(after, pa.concat_tables([before, more.replace_schema_metadata(before.schema.metadata)]))
    if lineage is not None:
        assert_same_rows(read_lineage(uri).slice(0, lineage.num_rows), lineage)

    theirs = lance.write_dataset(more, uri, mode="append")
    check_agreement(uri)
    assert theirs.count_rows() == after.num_rows + more.num_rows
    Table.open(uri).overwrite(more)
    check_agreement(uri)


def read_lineage(uri: str) -> pa.Table:
    names = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    return lance.dataset(uri).to_table(columns=names)


def test_stable_row_ids_equal_those_of_pylance(tmp_path: Path) -> None:
    """Both libraries assign the same ids and versions after create, append, update, compaction and overwrite."""
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    Table.create(ours, make_rows(0, 5), stable_row_ids=True, max_rows_per_file=3)
    lance.write_dataset(make_rows(0, 5), theirs, enable_stable_row_ids=True, max_rows_per_file=3)
    Table.open(ours).append(make_rows(5, 8))
    lance.write_dataset(make_rows(5, 8), theirs, mode="append")
    assert comparable_manifest(ours) == comparable_manifest(theirs)
    for uri in (ours, theirs):
        lance.dataset(uri).update({"c": "-c"}, where="a = 1")
    Table.open(ours).append(make_rows(8, 10))
    lance.write_dataset(make_rows(8, 10), theirs, mode="append")
    assert_same_rows(read_lineage(ours), read_lineage(theirs))
    lance.dataset(ours).optimize.compact_files()
    lance.dataset(theirs).optimize.compact_files()
    Table.open(ours).append(make_rows(10, 12))
    lance.write_dataset(make_rows(10, 12), theirs, mode="append")
    assert_same_rows(read_lineage(ours), read_lineage(theirs))
    Table.open(ours).overwrite(make_rows(0, 2))
    lance.write_dataset(make_rows(0, 2), theirs, mode="overwrite")
    assert_same_rows(read_lineage(ours), read_lineage(theirs))
    assert comparable_manifest(ours) == comparable_manifest(theirs)
    check_agreement(ours)


@pytest.mark.parametrize("index_type", ["BTREE", "BITMAP", "ZONEMAP"])
@pytest.mark.parametrize("stable_row_ids", [False, True], ids=["addresses", "row-ids"])
def test_pylance_uses_its_indices_after_our_append(index_type: IndexType, stable_row_ids: bool, tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    dataset = lance.write_dataset(make_rows(0, 3000), uri, max_rows_per_file=1000, enable_stable_row_ids=stable_row_ids)
    dataset.create_scalar_index("a", index_type)
    before = [describe(index) for index in lance.dataset(uri).describe_indices()]
    Table.open(uri).append(make_rows(2990, 3010))
    dataset = lance.dataset(uri)
    assert [describe(index) for index in dataset.describe_indices()] == before
    assert "ScalarIndexQuery" in dataset.scanner(filter="a = 2995").explain_plan(verbose=True)
    for where in ("a = 2995", "a >= 2998 and a < 3003", "a = 5", "a > 1000000"):
        assert_same_rows(dataset.to_table(filter=where), dataset.to_table(filter=where, use_scalar_index=False))
    assert dataset.count_rows("a = 2995") == 2
    dataset.optimize.optimize_indices()
    check_agreement(uri)
    Table.open(uri).overwrite(make_rows(0, 3))
    assert lance.dataset(uri).describe_indices() == []


def describe(index: object) -> tuple[object, ...]:
    return tuple(getattr(index, name) for name in ("name", "type_url", "num_rows_indexed", "field_names"))


def test_our_commits_preserve_settings_and_tags(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    dataset = lance.write_dataset(make_rows(0, 3), uri)
    dataset.update_config({"team": "blue"})
    dataset.update_metadata({"owner": "ann"})
    dataset.tags.create("first", 1)
    table = Table.open(uri)
    assert (dict(table.config), dict(table.metadata)) == ({"team": "blue"}, {"owner": "ann"})
    table.append(make_rows(3, 5)).table.overwrite(make_rows(0, 1), config={"more": "m"})
    dataset = lance.dataset(uri)
    assert dataset.config() == {"team": "blue", "more": "m"}
    assert dataset.metadata == {"owner": "ann"}
    assert lance.dataset(uri, version="first").count_rows() == 3
    assert dataset.tags.list()["first"]["version"] == 1
    check_agreement(uri)


def test_created_tables_have_an_id_and_the_requested_config(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    table = Table.create(uri, make_rows(0, 1), config={"team": "blue"}, properties={"run": "7"})
    config = lance.dataset(uri).config()
    assert config.pop(TABLE_ID) == table.id
    assert config == {"team": "blue"}
    transaction = lance.dataset(uri).read_transaction(1)
    assert transaction is not None
    assert transaction.uuid == table.id
    assert transaction.transaction_properties == {"run": "7", "lance_assets.verb": "create"}
    theirs = str(tmp_path / "theirs")
    transaction = lance.write_dataset(make_rows(0, 1), theirs).read_transaction(1)
    assert transaction is not None
    assert Table.open(theirs).id == transaction.uuid


def test_columns_are_matched_by_name_and_are_optional(tmp_path: Path) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    for uri in (ours, theirs):
        lance.write_dataset(make_rows(0, 3), uri)
    Table.open(ours).append(make_rows(3, 5).select(["c", "a", "b"]))
    lance.write_dataset(make_rows(3, 5).select(["c", "a", "b"]), theirs, mode="append")
    assert_same_rows(read_by_us(ours), read_by_pylance(theirs))
    Table.open(ours).append(make_rows(5, 7).select(["c", "a"]))
    lance.write_dataset(make_rows(5, 7).select(["c", "a"]), theirs, mode="append")
    assert_same_rows(read_by_us(ours), read_by_pylance(theirs))
    assert_same_rows(read_by_us(theirs), read_by_pylance(ours))
    check_agreement(ours)
    last = lance.dataset(ours).get_fragments()[-1].metadata.files[0]
    assert (last.fields, last.column_indices) == ([0, 2], [0, 1])


def test_v1_manifest_names_are_preserved(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    lance.write_dataset(make_rows(0, 3), uri, enable_v2_manifest_paths=False)
    Table.open(uri).append(make_rows(3, 5)).table.append(make_rows(5, 6))
    names = {path.name for path in Path(uri, "_versions").glob("*.manifest")}
    assert names == {"1.manifest", "2.manifest", "3.manifest"}
    lance.write_dataset(make_rows(6, 7), uri, mode="append")
    check_agreement(uri)
    assert Table.open(uri, version=2).count_rows() == 5
    lance.dataset(uri).migrate_manifest_paths_v2()
    Table.open(uri).append(make_rows(7, 8))
    check_agreement(uri)


def test_mixed_manifest_names_are_refused(tmp_path: Path) -> None:
    uri = tmp_path / "table"
    Table.create(str(uri), make_rows(0, 1))
    (uri / "_versions" / "2.manifest").write_bytes(b"")
    (uri / HINT).unlink()  # a hint of the same instant would replace the listing
    with pytest.raises(Corrupt, match="manifests of both naming schemes"):
        Table.open(str(uri)).append(make_rows(1, 2))


@pytest.mark.parametrize("name", ["1.manifest", "2.manifest", "19.manifest", "3.manifest"])
def test_mixed_names_are_not_written_to(tmp_path: Path, name: str) -> None:
    """The newest version is found without a listing, and a version of the other scheme is not seen then."""
    uri = tmp_path / "table"
    table = Table.create(str(uri), make_rows(0, 1))
    hint = (uri / HINT).stat()
    (uri / "_versions" / name).write_bytes((uri / table.manifest.path).read_bytes())
    os.utime(uri / "_versions", ns=(hint.st_ctime_ns, hint.st_ctime_ns))
    moved = uri.rename(tmp_path / "moved")  # a process that wrote to a table before has looked
    opened = Table.open(str(moved))
    with pytest.raises(Corrupt, match=r"both naming schemes.*migrate_manifest_names"):
        opened.append(make_rows(1, 2))


def test_fragments_with_several_files(tmp_path: Path) -> None:
    """Columns that are added one by one have a file each; a fragment appended later has one file for all columns."""
    uri = str(tmp_path / "table")
    lance.write_dataset(make_rows(0, 10), uri, max_rows_per_file=5)
    lance.dataset(uri).add_columns({"d": "a * 2", "e": "named_struct('x', a, 'y', b)"})
    lance.dataset(uri).add_columns({"f": "c > 2"})
    table = Table.open(uri)
    assert [len(fragment.files) for fragment in table.fragments] == [3, 3]
    table.append(table.to_table().slice(2, 3))
    check_agreement(uri)
    assert table.to_table(["f", "a"]).column_names == ["f", "a"]
    assert_same_rows(
        table.to_table(["e", "c"], limit=4, offset=3),
        lance.dataset(uri, version=3).to_table(["e", "c"], limit=4, offset=3),
    )


def test_batches_of_separately_read_columns_are_aligned(tmp_path: Path) -> None:
    """The table has more rows than a batch, in two files, and columns that the codec reads only one at a time."""
    count = 150_001
    points = pa.StructArray.from_arrays([pa.array(range(2 * count), pa.int32())], ["x"])
    table = pa.table(
        {
            "k": pa.array(range(count), pa.int64()),
            "pairs": pa.FixedSizeListArray.from_arrays(points, 2),
            "text": [f"{value:_^{value % 50}}" for value in range(count)],
            "nothing": pa.array([{}] * count, pa.struct([])),
        }
    )
    uri = str(tmp_path / "table")
    Table.create(uri, table, durable=False)
    lance.dataset(uri).delete("k % 5 = 0")
    lance.dataset(uri).add_columns({"z": "k * 2"})
    kept = table.filter(pa.array([value % 5 != 0 for value in range(count)]))
    stored = read_by_us(uri)
    assert stored.select(table.column_names).equals(kept)
    assert stored["z"].to_pylist() == [2 * value for value in kept["k"].to_pylist()]


def test_files_of_another_storage_version(tmp_path: Path) -> None:
    """A table of version 2.2 with files of version 2.0 has a feature flag that our commits must preserve."""
    uri = str(tmp_path / "table")
    lance.write_dataset(make_rows(0, 3), uri)
    fragments = write_fragments(make_rows(3, 6), str(tmp_path / "other"), data_storage_version="2.0")
    for path in (tmp_path / "other" / "data").iterdir():
        path.rename(Path(uri, "data", path.name))
    lance.LanceDataset.commit(uri, lance.LanceOperation.Append(fragments), read_version=1)
    check_agreement(uri)
    Table.open(uri).append(make_rows(6, 8))
    check_agreement(uri)
    assert Table.open(uri).manifest.message.reader_feature_flags == 256


def test_commits_of_both_libraries_are_rebased(tmp_path: Path) -> None:
    """Our append, planned on an older version, is rebased over pylance's append, and the other way round."""
    uri = str(tmp_path / "table")
    table = Table.create(uri, make_rows(0, 1))
    stale = lance.dataset(uri)
    lance.write_dataset(make_rows(1, 2), uri, mode="append")
    committed = table.append(make_rows(2, 3))
    assert (committed.version, committed.rebased_over) == (3, (2,))
    stale_append = write_fragments(make_rows(3, 4), uri)
    lance.LanceDataset.commit(stale, lance.LanceOperation.Append(stale_append), read_version=1)
    check_agreement(uri)
    assert read_by_us(uri)["a"].to_pylist() == [0, 1, 2, 3]


def test_we_commit_fragments_that_pylance_wrote(tmp_path: Path) -> None:
    """A data file that an executor of another library wrote is interchangeable with ours."""
    uri = str(tmp_path / "table")
    table = Table.create(uri, make_rows(0, 1))
    (written,) = write_fragments(make_rows(1, 4), uri)
    (theirs,) = written.files
    file = DataFile.of(
        path=theirs.path,
        field_ids=theirs.fields,
        column_indices=theirs.column_indices,
        version=StorageVersion(theirs.file_major_version, theirs.file_minor_version),
        size=theirs.file_size_bytes or 0,
    )
    committed = table.commit(Append((Fragment.of(files=[file], physical_rows=written.physical_rows),)))
    assert (committed.version, committed.rows_added, committed.files) == (2, 3, 1)
    check_agreement(uri)


@pytest.mark.parametrize("location", ["transaction_section", "legacy_transaction_section", "transaction_file"])
def test_transaction_is_read_from_every_location(location: str, tmp_path: Path) -> None:
    """The transaction is inline in either of two fields, or only in its own file."""
    uri = str(tmp_path / "table")
    table = Table.create(uri, make_rows(0, 1), properties={"where": location})
    manifest = table.manifest
    message = manifest.copy_header()
    position = message.transaction_section
    message.ClearField("transaction_section")
    if location != "transaction_file":
        setattr(message, location, position)
    path = Path(uri, manifest.path)
    head = path.read_bytes()[: FOOTER.unpack(path.read_bytes()[-FOOTER.size :])[0]]
    body = message.SerializeToString()
    path.write_bytes(head + len(body).to_bytes(4, "little") + body + FOOTER.pack(len(head), 0, 2, b"LANC"))
    stored = Table.open(uri).transaction()
    assert stored is not None
    assert stored.properties == {"where": location}
    check_agreement(uri)


def test_the_oldest_storage_version_is_read_only(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    lance.write_dataset(make_rows(0, 3), uri, data_storage_version="legacy")
    check_agreement(uri)
    with pytest.raises(Unsupported, match=r"storage version 0\.1"):
        Table.open(uri).append(make_rows(3, 4))
    check_agreement(uri)


def test_refused_append_changes_nothing(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    table = Table.create(uri, make_rows(0, 1))
    with pytest.raises(SchemaMismatch) as caught:
        table.append(pa.table({"a": ["text"]}))
    assert (caught.value.column, caught.value.expected, caught.value.got) == ("a", "int64", "string")
    assert history_by_pylance(uri) == [(1, "Overwrite", 0, 1)]
