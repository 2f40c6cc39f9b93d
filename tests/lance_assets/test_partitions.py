"""Partition keys: they sort as the versions do, and name nothing else."""

import pytest

from lance_assets.partitions import partition_key, version_of
from lance_core import InvalidInput

VERSIONS = (1, 9, 10, 42, 99_999, 100_000, 9_999_999_999)


def test_keys_and_versions_are_one_to_one_and_sort_alike() -> None:
    keys = [partition_key(version) for version in VERSIONS]
    assert keys == sorted(keys)
    assert [version_of(key) for key in keys] == list(VERSIONS)


@pytest.mark.parametrize("key", ["", "42", "v42", "v0000000000", "v00000000420", "w02.v0000000001", "v0000000001\n"])
def test_a_key_typed_by_hand_that_names_no_version_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="names no version"):
        version_of(key)


@pytest.mark.parametrize("version", [0, -1, 10**10])
def test_no_key_for_what_is_no_version(version: int) -> None:
    with pytest.raises(InvalidInput, match="no version"):
        partition_key(version)
