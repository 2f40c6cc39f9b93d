"""Versions as Dagster partition keys, both ways: `v` and ten digits, so that keys sort as the versions do.

Nothing here looks at a table or an instance. A key that a person typed may name a version that never was: `version_of`
refuses what is not a key at all, the reader of the table finds out the rest.
"""

import re

from lance_core import InvalidInput

_DIGITS = 10
_KEY = re.compile(r"v(\d{10})")


def partition_key(version: int) -> str:
    """
    >>> partition_key(42)
    'v0000000042'
    """
    if not 1 <= version < 10**_DIGITS:
        raise InvalidInput(f"{version} is no version that a partition key can name; versions count from 1")
    return f"v{version:0{_DIGITS}d}"


def version_of(key: str) -> int:
    """
    >>> version_of("v0000000042")
    42
    """
    matched = _KEY.fullmatch(key)
    if matched is None or int(matched[1]) == 0:
        raise InvalidInput(f"{key!r} names no version of a Lance table; partition keys look like {partition_key(42)}")
    return int(matched[1])
