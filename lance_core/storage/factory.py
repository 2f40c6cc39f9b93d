"""Store factory: opens the store and the manifest store for a URI, and defines which URI schemes a table may have.

Start at `open_store` and `open_manifest_store`.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias, cast
from urllib.parse import parse_qsl, unquote

from lance_core.errors import InvalidInput, Unsupported
from lance_core.storage.local import LocalStore
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.object_uri import SCHEMES, ObjectUri
from lance_core.storage.optional_packages import import_package
from lance_core.storage.secret_references import resolve_secrets

TableStore: TypeAlias = LocalStore | ObjectStore
"""Store that can hold a table: the codec opens data files there directly, by URI."""
_SCHEME_ALIASES = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfs": "abfss",
    "azure": "az",
    "adl": "abfss",
    "wasb": "az",
    "wasbs": "az",
    "local": "file",
}

_CHAIN = re.compile(r"::(?=[a-z][a-z0-9+.\-]*://)", re.IGNORECASE)
"""Separator of the URIs of a chain, as fsspec writes it."""
_INCOMPLETE_SCHEME = re.compile(r"(file(?=:)|[a-z][a-z0-9+.\-]+(?=:/)):", re.IGNORECASE)


def open_store(
    uri: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None, durable: bool = True
) -> TableStore:
    """Open the store for a URI. `storage_options` say how to reach an object store; a local path ignores them.

    >>> open_store("gopher://example.org/t")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    lance_core.errors.InvalidInput: unknown scheme 'gopher' in gopher://example.org/t: a table lives at ...
    """
    text = _uri_text(uri)
    if is_in_object_store(text):
        return ObjectStore.open(ObjectUri.parse(text, redacted=without_secrets(text)), storage_options or {})
    path = local_path(text)
    _check_directory(path)
    return LocalStore(path, durable=durable)


def is_in_object_store(uri: str) -> bool:
    scheme, separator, _ = uri.partition("://")
    return bool(separator) and scheme.lower() in SCHEMES


def local_path(uri: str | os.PathLike[str]) -> Path:
    """Return the absolute local path for a path or a `file://` URI, and raise for any other scheme."""
    uri = _uri_text(uri)
    scheme, separator, rest = uri.partition("://")
    if not separator:
        if incomplete := _INCOMPLETE_SCHEME.match(uri):
            raise InvalidInput(
                f"a location that begins with {incomplete[0]} is neither a path nor a URI: write {incomplete[1]}:// "
                "with two slashes (three for a local file, as in file:///data/orders), or put ./ before such a path"
            )
        return Path(os.path.abspath(os.path.expanduser(uri)))
    scheme = scheme.lower()
    if scheme == "file":
        return Path(os.path.abspath(_path_of_file_uri(rest, without_secrets(uri))))
    if scheme == "memory":
        raise Unsupported(
            f"{without_secrets(uri)}: memory:// is for tests of this package only, because the table would end with "
            "the process; use a local path"
        )
    raise _scheme_error(scheme, without_secrets(uri))


def _scheme_error(scheme: str, redacted: str) -> InvalidInput | Unsupported:
    accepted = f"a table lives at a local path, a file:// URI, or {', '.join(f'{known}://' for known in SCHEMES)}"
    if canonical := _SCHEME_ALIASES.get(scheme):
        return InvalidInput(f"{redacted}: write {canonical}:// for {scheme}://")
    if "::" in scheme:
        return InvalidInput(
            f"{redacted}: a commit is not safe through another file system, such as a cache, because it may return "
            f"outdated files; {accepted}"
        )
    protocols = import_package("fsspec", extra=None, needed_for=f"checking {redacted}").available_protocols()
    if scheme in protocols:
        return Unsupported(
            f"{redacted}: fsspec reaches {scheme}://, but cannot create a file there only if none exists, so two "
            f"writers could both commit the same version; nor can the codec read data files there. {accepted}"
        )
    return InvalidInput(f"unknown scheme {scheme!r} in {redacted}: {accepted}")


def _uri_text(uri: object) -> str:
    try:
        text = os.fspath(cast(os.PathLike[str], uri))
    except TypeError as error:
        raise InvalidInput(f"the URI of a table must be a string or a path, not {type(uri).__name__}") from error
    if not text:
        raise InvalidInput("the URI of a table is empty; give a path or a URI")
    if "\0" in os.fsdecode(text):
        raise InvalidInput(f"{text!r} cannot be the URI of a table: it contains a zero byte")
    return os.fsdecode(text)


def _path_of_file_uri(rest: str, redacted: str) -> str:
    """Return the path of a file URI. `rest` is the part after `file://`."""
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost"):
        raise InvalidInput(f"{redacted} names a host; write a local path with a third slash, as in file:///data/orders")
    if "?" in path or "#" in path:
        raise InvalidInput(
            f"{redacted} has a query or a fragment, which a file URI must not have; write ? as %3F and # as %23"
        )
    if "%00" in path:
        raise InvalidInput(f"{redacted} contains a zero byte, which no path can contain")
    return slash + unquote(path)


def _check_directory(path: Path) -> None:
    """Raise if the path, or the nearest of its parents that exists, is not a directory."""
    if os.path.isdir(path):
        return
    try:
        nearest = next(ancestor for ancestor in (path, *path.parents) if ancestor.exists())
    except OSError as error:
        raise InvalidInput(f"{path} cannot be the location of a table: {error.strerror}") from error
    if not nearest.is_dir():
        below = "" if nearest == path else f", and {path} would be below it"
        raise InvalidInput(
            f"{nearest} is a file{below}; a table is a directory. Name the existing or new directory of the table"
        )


def is_at_or_below(uri: str, directory: str) -> bool:
    """Return whether a location is this directory or below it, after normalizing both and following links."""
    if is_in_object_store(uri) or is_in_object_store(directory):
        if not (is_in_object_store(uri) and is_in_object_store(directory)):
            return False
        location, parent = (ObjectUri.parse(text, redacted=without_secrets(text)) for text in (uri, directory))
        return location.is_at_or_below(parent)
    path, parent_path = os.path.realpath(local_path(uri)), os.path.realpath(local_path(directory))
    return os.path.commonpath([path, parent_path]) == parent_path


def without_secrets(uri: str) -> str:
    """Return the URI for messages, logs and metadata: without user, password, query and fragment.

    >>> without_secrets("zip://a.csv::https://me:word@host/all.zip?sig=ab")
    'zip://a.csv::https://host/all.zip'
    """
    return "::".join(_link_without_secrets(link) for link in _CHAIN.split(uri))


def _link_without_secrets(uri: str) -> str:
    """Return one URI of a chain without secrets."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri
    before, at, after = rest.rpartition("@")
    if at and ":" in before.partition("/")[0]:  # a password may contain any character
        rest = "***" if {"?", "#"} & set(before) else after
    rest = rest.partition("?")[0].partition("#")[0]
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if scheme.lower() == "abfss" and ":" not in user:  # `container@account` is not a user and a host
        return f"{scheme}://{user}{at}{host}{slash}{path}"
    return f"{scheme}://{host}{slash}{path}"


_DYNAMODB_PREFIX = "s3+ddb://"
_TABLE_PARAMETER = "ddbTableName"
_URL_EXAMPLES = "sqlite:////data/manifests.db, postgresql://user:password@host/database or dynamodb://table"


def open_manifest_store(
    manifest_store: "ManifestStore | str | None", storage_options: Mapping[str, str] | None
) -> ManifestStore | None:
    """Return the manifest store for the `manifest_store=` argument: a URL, a manifest store, or `None`."""
    if not isinstance(manifest_store, str):
        if manifest_store is not None and not isinstance(manifest_store, ManifestStore):
            raise InvalidInput(
                f"manifest_store must be a URL such as {_URL_EXAMPLES}, not {type(manifest_store).__name__}"
            )
        return manifest_store
    url = resolve_secrets(manifest_store, "the manifest store")
    scheme, separator, rest = url.partition("://")
    if not separator:
        # The message does not repeat the value, because an incomplete URL may contain a password.
        raise InvalidInput(
            f"manifest_store is not a URL; write it as {_URL_EXAMPLES}, or as env:NAME to read it from an environment "
            "variable"
        )
    if scheme == "dynamodb":
        if not rest or any(char in rest for char in "/?#@"):
            raise InvalidInput(
                "dynamodb://table must name a table and nothing else; pass access options as storage options "
                "(aws_region, dynamodb_endpoint and credentials)"
            )
        from lance_core.storage.manifest_stores.dynamodb import DynamoDBManifestStore

        return DynamoDBManifestStore(rest, dict(storage_options or {}))
    from lance_core.storage.manifest_stores.sql import SqlManifestStore

    store = SqlManifestStore(url)
    store.description  # noqa: B018 - raises for an invalid URL before anything is written
    return store


def split_uri(uri: str) -> tuple[str, str | None]:
    """Return the URI of the table, and the URL of the manifest store that the given URI names, if any.

    >>> split_uri("s3+ddb://lake/orders?ddbTableName=commits")
    ('s3://lake/orders', 'dynamodb://commits')
    """
    if not uri.lower().startswith(_DYNAMODB_PREFIX):
        return uri, None
    location, _, query = uri[len(_DYNAMODB_PREFIX) :].partition("?")
    parameters = parse_qsl(query)
    if len(parameters) != 1 or parameters[0][0] != _TABLE_PARAMETER or not parameters[0][1]:
        raise InvalidInput(
            f"{without_secrets(uri)} must name its DynamoDB table with the query ?{_TABLE_PARAMETER}=... alone"
        )
    return f"s3://{location}", f"dynamodb://{parameters[0][1]}"
