"""Detached versions: versions outside every branch, compared with those of pylance."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import IncompatibleConflict, InvalidInput, NotFound, Table
from lance_core.operations import Append, Fragment, Overwrite, TableSchema
from tests.lance_core.versions.test_refs import ids, rows


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), rows(1), stable_row_ids=request.param)


def write_fragments(table: Table, *numbers: int) -> tuple[Fragment, ...]:
    """Return a fragment whose file exists and which only a detached version references."""
    fragments = lance.fragment.write_fragments(rows(*numbers), table.uri)
    message = lance.LanceDataset.commit(
        table.uri, lance.LanceOperation.Append(fragments), read_version=1, detached=True
    )
    operation = table.transaction(message.version).operation  # type: ignore[union-attr]
    assert isinstance(operation, Append)
    return operation.fragments


def test_a_detached_version_is_found_by_its_number_alone(table: Table) -> None:
    done = table.commit(Append(write_fragments(table, 2)), detached=True)
    assert done.version >= 2**63
    assert (done.rows_added, done.operation, done.already_committed) == (1, "Append", False)
    assert ids(done.table) == ids(Table.open(table.uri, version=done.version)) == [1, 2]
    assert lance.dataset(table.uri, version=done.version).to_table()["id"].to_pylist() == [1, 2]
    assert (Path(table.uri) / f"_versions/d{done.version}.manifest").exists()
    assert table.refresh().version == lance.dataset(table.uri).version == 1
    assert [info.version for info in table.versions()] == [1]


def test_a_detached_version_is_no_base_of_a_write(table: Table) -> None:
    detached = table.commit(Append(write_fragments(table, 2)), detached=True).table
    for write in (
        lambda: detached.append(rows(3)),
        lambda: detached.delete("id = 1"),
        lambda: detached.overwrite(rows(3)),
        lambda: detached.restore(1),
        lambda: detached.commit(Append(()), detached=True),
        lambda: detached.branches.create("dev"),
        lambda: detached.clone(detached.uri + "-c"),
    ):
        with pytest.raises(InvalidInput, match="is detached and cannot be the base of a write"):
            write()
    assert lance.dataset(table.uri).version == 1


def test_publishing_commits_once(table: Table) -> None:
    detached = table.commit(Append(write_fragments(table, 2)), detached=True, properties={"by": "test"})
    table.append(rows(9))
    done = table.publish(detached.version)
    assert (done.version, done.rows_added, done.rebased_over) == (3, 1, (2,))
    assert ids(done.table) == lance.dataset(table.uri).to_table()["id"].to_pylist() == [1, 9, 2]
    assert table.refresh().transaction().properties == {"by": "test"}  # type: ignore[union-attr]
    again = table.publish(detached.version)
    assert (again.version, again.already_committed) == (3, True)


def test_publishing_detects_conflicts(table: Table) -> None:
    detached = table.commit(Append(write_fragments(table, 2)), detached=True)
    table.overwrite(rows(5))
    with pytest.raises(IncompatibleConflict, match="conflicts with the Overwrite"):
        table.publish(detached.version)


def test_a_detached_version_of_pylance_is_published(table: Table) -> None:
    """pylance leaves the metadata of a schema out of the transaction; the manifest has it."""
    data = rows(7).replace_schema_metadata({"unit": "m"})
    fragments = lance.fragment.write_fragments(data, table.uri, mode="overwrite", schema=data.schema)
    overwrite = lance.LanceOperation.Overwrite(data.schema, fragments)
    detached = lance.LanceDataset.commit(table.uri, overwrite, read_version=1, detached=True)
    assert Table.open(table.uri, version=detached.version).schema.metadata == {b"unit": b"m"}
    done = table.publish(detached.version).table
    assert (ids(done), done.schema.metadata) == ([7], {b"unit": b"m"})
    assert lance.dataset(table.uri).schema.metadata == {b"unit": b"m"}


def test_a_detached_version_on_another_is_read_and_not_published(table: Table) -> None:
    fragments = lance.fragment.write_fragments(rows(2), table.uri)
    append = lance.LanceOperation.Append(fragments)
    first = lance.LanceDataset.commit(table.uri, append, read_version=1, detached=True)
    second = lance.LanceDataset.commit(first, append, read_version=first.version, detached=True)
    assert ids(Table.open(table.uri, version=second.version)) == [1, 2, 2]
    with pytest.raises(InvalidInput, match="which is detached too"):
        table.publish(second.version)


def test_arguments_that_cannot_be_published(table: Table) -> None:
    with pytest.raises(InvalidInput, match="is not detached"):
        table.publish(1)
    with pytest.raises(NotFound, match=f"has no version {2**63 + 5}"):
        table.publish(2**63 + 5)
    with pytest.raises(InvalidInput, match="intent= does not apply to a detached version"):
        table.commit(Append(()), detached=True, intent="once")


def test_a_detached_overwrite_is_published(table: Table) -> None:
    schema = TableSchema.from_arrow(pa.schema([pa.field("id", pa.int64())]))
    detached = table.commit(Overwrite(write_fragments(table, 3), schema), detached=True)
    assert ids(detached.table) == [3]
    assert ids(table.publish(detached.version).table) == [3]
