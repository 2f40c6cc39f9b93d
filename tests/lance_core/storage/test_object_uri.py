"""Object URIs: one normalized form of each, and containment."""

import pytest

from lance_core import InvalidInput
from lance_core.storage.factory import is_at_or_below
from lance_core.storage.object_uri import ObjectUri


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://lake/a/b", "s3://lake/a/b"),
        ("S3://lake/a/b/", "s3://lake/a/b"),
        ("s3://lake", "s3://lake"),
        ("s3://lake/", "s3://lake"),
        ("s3://lake/a%20b", "s3://lake/a b"),
        ("s3://lake/ä", "s3://lake/ä"),
        ("gs://lake_1.x/a", "gs://lake_1.x/a"),
        ("az://lake/a", "az://lake/a"),
        ("abfss://lake@account.dfs.core.windows.net/a", "abfss://lake@account.dfs.core.windows.net/a"),
    ],
)
def test_uris_are_normalized(uri: str, expected: str) -> None:
    object_uri = ObjectUri.parse(uri, redacted=uri)
    assert object_uri.uri == expected
    assert ObjectUri.parse(object_uri.uri, redacted=uri) == object_uri
    assert object_uri.path_of(object_uri.key_of("data/x")) == "data/x"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://", "names no bucket"),
        ("s3:///a", "names no bucket"),
        ("s3://me:pass@lake/a", "names no bucket"),
        ("az://lake@account.dfs.core.windows.net/a", "names no bucket"),
        ("s3://lake/a//b", "each part between slashes must be a name"),
        ("s3://lake/../b", "each part between slashes must be a name"),
        ("s3://lake/a/%2e%2e/b", "each part between slashes must be a name"),
        ("s3://lake/a\\b", "without backslashes"),
        ("s3://lake/a%00b", "without backslashes and control characters"),
        ("s3://lake/a%2541", "has a %, [?] or # in a name"),
        ("s3://lake/a?versionId=1", "has a query"),
        ("s3://lake/a#1", "has a query or a fragment"),
    ],
)
def test_invalid_uris_are_rejected(uri: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ObjectUri.parse(uri, redacted="it")


@pytest.mark.parametrize(
    ("uri", "directory", "expected"),
    [
        ("s3://lake/a", "s3://lake/a/", True),
        ("s3://lake/a/tree/dev", "s3://lake/a", True),
        ("s3://lake/a b", "s3://lake/a%20b", True),
        ("s3://lake/ab", "s3://lake/a", False),
        ("s3://lake/a", "s3://lake/a/b", False),
        ("s3://lake/a", "s3://lake", True),
        ("s3://lake/a", "s3://other/a", False),
        ("s3://lake/a", "gs://lake/a", False),
        ("s3://lake/a", "/lake/a", False),
        ("/lake/a", "s3://lake/a", False),
        ("/lake/a/b", "/lake/a", True),
    ],
)
def test_containment(uri: str, directory: str, expected: bool) -> None:
    assert is_at_or_below(uri, directory) is expected
