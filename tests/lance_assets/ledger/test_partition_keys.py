"""Partition keys: they sort like the versions and represent nothing else."""

import pytest

from lance_assets.ledger.partition_keys import is_version_key, partition_key, version_of
from lance_core import InvalidInput

VERSIONS = (1, 9, 10, 42, 99_999, 100_000, 9_999_999_999)


def test_keys_are_bijective_and_sort_like_versions() -> None:
    keys = [partition_key(version) for version in VERSIONS]
    assert keys == sorted(keys)
    assert [version_of(key) for key in keys] == list(VERSIONS)


def test_keys_of_later_incarnations_sort_last() -> None:
    epochs = (1, 2, 9, 10, 99, 100, 999, 1000, 9999, 10_000, 99_999)
    keys = [partition_key(version, epoch) for epoch in epochs for version in VERSIONS]
    assert keys == sorted(keys)
    assert [version_of(key) for key in keys] == list(VERSIONS) * len(epochs)
    assert partition_key(1, 2) == "w02.v0000000001"
    assert all(map(is_version_key, keys))


@pytest.mark.parametrize("epoch", [0, -1, 100_000])
def test_invalid_incarnations_have_no_key(epoch: int) -> None:
    with pytest.raises(InvalidInput, match=r"incarnation .* has no partition key"):
        partition_key(1, epoch)


@pytest.mark.parametrize("key", ["", "42", "v42", "v0000000000", "v00000000420", "w01.v0000000001", "v0000000001\n"])
def test_malformed_keys_are_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="names no version"):
        version_of(key)


@pytest.mark.parametrize("version", [0, -1, 10**10])
def test_invalid_versions_have_no_key(version: int) -> None:
    with pytest.raises(InvalidInput, match=r"version .* has no partition key"):
        partition_key(version)
