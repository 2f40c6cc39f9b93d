"""Bucket interface: the requests of an object store service, by key.

A call sends one request, once, and raises only `RequestError`. A page of a listing is one request, too.
Implementations are thread-safe.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Protocol

from lance_core.storage.answer_dates import AnswerDates


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

    @property
    def dates(self) -> AnswerDates:
        """Dates of the answers to the requests."""

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

    # An object in parts, which exists as soon as the upload is completed

    def begin_upload(self, key: str) -> str:
        """Return the identifier of a new upload."""

    def upload_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        """Send a part and return the receipt for it. Numbers begin with 1, and a repetition replaces the part."""

    def complete_upload(self, key: str, upload_id: str, receipts: Sequence[str]) -> None:
        """Create the object, or replace it, from the parts with these receipts, in order."""

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Discard the parts."""

    # The following methods are for files of any size. They may send many requests and retry some of them.

    def download(self, key: str, to: Path) -> None: ...

    def copy(self, key: str, to: str) -> None:
        """Copy an object within the bucket, without downloading it."""


class DeletesBatches(ABC):
    """Bucket of a service with a request that deletes many objects."""

    __slots__ = ()
    batch_max: ClassVar[int]
    """Maximum number of keys in one request."""

    @property
    @abstractmethod
    def deletes_batches(self) -> bool:
        """Return true if the settings allow that request, and the service has not refused it."""

    @abstractmethod
    def delete_batch(self, keys: Sequence[str]) -> Sequence[str]:
        """Delete objects. Return the keys that the answer reports as not deleted."""
