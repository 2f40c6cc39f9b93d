"""The versions that a run made, by what a Dagster instance remembers: the events of the run, and those that the sensor
put on a ledger for a run that could not.
"""

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

import dagster as dg

from lance_assets.lineage.model import VersionName
from lance_assets.provenance.properties import INPUTS, parse_inputs
from lance_core import NotFound

_KEYS_MAX = 2000
"""Assets that are asked whether somebody recorded a version of theirs for the run."""
_PAGE, _PAGES_MAX = 500, 20


@dataclass(frozen=True, slots=True)
class RunVersion:
    """A version, as it was recorded."""

    name: VersionName
    operation: str
    written_by: str | None
    """The asset that wrote it."""
    written_partition: str | None
    recorded_on: str | None
    """The ledger, and the partition of it."""
    inputs: tuple[VersionName, ...]
    committed_by: str | None = None
    """The run that made it, where it is another one: this one found that it had landed."""


@dataclass(frozen=True, slots=True)
class RunVersions:
    run_id: str
    status: str
    job: str
    assets: tuple[str, ...]
    """Those that it was to write."""
    versions: tuple[RunVersion, ...]


def recorded_versions(instance: dg.DagsterInstance, run_id: str) -> RunVersions:
    record = instance.get_run_record_by_id(run_id)
    if record is None:
        raise NotFound(
            f"this Dagster instance has no run {run_id!r}; check its id, and that DAGSTER_HOME is the instance's. Or "
            "name the tables that it may have written: the versions themselves know their run"
        )
    run = record.dagster_run
    planned = instance.get_asset_keys_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    made: dict[VersionName, RunVersion] = {}
    for event in (*_events_of_run(instance, run_id), *_events_recorded_for_run(instance, record, planned)):
        found = _run_version(event, run_id)
        if found is not None and (found.recorded_on or found.name not in made):
            made[found.name] = found
    assets = tuple(sorted(key.to_user_string() for key in planned))
    return RunVersions(run_id, run.status.value, run.job_name, assets, tuple(made.values()))


def _events_of_run(instance: dg.DagsterInstance, run_id: str) -> Iterator[dg.AssetMaterialization]:
    for record in instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records:
        if (event := record.asset_materialization) is not None:
            yield event


def _events_recorded_for_run(
    instance: dg.DagsterInstance, record: dg.RunRecord, planned: Set[dg.AssetKey]
) -> Iterator[dg.AssetMaterialization]:
    """Of a run that was cut off between its commit and its event, by the sensor, which tags them with the run. Dagster
    finds no event by such a tag, so those of the tables that it may have written are looked through, from its start."""
    run = record.dagster_run
    if run.status is dg.DagsterRunStatus.SUCCESS:
        return
    tag = ("lance/run_id", run.run_id)
    prefixes = {tuple(key.path[:-1]) for key in planned}
    for key in instance.get_asset_keys(limit=_KEYS_MAX):
        if prefixes and tuple(key.path[:-1]) not in prefixes:
            continue
        since = dg.AssetRecordsFilter(asset_key=key, after_timestamp=record.create_timestamp.timestamp())
        cursor = None
        for _ in range(_PAGES_MAX):
            page = instance.fetch_materializations(since, limit=_PAGE, cursor=cursor, ascending=True)
            for found in page.records:
                event = found.asset_materialization
                if event is not None and found.run_id != run.run_id and tag in (event.tags or {}).items():
                    yield event
            cursor = page.cursor
            if not page.has_more:
                break


def _run_version(event: dg.AssetMaterialization, run_id: str) -> RunVersion | None:
    """None where it is about something else: other events too name a table, or a version that was looked at."""
    shown = {name: value.value for name, value in event.metadata.items()}
    uri, version, operation = (shown.get(name) for name in ("dagster/uri", "lance/version", "lance/operation"))
    if not (isinstance(uri, str) and isinstance(version, int) and isinstance(operation, str)):
        return None
    made_by = _text_value(shown, "lance/run")
    on_ledger = event.partition if (event.tags or {}).get("lance/op") else None
    return RunVersion(
        VersionName(uri, version),
        operation,
        _text_value(shown, "lance/written_by"),
        _text_value(shown, "lance/written_partition"),
        f"{event.asset_key.to_user_string()} {on_ledger}" if on_ledger else None,
        _input_names(shown.get("lance/inputs")),
        made_by if made_by != run_id else None,
    )


def _input_names(shown: object) -> tuple[VersionName, ...]:
    told = parse_inputs({INPUTS: json.dumps(shown)}) if isinstance(shown, dict) else parse_inputs({})
    return tuple(VersionName(uri, version) for uri, version in told.versions)


def _text_value(shown: Mapping[str, object], name: str) -> str | None:
    value = shown.get(name)
    return value if isinstance(value, str) else None
