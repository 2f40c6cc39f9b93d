"""What a run writes into the transaction of a version, by name, and what of it can be read back. Without Dagster:
whoever looks at a table needs none.

Anyone can write a transaction, so what is found may be anything.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

RUN_ID = "dagster.run_id"
ASSET_KEY = "dagster.asset_key"
PARTITION = "dagster.partition"
CODE_LOCATION = "dagster.code_location"
INTENT = "lance_assets.intent"
INPUTS = "lance_assets.inputs"

_VERSION_MAX = 2**64


@dataclass(frozen=True, slots=True)
class Inputs:
    """The versions of tables that were read for a version, as it says."""

    versions: tuple[tuple[str, int], ...] = ()
    unread: str | None = None
    """What was written there and is not that."""


def inputs_of(properties: Mapping[str, str]) -> Inputs:
    """
    >>> inputs_of({INPUTS: '{"/lake/orders.lance": 7}'}).versions
    (('/lake/orders.lance', 7),)
    """
    text = properties.get(INPUTS)
    if text is None:
        return Inputs()
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return Inputs(unread=text)
    if not isinstance(told, dict) or not all(map(_is_version, told.values())):
        return Inputs(unread=text)
    return Inputs(tuple(sorted(told.items())))


def _is_version(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 < number < _VERSION_MAX
