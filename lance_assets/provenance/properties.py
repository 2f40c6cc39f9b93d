"""Transaction properties: the keys under which a Dagster run records itself in a version, and a parser for its inputs.

This module does not import Dagster, so that tools without Dagster can read the properties. Any writer can set the
properties of a transaction, so their values are untrusted.
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
    """Versions of tables that were read to produce a version, as the property `INPUTS` of that version records them."""

    versions: tuple[tuple[str, int], ...] = ()
    """Pairs of table URI and version. A table appears several times if several of its versions were read."""
    unparsed: str | None = None
    """Value of the property if it could not be parsed."""


def parse_inputs(properties: Mapping[str, str]) -> Inputs:
    """Parse the property `INPUTS`.

    >>> parse_inputs({INPUTS: '{"/lake/orders.lance": 7}'}).versions
    (('/lake/orders.lance', 7),)
    >>> parse_inputs({INPUTS: '{"/lake/orders.lance": [7, 9]}'}).versions
    (('/lake/orders.lance', 7), ('/lake/orders.lance', 9))
    """
    text = properties.get(INPUTS)
    if text is None:
        return Inputs()
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return Inputs(unparsed=text)
    if not isinstance(parsed, dict):
        return Inputs(unparsed=text)
    by_table = {uri: value if isinstance(value, list) else [value] for uri, value in parsed.items()}
    if not all(map(_is_version, chain.from_iterable(by_table.values()))):
        return Inputs(unparsed=text)
    return Inputs(tuple(sorted((uri, version) for uri, versions in by_table.items() for version in set(versions))))


def group_inputs(versions: Iterable[tuple[str, int]]) -> dict[str, int | list[int]]:
    """Return the value of the property `INPUTS`: the version that was read of each table, or a list of versions.

    >>> group_inputs([("/a", 7), ("/b", 2), ("/a", 9)])
    {'/a': [7, 9], '/b': 2}
    """
    by_table: dict[str, set[int]] = {}
    for uri, version in versions:
        by_table.setdefault(uri, set()).add(version)
    return {uri: min(numbers) if len(numbers) == 1 else sorted(numbers) for uri, numbers in by_table.items()}


def _is_version(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 < number < _VERSION_MAX
