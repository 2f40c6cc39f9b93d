"""Recorded versions: finds the versions of a run in a Dagster instance, in the events of the run and in the events that
the sensor recorded on its behalf.
"""

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

import dagster as dg

from lance_assets.lineage.model import VersionName
from lance_assets.provenance.properties import INPUTS, parse_inputs
from lance_core import NotFound

_KEYS_MAX = 2000
"""Number of assets that are searched for versions that the sensor recorded for the run."""
_PAGE, _PAGES_MAX = 500, 20


@dataclass(frozen=True, slots=True)
class RunVersion:
    """Recorded version of a run."""

    name: VersionName
    operation: str
    written_by: str | None
    """Asset that wrote the version."""
    written_partition: str | None
    recorded_on: str | None
    """Ledger and partition that record the version."""
    inputs: tuple[VersionName, ...]
    committed_by: str | None = None
    """The run that committed the version, if it was another one and this run found it already committed."""


@dataclass(frozen=True, slots=True)
class RunVersions:
    """Run with its recorded versions."""

    run_id: str
    status: str
    job: str
    assets: tuple[str, ...]
    """Assets that the run planned to write."""
    versions: tuple[RunVersion, ...]


def recorded_versions(instance: dg.DagsterInstance, run_id: str) -> RunVersions:
    """Return the recorded versions of a run. Raise `NotFound` if the instance does not know the run."""
    record = instance.get_run_record_by_id(run_id)
    if record is None:
        raise NotFound(
            f"this Dagster instance has no run {run_id!r}; check the id and DAGSTER_HOME, or name the tables that the "
            "run may have written, since their versions record the run"
        )
    run = record.dagster_run
    planned = instance.get_asset_keys_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    versions: dict[VersionName, RunVersion] = {}
    for event in (*_events_of_run(instance, run_id), *_events_recorded_for_run(instance, record, planned)):
        version = _run_version(event, run_id)
        if version is not None and (version.recorded_on or version.name not in versions):
            versions[version.name] = version
    assets = tuple(sorted(key.to_user_string() for key in planned))
    return RunVersions(run_id, run.status.value, run.job_name, assets, tuple(versions.values()))


def _events_of_run(instance: dg.DagsterInstance, run_id: str) -> Iterator[dg.AssetMaterialization]:
    for record in instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records:
        if (event := record.asset_materialization) is not None:
            yield event


def _events_recorded_for_run(
    instance: dg.DagsterInstance, record: dg.RunRecord, planned: Set[dg.AssetKey]
) -> Iterator[dg.AssetMaterialization]:
    """Yield the events that the sensor recorded for a run that ended between its commit and its event.

    The sensor tags them with the run. Dagster cannot search events by such a tag, so this function reads the events
    since the start of the run for all assets that the run may have written.
    """
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
            for event_record in page.records:
                event = event_record.asset_materialization
                if event is not None and event_record.run_id != run.run_id and tag in (event.tags or {}).items():
                    yield event
            cursor = page.cursor
            if not page.has_more:
                break


def _run_version(event: dg.AssetMaterialization, run_id: str) -> RunVersion | None:
    """Return the version that an event reports; `None` for an event that names only a table, or a version that was
    read."""
    metadata = {name: value.value for name, value in event.metadata.items()}
    uri, version, operation = (metadata.get(name) for name in ("dagster/uri", "lance/version", "lance/operation"))
    if not (isinstance(uri, str) and isinstance(version, int) and isinstance(operation, str)):
        return None
    committed_by = _text_value(metadata, "lance/run")
    ledger_partition = event.partition if (event.tags or {}).get("lance/op") else None
    return RunVersion(
        VersionName(uri, version),
        operation,
        _text_value(metadata, "lance/written_by"),
        _text_value(metadata, "lance/written_partition"),
        f"{event.asset_key.to_user_string()} {ledger_partition}" if ledger_partition else None,
        _input_names(metadata.get("lance/inputs")),
        committed_by if committed_by != run_id else None,
    )


def _input_names(value: object) -> tuple[VersionName, ...]:
    inputs = parse_inputs({INPUTS: json.dumps(value)}) if isinstance(value, dict) else parse_inputs({})
    return tuple(VersionName(uri, version) for uri, version in inputs.versions)


def _text_value(metadata: Mapping[str, object], name: str) -> str | None:
    value = metadata.get(name)
    return value if isinstance(value, str) else None
