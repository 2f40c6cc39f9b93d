"""Checksum verification: compares files with their recorded checksums before they are decoded.

A table is opened with a mode. A file that was verified is not read again in the same process, since files never
change. Deletion files, which are in memory as a whole when they are decoded, are always verified. Start with
`FileVerifier`.
"""

import enum
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from lance_core.errors import Corrupt, NotFound
from lance_core.format.file_checksum import FileChecksum
from lance_core.storage.file_hashing import compute_checksum
from lance_core.storage.store import Store

SAMPLED_ONE_IN = 16
"""Files of which one is verified in the mode `sample`."""
_VERIFIED_MAX = 100_000
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
    info = store.head(path)
    if info is None:
        raise NotFound(f"{store.description}/{path} does not exist")
    actual = FileChecksum(info.size, None) if info.size != checksum.size else compute_checksum(store, path, on_bytes)
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
