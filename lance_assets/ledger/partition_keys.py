"""Versions as Dagster partition keys, both ways: `v` and ten digits, so that keys sort as the versions do.

A table that is created anew at the same place begins an epoch, and its keys say which: `w02.v0000000001` sorts after
every key of the first. Nothing here looks at a table or an instance; which epoch a table has is in `incarnations.py`. A
key that a person typed may name a version that never was: `version_of` refuses what is not a key at all, the reader of
the table finds out the rest.
"""

import re

from lance_core import InvalidInput

_DIGITS = 10
_INCARNATION_LETTERS = {2: "w", 3: "x", 4: "y", 5: "z"}
"""By digits, so that the hundredth epoch sorts after the ninety-ninth."""
_KEY = re.compile(r"(?:(?:w(?!0[01])\d\d|x(?!0)\d{3}|y(?!0)\d{4}|z(?!0)\d{5})\.)?v(\d{10})")


def partition_key(version: int, incarnation: int = 1) -> str:
    """
    >>> partition_key(42), partition_key(42, epoch=2)
    ('v0000000042', 'w02.v0000000042')
    """
    if not 1 <= version < 10**_DIGITS:
        raise InvalidInput(f"{version} is no version that a partition key can name; versions count from 1")
    if incarnation == 1:
        return f"v{version:0{_DIGITS}d}"
    digits = f"{incarnation:02d}"
    if incarnation < 1 or len(digits) not in _INCARNATION_LETTERS:
        raise InvalidInput(f"{incarnation} is no epoch that a partition key can name; they go from 1 to 99999")
    return f"{_INCARNATION_LETTERS[len(digits)]}{digits}.v{version:0{_DIGITS}d}"


def version_of(key: str) -> int:
    """
    >>> version_of("v0000000042"), version_of("w02.v0000000042")
    (42, 42)
    """
    matched = _KEY.fullmatch(key)
    if matched is None or int(matched[1]) == 0:
        raise InvalidInput(f"{key!r} names no version of a Lance table; partition keys look like {partition_key(42)}")
    return int(matched[1])


def is_version_key(key: str) -> bool:
    """Whether this is a key of ours, of any epoch; what people type in the UI may be anything."""
    return _KEY.fullmatch(key) is not None
