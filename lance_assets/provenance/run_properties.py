"""Run properties: builds the transaction properties with which every write records its Dagster run in a version.

They lead from a run to its versions, and from a version to its run, asset and inputs, also without access to Dagster.
"""

import json
from collections.abc import Iterable

import dagster as dg

from lance_assets.provenance.properties import ASSET_KEY, CODE_LOCATION, INPUTS, INTENT, PARTITION, RUN_ID, group_inputs

_LOCATION_TAG = "dagster/code_location"
"""Run tag that the webserver and the daemon set on the runs they launch."""


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
