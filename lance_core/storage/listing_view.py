"""Listing view: a store that answers the listings of one directory from one walk of it, and delegates all other calls.

A cleanup reads references, leases, intents and jobs from directories with a few objects each. On an object store one
request lists all of them. A view shows the objects of one moment: a caller that has to read in an order, such as leases
before references, uses one view for each step. Start with `view_of_directory`, or with `view_of_small_store` for a
whole table.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from lance_core.storage.concurrency import requests_max
from lance_core.storage.store import ObjectInfo, Put, Store, SupportsConcurrency, SupportsShortWalk

_PAGE_OBJECTS = 1000


class ListingView(SupportsConcurrency):
    """Store whose listings below `directory` show `listed`, the objects of that directory. An empty name means the
    whole store. All other calls, such as `head`, go to the store itself."""

    def __init__(self, inner: Store, directory: str, listed: Sequence[ObjectInfo]) -> None:
        self._inner = inner
        self._prefix = f"{directory}/" if directory else ""
        # Stores with real directories (ADLS Gen2) walk one directory after another, which is not the order of paths.
        self._listed = sorted(listed, key=lambda info: info.path)
        self._paths = [info.path for info in self._listed]

    @property
    def requests_max(self) -> int:
        return requests_max(self._inner)

    @property
    def description(self) -> str:
        return self._inner.description

    @property
    def is_one_page(self) -> bool:
        """`True` if one request has listed all objects, so that the view shows one moment."""
        return len(self._listed) < _PAGE_OBJECTS

    def has(self, path: str) -> bool:
        """Return whether the walk found an object at this path."""
        at = bisect_left(self._paths, path)
        return at < len(self._paths) and self._paths[at] == path

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self._inner.read(path, start, length)

    def head(self, path: str) -> ObjectInfo | None:
        return self._inner.head(path)

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        prefix = f"{directory}/"
        if not prefix.startswith(self._prefix):
            return self._inner.list(directory, start_after)
        names = ((info, info.path[len(prefix) :]) for info in self._below(prefix))
        return [info for info, name in names if "/" not in name and name > start_after]

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        prefix = f"{directory}/" if directory else ""
        return self._below(prefix) if prefix.startswith(self._prefix) else self._inner.walk(directory)

    def put(self, path: str, data: bytes) -> None:
        self._inner.put(path, data)

    def create(self, path: str, data: bytes) -> Put:
        return self._inner.create(path, data)

    def delete(self, path: str) -> None:
        self._inner.delete(path)

    def ensure_durable(self, paths: Sequence[str]) -> None:
        self._inner.ensure_durable(paths)

    def _below(self, prefix: str) -> Sequence[ObjectInfo]:
        return self._listed[bisect_left(self._paths, prefix) : bisect_right(self._paths, prefix + "\U0010ffff")]


def view_of_directory(store: Store, directory: str) -> Store:
    """Return a view of a directory, or the store itself if it does not support short walks."""
    return ListingView(store, directory, store.walk(directory)) if isinstance(store, SupportsShortWalk) else store


def view_of_small_store(store: Store) -> ListingView | None:
    """Return a view of all objects, if one request lists them; otherwise `None`."""
    if not isinstance(store, SupportsShortWalk):
        return None
    listed = store.walk_first("", _PAGE_OBJECTS)
    return ListingView(store, "", listed) if len(listed) < _PAGE_OBJECTS else None
