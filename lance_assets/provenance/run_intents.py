"""What one write intends, in words that stay the same however often Dagster has to try.

The core lands an intention once (`intent=`). Which tries are the same intention is decided here: a step's retry keeps
its run, a retried or re-executed run is a new one that goes on for its parent, and running again what had succeeded is
a new intention. The record of an intention lives inside the table that it is for, so the table's place is no part of
it: a table that is moved or copied takes the memory of what it holds along.
"""

import dagster as dg

from lance_core import FOR_GOOD

_PARENTS_MAX = 1000
_PARENT = "dagster/parent_run_id"


def run_intent(instance: dg.DagsterInstance, run: dg.DagsterRun, key: dg.AssetKey, partition: str | None) -> str:
    """Once for a run and all its retries."""
    where = f" partition {partition}" if partition is not None else ""
    return f"dagster asset {key.to_user_string()}{where} once for run {logical_run_id(instance, run)}"


def partition_intent(key: dg.AssetKey, partition: str) -> str:
    """Once, ever: also after a month, when the table has forgotten other intents."""
    return f"{FOR_GOOD}dagster asset {key.to_user_string()} once for partition {partition}"


def logical_run_id(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """The first run of a chain in which each goes on for one that did not succeed.

    Not the root run: where a run that succeeded was deliberately executed again and *that* one failed, its retries go
    on for it, not for the root.
    """
    current = run
    for _ in range(_PARENTS_MAX):
        parent_id = current.parent_run_id or current.tags.get(_PARENT)
        if parent_id is None:
            return current.run_id
        parent = instance.get_run_by_id(parent_id)
        if parent is None:
            # Its record was deleted. A retry goes on for it all the same; of another run nothing is known to go on.
            return parent_id if _is_retry(current) else current.run_id
        if parent.status is dg.DagsterRunStatus.SUCCESS:
            return current.run_id
        current = parent
    return current.run_id


def _is_retry(run: dg.DagsterRun) -> bool:
    return run.tags.get("dagster/is_resume_retry") == "true" or "dagster/retry_number" in run.tags
