"""Versions beside the line, beside pylance's."""

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


def written(table: Table, *numbers: int) -> tuple[Fragment, ...]:
    """A fragment whose file is there and in no version."""
    fragments = lance.fragment.write_fragments(rows(*numbers), table.uri)
    message = lance.LanceDataset.commit(
        table.uri, lance.LanceOperation.Append(fragments), read_version=1, detached=True
    )
    operation = table.transaction(message.version).operation  # type: ignore[union-attr]
    assert isinstance(operation, Append)
    return operation.fragments


def test_a_detached_version_is_found_by_its_number_alone(table: Table) -> None:
    done = table.commit(Append(written(table, 2)), detached=True)
    assert done.version >= 2**63
    assert (done.rows_added, done.operation, done.already_committed) == (1, "Append", False)
    assert ids(done.table) == ids(Table.open(table.uri, version=done.version)) == [1, 2]
    assert lance.dataset(table.uri, version=done.version).to_table()["id"].to_pylist() == [1, 2]
    assert (Path(table.uri) / f"_versions/d{done.version}.manifest").exists()
    assert table.refresh().version == lance.dataset(table.uri).version == 1
    assert [info.version for info in table.versions()] == [1]


def test_nothing_is_written_upon_one(table: Table) -> None:
    beside = table.commit(Append(written(table, 2)), detached=True).table
    for write in (
        lambda: beside.append(rows(3)),
        lambda: beside.delete("id = 1"),
        lambda: beside.overwrite(rows(3)),
        lambda: beside.restore(1),
        lambda: beside.commit(Append(()), detached=True),
        lambda: beside.branches.create("dev"),
        lambda: beside.clone(beside.uri + "-c"),
    ):
        with pytest.raises(InvalidInput, match="is detached and cannot be the base of a write"):
            write()
    assert lance.dataset(table.uri).version == 1


def test_publishing_lands_once(table: Table) -> None:
    beside = table.commit(Append(written(table, 2)), detached=True, properties={"by": "test"})
    table.append(rows(9))
    done = table.publish(beside.version)
    assert (done.version, done.rows_added, done.rebased_over) == (3, 1, (2,))
    assert ids(done.table) == lance.dataset(table.uri).to_table()["id"].to_pylist() == [1, 9, 2]
    assert table.refresh().transaction().properties == {"by": "test"}  # type: ignore[union-attr]
    again = table.publish(beside.version)
    assert (again.version, again.already_committed) == (3, True)


def test_what_came_between_is_judged(table: Table) -> None:
    beside = table.commit(Append(written(table, 2)), detached=True)
    table.overwrite(rows(5))
    with pytest.raises(IncompatibleConflict, match="conflicts with the Overwrite"):
        table.publish(beside.version)


def test_theirs_are_published(table: Table) -> None:
    """pylance leaves the metadata of a schema out of the transaction; the version has it."""
    data = rows(7).replace_schema_metadata({"unit": "m"})
    fragments = lance.fragment.write_fragments(data, table.uri, mode="overwrite", schema=data.schema)
    overwrite = lance.LanceOperation.Overwrite(data.schema, fragments)
    beside = lance.LanceDataset.commit(table.uri, overwrite, read_version=1, detached=True)
    assert Table.open(table.uri, version=beside.version).schema.metadata == {b"unit": b"m"}
    done = table.publish(beside.version).table
    assert (ids(done), done.schema.metadata) == ([7], {b"unit": b"m"})
    assert lance.dataset(table.uri).schema.metadata == {b"unit": b"m"}


def test_one_built_on_another_is_read_and_not_published(table: Table) -> None:
    fragments = lance.fragment.write_fragments(rows(2), table.uri)
    append = lance.LanceOperation.Append(fragments)
    first = lance.LanceDataset.commit(table.uri, append, read_version=1, detached=True)
    second = lance.LanceDataset.commit(first, append, read_version=first.version, detached=True)
    assert ids(Table.open(table.uri, version=second.version)) == [1, 2, 2]
    with pytest.raises(InvalidInput, match="which is detached too"):
        table.publish(second.version)


def test_what_cannot_be_published_is_said(table: Table) -> None:
    with pytest.raises(InvalidInput, match="is not detached"):
        table.publish(1)
    with pytest.raises(NotFound, match=f"has no version {2**63 + 5}"):
        table.publish(2**63 + 5)
    with pytest.raises(InvalidInput, match="intent= does not apply to a detached version"):
        table.commit(Append(()), detached=True, intent="once")


def test_a_detached_overwrite_restarts_nothing(table: Table) -> None:
    schema = TableSchema.from_arrow(pa.schema([pa.field("id", pa.int64())]))
    beside = table.commit(Overwrite(written(table, 3), schema), detached=True)
    assert ids(beside.table) == [3]
    assert ids(table.publish(beside.version).table) == [3]
