"""Run intents: the idempotency key of a write, which stays the same across Dagster's retries.

The core commits at most one version per intent (`intent=`). This module decides which attempts share an intent. The
retry of a step keeps its run. A retried or re-executed run is a new run that continues its parent and keeps the intent.
To run again what succeeded is a new intent. The record of an intent is stored inside its table, so the location is not
part of the intent: a table that is moved or copied keeps its records.
"""

import dagster as dg

from lance_core import PERMANENT_PREFIX

_PARENTS_MAX = 1000
_PARENT = "dagster/parent_run_id"


def run_intent(instance: dg.DagsterInstance, run: dg.DagsterRun, key: dg.AssetKey, partition: str | None) -> str:
    """Return an intent for one commit per run, including all retries of the run."""
    suffix = f" partition {partition}" if partition is not None else ""
    return f"dagster asset {key.to_user_string()}{suffix} once for run {logical_run_id(instance, run)}"


def partition_intent(key: dg.AssetKey, partition: str) -> str:
    """Return a permanent intent: one commit per partition, even after the table has expired other intents."""
    return f"{PERMANENT_PREFIX}dagster asset {key.to_user_string()} once for partition {partition}"


def logical_run_id(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Return the first run of the chain in which each run continues a parent that did not succeed.

    This can differ from the root run: if a user re-executes a successful run and the new run fails, the retries
    continue the new run, not the root.
    """
    current = run
    for _ in range(_PARENTS_MAX):
        parent_id = current.parent_run_id or current.tags.get(_PARENT)
        if parent_id is None:
            return current.run_id
        parent = instance.get_run_by_id(parent_id)
        if parent is None:
            # The parent's record was deleted. A retry still continues it; any other run counts as a new one.
            return parent_id if _is_retry(current) else current.run_id
        if parent.status is dg.DagsterRunStatus.SUCCESS:
            return current.run_id
        current = parent
    return current.run_id


def _is_retry(run: dg.DagsterRun) -> bool:
    return run.tags.get("dagster/is_resume_retry") == "true" or "dagster/retry_number" in run.tags
