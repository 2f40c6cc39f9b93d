"""File hashing: computes the checksum of a file in a store, in parts, so that its size does not matter.

The parts of a local file are read into one buffer: a fresh buffer for each would take longer than the hash.
"""

from collections.abc import Callable, Iterator

from lance_core.errors import NotFound
from lance_core.format.file_checksum import FileChecksum, new_hasher
from lance_core.storage.local import LocalStore
from lance_core.storage.store import Store

_LOCAL_PART_BYTES = 1 << 20
_OBJECT_PART_BYTES = 8 << 20
"""Few enough requests, and little enough memory for several files at a time."""


def compute_checksum(store: Store, path: str, on_bytes: Callable[[int], None] | None = None) -> FileChecksum:
    """Read a file and return its checksum. Raise `NotFound` if it does not exist. `on_bytes` receives the number of
    bytes of each part."""
    hasher, size = new_hasher(), 0
    parts: Iterator[bytes | memoryview] = (
        store.read_parts(path, _LOCAL_PART_BYTES) if isinstance(store, LocalStore) else _object_parts(store, path)
    )
    for part in parts:
        hasher.update(part)
        size += len(part)
        if on_bytes is not None:
            on_bytes(len(part))
    return FileChecksum(size, hasher.intdigest())


def _object_parts(store: Store, path: str) -> Iterator[bytes]:
    """Yield the parts of an object. Its size is read first: a range beyond the end is an error on some stores."""
    info = store.head(path)
    if info is None:
        raise NotFound(f"{store.description}/{path} does not exist")
    for start in range(0, info.size, _OBJECT_PART_BYTES):
        yield store.read(path, start, min(_OBJECT_PART_BYTES, info.size - start))
