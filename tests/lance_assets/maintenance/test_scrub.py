"""Tests of `lance_assets/maintenance/scrub.py`: runs verify all files in turn, and report the damaged one."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_assets import Scrub, SparkSessionResource, lance_table
from lance_assets.maintenance.scrub import CHECK_NAME
from lance_core import InvalidInput, Table
from tests.lance_assets.instances import events, metadata_values

FILES = 12


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


def test_runs_verify_all_files_in_turn_and_report_the_damaged_one(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    uri = tmp_path / "orders.lance"
    orders = lance_table("orders", uri=str(uri), scrub=Scrub(share=1 / 3))
    created = Table.create(uri, pa.table({"id": range(FILES)}), max_rows_per_file=1, durable=False)
    damaged = uri / "data" / created.fragments[7].files[0].path
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    declared = dg.Definitions.merge(
        orders.defs,
        dg.Definitions(
            resources={"spark": SparkSessionResource()}, jobs=[dg.define_asset_job("job", [orders.scrub_key])]
        ),
    )
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    verified, found = 0, []
    for turn in range(3):
        run = declared.resolve_job_def("job").execute_in_process(instance=instance, run_config=quiet)
        metadata = metadata_values(events(instance, orders.scrub_key)[-1][1])
        assert metadata["lance/scrub_turn"] == turn
        assert metadata["lance/files_without_checksum"] == 0
        verified += metadata["lance/files_verified"]
        (evaluation,) = run.get_asset_check_evaluations()
        assert evaluation.check_name == CHECK_NAME
        assert evaluation.passed == (metadata["lance/files_damaged"] == 0)
        if not evaluation.passed:
            found.append(str(evaluation.metadata["lance/findings"].value))
    assert verified == FILES
    assert len(found) == 1
    assert damaged.name in found[0]


def test_a_table_that_does_not_exist_yet_is_intact(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    orders = lance_table("orders", uri=str(tmp_path / "orders.lance"), scrub=Scrub())
    (schedule,) = orders.defs.schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.name, schedule.cron_schedule) == ("lance_scrub__orders", "0 4 * * *")
    run = dg.materialize(
        [
            each
            for each in orders.defs.assets or ()
            if isinstance(each, dg.AssetsDefinition) and "scrub" in str(each.keys)
        ],
        instance=instance,
        resources={"spark": SparkSessionResource()},
    )
    (evaluation,) = run.get_asset_check_evaluations()
    assert evaluation.passed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"share": 0}, "share=0 must be a share"),
        ({"share": True}, "share=True must be a share"),
        ({"versions": "newest"}, "versions='newest' must be 'head' or 'all'"),
        ({"every": "daily"}, "Scrub: every='daily'"),
    ],
)
def test_invalid_declarations_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Scrub(**arguments)  # type: ignore[arg-type]


def test_the_key_of_a_table_without_scrub_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="add scrub=Scrub"):
        _ = lance_table("orders", uri=str(tmp_path)).scrub_key
