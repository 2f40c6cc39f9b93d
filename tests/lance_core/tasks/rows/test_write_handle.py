"""Write handle: a write that begins in one process and finishes in another is one write."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import ConflictError, SchemaMismatch, Table
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.tasks.rows.write import PlannedWrite, begin_append, begin_overwrite
from lance_core.tasks.rows.write_handle import WriteHandle, combine_results

ROWS = pa.table({"id": pa.array(range(10), pa.int64())})


def begin_and_pickle(uri: str, *, replaces: bool = False, intent: str | None = None) -> WriteHandle:
    if replaces:
        planned = begin_overwrite(uri, ROWS.schema, replace_schema=False, intent=intent, limits=FileLimits())
    else:
        planned = begin_append(uri, ROWS.schema, create=True, intent=intent, limits=FileLimits())
    assert isinstance(planned, PlannedWrite)
    found: WriteHandle = pickle.loads(pickle.dumps(WriteHandle.of(planned)))
    return found


def test_a_write_creates_and_extends_a_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for version in (1, 2):
        write = begin_and_pickle(uri)
        results = [write.write_batches(ROWS.to_batches()), write.write_batches([])]
        assert write.to_planned_write().finish(combine_results(results)).version == version
    assert Table.open(uri).count_rows() == 20
    assert Table.open(uri).fsck().is_sound


def test_a_repeated_finish_commits_one_version(tmp_path: Path) -> None:
    """A commit is repeated because its response was lost."""
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS)
    write = begin_and_pickle(uri)
    results = [write.write_batches(ROWS.to_batches())]
    first = write.to_planned_write().finish(combine_results(results))
    Table.open(uri).append(ROWS)
    again = write.to_planned_write().finish(combine_results(results))
    assert (first.version, again.version, again.already_committed) == (2, 2, True)
    assert Table.open(uri).count_rows() == 30


def test_a_write_conflicts_with_changes_since_its_begin(tmp_path: Path) -> None:
    """The rows were written for the schema at the begin of the write, which another writer has replaced since."""
    uri = str(tmp_path / "t")
    table = Table.create(uri, ROWS)
    write = begin_and_pickle(uri)
    results = [write.write_batches(ROWS.to_batches())]
    table.overwrite(pa.table({"other": ["x"]}), intent="another")
    with pytest.raises(ConflictError):
        write.to_planned_write().finish(combine_results(results))


def test_an_overwrite_with_an_intent(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS)
    write = begin_and_pickle(uri, replaces=True, intent="monday")
    committed = write.to_planned_write().finish(
        combine_results([write.write_batches(ROWS.slice(3).to_batches())]), properties={"a": "b"}
    )
    assert (committed.version, committed.table.count_rows()) == (2, 7)
    repeated = begin_overwrite(uri, ROWS.schema, replace_schema=False, intent="monday", limits=FileLimits())
    assert not isinstance(repeated, PlannedWrite)
    assert (repeated.version, repeated.already_committed) == (2, True)


def test_an_error_is_raised_by_finish(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, pa.table({"id": pa.array([1], pa.int8())}))
    write = begin_and_pickle(uri)
    with pytest.raises(SchemaMismatch, match="id"):
        write.to_planned_write().finish(combine_results([write.write_batches(pa.table({"id": [1000]}).to_batches())]))
