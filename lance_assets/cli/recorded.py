"""Recorded versions: prints the versions that a run committed, from a Dagster instance.

This module imports Dagster, so `run.py` imports it only when needed.
"""

from collections.abc import Iterator

import dagster as dg

from lance_assets.cli import printing
from lance_assets.lineage.dagster_events import RunVersion, RunVersions, recorded_versions
from lance_assets.lineage.model import VersionName
from lance_assets.lineage.render import display_name, without_credentials
from lance_core import InvalidInput


def print_recorded_run(run_id: str, *, is_json: bool) -> None:
    """Print the recorded versions of a run."""
    try:
        instance = dg.DagsterInstance.get()
    except (dg.DagsterError, OSError) as error:
        raise InvalidInput(f"the Dagster instance at DAGSTER_HOME cannot be opened: {error}") from error
    with instance:
        run = recorded_versions(instance, run_id)
    if is_json:
        printing.print_json(_as_json(run))
    else:
        printing.print_text(_as_text(run))


def _as_text(run: RunVersions) -> Iterator[str]:
    yield printing.printable(f"run {run.run_id}  {run.status}  job {run.job}")
    if run.assets:
        yield printing.printable(f"  planned to write {', '.join(run.assets)}")
    if not run.versions:
        yield "  no version of this run is recorded"
    for version in run.versions:
        pairs = {
            "asset": version.written_by,
            "partition": version.written_partition,
            "recorded on": version.recorded_on,
        }
        parts = [
            display_name(version.name),
            version.operation,
            *(f"{name} {value}" for name, value in pairs.items() if value),
        ]
        if version.committed_by is None:
            yield printing.printable(f"  committed {'  '.join(parts)}")
        else:
            yield printing.printable(f"  found {'  '.join(parts)}  committed by run {version.committed_by}")
        for name in version.inputs:
            yield printing.printable(f"    read {display_name(name)}")


def _as_json(run: RunVersions) -> dict[str, object]:
    return {
        "run_id": run.run_id,
        "status": run.status,
        "job": run.job,
        "assets": list(run.assets),
        "versions": [_version_json(version, run.run_id) for version in run.versions],
    }


def _version_json(version: RunVersion, run_id: str) -> dict[str, object]:
    return {
        **_name_json(version.name),
        "operation": version.operation,
        "asset": version.written_by,
        "partition": version.written_partition,
        "recorded_on": version.recorded_on,
        "landed_in": version.committed_by or run_id,
        "inputs": [_name_json(name) for name in version.inputs],
    }


def _name_json(name: VersionName) -> dict[str, object]:
    return {"uri": without_credentials(name.uri), "version": name.version}
