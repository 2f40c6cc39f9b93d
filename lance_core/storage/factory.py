"""From a URI to a store. The one list of schemes that a table may live under."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias, cast
from urllib.parse import unquote

from lance_core.errors import InvalidInput, Unsupported
from lance_core.storage.local import LocalStore
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.object_uri import SCHEMES, ObjectUri, is_in_object_store
from lance_core.storage.optional_packages import package

TableStore: TypeAlias = LocalStore | ObjectStore
"""What can hold a table: Lance's codec finds its way to data files there by itself."""
_WRITTEN_OTHERWISE = {
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

_HALF_A_SCHEME = re.compile(r"(file(?=:)|[a-z][a-z0-9+.\-]+(?=:/)):", re.IGNORECASE)


def open_store(
    uri: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None, durable: bool = True
) -> TableStore:
    """`storage_options` say how to reach an object store; a local path needs none and ignores them.

    >>> open_store("gopher://example.org/t")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    lance_core.errors.InvalidInput: unknown scheme 'gopher' in gopher://example.org/t: a table lives at ...
    """
    text = _text(uri)
    if is_in_object_store(text):
        return ObjectStore.at(ObjectUri.of(text, shown=without_secrets(text)), storage_options or {})
    path = local_path(text)
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
    raise _refused(scheme, without_secrets(uri))


def _refused(scheme: str, shown: str) -> InvalidInput | Unsupported:
    places = f"a table lives at a local path, a file:// URI, or {', '.join(f'{each}://' for each in SCHEMES)}"
    if same := _WRITTEN_OTHERWISE.get(scheme):
        return InvalidInput(f"{shown}: write {same}:// for {scheme}://")
    if "::" in scheme:
        return InvalidInput(
            f"{shown}: what is reached through another file system, such as a cache, may be older than it is, and no "
            f"commit is safe on it; {places}"
        )
    known = package("fsspec", extra="", needed_for=f"a look at {shown}").available_protocols()
    if scheme in known:
        return Unsupported(
            f"{shown}: fsspec reaches {scheme}://, but has no way there to put a file only if there is none, and "
            f"Lance's codec reads no data files there. Two writers could both believe that they were first; {places}"
        )
    return InvalidInput(f"unknown scheme {scheme!r} in {shown}: {places}")


def _text(uri: object) -> str:
    try:
        text = os.fspath(cast(os.PathLike[str], uri))
    except TypeError as error:
        raise InvalidInput(f"the URI of a table is a text or a path, not a {type(uri).__name__}") from error
    if not text:
        raise InvalidInput("the URI of a table is empty; give a path or a URI")
    if "\0" in os.fsdecode(text):
        raise InvalidInput(f"{text!r} cannot be the URI of a table: no path has a zero byte in it")
    return os.fsdecode(text)


def _path_in(rest: str, shown: str) -> str:
    """Of a file URI, what is behind its two slashes."""
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost"):
        raise InvalidInput(f"{shown} names a host; a local path begins with a third slash, as in file:///data/orders")
    if "?" in path or "#" in path:
        raise InvalidInput(f"{shown} has a query or a fragment, and a file has neither; write ? as %3F and # as %23")
    if "%00" in path:
        raise InvalidInput(f"{shown} has a zero byte in it, which no path has")
    return slash + unquote(path)


def _refuse_file(path: Path) -> None:
    """A table is a directory, below directories, as far as they exist."""
    if os.path.isdir(path):
        return
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
    if is_in_object_store(uri) or is_in_object_store(directory):
        if not (is_in_object_store(uri) and is_in_object_store(directory)):
            return False
        here, there = (ObjectUri.of(each, shown=without_secrets(each)) for each in (uri, directory))
        return here.is_at_or_below(there)
    place, above = os.path.realpath(local_path(uri)), os.path.realpath(local_path(directory))
    return os.path.commonpath([place, above]) == above


def without_secrets(uri: str) -> str:
    """A URI fit for messages, logs and metadata: no user, no password, no query, no fragment."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri
    before, at, after = rest.rpartition("@")
    if at and ":" in before.partition("/")[0]:  # a password may have any character in it
        rest = "***" if {"?", "#"} & set(before) else after
    rest = rest.partition("?")[0].partition("#")[0]
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if scheme.lower() == "abfss" and ":" not in user:  # a container at its account
        return f"{scheme}://{user}{at}{host}{slash}{path}"
    return f"{scheme}://{host}{slash}{path}"
