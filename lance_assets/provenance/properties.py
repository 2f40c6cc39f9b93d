"""What a run writes into the transaction of a version, by name, and what of it can be read back. Without Dagster:
whoever looks at a table needs none.

Anyone can write a transaction, so what is found may be anything.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

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
    """Several of one table where several were read."""
    unparsed: str | None = None
    """What was written there and is not that."""


def parse_inputs(properties: Mapping[str, str]) -> Inputs:
    """
    >>> inputs_of({INPUTS: '{"/lake/orders.lance": 7}'}).versions
    (('/lake/orders.lance', 7),)
    >>> inputs_of({INPUTS: '{"/lake/orders.lance": [7, 9]}'}).versions
    (('/lake/orders.lance', 7), ('/lake/orders.lance', 9))
    """
    text = properties.get(INPUTS)
    if text is None:
        return Inputs()
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return Inputs(unparsed=text)
    if not isinstance(told, dict):
        return Inputs(unparsed=text)
    several = {uri: given if isinstance(given, list) else [given] for uri, given in told.items()}
    if not all(map(_is_version, chain.from_iterable(several.values()))):
        return Inputs(unparsed=text)
    return Inputs(tuple(sorted((uri, version) for uri, versions in several.items() for version in set(versions))))


def group_inputs(versions: Iterable[tuple[str, int]]) -> dict[str, int | list[int]]:
    """By table: the version that was read of it, or a list of them.

    >>> as_inputs([("/a", 7), ("/b", 2), ("/a", 9)])
    {'/a': [7, 9], '/b': 2}
    """
    by_table: dict[str, set[int]] = {}
    for uri, version in versions:
        by_table.setdefault(uri, set()).add(version)
    return {uri: min(found) if len(found) == 1 else sorted(found) for uri, found in by_table.items()}


def _is_version(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 < number < _VERSION_MAX
