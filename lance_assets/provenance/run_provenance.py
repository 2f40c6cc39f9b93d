"""Run provenance: the intent and the transaction properties with which a Dagster run writes a version.

Intents: the core commits at most one version per intent (`intent=`), the idempotency key of a write. This module
decides which attempts share an intent. The retry of a step keeps its run. A retried or re-executed run is a new run
that continues its parent and keeps the intent. A run that re-executes a successful run has a new intent. The record of
an intent is stored inside its table, so the location is not part of the intent: a table that is moved or copied keeps
its records.

Properties: readers use them to find the versions of a run, and the run, asset and inputs of a version, also without
access to Dagster.
"""

import json
from collections.abc import Iterable

import dagster as dg

from lance_assets.provenance.properties import ASSET_KEY, CODE_LOCATION, INPUTS, INTENT, PARTITION, RUN_ID, group_inputs
from lance_core import PERMANENT_PREFIX

_PARENTS_MAX = 1000
_PARENT = "dagster/parent_run_id"
_LOCATION_TAG = "dagster/code_location"
"""Run tag that the webserver and the daemon set on the runs they launch."""


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


def properties_of_run(
    run: dg.DagsterRun, key: dg.AssetKey, partition: str | None, intent: str, inputs: Iterable[tuple[str, int]]
) -> dict[str, str]:
    """Return the properties of a version that `run` writes for the asset `key` after reading `inputs`."""
    properties = {RUN_ID: run.run_id, ASSET_KEY: key.to_user_string(), INTENT: intent}
    if partition is not None:
        properties[PARTITION] = partition
    if location := run.tags.get(_LOCATION_TAG):
        properties[CODE_LOCATION] = location
    if by_table := group_inputs(inputs):
        properties[INPUTS] = json.dumps(by_table, sort_keys=True)
    return properties
