"""Partition keys: converts versions to Dagster partition keys and back. A key is `v` and ten digits, so keys sort.

A table that is recreated at the same location begins a new incarnation, and its keys contain the number of the
incarnation: `w02.v0000000001` sorts after every key of the first one. This module uses neither a table nor an instance;
`dynamic_partitions.py` numbers the incarnations. A key that a user types may name a version that never existed:
`version_of` refuses malformed keys only, and reading the table reveals the rest.
"""

import re

from lance_core import InvalidInput

_DIGITS = 10
_INCARNATION_LETTERS = {2: "w", 3: "x", 4: "y", 5: "z"}
"""First letter of the prefix by its number of digits, so that incarnation 100 sorts after incarnation 99."""
_KEY = re.compile(r"(?:(?:w(?!0[01])\d\d|x(?!0)\d{3}|y(?!0)\d{4}|z(?!0)\d{5})\.)?v(\d{10})")


def partition_key(version: int, incarnation: int = 1) -> str:
    """Return the partition key of a version.

    >>> partition_key(42), partition_key(42, incarnation=2)
    ('v0000000042', 'w02.v0000000042')
    """
    if not 1 <= version < 10**_DIGITS:
        raise InvalidInput(f"version {version} has no partition key; versions count from 1 and have at most ten digits")
    if incarnation == 1:
        return f"v{version:0{_DIGITS}d}"
    digits = f"{incarnation:02d}"
    if incarnation < 1 or len(digits) not in _INCARNATION_LETTERS:
        raise InvalidInput(f"incarnation {incarnation} has no partition key; incarnations count from 1 to 99999")
    return f"{_INCARNATION_LETTERS[len(digits)]}{digits}.v{version:0{_DIGITS}d}"


def version_of(key: str) -> int:
    """Return the version that a partition key of any incarnation names.

    >>> version_of("v0000000042"), version_of("w02.v0000000042")
    (42, 42)
    """
    match = _KEY.fullmatch(key)
    if match is None or int(match[1]) == 0:
        raise InvalidInput(f"{key!r} names no version of a Lance table; partition keys look like {partition_key(42)}")
    return int(match[1])


def is_version_key(key: str) -> bool:
    """Return whether the text is a partition key of any incarnation. Users can add any key in the UI."""
    return _KEY.fullmatch(key) is not None
