"""Run provenance: the intent and the transaction properties with which a Dagster run writes a version, and the versions
that it reads.

Intents: the core commits at most one version per intent (`intent=`), the idempotency key of a write. This module
decides which attempts share an intent. The retry of a step keeps its run. A retried or re-executed run is a new run
that continues its parent and keeps the intent. A run that re-executes a successful run has a new intent. The record of
an intent is stored inside its table, so the location is not part of the intent: a table that is moved or copied keeps
its records.

Properties: readers use them to find the versions of a run, and the run, asset and inputs of a version, also without
access to Dagster.

Inputs: the first reader of a run that asks for the newest version of a table pins it for all readers of the run, by run
tags (`open_for_run`). A version that the run commits itself is pinned then (`committed_tag`). `inputs_of_step` collects
what a step has read.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable

import dagster as dg

from lance_assets.provenance.properties import ASSET_KEY, CODE_LOCATION, INPUTS, INTENT, PARTITION, RUN_ID, group_inputs
from lance_core import PERMANENT_PREFIX, Table

_PARENTS_MAX = 1000
_PARENT = "dagster/parent_run_id"
_LOCATION_TAG = "dagster/code_location"
"""Run tag that the webserver and the daemon set on the runs they launch."""
READ_PREFIX = "lance.read/"
"""Prefix of the run tag with the version that a run reads if it asks for the newest one."""
READER_PREFIX = "lance.read_by/"
"""Prefix of the run tag with the run that chose the version. Dagster copies the tags of a run to its re-executions."""
COMMITTED_PREFIX = "lance.committed/"
"""Prefix of the run tag with the last version of a table that a run committed, or found already committed."""
_NAME_CHARACTERS_MAX = 40
_STEPS_CACHED_MAX = 100
_inputs_read: dict[tuple[str, str], set[tuple[str, int]]] = {}
"""Tables that were read and their versions, by run and step."""


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


def open_for_run(
    instance: dg.DagsterInstance,
    run_id: str,
    newest: Table,
    open_version: Callable[[int], Table],
    *,
    branch: str | None,
    refresh: bool = False,
) -> Table:
    """Return a table at the version that the run has pinned, and pin the version of `newest` if it has pinned none.

    All readers of a run get the same version, or one that the run has committed since. `refresh=True` pins the version
    of `newest` again.
    """
    run = instance.get_run_by_id(run_id)
    if run is None:
        return newest
    name = table_tag_name(newest.uri, branch)
    # A run inherits the tags of its parent. A retry reads the version of its parent, a new run the newest one.
    reader = logical_run_id(instance, run)
    read = run.tags.get(READ_PREFIX + name, "")
    if not refresh and run.tags.get(READER_PREFIX + name) == reader and read.isdecimal():
        committed = run.tags.get(COMMITTED_PREFIX + name, "")
        version = max(int(read), int(committed) if committed.isdecimal() else 0)
        return newest if version == newest.version else open_version(version)
    instance.add_run_tags(run_id, {READ_PREFIX + name: str(newest.version), READER_PREFIX + name: reader})
    return newest


def committed_tag(table: Table, branch: str | None, version: int) -> dict[str, str]:
    """Return the run tag by which later readers of a run get the version that it has committed."""
    return {COMMITTED_PREFIX + table_tag_name(table.uri, branch): str(version)}


def pin_committed_version(instance: dg.DagsterInstance, run_id: str, table: Table, branch: str | None) -> None:
    """Pin the version of a table that code of a run has committed, unless the run has committed a newer one."""
    tag = committed_tag(table, branch, table.version)
    run = instance.get_run_by_id(run_id)
    pinned = run.tags.get(next(iter(tag)), "") if run else ""
    if not pinned.isdecimal() or int(pinned) < table.version:
        instance.add_run_tags(run_id, tag)


def table_tag_name(uri: str, branch: str | None) -> str:
    """Return the part of a run tag that names a branch of the table at a location.

    >>> table_tag_name("s3://lake/shop/orders.lance", None)
    'orders.b6e51a1b'
    """
    last = uri.rstrip("/").rpartition("/")[2].removesuffix(".lance")
    digest = hashlib.sha256(f"{uri}\n{branch or ''}".encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', last)[:_NAME_CHARACTERS_MAX]}.{digest}"


def inputs_of_step(run_id: str, step_key: str) -> set[tuple[str, int]]:
    """Return the tables and versions that a step has read so far, to which its readers add."""
    while len(_inputs_read) > _STEPS_CACHED_MAX:
        del _inputs_read[next(iter(_inputs_read))]
    return _inputs_read.setdefault((run_id, step_key), set())
