"""What an object store can do, key by key. Every call is one request (a page of a listing, too), sent once, and raises
nothing but `Trouble`. Safe to call from several threads."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ListedKey:
    key: str
    size: int
    modified: datetime
    tag: str = ""
    """Which content this is, by the store's own word (ETag)."""


@dataclass(frozen=True, slots=True)
class ListingPage:
    found: Sequence[ListedKey]
    """In the order of keys, by their bytes."""
    following: str | None
    """What to ask with for the next one; None after the last."""
    directories: Sequence[str] = ()
    """Where only keys right in the prefix were asked for: what the others begin with, up to their next slash."""


class Bucket(Protocol):
    def get(self, key: str, start: int, length: int | None) -> bytes:
        """Nothing where the object ends before `start`."""

    def head(self, key: str) -> ListedKey: ...

    def page(self, prefix: str, *, deep: bool, after: str, following: str | None, limit: int) -> ListingPage:
        """Keys that begin with `prefix`, behind `after`; without `deep` those that have no further slash."""

    def put(self, key: str, data: bytes) -> None: ...

    def create(self, key: str, data: bytes) -> None:
        """Only where nothing is: the condition goes with the request, and the store decides."""

    def delete(self, key: str) -> None:
        """Also where nothing is."""

    # The following three are for files of any size. They may take many requests and repeat some of them.

    def download(self, key: str, to: Path) -> None: ...

    def upload(self, source: Path, key: str) -> None: ...

    def copy(self, key: str, to: str) -> None:
        """Within the store, without the bytes coming here."""
