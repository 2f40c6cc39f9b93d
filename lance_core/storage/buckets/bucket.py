"""Bucket interface: the requests of an object store service, by key.

A call sends one request, once, and raises only `RequestError`. A page of a listing is one request, too.
Implementations are thread-safe.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ListedKey:
    """Object of a bucket: its key, size and modification time."""

    key: str
    size: int
    modified: datetime
    tag: str = ""
    """Identifier of the content (ETag)."""


@dataclass(frozen=True, slots=True)
class ListingPage:
    """One page of a listing."""

    keys: Sequence[ListedKey]
    """Objects sorted by the bytes of their keys."""
    continuation: str | None
    """Token for the next page; `None` after the last page."""
    directories: Sequence[str] = ()
    """Common prefixes up to the next slash, if the listing is not recursive."""


class Bucket(Protocol):
    """Connection to one bucket or container."""

    def get(self, key: str, start: int, length: int | None) -> bytes:
        """Return a range of the object; no bytes if the object ends before `start`."""

    def head(self, key: str) -> ListedKey: ...

    def list_page(
        self, prefix: str, *, recursive: bool, after: str, continuation: str | None, limit: int
    ) -> ListingPage:
        """Return the keys that begin with `prefix` and sort after `after`.

        Unless `recursive`, keys with another slash after the prefix are replaced by their common prefixes.
        """

    def put(self, key: str, data: bytes) -> None: ...

    def create(self, key: str, data: bytes) -> None:
        """Put the object only if none exists. The request carries the condition, and the service checks it."""

    def delete(self, key: str) -> None:
        """Delete the object. An implementation may, but need not, raise if it does not exist."""

    # The following methods are for files of any size. They may send many requests and retry some of them.

    def download(self, key: str, to: Path) -> None: ...

    def upload(self, source: Path, key: str) -> None: ...

    def copy(self, key: str, to: str) -> None:
        """Copy an object within the bucket, without downloading it."""
