"""Changes of tables with blobs: after each operation pylance and this library read the same bytes, for both blob
encodings.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
import pytest

from lance_core import Committed, InvalidInput, SchemaMismatch, Table
from lance_core.tasks.rows.write import RESULT, FileLimits, PlannedWrite, WriteTask, begin_append
from lance_core.tasks.scan.read import ReadTask, VersionRef, plan_read
from tests.lance_core.in_memory_table import clean_up

VERSIONS = ["2.0", "2.1", "2.2"]
COLUMN = pa.field("film", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
SCHEMA = pa.schema([pa.field("id", pa.int64()), COLUMN, pa.field("title", pa.string())])
BLOBS = [b"small", None, b"", b"m" * 70_000, b"n" * 80_000, b"L" * 5_000_000, b"again"]
Row = tuple[int, bytes | None, str | None]
Rows = list[Row]


def films(ids: range, blobs: list[bytes | None] | None = None) -> pa.Table:
    return pa.table([ids, blobs or BLOBS, [f"film {row}" for row in ids]], schema=SCHEMA)


def rows_of(ids: range) -> Rows:
    return [(row, blob, f"film {row}") for row, blob in zip(ids, BLOBS, strict=True)]


@pytest.fixture(params=[(writer, version) for writer in ("ours", "theirs") for version in VERSIONS])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """A table with two fragments of seven rows."""
    writer, version = request.param
    path = str(tmp_path / "t")
    if writer == "ours":
        return Table.create(path, films(range(7)), storage_version=version).append(films(range(10, 17))).table
    lance.write_dataset(films(range(7)), path, data_storage_version=version)
    lance.write_dataset(films(range(10, 17)), path, mode="append")
    return Table.open(path)


def is_v2(table: Table) -> bool:
    return str(table.manifest.storage_version) == "2.2"


def check(table: Table, expected: Rows, column: str = "film", *, pylance_finds: bool = True) -> None:
    """Compare the rows by id, since some operations change their order."""
    count = table.count_rows()
    blobs = [None if blob is None else blob.read() for blob in table.blobs(column, range(count))]
    observed = table.to_table(["id", "title"]).to_pydict()
    assert sorted(zip(observed["id"], blobs, observed["title"], strict=True)) == sorted(expected)
    dataset = lance.dataset(table.uri, version=table.version)
    if pylance_finds:
        theirs = dataset.take_blobs(column, indices=list(range(count)))
        assert [None if blob is None else blob.readall() for blob in theirs] == blobs
    assert table.to_table().equals(dataset.to_table())
    assert not [finding for finding in table.fsck().findings if finding.severity.value == "error"]


def changed(rows: Rows, change: Callable[[Row], Row | None]) -> Rows:
    return [after for row in rows if (after := change(row)) is not None]


EVERYTHING = rows_of(range(7)) + rows_of(range(10, 17))


def test_update_of_other_columns(table: Table) -> None:
    """Rows that change move with their blobs; if all rows change, only the column is written."""
    few = table.update({"title": "'new'"}, "id IN (3, 5, 11, 12)").table
    check(few, changed(EVERYTHING, lambda row: (row[0], row[1], "new") if row[0] in (3, 5, 11, 12) else row))
    every = few.update({"title": "concat('t', cast(id as string))"}).table
    check(every, changed(EVERYTHING, lambda row: (row[0], row[1], f"t{row[0]}")))


def test_update_of_blobs(table: Table) -> None:
    after = table.update({"film": "CASE WHEN id = 3 THEN X'0102' ELSE NULL END"}, "id IN (3, 5)").table
    new = {3: b"\x01\x02", 5: None}
    check(after, changed(EVERYTHING, lambda row: (row[0], new.get(row[0], row[1]), row[2])))


def test_rows_by_a_condition_on_blobs(table: Table) -> None:
    if str(table.manifest.storage_version) == "2.0":
        with pytest.raises(InvalidInput, match="the condition reads 'film', a blob column"):
            table.delete("film IS NULL")
        with pytest.raises(InvalidInput, match="the condition reads 'film', a blob column"):
            table.update({"id": "0"}, "film IS NULL")
        return
    check(table.delete("film IS NULL").table, changed(EVERYTHING, lambda row: row if row[1] is not None else None))
    check(table.refresh().restore(table.version).table, EVERYTHING)
    large = table.refresh().update({"title": "'large'"}, "film.size > 60000").table
    check(large, changed(EVERYTHING, lambda row: (*row[:2], "large") if row[1] and len(row[1]) > 60_000 else row))


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_compaction(version: str, stable: bool, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), films(range(7)), storage_version=version, stable_row_ids=stable)
    table = table.append(films(range(10, 17))).table.delete("id IN (0, 4, 11, 16)").table
    expected = changed(EVERYTHING, lambda row: None if row[0] in (0, 4, 11, 16) else row)
    ids = table.to_table(["id", "_rowid"])
    after = table.compact(target_rows=100).table
    assert len(after.fragments) == 1
    check(after, expected)
    assert not stable or after.to_table(["id", "_rowid"]).equals(ids)


def test_pylance_compacts_and_restores_what_we_wrote(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), films(range(7))).append(films(range(10, 17))).table
    lance.dataset(table.uri).optimize.compact_files()
    check(table.refresh(), EVERYTHING)
    lance.dataset(table.uri, version=1).restore()
    check(table.refresh(), rows_of(range(7)))


def test_upsert(table: Table) -> None:
    news = films(range(5, 12), [b"a", None, b"c" * 100_000, b"", b"e", b"f", b"g" * 5_000_000])
    expected = {row[0]: row for row in EVERYTHING} | {
        row: (row, blob, f"film {row}") for row, blob in zip(range(5, 12), news["film"].to_pylist(), strict=True)
    }
    after = table.upsert(news, on="id").table
    check(after, list(expected.values()))
    part = after.upsert(news.select(["id", "film"]).slice(0, 1), on="id", insert=False).table
    check(part, list(expected.values()))
    missing = part.upsert(news.slice(0, 2), on="id", matched="ignore", insert=False, delete_unmatched=True).table
    check(missing, [expected[5], expected[6]])


def test_new_columns_of_blobs(table: Table) -> None:
    second = COLUMN.with_name("second")

    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        values = [None if row % 2 else b"x" * row * 10_000 for row in batch["id"].to_pylist()]
        return pa.record_batch([pa.array(values, pa.large_binary())], schema=pa.schema([second]))

    table = table.delete("id IN (1, 2, 16)").table
    remaining = changed(EVERYTHING, lambda row: None if row[0] in (1, 2, 16) else row)
    after = table.add_columns(compute, read_columns=["id"]).table
    expected = changed(remaining, lambda row: (row[0], None if row[0] % 2 else b"x" * row[0] * 10_000, row[2]))
    check(after, remaining)
    check(after, expected, "second")
    after = after.compact(target_rows=100).table
    check(after, expected, "second")
    third = after.merge_columns(
        pa.table([[3, 10], [b"three", b"ten"]], schema=pa.schema([SCHEMA.field("id"), COLUMN.with_name("third")])), "id"
    ).table
    joined = {3: b"three", 10: b"ten"}
    check(third, changed(remaining, lambda row: (row[0], joined.get(row[0]), row[2])), "third")


def test_columns_computed_from_blobs(table: Table) -> None:
    after = table.add_columns({"is_there": "film IS NOT NULL"}).table
    assert after.to_table(["is_there"])["is_there"].to_pylist() == [blob is not None for blob in BLOBS] * 2

    def lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
        actual = [row["film"] for row in batch.to_pylist()]
        values = [each["data"] if isinstance(each, dict) else each for each in actual]
        return pa.RecordBatch.from_pydict({"bytes": [None if each is None else len(each) for each in values]})

    after = after.add_columns(lengths, read_columns=["film"]).table
    assert after.to_table(["bytes"])["bytes"].to_pylist() == [None if blob is None else len(blob) for blob in BLOBS] * 2


@pytest.mark.parametrize("version", VERSIONS)
def test_a_blob_column_without_values(version: str, tmp_path: Path) -> None:
    """The column is added without a file and then written to; pylance declares v1 where only v2 can be stored."""
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [0], "title": ["film 0"]}), storage_version=version)
    table = table.add_columns(COLUMN).table
    assert table.blobs("film", [0]) == [None]
    table = table.append(films(range(1, 8))).table
    check(table.compact(target_rows=10).table, [(0, None, "film 0"), *rows_of(range(1, 8))])


def test_columns_are_reordered_and_dropped(table: Table) -> None:
    renamed = table.alter_column("film", rename="movie").table.reorder_columns(["title", "movie", "id"]).table
    check(renamed, EVERYTHING, "movie")
    check(renamed.compact(target_rows=100).table, EVERYTHING, "movie")
    missing = renamed.refresh().drop_columns(["title"]).table
    assert [None if blob is None else blob.read() for blob in missing.blobs("movie", range(7))] == BLOBS
    missing = missing.drop_columns(["movie"]).table
    assert missing.to_table().equals(lance.dataset(table.uri).to_table())


def test_nullability_and_type(table: Table) -> None:
    with pytest.raises(InvalidInput, match="column 'film' contains nulls"):
        table.alter_column("film", nullable=False)
    table = table.delete("id IN (1, 11)").table
    strict = table.alter_column("film", nullable=False).table
    check(strict, changed(EVERYTHING, lambda row: row if row[1] is not None else None))
    with pytest.raises((InvalidInput, SchemaMismatch), match="not null"):
        strict.append(films(range(20, 27)))
    for arrow in (pa.string(), pa.large_binary()):
        with pytest.raises(InvalidInput, match="column 'film' stores blobs and cannot become"):
            strict.alter_column("film", type=arrow)


def test_overwrite_restore_and_branches(table: Table) -> None:
    over = table.overwrite(films(range(7))).table
    check(over, rows_of(range(7)))
    check(over.restore(table.version).table, EVERYTHING)
    branch = table.branches.create("trial")
    branch = branch.append(films(range(20, 27))).table
    count = branch.count_rows()
    assert [blob and blob.read() for blob in branch.blobs("film", range(count))] == [*BLOBS, *BLOBS, *BLOBS]


@pytest.mark.parametrize("shallow", [True, False])
def test_clones(table: Table, shallow: bool, tmp_path: Path) -> None:
    """A shallow clone reads blobs of its source, a deep clone does not; both read them after a compaction. pylance
    looks for v1 blobs in the shallow clone, even if it created the clone itself.
    """
    clone = table.clone(str(tmp_path / "clone"), shallow=shallow)
    finds = is_v2(table) or not shallow
    check(clone, EVERYTHING, pylance_finds=finds)
    clone = clone.append(films(range(20, 27))).table
    check(clone, EVERYTHING + rows_of(range(20, 27)), pylance_finds=finds)
    own = clone.compact(target_rows=100).table
    if not shallow:
        (tmp_path / "t").rename(tmp_path / "elsewhere")
        check(clone, EVERYTHING + rows_of(range(20, 27)))
    check(own, EVERYTHING + rows_of(range(20, 27)))


def sidecars(table: Table) -> set[str]:
    return {str(path.relative_to(table.uri)) for path in Path(table.uri).glob("data/*/*.blob")}


def test_cleanup_keeps_files_of_blobs_with_their_data_files(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), films(range(7))).append(films(range(10, 17))).table
    before = sidecars(table)
    assert len(before) == 4
    after = table.compact(target_rows=100).table
    assert sidecars(after) > before
    report = clean_up(after)
    assert before <= set(report.files)
    assert sidecars(after).isdisjoint(before)
    assert [each for each in after.fsck().findings if each.rule == "orphan"] == []
    check(after, EVERYTHING)


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_fsck_finds_missing_and_truncated_blobs(version: Literal["2.1", "2.2"], tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), films(range(7)), storage_version=version)
    if version == "2.2":
        alone, packed = sorted((tmp_path / "t").glob("data/*/*.blob"))
        alone.rename(alone.with_suffix(".aside"))
        packed.write_bytes(packed.read_bytes()[:-1])
        actual = {each.path: each.what for each in table.fsck().findings if each.rule == "blob_file"}
        assert actual == {
            str(alone.relative_to(table.uri)): "it does not exist, but column 'film' has 1 blobs in it",
            str(packed.relative_to(table.uri)): (
                "it has 149999 bytes, but blobs of column 'film' extend to byte 150000"
            ),
        }
    else:
        assert table.fsck().findings == ()


def test_an_intent_keeps_files_of_blobs(tmp_path: Path) -> None:
    """The intent is committed once for any number of repetitions, and none of its files is an orphan."""
    table = Table.create(str(tmp_path / "t"), films(range(7)))
    first: Committed = table.append(films(range(10, 17)), intent="films")
    again = table.append(films(range(10, 17)), intent="films")
    assert (again.version, again.already_committed) == (first.version, True)
    assert len(sidecars(table)) == 4
    check(again.table, EVERYTHING)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_changed(version: str, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), films(range(7)), storage_version=version, stable_row_ids=True)
    after = table.append(films(range(10, 17))).table.update({"title": "'new'"}, "id = 3").table
    actual = after.changes(table.version)
    assert sorted(actual["id"].to_pylist()) == [3, 10, 11, 12, 13, 14, 15, 16]
    assert actual.schema.field("film") == after.to_table().schema.field("film")


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_workers(version: str, tmp_path: Path) -> None:
    """Blob bytes travel from the engine to the table; their locations travel back."""
    uri = str(tmp_path / "t")
    Table.create(uri, films(range(7)), storage_version=version)
    incoming = films(range(10, 17)).cast(pa.schema([SCHEMA.field("id"), ("film", pa.binary()), SCHEMA.field("title")]))
    plan = begin_append(uri, incoming.schema, create=False, intent=None, limits=FileLimits())
    assert isinstance(plan, PlannedWrite)
    table = plan.finish(pa.Table.from_batches(WriteTask(plan.plan)(incoming.to_batches()), RESULT)).table
    check(table, EVERYTHING)
    reading = plan_read(VersionRef(uri).snapshot(), transport=without_unsigned_integers, slots=1)
    batches = ReadTask(reading)([pa.RecordBatch.from_pydict({"id": [0]})])
    assert pa.Table.from_batches(batches).to_pylist() == table.to_table().to_pylist()


def without_unsigned_integers(schema: pa.Schema) -> pa.Schema:
    """Replace unsigned integers, which Spark lacks, by wider signed ones."""
    types = {pa.uint8(): pa.int16(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}

    def wider(arrow: pa.DataType) -> pa.DataType:
        return (
            pa.struct([(f.name, wider(f.type)) for f in arrow])
            if pa.types.is_struct(arrow)
            else types.get(arrow, arrow)
        )

    return pa.schema([(field.name, wider(field.type)) for field in schema])


def test_a_table_created_by_workers(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    plan = begin_append(uri, SCHEMA, create=True, intent=None, limits=FileLimits())
    assert isinstance(plan, PlannedWrite)
    result = pa.Table.from_batches(WriteTask(plan.plan)(films(range(7)).to_batches()), RESULT)
    check(plan.finish(result).table, rows_of(range(7)))
