"""What a version notes about the run that made it: one spelling, whichever way the version is written.

From these properties a version is found from its run, and the run, the asset and the inputs from the version, also by
somebody who has the table and no Dagster.
"""

import json
from collections.abc import Iterable

import dagster as dg

from lance_assets.provenance.properties import ASSET_KEY, CODE_LOCATION, INPUTS, INTENT, PARTITION, RUN_ID, group_inputs

_LOCATION_TAG = "dagster/code_location"
"""On runs that a webserver or the daemon launched."""


def properties_of_run(
    run: dg.DagsterRun, key: dg.AssetKey, partition: str | None, intent: str, inputs: Iterable[tuple[str, int]]
) -> dict[str, str]:
    properties = {RUN_ID: run.run_id, ASSET_KEY: key.to_user_string(), INTENT: intent}
    if partition is not None:
        properties[PARTITION] = partition
    if location := run.tags.get(_LOCATION_TAG):
        properties[CODE_LOCATION] = location
    if told := group_inputs(inputs):
        properties[INPUTS] = json.dumps(told, sort_keys=True)
    return properties
