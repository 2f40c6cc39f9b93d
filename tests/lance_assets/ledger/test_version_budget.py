"""Version budget: the recorder of a further version warns if the ledger retains many, and names the remedy."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets import lance_table
from lance_assets.discovery.sensor import discovery_sensor
from lance_assets.ledger import ledger as ledger_module
from lance_assets.ledger.ledger import growth_warning, retention_advice
from lance_assets.ledger.recording import record_in_run
from lance_assets.ledger.version_metadata import committed_facts
from lance_core import Table
from tests.lance_assets.instances import events, metadata_values, tick

LEDGER = lance_table("orders", uri="orders.lance", key_prefix="lake").ledger
ROW = pa.table({"id": [1]})


def test_small_numbers_of_versions_have_no_warning() -> None:
    assert retention_advice(LEDGER, 1_999) is None
    assert growth_warning(LEDGER, 1_998, 1_999) is None


@pytest.mark.parametrize(
    ("before", "after", "is_said"),
    [(1_999, 2_000, True), (1_500, 4_000, True), (2_000, 2_001, False), (9_999, 10_000, True), (10_001, 10_001, False)],
)
def test_warning_at_the_soft_cap_and_always_far_above(before: int, after: int, is_said: bool) -> None:
    warning = growth_warning(LEDGER, before, after)
    assert (warning is not None) == is_said
    if warning:
        assert warning.startswith(f"lake/orders retains {after:,} versions")
        assert "keep_versions=" in warning
        assert "Table.cleanup(" in warning


def test_runs_and_sensor_log_the_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "SOFT_CAP", 3)
    monkeypatch.setattr(ledger_module, "WARNING_THRESHOLD", 5)
    ledger = lance_table("orders", uri=str(tmp_path / "orders.lance"), key_prefix="lake").ledger
    at = Table.create(ledger.uri, ROW)
    sensor = discovery_sensor("s", [ledger])
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(ledger.partition_set, ["typed by hand"])  # no version
        cursor, skip_message = tick(sensor, instance)
        assert "retains" not in str(skip_message)
        for _ in range(2):
            at = at.append(ROW).table
        evaluated = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursor))
        assert "lake/orders retains 3 versions" in str(evaluated.skip_message)
        _first, second, third = (metadata_values(event) for _, event in events(instance, ledger.key))
        assert "lance/advice" not in second
        assert third["lance/retained"] == 3
        assert "lake/orders retains 3 versions" in third["lance/advice"]

        warned: list[str] = []
        log = SimpleNamespace(info=lambda _: None, warning=warned.append)
        run = instance.add_run(dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.STARTED))
        instance_log: list[dg.AssetMaterialization] = []

        def log_event(event: dg.AssetMaterialization) -> None:
            instance_log.append(event)
            instance.report_runless_asset_event(event)

        context: Any = SimpleNamespace(instance=instance, run=run, log=log, log_event=log_event)
        for _ in range(2):
            appended = at.append(ROW)
            at = appended.table
            record_in_run(context, ledger, committed_facts(appended, 1), appended.table)
        fourth, fifth = map(metadata_values, instance_log)
        assert (fourth["lance/retained"], fifth["lance/retained"]) == (4, 5)
        assert [each.partition(", each")[0] for each in warned] == ["lake/orders retains 5 versions"]
        assert len(events(instance, ledger.key)) == 5
