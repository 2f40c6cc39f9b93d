"""From a URI to a store. The one list of schemes that a table may live under."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast
from urllib.parse import unquote

from lance_core.errors import InvalidInput, Unsupported
from lance_core.storage.local import LocalStore

_COMING = {
    "s3": "S3",
    "s3+ddb": "S3 with DynamoDB",
    "gs": "Google Cloud Storage",
    "az": "Azure",
    "abfss": "Azure",
}


_HALF_A_SCHEME = re.compile(r"(file(?=:)|[a-z][a-z0-9+.\-]+(?=:/)):", re.IGNORECASE)


def open_store(
    uri: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None, durable: bool = True
) -> LocalStore:
    """`storage_options` say how to reach an object store; a local path needs none and ignores them.

    >>> open_store("ftp://example.org/t")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    lance_core.errors.InvalidInput: unknown scheme 'ftp' in ftp://example.org/t: a table lives at ...
    """
    path = local_path(uri)
    _refuse_file(path)
    return LocalStore(path, durable=durable)


def local_path(uri: str | os.PathLike[str]) -> Path:
    uri = _text(uri)
    scheme, separator, rest = uri.partition("://")
    if not separator:
        if half := _HALF_A_SCHEME.match(uri):
            raise InvalidInput(
                f"what begins with {half[0]} is neither a path nor a URI: write {half[1]}:// with two slashes (three "
                "for a local file, as in file:///data/orders), or ./ before a path that begins like this"
            )
        return Path(os.path.abspath(os.path.expanduser(uri)))
    scheme = scheme.lower()
    if scheme == "file":
        return Path(os.path.abspath(_path_in(rest, without_secrets(uri))))
    if scheme == "memory":
        raise Unsupported(
            f"{without_secrets(uri)}: memory is for tests of this package; a table in it would be gone with the process"
        )
    if scheme in _COMING:
        raise Unsupported(
            f"{without_secrets(uri)}: tables on {_COMING[scheme]} are not supported by this version; use a local path"
        )
    raise InvalidInput(
        f"unknown scheme {scheme!r} in {without_secrets(uri)}: a table lives at a local path or file:// URI"
    )


def _text(uri: object) -> str:
    try:
        text = os.fspath(cast(os.PathLike[str], uri))
    except TypeError as error:
        raise InvalidInput(f"the URI of a table is a text or a path, not a {type(uri).__name__}") from error
    if not text:
        raise InvalidInput("the URI of a table is empty; give a local path or a file:// URI")
    if "\0" in os.fsdecode(text):
        raise InvalidInput(f"{text!r} cannot be the URI of a table: no path has a zero byte in it")
    return os.fsdecode(text)


def _path_in(rest: str, shown: str) -> str:
    """Of a file URI, what is behind its two slashes."""
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost"):
        raise InvalidInput(
            f"{shown} names the host {host.rpartition('@')[2]!r}; a local path begins with a third slash, as in "
            "file:///data/orders"
        )
    if "?" in path or "#" in path:
        raise InvalidInput(f"{shown} has a query or a fragment, and a file has neither; write ? as %3F and # as %23")
    if "%00" in path:
        raise InvalidInput(f"{shown} has a zero byte in it, which no path has")
    return slash + unquote(path)


def _refuse_file(path: Path) -> None:
    """A table is a directory, below directories, as far as they exist."""
    try:
        nearest = next(place for place in (path, *path.parents) if place.exists())
    except OSError as error:
        raise InvalidInput(f"{path} cannot be the place of a table: {error.strerror}") from error
    if not nearest.is_dir():
        below = "" if nearest == path else f", and {path} would be below it"
        raise InvalidInput(
            f"{nearest} is a file{below}; a table is a directory. Name the directory that the table is, or will be"
        )


def is_at_or_below(uri: str, directory: str) -> bool:
    """Whether a place is this directory or inside it, whatever way the two are spelt and links lead."""
    place, above = os.path.realpath(local_path(uri)), os.path.realpath(local_path(directory))
    return os.path.commonpath([place, above]) == above


def without_secrets(uri: str) -> str:
    """A URI fit for messages, logs and metadata: no user, no password, no query, no fragment."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri
    rest = rest.partition("?")[0].partition("#")[0]
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"
