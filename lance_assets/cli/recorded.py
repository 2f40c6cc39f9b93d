"""What a Dagster instance has recorded of a run. It loads Dagster, so `run.py` loads it when it is asked for."""

from collections.abc import Iterator

import dagster as dg

from lance_assets.cli import printing
from lance_assets.lineage.dagster_events import RunVersion, RunVersions, recorded_versions
from lance_assets.lineage.model import VersionName
from lance_assets.lineage.render import display_name, without_credentials
from lance_core import InvalidInput


def print_recorded_run(run_id: str, *, is_json: bool) -> None:
    try:
        instance = dg.DagsterInstance.get()
    except (dg.DagsterError, OSError) as error:
        raise InvalidInput(f"the Dagster instance at DAGSTER_HOME cannot be opened: {error}") from error
    with instance:
        said = recorded_versions(instance, run_id)
    if is_json:
        printing.print_json(_as_json(said))
    else:
        printing.print_text(_as_text(said))


def _as_text(said: RunVersions) -> Iterator[str]:
    yield printing.printable(f"run {said.run_id}  {said.status}  job {said.job}")
    if said.assets:
        yield printing.printable(f"  to write {', '.join(said.assets)}")
    if not said.versions:
        yield "  no version that it made is recorded"
    for each in said.versions:
        told = {"asset": each.written_by, "partition": each.written_partition, "recorded on": each.recorded_on}
        parts = [display_name(each.name), each.operation, *(f"{name} {value}" for name, value in told.items() if value)]
        verb = "made" if each.committed_by is None else f"found landed, by run {each.committed_by},"
        yield printing.printable(f"  {verb} {'  '.join(parts)}")
        for name in each.inputs:
            yield printing.printable(f"    read {display_name(name)}")


def _as_json(said: RunVersions) -> dict[str, object]:
    return {
        "run_id": said.run_id,
        "status": said.status,
        "job": said.job,
        "assets": list(said.assets),
        "versions": [_version_json(each, said.run_id) for each in said.versions],
    }


def _version_json(each: RunVersion, run_id: str) -> dict[str, object]:
    return {
        **_name_json(each.name),
        "operation": each.operation,
        "asset": each.written_by,
        "partition": each.written_partition,
        "recorded_on": each.recorded_on,
        "landed_in": each.committed_by or run_id,
        "inputs": [_name_json(name) for name in each.inputs],
    }


def _name_json(name: VersionName) -> dict[str, object]:
    return {"uri": without_credentials(name.uri), "version": name.version}
