"""A ledger that retains many versions says so, and what to do, to whoever records one more."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets import lance_table
from lance_assets.discovery.sensor import discovery_sensor
from lance_assets.ledger import version_budget
from lance_assets.ledger.recording import record_in_run
from lance_assets.ledger.version_budget import growth_warning, retention_advice
from lance_assets.ledger.version_metadata import committed_facts
from lance_core import Table
from tests.lance_assets.instances import events, shown, tick

LEDGER = lance_table("orders", uri="orders.lance", key_prefix="lake").ledger
ROW = pa.table({"id": [1]})


def test_few_versions_are_nothing_to_speak_of() -> None:
    assert retention_advice(LEDGER, 1_999) is None
    assert growth_warning(LEDGER, 1_998, 1_999) is None


@pytest.mark.parametrize(
    ("before", "after", "is_said"),
    [(1_999, 2_000, True), (1_500, 4_000, True), (2_000, 2_001, False), (9_999, 10_000, True), (10_001, 10_001, False)],
)
def test_it_warns_where_it_passes_the_soft_cap_and_always_far_above(before: int, after: int, is_said: bool) -> None:
    said = growth_warning(LEDGER, before, after)
    assert (said is not None) == is_said
    if said:
        assert said.startswith(f"lake/orders retains {after:,} versions")
        assert "keep_versions=" in said
        assert "Table.cleanup(" in said


def test_runs_and_the_sensor_say_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_budget, "SOFT_CAP", 3)
    monkeypatch.setattr(version_budget, "WARNING_THRESHOLD", 5)
    ledger = lance_table("orders", uri=str(tmp_path / "orders.lance"), key_prefix="lake").ledger
    at = Table.create(ledger.uri, ROW)
    sensor = discovery_sensor("s", [ledger])
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(ledger.partition_set, ["typed by hand"])  # no version
        cursor, said = tick(sensor, instance)
        assert "retains" not in str(said)
        for _ in range(2):
            at = at.append(ROW).table
        evaluated = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursor))
        assert "lake/orders retains 3 versions" in str(evaluated.skip_message)
        second, third = (shown(event) for event in evaluated.asset_events)  # type: ignore[arg-type]
        assert "lance/advice" not in second
        assert third["lance/retained"] == 3
        assert "lake/orders retains 3 versions" in third["lance/advice"]

        warned: list[str] = []
        log = SimpleNamespace(info=lambda _: None, warning=warned.append)
        run = instance.add_run(dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.STARTED))
        instance_log: list[dg.AssetMaterialization] = []
        context: Any = SimpleNamespace(instance=instance, run=run, log=log, log_event=instance_log.append)
        for _ in range(2):
            made = at.append(ROW)
            at = made.table
            record_in_run(context, ledger, committed_facts(made, 1))
        fourth, fifth = map(shown, instance_log)
        assert (fourth["lance/retained"], fifth["lance/retained"]) == (4, 5)
        assert [each.partition(", each")[0] for each in warned] == ["lake/orders retains 5 versions"]
        assert len(events(instance, ledger.key)) == 1
