"""Checksums of files: computes them, and compares files with their recorded checksums before they are decoded.

A table is opened with a mode. A file that was verified is not read again in the same process, since files never
change. Deletion files, which are in memory as a whole when they are decoded, are always verified. Start with
`FileVerifier`.
"""

import enum
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from lance_core.errors import Corrupt, NotFound
from lance_core.format.file_checksum import FileChecksum, new_hasher
from lance_core.storage.local import LocalStore
from lance_core.storage.store import Store

SAMPLED_ONE_IN = 16
"""Files of which one is verified in the mode `sample`."""
_VERIFIED_MAX = 100_000
_LOCAL_PART_BYTES = 1 << 20
_OBJECT_PART_BYTES = 8 << 20
"""Few enough requests, and little enough memory for several files at a time."""
_OBJECT_PARTS_AT_ONCE = 4
_LOCKS = tuple(threading.Lock() for _ in range(64))
"""Locks for files by hash, so that two threads do not both read one file."""
_SAMPLE_SALT = int.from_bytes(os.urandom(8))
"""Makes each process choose other files for its sample."""


class Verify(enum.Enum):
    """Files that are compared with their recorded checksums before they are decoded."""

    OFF = "off"
    """Deletion files only."""
    SAMPLE = "sample"
    """One data or index file in sixteen as well, chosen at random by each process."""
    READ = "read"
    """Every data and index file that is opened, once for each process."""


_VerifiedKey = tuple[str, str, FileChecksum]
"""Store, path and checksum of a file."""


class _VerifiedFiles:
    """Files that this process has verified, up to a number."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._keys: OrderedDict[_VerifiedKey, None] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, key: _VerifiedKey) -> bool:
        return key in self._keys

    def add(self, key: _VerifiedKey) -> None:
        with self._lock:
            self._keys[key] = None
            if len(self._keys) > self._capacity:
                self._keys.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._keys.clear()


_verified = _VerifiedFiles(_VERIFIED_MAX)


def forget_verified_files() -> None:
    """Forget which files this process has verified, so that it verifies them again, as a new process does."""
    _verified.clear()


@dataclass(frozen=True, slots=True)
class FileVerifier:
    """Verification of the files in one store, as its table was opened."""

    store: Store
    mode: Verify = Verify.OFF

    def verify(self, path: str, checksum: FileChecksum | None) -> None:
        """Raise `Corrupt` if the file differs from its checksum and the mode includes it. A file without a recorded
        hash passes."""
        if self.mode is Verify.OFF or checksum is None or checksum.xxh3 is None:
            return
        if self.mode is Verify.SAMPLE and (checksum.xxh3 ^ _SAMPLE_SALT) % SAMPLED_ONE_IN:
            return
        key = (self.store.description, path, checksum)
        if key in _verified:
            return
        with _LOCKS[checksum.xxh3 % len(_LOCKS)]:
            if key not in _verified:
                verify_file(self.store, path, checksum)
                _verified.add(key)


def verify_file(store: Store, path: str, checksum: FileChecksum, on_bytes: Callable[[int], None] | None = None) -> None:
    """Read a file and raise `Corrupt` if it differs from its checksum, `NotFound` if it does not exist."""
    if isinstance(store, LocalStore) and (size := _size_of(store, path)) != checksum.size:
        _check_equal(FileChecksum(size, None), checksum, f"{store.description}/{path}")
    actual = compute_checksum(store, path, on_bytes, size=checksum.size)
    _check_equal(actual, checksum, f"{store.description}/{path}")


def verify_bytes(data: bytes, checksum: FileChecksum | None, *, path: str) -> None:
    """Raise `Corrupt` if the contents of the file at `path` differ from its checksum. `None` passes."""
    if checksum is not None:
        _check_equal(FileChecksum.of(data), checksum, path)


def _check_equal(actual: FileChecksum, recorded: FileChecksum, path: str) -> None:
    if actual.size != recorded.size:
        what = f"has {actual.size} bytes, but {recorded.size} were written"
    elif recorded.xxh3 is None or actual.xxh3 == recorded.xxh3:
        return
    else:
        what = f"has the hash {actual.xxh3:016x}, but bytes with the hash {recorded.xxh3:016x} were written"
    raise Corrupt(
        f"{what}. The file is damaged: restore it from a copy, for example from a clone with "
        "python -m lance_core fsck --repair data-files --source URI",
        path=path,
        field="checksum",
    )


def compute_checksum(
    store: Store, path: str, on_bytes: Callable[[int], None] | None = None, *, size: int | None = None
) -> FileChecksum:
    """Read a file and return its checksum. Raise `NotFound` if it does not exist. `on_bytes` receives the number of
    bytes of each part. `size` is the expected size, which saves a request for the size of an object; if it is wrong,
    the checksum has the actual size and no hash.

    The file is read in parts, so that its size does not matter. The parts of a local file are read into one buffer: a
    fresh buffer for each would take longer than the hash."""
    hasher, count = new_hasher(), 0
    parts: Iterator[bytes | memoryview] = (
        store.read_parts(path, _LOCAL_PART_BYTES)
        if isinstance(store, LocalStore)
        else _object_parts(store, path, _size_of(store, path) if size is None else size)
    )
    for part in parts:
        hasher.update(part)
        count += len(part)
        if on_bytes is not None:
            on_bytes(len(part))
    if size is None or count == size:
        return FileChecksum(count, hasher.intdigest())
    return FileChecksum(count if isinstance(store, LocalStore) else _size_of(store, path), None)


def _object_parts(store: Store, path: str, size: int) -> Iterator[bytes]:
    """Yield the parts of an object, of which some are requested ahead. The last request asks for one byte more than
    the object should have, so that a longer one is detected."""
    lengths = [min(_OBJECT_PART_BYTES, size + 1 - start) for start in range(0, size + 1, _OBJECT_PART_BYTES)]
    if len(lengths) == 1:
        yield store.read(path, 0, size + 1)
        return
    with ThreadPoolExecutor(_OBJECT_PARTS_AT_ONCE, thread_name_prefix="lance-verify") as pool:
        running: deque[Future[bytes]] = deque()
        for number, length in enumerate(lengths):
            if len(running) == _OBJECT_PARTS_AT_ONCE:
                yield running.popleft().result()
            running.append(pool.submit(store.read, path, number * _OBJECT_PART_BYTES, length))
        for future in running:
            yield future.result()


def _size_of(store: Store, path: str) -> int:
    info = store.head(path)
    if info is None:
        raise NotFound(f"{store.description}/{path} does not exist")
    return info.size
