"""Active runs: finds unfinished runs that materialize an asset, so that maintenance does not compete with writers.

A run that is unfinished after more than a day counts as dead; waiting for it would never end. Deferring only avoids
wasted work: the core makes concurrent writers safe.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta

import dagster as dg

from lance_assets.ledger.recording_lock import UNFINISHED_STATUSES

_DEAD_AFTER = timedelta(days=1)


def find_active_run(
    instance: dg.DagsterInstance, keys: Collection[dg.AssetKey], *, excluding: str | None = None
) -> tuple[str, dg.AssetKey] | None:
    """Return an unfinished run that materializes one of these assets, and that asset."""
    for run_id, planned in _unfinished_runs(instance):
        if run_id != excluding and (matching := sorted(planned & set(keys))):
            return run_id, matching[0]
    return None


def active_runs_by_asset(instance: dg.DagsterInstance, *, excluding: str) -> Mapping[dg.AssetKey, str]:
    """Return every asset that an unfinished run materializes, with one such run."""
    return {key: run_id for run_id, planned in _unfinished_runs(instance) if run_id != excluding for key in planned}


def _unfinished_runs(instance: dg.DagsterInstance) -> Iterator[tuple[str, frozenset[dg.AssetKey]]]:
    recent = dg.RunsFilter(statuses=UNFINISHED_STATUSES, created_after=datetime.now(UTC) - _DEAD_AFTER)
    for run in instance.get_runs(filters=recent):
        yield run.run_id, _planned_assets(instance, run)


def _planned_assets(instance: dg.DagsterInstance, run: dg.DagsterRun) -> frozenset[dg.AssetKey]:
    """Return the assets that a run materializes. A run of a whole job has no selection; its event log lists the planned
    assets."""
    if run.asset_selection is not None:
        return frozenset(run.asset_selection)
    planned = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    events = (entry.dagster_event for entry in planned)
    return frozenset(event.asset_key for event in events if event is not None and event.asset_key is not None)
