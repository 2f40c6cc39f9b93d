"""Store interface: the contract of every store. `tests/lance_core/storage/store_contract.py` tests each implementation.

Paths are relative to the root of the store and use `/`. A call either succeeds or definitely fails; only `create` may
answer that its outcome is unknown. A store never retries a `create` by itself: if the first answer was lost, the
retry would find its own object and answer "exists".
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from lance_core.errors import Corrupt, NotFound
from lance_core.limits import Limit

_Decoded = TypeVar("_Decoded")
_FIRST_READ_BYTES_MAX = 32 * 1024 * 1024


class Put(enum.Enum):
    """Outcome of a `create`."""

    CREATED = "created"
    EXISTS = "exists"
    """An object exists at the path. It may be the caller's own, created by an earlier call whose answer was lost."""
    UNKNOWN = "unknown"
    """The object may exist, may appear later, or may never exist. The caller has to read the path to find out."""


class ObjectInfo(Protocol):
    """Path, size and modification time of an object. A listing may load size and time on first access."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def modified(self) -> datetime:
        """Modification time by the clock of the store."""


@dataclass(frozen=True, slots=True)
class ObjectDetails:
    """An `ObjectInfo` whose size and time are already loaded."""

    path: str
    size: int
    modified: datetime
    tag: str = ""
    """Identifier of the content (ETag), if the store has one."""


def load_details(listed: Iterable[ObjectInfo]) -> Iterator[ObjectDetails]:
    """Load size and time of each listed object. Objects deleted since the listing are left out."""
    for info in listed:
        try:
            yield ObjectDetails(info.path, info.size, info.modified)
        except NotFound:
            continue


class Store(Protocol):
    """Objects below one root."""

    @property
    def description(self) -> str:
        """Location of the store for messages, without credentials."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of the object or of a range of it. Raise `NotFound` if the object does not exist."""

    def head(self, path: str) -> ObjectInfo | None:
        """Return the object's details, or `None` if it definitely does not exist."""

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        """Return the objects directly in a directory, sorted by name; none if the directory does not exist."""

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        """Return the objects below a directory at any depth, sorted by path.

        The result includes the temporary files of running and of interrupted writes. Links are not followed.
        """

    def put(self, path: str, data: bytes) -> None:
        """Write the object, replacing an existing one. A reader sees either the old or the new object as a whole."""

    def create(self, path: str, data: bytes) -> Put:
        """Write the object only if none exists. At most one of any number of callers is ever answered CREATED."""

    def delete(self, path: str) -> None:
        """Delete the object. Deleting an object that does not exist is no error."""

    def ensure_durable(self, paths: Sequence[str]) -> None:
        """Make existing objects survive a power loss, including those that another library wrote."""


def read_whole(store: Store, path: str, limit: Limit) -> bytes:
    """Read a whole object, unless it exceeds the limit.

    Such objects are rarely large, so one request usually reads all of it. Only if it does not, the size is checked
    before the rest is read.
    """
    first_bytes = min(limit.maximum, _FIRST_READ_BYTES_MAX) + 1
    data = store.read(path, 0, first_bytes)
    if len(data) < first_bytes:
        return data
    info = store.head(path)
    size = first_bytes if info is None else info.size
    limit.check(size, path=f"{store.description}/{path}")
    return data + store.read(path, first_bytes, size - first_bytes)


def read_decoded(store: Store, path: str, limit: Limit, decode: Callable[[bytes], _Decoded]) -> _Decoded:
    """Read a whole object and decode it. Bytes that are damaged are read once more first, since an answer may be cut
    short on its way although its length matches. Raise `Corrupt` if the object itself is damaged."""
    data = read_whole(store, path, limit)
    try:
        return decode(data)
    except Corrupt:
        again = read_whole(store, path, limit)
        if again == data:
            raise
    return decode(again)


class SupportsOrderedListing(ABC):
    """Store that lists names in order, so the first names of a directory can be read without the rest."""

    __slots__ = ()

    @abstractmethod
    def list_first(self, directory: str, count: int, start_after: str = "") -> Sequence[ObjectInfo]:
        """Return the first `count` objects directly in a directory by name, or the first ones after `start_after`, with
        one request for each thousand."""


class ReportsClockJumps(ABC):
    """Store whose answers have the time of its clock, so that changes of the clock are detected without a request."""

    __slots__ = ()

    @abstractmethod
    def has_clock_jumped_since(self, elapsed_ns: int) -> bool:
        """Return whether an answer to this process, since a time of its monotonic clock, showed that the clock of the
        store went back or ahead."""


class ReportsLastChange(ABC):
    """Store that lists a directory only as a whole, but reports whether the directory changed since a file was put.

    A small file that describes its own directory can then replace the listing.
    """

    __slots__ = ()

    @abstractmethod
    def put_volatile(self, path: str, data: bytes) -> None:
        """Write the object like `put`, but without making it survive a power loss."""

    @abstractmethod
    def head_if_directory_unchanged(self, path: str) -> ObjectInfo | None:
        """Return the file's details, if no entry of its directory was added, removed or renamed since it was put."""


class SupportsDeferredSync(ABC):
    """Store that makes files survive a power loss by syncs, of which several together take about the time of one."""

    __slots__ = ()

    @abstractmethod
    def put_unsynced(self, path: str, data: bytes) -> None:
        """Write a new object like `put`, but leave its sync to a later call of `create_after`. After a power loss
        before that call the object may be missing, empty or incomplete, so nothing may refer to it yet."""

    @abstractmethod
    def create_after(self, path: str, data: bytes, unsynced: Sequence[str]) -> Put:
        """Create an object like `create`. Before it gets its name, the existing objects `unsynced` survive a power loss
        under their names. Raise `NotFound` if one of them does not exist. After an error the new object definitely does
        not exist."""


class SupportsCommitLock(ABC):
    """Store with an advisory lock that orders commits. Correctness does not depend on it: `create` decides which
    writer commits, and writers that take the lock merely do not lose races to each other.
    """

    __slots__ = ()

    @abstractmethod
    def commit_lock(self, directory: str) -> AbstractContextManager[bool]:
        """Hold the lock of a directory. Yield whether it was acquired; the caller may continue without it."""


class SupportsShortWalk(ABC):
    """Store that lists the first objects below a directory, at any depth, without the rest."""

    __slots__ = ()

    @abstractmethod
    def walk_first(self, directory: str, count: int) -> Sequence[ObjectInfo]:
        """Return the first `count` objects below a directory by path, with one request for each thousand. An empty
        name means the root."""

    @abstractmethod
    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        """Return the objects below a directory at any depth, sorted by path."""


class SupportsConcurrency(ABC):
    """Store whose calls wait for a network, so that it serves many concurrent callers as fast as one."""

    __slots__ = ()

    @property
    @abstractmethod
    def requests_max(self) -> int:
        """Maximum number of calls that wait at the same time."""


class SupportsBatchDelete(ABC):
    """Store that deletes many objects in few requests."""

    __slots__ = ()

    @abstractmethod
    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete objects in any order. Objects that do not exist are no error."""
