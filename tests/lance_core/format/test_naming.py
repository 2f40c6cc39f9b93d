"""Naming: strict formatting and parsing, since real directories contain leftovers of other writers."""

import uuid

import pytest

from lance_core.format.ids import Version
from lance_core.format.naming import (
    NamingScheme,
    data_file_name,
    is_confined,
    manifest_path,
    parse_manifest_name,
    transaction_name,
)

V1, V2 = NamingScheme.V1, NamingScheme.V2


@pytest.mark.parametrize(
    ("version", "scheme", "path"),
    [
        (1, V2, "_versions/18446744073709551614.manifest"),
        (10**18, V2, "_versions/17446744073709551615.manifest"),
        (1, V1, "_versions/1.manifest"),
        (120, V1, "_versions/120.manifest"),
    ],
)
def test_manifest_names_are_formatted_and_parsed(version: int, scheme: NamingScheme, path: str) -> None:
    assert manifest_path(Version(version), scheme) == path
    assert parse_manifest_name(path.rpartition("/")[2]) == (version, scheme)


@pytest.mark.parametrize(
    "name",
    [
        "18446744073709551615.manifest",  # version 0
        "0.manifest",
        "01.manifest",
        "99999999999999999999.manifest",  # more than 64 bits
        "00000000000000000001.manifest",  # the detached bit is set
        "d9223372036854775809.manifest",
        "18446744073709551614.manifest#1",
        "18446744073709551614.manifest-4f3c",
        ".tmp18446744073709551614.manifest",
        "1.manifest.tmp",
        "-1.manifest",
        "１.manifest",  # noqa: RUF001 - a digit to Python, not to the format
        "latest_version_hint.json",
        ".manifest",
        "",
    ],
)
def test_other_names_are_not_versions(name: str) -> None:
    assert parse_manifest_name(name) is None


def test_newer_versions_sort_first() -> None:
    paths = [manifest_path(Version(version)) for version in (1, 2, 9, 10, 11, 99, 100)]
    assert sorted(paths, reverse=True) == paths


def test_data_and_transaction_names() -> None:
    key = uuid.UUID("80ff0102-0304-4506-8708-090a0b0c0d0e")
    assert data_file_name(key.bytes) == "100000001111111100000001" + "020304450687" + "08090a0b0c0d0e" + ".lance"
    assert len(data_file_name(key.bytes)) == 56
    assert transaction_name(Version(7), str(key)) == f"7-{key}.txn"


@pytest.mark.parametrize("path", ["a.lance", "a/b.lance", "_x/0-1-2.arrow", "a..b", "A-1_2.txn"])
def test_plain_names_stay_inside(path: str) -> None:
    assert is_confined(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../a",
        "a/../b",
        "a/..",
        "..",
        ".hidden",
        "a//b",
        "a/",
        "a\\b",
        "a\0b",
        "a\n",
        "%2e%2e/a",
        "file:x",
        "a b",
        "ä",
    ],
)
def test_names_outside_the_directory_are_rejected(path: str) -> None:
    assert not is_confined(path)
