"""Which runs are at work on a table: nobody maintains what is being written.

A run that has been unfinished for more than a day is taken for one whose process is gone: waiting for it would mean
waiting for ever. Asking is a courtesy; what makes two writers safe is the core.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta

import dagster as dg

from lance_assets.ledger.recording_claims import UNFINISHED_STATUSES

_DEAD_AFTER = timedelta(days=1)


def find_active_run(
    instance: dg.DagsterInstance, keys: Collection[dg.AssetKey], *, excluding: str | None = None
) -> tuple[str, dg.AssetKey] | None:
    """An unfinished run and which of these assets it materialises."""
    for run_id, planned in _unfinished_runs(instance):
        if run_id != excluding and (found := sorted(planned & set(keys))):
            return run_id, found[0]
    return None


def active_runs_by_asset(instance: dg.DagsterInstance, *, excluding: str) -> Mapping[dg.AssetKey, str]:
    """Every asset that an unfinished run materialises, and one such run."""
    return {key: run_id for run_id, planned in _unfinished_runs(instance) if run_id != excluding for key in planned}


def _unfinished_runs(instance: dg.DagsterInstance) -> Iterator[tuple[str, frozenset[dg.AssetKey]]]:
    recent = dg.RunsFilter(statuses=UNFINISHED_STATUSES, created_after=datetime.now(UTC) - _DEAD_AFTER)
    for run in instance.get_runs(filters=recent):
        yield run.run_id, _planned_assets(instance, run)


def _planned_assets(instance: dg.DagsterInstance, run: dg.DagsterRun) -> frozenset[dg.AssetKey]:
    """A run of a whole job does not say which assets it has; its log does, from its creation on."""
    if run.asset_selection is not None:
        return frozenset(run.asset_selection)
    planned = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    events = (entry.dagster_event for entry in planned)
    return frozenset(event.asset_key for event in events if event is not None and event.asset_key is not None)
