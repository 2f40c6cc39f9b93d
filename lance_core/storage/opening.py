"""From a URI to a store. The one list of schemes that a table may live under."""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lance_core.errors import InvalidInput, Unsupported
from lance_core.storage.local import LocalStore

_COMING = {
    "s3": "S3",
    "s3+ddb": "S3 with DynamoDB",
    "gs": "Google Cloud Storage",
    "az": "Azure",
    "abfss": "Azure",
}


def open_store(uri: str, *, storage_options: Mapping[str, str] | None = None, durable: bool = True) -> LocalStore:
    """`storage_options` say how to reach an object store; a local path needs none and ignores them.

    >>> open_store("ftp://example.org/t")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    lance_core.errors.InvalidInput: unknown scheme 'ftp' in ftp://example.org/t: a table lives at ...
    """
    path = local_path(uri)
    if path.exists() and not path.is_dir():
        raise InvalidInput(
            f"{path} is a file; a table is a directory. Name the directory that the table is, or will be"
        )
    return LocalStore(path, durable=durable)


def local_path(uri: str) -> Path:
    if not uri:
        raise InvalidInput("the URI of a table is empty; give a local path or a file:// URI")
    scheme, separator, _rest = uri.partition("://")
    if not separator:
        return Path(os.path.abspath(os.path.expanduser(uri)))
    if scheme == "file":
        return Path(os.path.abspath(unquote(urlsplit(uri).path)))
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
