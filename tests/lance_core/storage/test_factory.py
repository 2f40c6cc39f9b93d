"""Store factory: which URIs locate a table, and how other URIs are rejected."""

from pathlib import Path

import pytest

from lance_core import InvalidInput, Unsupported
from lance_core.storage.factory import local_path, open_store, without_secrets
from lance_core.versions.location import locate


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("/data/t", "/data/t"),
        ("/data/x/../t/", "/data/t"),
        ("file:///data/t%20t", "/data/t t"),
        ("relative/t", str(Path.cwd() / "relative/t")),
        ("~/t", str(Path.home() / "t")),
        ("/data/a:b", "/data/a:b"),
        ("a:b/t", str(Path.cwd() / "a:b/t")),
        ("FILE:///data/t", "/data/t"),
        ("file://localhost/data/a%3Fb%23c", "/data/a?b#c"),
        (Path("/data/t"), "/data/t"),
    ],
)
def test_local_paths(uri: str | Path, expected: str) -> None:
    assert local_path(uri) == Path(expected)


@pytest.mark.parametrize(
    ("uri", "error", "message"),
    [
        ("", InvalidInput, "is empty"),
        ("gopher://host/t", InvalidInput, "unknown scheme 'gopher' in gopher://host/t"),
        ("gopher://me:secret@host/t?sig=secret#secret", InvalidInput, "unknown scheme 'gopher' in gopher://host/t:"),
        ("s3://bucket/t?key=secret", InvalidInput, "s3://bucket/t has a query or a fragment"),
        ("S3://me:secret@bucket/t", InvalidInput, "S3://bucket/t names no bucket"),
        ("s3a://me:secret@bucket/t", InvalidInput, "s3a://bucket/t: write s3:// for s3a://"),
        (
            "sftp://me:secret@host/t",
            Unsupported,
            "sftp://host/t: fsspec reaches sftp://, but cannot create a file there",
        ),
        ("simplecache::s3://bucket/t?key=secret", InvalidInput, "through another file system, such as a cache"),
        ("file:/data/t", InvalidInput, "a location that begins with file: is neither a path nor a URI: write file://"),
        ("file:t", InvalidInput, "neither a path nor a URI"),
        (
            "s3:/me:secret@bucket/t",
            InvalidInput,
            "a location that begins with s3: is neither a path nor a URI: write s3://",
        ),
        ("file://me:secret@host/t", InvalidInput, "file://host/t names a host"),
        ("file:///data/t?key=secret", InvalidInput, "has a query or a fragment"),
        ("file:///data/t#secret", InvalidInput, "has a query or a fragment"),
        ("file:///data/t%00", InvalidInput, "zero byte"),
        ("/data/t\0", InvalidInput, "zero byte"),
        ("/" + "t" * 300, InvalidInput, "cannot be the location of a table: File name too long"),
        (7, InvalidInput, "a string or a path, not int"),
        ("memory://me:secret@t", Unsupported, "memory://t: memory:// is for tests"),
    ],
)
def test_other_uris_are_rejected_without_their_secrets(uri: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        open_store(uri)
    assert "secret" not in str(caught.value)


def test_a_file_is_not_a_table_location(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").touch()
    with pytest.raises(InvalidInput, match=r"orders\.csv is a file; a table is a directory"):
        open_store(str(tmp_path / "orders.csv"))
    with pytest.raises(InvalidInput, match=r"orders\.csv is a file, and .*/x/y would be below it"):
        open_store(tmp_path / "orders.csv" / "x" / "y")


def test_without_secrets_keeps_what_distinguishes_locations() -> None:
    assert without_secrets("/plain/path?x") == "/plain/path?x"
    assert without_secrets("s3://user:pass@bucket/a/b?X-Amz-Signature=1") == "s3://bucket/a/b"
    assert without_secrets("abfss://lake@account.dfs.core.windows.net/t?sig=1") == (
        "abfss://lake@account.dfs.core.windows.net/t"
    )
    assert without_secrets("abfss://me:pass@lake/t") == "abfss://lake/t"
    assert without_secrets("file:///a::https://me:pass@host/b?c=1") == "file:///a::https://host/b"


@pytest.mark.parametrize(
    "password", ["hunter/2secret", "hunter@2/secret", "hunter?2secret", "hunter#2secret", "a/b?secret"]
)
@pytest.mark.parametrize("scheme", ["s3", "s3+ddb", "abfss", "file", "https", "gopher"])
def test_a_password_may_have_any_character_in_it(scheme: str, password: str) -> None:
    uri = f"{scheme}://key:{password}@bucket/t"
    assert without_secrets(uri) in (f"{scheme}://bucket/t", f"{scheme}://***")
    with pytest.raises((InvalidInput, Unsupported)) as caught:
        locate(uri)
    assert not any(part in str(caught.value) for part in ("hunter", "secret"))
