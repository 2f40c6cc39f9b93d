"""File sizes: asks a store for the sizes of many files, with few requests.

A store with a network answers many questions at the same time, and lists a thousand files in the time of one question.
So files of a large commit are looked up in a listing of their directory. The table may have far more files than the
commit: the listing ends after a few times their number, and the rest are asked for one by one.
"""

from collections.abc import Iterator, Sequence

from lance_core.format.naming import split_qualified_path
from lance_core.storage.concurrency import map_requests, requests_max
from lance_core.storage.store import SupportsOrderedListing
from lance_core.versions.location import Location

QUESTIONS_MAX = 16
"""Maximum number of files that are asked for one by one in any case."""
LISTED_MIN = 1_000
"""Files in one page of a listing."""
LISTED_PER_FILE_MAX = 8
"""Listing this many files, page after page, takes half as long as asking for one of them, 64 at the same time."""


def find_sizes(location: Location, paths: Sequence[str]) -> Iterator[int | None]:
    """Yield the size of each file, in order; `None` if it does not exist. The paths may have the id of a base."""
    listed = _list_sizes(location, paths)
    asked = map_requests(location.store, location.store.head, (path for path in paths if path not in listed))
    for path in paths:
        if path in listed:
            yield listed[path]
        else:
            details = next(asked)
            yield None if details is None else details.size


def _list_sizes(location: Location, paths: Sequence[str]) -> dict[str, int]:
    """Return the sizes of those files that a bounded listing of their directories finds."""
    store = location.own_store
    if len(paths) <= QUESTIONS_MAX or requests_max(store) == 1 or not isinstance(store, SupportsOrderedListing):
        return {}
    counts: dict[str, int] = {}
    for path in paths:
        base_id, inner = split_qualified_path(path)
        if base_id is None:
            directory = inner.rpartition("/")[0]
            counts[directory] = counts.get(directory, 0) + 1
    return {
        info.path: info.size
        for directory, count in counts.items()
        if count > QUESTIONS_MAX
        for info in store.list_first(directory, max(LISTED_MIN, LISTED_PER_FILE_MAX * count))
    }
