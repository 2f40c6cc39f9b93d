"""Branch creation: a write to a branch that does not exist says how to create it, or creates it."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets import LanceTable, WriteContext, lance_table
from lance_assets.writes.branch_creation import ensure_branch
from lance_core import NotFound, Table
from tests.lance_assets.instances import events, run
from tests.lance_assets.writes.arrow_writes import ArrowAppend

ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


def rows(ctx: WriteContext) -> pa.Table:
    return ROWS


def declare(folder: Path, *, create: bool) -> LanceTable:
    write = ArrowAppend("w", rows, branch="dev", create_branch=create)
    return lance_table("t", uri=str(folder / "t.lance"), writes=[write], branches=["dev"])


def reason(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    return str(failure.step_failure_data.user_failure_data)


def test_the_error_says_how_to_create_the_branch(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare(tmp_path, create=False)
    assert "write to its main branch first" in reason(run(table, "w", instance, None, raise_on_error=False))
    Table.create(table.uri, ROWS, durable=False)
    refused = reason(run(table, "w", instance, None, raise_on_error=False))
    assert (
        f"declare the write with create_branch=True, or call Table.open('{table.uri}').branches.create('dev')"
        in refused
    )
    assert not Table.open(table.uri).branches.list()


def test_the_branch_is_created_once(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    table = declare(tmp_path, create=True)
    Table.create(table.uri, ROWS, durable=False).append(ROWS)
    for expected in (6, 8):
        assert run(table, "w", instance, None).success
        assert Table.open(table.uri, branch="dev").count_rows() == expected
    (branch,) = Table.open(table.uri).branches.list().values()
    assert branch.parent_version == 2
    assert len(events(instance, table.branch("dev").key)) == 3  # the first version of the branch, and two appends


def test_another_run_may_create_it_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = declare(tmp_path, create=True)
    Table.create(table.uri, ROWS, durable=False)
    ledger, log = table.ledger_of("dev"), dg.build_asset_context().log
    exists = iter([False, True])
    monkeypatch.setattr(type(ledger), "exists", lambda self: next(exists))
    Table.open(table.uri).branches.create("dev")
    ensure_branch(ledger, create=True, log=log)  # it raises nothing
    monkeypatch.setattr(type(ledger), "exists", lambda self: False)
    with pytest.raises(NotFound, match="has no branch 'dev'"):
        ensure_branch(ledger, create=False, log=log)
