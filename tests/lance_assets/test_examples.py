"""The projects in `examples/` run, as somebody would run them who has just found them."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import dagster as dg
import pytest

from lance_core import Table
from tests.lance_assets.instances import events, shown

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> ModuleType:
    """As `dagster dev -f` does."""
    found = spec_from_file_location(f"example_{name}", EXAMPLES / name / "definitions.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_example_is_run_here_and_explains_itself() -> None:
    assert [folder.name for folder in EXAMPLES.iterdir() if folder.is_dir()] == ["daily_orders"]
    assert (EXAMPLES / "daily_orders" / "README.md").is_file()


@pytest.mark.usefixtures("spark")
def test_daily_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAILY_ORDERS_TABLES", str(tmp_path))
    example = load("daily_orders")
    defs: dg.Definitions = example.defs
    dg.Definitions.validate_loadable(defs)
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        load_day = defs.resolve_job_def("load_day")
        for day in ("2026-01-01", "2026-01-02", "2026-01-01"):
            assert load_day.execute_in_process(instance=instance, partition_key=day, run_config=quiet).success
        for key in (example.city_counts.write_key("city_counts_append"), example.order_days.key):
            job = defs.resolve_implicit_global_asset_job_def()
            assert job.execute_in_process(instance=instance, asset_selection=[key], run_config=quiet).success
        assert [event.partition for _, event in events(instance, example.orders.key)] == ["v0000000001", "v0000000002"]
        ((_, counted),) = events(instance, example.city_counts.key)
        assert shown(counted)["lance/inputs"] == {example.orders.uri: 2}
        ((_, days),) = events(instance, example.order_days.key)
        assert shown(days)["days"] == ["2026-01-01", "2026-01-02"]
    counts = Table.open(example.city_counts.uri).to_table().to_pydict()
    assert dict(zip(counts["city"], counts["count"], strict=True)) == {"Lima": 667, "Oslo": 667, "Pune": 666}
