"""Operator job: each action changes the table once, and its versions are on the ledger with their checks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets import LanceTable, RowCount, WriteContext, lance_table
from lance_core import Table
from tests.lance_assets.instances import events, instance_in, metadata_values, run
from tests.lance_assets.writes.arrow_writes import ArrowAppend

ROWS = pa.table({"id": [1, 2]})
QUIET = {"console": {"config": {"log_level": "CRITICAL"}}}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with instance_in(tmp_path) as opened:
        yield opened


def rows(ctx: WriteContext) -> pa.Table:
    return ROWS


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    uri = str(tmp_path / "t.lance")
    created = Table.create(uri, ROWS, durable=False)
    created.branches.create("dev")
    created.append(ROWS).table.append(ROWS)
    writes = [ArrowAppend("w", rows, audit=[RowCount(max=6)])]
    return lance_table("t", uri=uri, key_prefix="lake", writes=writes, checks=[RowCount(max=7)], branches=["dev"])


def operate(
    table: LanceTable, instance: dg.DagsterInstance, action: dict[str, Any], **more: Any
) -> dg.ExecuteInProcessResult:
    raise_on_error = more.pop("raise_on_error", True)
    config = {"ops": {"operation": {"config": {"action": action, **more}}}, "loggers": QUIET}
    job = dg.Definitions.merge(
        table.defs, dg.Definitions(resources={"spark": dg.ResourceDefinition.none_resource()})
    ).resolve_job_def("lance_operate__lake_t")
    return job.execute_in_process(config, instance=instance, raise_on_error=raise_on_error)


def failure_of(result: dg.ExecuteInProcessResult) -> tuple[str, dict[str, Any]]:
    (event,) = [each for each in result.all_events if each.is_step_failure]
    failure = event.step_failure_data.user_failure_data
    assert failure is not None
    assert failure.description is not None
    return failure.description, {name: value.value for name, value in failure.metadata.items()}


def test_tags_are_created_moved_and_deleted(table: LanceTable, instance: dg.DagsterInstance) -> None:
    def tags() -> dict[str, tuple[str | None, int]]:
        return {name: (tag.branch, tag.version) for name, tag in Table.open(table.uri).tags.list().items()}

    operate(table, instance, {"tag": {"tag": "first", "version": 1}})
    operate(table, instance, {"tag": {"tag": "first", "version": 1}})  # again: the same tag
    operate(table, instance, {"promote": {"tag": "live", "version": 2}})
    assert tags() == {"first": (None, 1), "live": (None, 2)}
    taken, _ = failure_of(operate(table, instance, {"tag": {"tag": "first", "version": 2}}, raise_on_error=False))
    assert "first" in taken
    moved = operate(table, instance, {"promote": {"tag": "live"}})
    operate(table, instance, {"promote": {"tag": "next"}}, branch="dev")
    operate(table, instance, {"delete_tag": {"tag": "first"}})
    assert tags() == {"live": (None, 3), "next": ("dev", 1)}
    (output,) = [each for each in moved.all_events if each.is_successful_output]
    values = {name: value.value for name, value in output.step_output_data.metadata.items()}
    assert values == {"lance/tag": "live", "lance/version": 3, "lance/version_before": 2}


@pytest.mark.parametrize("target", [{"version": 1}, {"tag": "first"}], ids=str)
def test_a_rollback_is_recorded(table: LanceTable, instance: dg.DagsterInstance, target: dict[str, Any]) -> None:
    Table.open(table.uri).tags.create("first", 1)
    ran = operate(table, instance, {"roll_back": target})
    head = Table.open(table.uri)
    assert (head.version, head.count_rows()) == (4, 2)
    assert head.version_info().properties["dagster.run_id"] == ran.run_id
    *_, (run_id, event) = events(instance, table.key)
    assert (run_id, event.partition, metadata_values(event)["lance/action"]) == (ran.run_id, "v0000000004", "restore")
    assert len(events(instance, table.key)) == 4
    stored = instance.get_run_by_id(ran.run_id)
    assert stored is not None
    assert stored.tags["lance/lake.t"] == "v0000000004"


def test_a_refused_version_is_published(table: LanceTable, instance: dg.DagsterInstance) -> None:
    """Its checks are evaluated, and the version names the run that wrote it and the one that published it."""
    refused = run(table, "w", instance, None, raise_on_error=False)
    _, metadata = failure_of(refused)
    assert Table.open(table.uri).version == 3
    published = operate(table, instance, {"publish": {"detached_version": metadata["lance/detached_version"]}})
    head = Table.open(table.uri)
    assert (head.version, head.count_rows()) == (4, 8)
    assert head.version_info().properties["dagster.run_id"] == refused.run_id
    *_, (run_id, event) = events(instance, table.key)
    assert (run_id, event.partition) == (published.run_id, "v0000000004")
    (evaluation,) = [each for each in published.get_asset_check_evaluations() if each.asset_key == table.key]
    assert not evaluation.passed
    operate(table, instance, {"publish": {"detached_version": metadata["lance/detached_version"]}})
    assert Table.open(table.uri).version == 4


@pytest.mark.parametrize(
    ("action", "more", "message"),
    [
        ({"roll_back": {}}, {}, "needs the version= or the tag="),
        ({"roll_back": {"version": 1, "tag": "x"}}, {}, "only one of them"),
        ({"roll_back": {"tag": "x"}}, {}, "has no tag 'x'"),
        ({"roll_back": {"version": 99}}, {}, "99"),
        ({"roll_back": {"version": 1, "newest": 2}}, {}, "version 3, which the rollback would undo"),
        ({"publish": {"detached_version": "v4"}}, {}, "'v4' is not the number of a version"),
        ({"publish": {"detached_version": "9300000000000000000"}}, {}, "9300000000000000000"),
        ({"promote": {"tag": "live", "version": 99}}, {}, "99"),
        ({"tag": {"tag": "x"}}, {"branch": "other"}, "follows no branch 'other'; it follows dev"),
    ],
    ids=str,
)
def test_mistakes_change_nothing(
    table: LanceTable, instance: dg.DagsterInstance, action: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    description, _ = failure_of(operate(table, instance, action, raise_on_error=False, **more))
    assert message in description
    head = Table.open(table.uri)
    assert (head.version, head.tags.list()) == (3, {})


def test_the_config_is_checked_before_the_run(table: LanceTable, instance: dg.DagsterInstance) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError):
        operate(table, instance, {"tag": {"tag": "x"}, "delete_tag": {"tag": "x"}})


def test_a_table_can_do_without_the_job() -> None:
    assert not lance_table("t", uri="/lake/t.lance", operator_job=False).defs.jobs
