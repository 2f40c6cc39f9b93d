"""Dagster instances: an instance for each test, and short ways to read what a user sees of it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lance_assets import LanceTable


@contextmanager
def instance_in(folder: Path) -> Iterator[dg.DagsterInstance]:
    """Open an instance on SQLite that stores its runs."""
    home = folder / "dagster"
    home.mkdir(exist_ok=True)
    with dg.DagsterInstance.local_temp(str(home), overrides={"telemetry": {"enabled": False}}) as instance:
        yield instance


def run(
    table: LanceTable,
    write: str,
    instance: dg.DagsterInstance,
    spark: object,
    *,
    partition: str | None = None,
    tags: dict[str, str] | None = None,
    raise_on_error: bool = True,
) -> dg.ExecuteInProcessResult:
    """Materialize one of the table's writes as the button in the UI does."""
    resources = dg.Definitions(resources={"spark": spark}, jobs=[dg.define_asset_job("job", [table.write_key(write)])])
    job = dg.Definitions.merge(table.defs, resources).resolve_job_def("job")
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    return job.execute_in_process(
        instance=instance, partition_key=partition, run_config=quiet, tags=tags, raise_on_error=raise_on_error
    )


def events(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[tuple[str, dg.AssetMaterialization]]:
    """Return the run id and materialization of each event, oldest first."""
    records = instance.fetch_materializations(key, limit=1000, ascending=True).records
    return [(record.run_id, record.asset_materialization) for record in records if record.asset_materialization]


def metadata_values(event: dg.AssetMaterialization) -> dict[str, Any]:
    """Return the metadata of an event as plain values."""
    return {name: value.value for name, value in event.metadata.items()}


def tags(event: dg.AssetMaterialization) -> dict[str, str]:
    return dict(event.tags or {})


def partitions(instance: dg.DagsterInstance, table: LanceTable) -> list[str]:
    return list(instance.get_dynamic_partitions(table.ledger.partition_set))


def tick(
    sensor: dg.SensorDefinition, instance: dg.DagsterInstance, cursor: str | None = None
) -> tuple[str | None, str | None]:
    """Run one tick as the daemon does: evaluate, delete partitions. Return cursor and skip message."""
    evaluated = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursor))
    assert not evaluated.asset_events, "a tick stores its events itself"
    for request in evaluated.dynamic_partitions_requests or ():
        assert isinstance(request, dg.DeleteDynamicPartitionsRequest)
        for key in request.partition_keys:
            instance.delete_dynamic_partition(request.partitions_def_name, key)
    return evaluated.cursor, evaluated.skip_message


class TickKilled(BaseException):
    """End of a tick whose process is killed."""


def kill_tick(sensor: dg.SensorDefinition, instance: dg.DagsterInstance, *, events: int = 0) -> None:
    """Run one tick whose process is killed after it has stored some events; it releases no lock."""
    remaining, store = events, instance.report_runless_asset_event

    def store_or_die(event: Any) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            patch.setattr(instance, "delete_dynamic_partition", die)
            raise TickKilled
        store(event)

    def die(*_: object) -> None:
        raise TickKilled

    with pytest.MonkeyPatch.context() as patch, suppress(TickKilled):
        patch.setattr(instance, "report_runless_asset_event", store_or_die)
        sensor.evaluate_tick(dg.build_sensor_context(instance=instance))


def version_claims(instance: dg.DagsterInstance, table: LanceTable) -> list[str]:
    """Return the claims of versions, without the claim of the leading sensor."""
    return [key for key in instance.get_dynamic_partitions(table.ledger.claim_set) if not key.startswith("* ")]
