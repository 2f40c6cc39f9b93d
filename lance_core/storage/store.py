"""The contract that every store keeps. `tests/lance_core/storage/contract.py` holds each of them to it.

Paths are relative to the store's root, with `/`. Every call answers with what it knows: done, definitely not,
or, for `create`, that it cannot tell. A store never repeats a `create` on its own: its own first answer, lost
on the way, would come back as "exists".
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from lance_core.errors import NotFound
from lance_core.limits import Limit

_AT_ONCE = 32 * 1024 * 1024


class Put(enum.Enum):
    """What is known after a `create`."""

    CREATED = "created"
    EXISTS = "exists"
    """Something is there; it may still be ours, put by an earlier call whose answer was lost."""
    UNKNOWN = "unknown"
    """It may have landed, may land yet, or may not: only looking tells."""


class ObjectInfo(Protocol):
    """What a store knows of an object. A listing may find out size and time only when they are asked for."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def modified(self) -> datetime:
        """By the store's clock."""


@dataclass(frozen=True, slots=True)
class ObjectDetails:
    """An `ObjectInfo` whose facts came with the answer."""

    path: str
    size: int
    modified: datetime
    tag: str = ""
    """Which content this is, where the store has a word for it."""


def with_facts(listed: Iterable[ObjectInfo]) -> Iterator[ObjectDetails]:
    """Size and time of each, found out now; what went since it was listed is left out."""
    for info in listed:
        try:
            yield ObjectDetails(info.path, info.size, info.modified)
        except NotFound:
            continue


class Store(Protocol):
    @property
    def description(self) -> str:
        """Where this is, for messages: never with credentials."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes, or those of a range. NotFound if there is no such object."""

    def head(self, path: str) -> ObjectInfo | None:
        """None if there is definitely no such object."""

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        """The objects right in a directory, by name; none if it does not exist."""

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        """The objects below a directory at any depth, by path, those of writes under way and of interrupted ones
        included; no link leads out of it."""

    def put(self, path: str, data: bytes) -> None:
        """Write, replacing what is there, all or nothing to any reader."""

    def create(self, path: str, data: bytes) -> Put:
        """Write only if nothing is there: of any number of callers at most one is ever answered CREATED."""

    def delete(self, path: str) -> None:
        """Remove; it is no error if nothing is there."""

    def ensure_durable(self, paths: Sequence[str]) -> None:
        """Make sure that objects which are there survive a power loss, whoever wrote them."""


def read_whole(store: Store, path: str, limit: Limit) -> bytes:
    """An object of a kind that is hardly ever large: one request, but for those that are, which are looked at before
    the rest is fetched."""
    first = min(limit.most, _AT_ONCE) + 1
    data = store.read(path, 0, first)
    if len(data) < first:
        return data
    found = store.head(path)
    size = first if found is None else found.size
    limit.check(size, path=f"{store.description}/{path}")
    return data + store.read(path, first, size - first)


class SupportsOrderedListing(ABC):
    """A store whose listings begin with the first name, and need not be read to their end."""

    __slots__ = ()

    @abstractmethod
    def first(self, directory: str, count: int) -> Sequence[ObjectInfo]:
        """So many of the objects right in a directory, the first ones by name: one request."""


class ReportsLastChange(ABC):
    """A store that lists a directory only as a whole, but knows when something last came or went in it. A small note
    about a directory, kept in it, can then spare the listing."""

    __slots__ = ()

    @abstractmethod
    def put_volatile(self, path: str, data: bytes) -> None:
        """Like `put`, for what may be lost when the power goes."""

    @abstractmethod
    def last_change(self, path: str) -> ObjectInfo | None:
        """The file, if nothing in its directory came, went or was renamed since it was put there."""


class SupportsCommitLock(ABC):
    """A store at which writers can wait for each other: nobody has to, but who does loses no race to those who do."""

    __slots__ = ()

    @abstractmethod
    def commit_lock(self, directory: str) -> AbstractContextManager[bool]:
        """The others' turns at this directory come before or after. False: it goes on without."""
