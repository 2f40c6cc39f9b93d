"""Object upload: sends a local file to an object store in parts, several at once, and computes its checksum meanwhile.

The file may still grow: `advance` sends the parts that are complete, and `finish` sends the rest. Every byte is read
once, for the hash and for its request. A file of at most one part takes one request. Start with `ObjectUpload`.
"""

import os
import shutil
import tempfile
import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from lance_core.format.file_checksum import FileChecksum, new_hasher
from lance_core.storage.object_store import ObjectStore

PART_BYTES = 8 << 20
_PARTS_PER_SIZE = 1_000
"""Parts after which the size of parts grows, since stores limit their number to 10,000."""
_PARTS_AT_ONCE = 8


class ObjectUpload:
    """Upload of one file, which only grows at its end."""

    def __init__(self, store: ObjectStore, path: str, descriptor: int) -> None:
        self._store = store
        self._path = path
        self._descriptor = descriptor
        self._hasher = new_hasher()
        self._position = 0
        self._upload_id: str | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._running: deque[Future[str]] = deque()
        self._receipts: list[str] = []

    def advance(self) -> None:
        """Send the parts that the file contains completely."""
        size = os.fstat(self._descriptor).st_size
        while size - self._position > (part_bytes := self._next_part_bytes()):
            self._send_part(part_bytes)

    def finish(self) -> FileChecksum:
        """Send the rest of the file, which is complete. Return its checksum when the object exists."""
        self.advance()
        size = os.fstat(self._descriptor).st_size
        if self._upload_id is None:
            self._store.put(self._path, self._read(size))
        else:
            self._send_part(size - self._position)
            while self._running:
                self._receipts.append(self._running.popleft().result())
            self._store.complete_upload(self._path, self._upload_id, self._receipts, size=size)
            self._upload_id = None
            self._stop_threads()
        return FileChecksum(size, self._hasher.intdigest())

    def abort(self) -> None:
        """Discard the parts of an upload that is not finished, if the store can be reached."""
        self._stop_threads()
        if self._upload_id is not None:
            self._store.abort_upload(self._path, self._upload_id)
            self._upload_id = None

    def _send_part(self, part_bytes: int) -> None:
        if self._upload_id is None:
            self._upload_id = self._store.begin_upload(self._path)
            self._pool = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="lance-upload")
        if len(self._running) == _PARTS_AT_ONCE:
            self._receipts.append(self._running.popleft().result())
        number = len(self._receipts) + len(self._running) + 1
        assert self._pool is not None
        self._running.append(
            self._pool.submit(self._store.upload_part, self._path, self._upload_id, number, self._read(part_bytes))
        )

    def _next_part_bytes(self) -> int:
        return PART_BYTES * (1 + (len(self._receipts) + len(self._running)) // _PARTS_PER_SIZE)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count and (part := os.pread(self._descriptor, count - len(data), self._position)):
            data = data + part if data else part
            self._position += len(part)
        self._hasher.update(data)
        return data

    def _stop_threads(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def upload_file(store: ObjectStore, source: Path, path: str) -> None:
    """Copy a local file to an object, replacing an existing one."""
    descriptor = os.open(source, os.O_RDONLY)
    upload = ObjectUpload(store, path, descriptor)
    try:
        upload.finish()
    finally:
        upload.abort()
        os.close(descriptor)


class _StagingDirectories:
    """Temporary directories of this process, each for one file at a time. They are reused, since removing a directory
    can take longer than writing a small file. A forked process may use this at once, so it has no lock."""

    def __init__(self) -> None:
        self._owner = 0
        self._root = Path()
        self._free: list[Path] = []

    def take(self) -> Path:
        """Return an empty directory."""
        if self._owner != os.getpid():  # also in a forked process, which leaves the directories to its parent
            root, self._free = Path(tempfile.mkdtemp(prefix="lance-staged-")), []
            weakref.finalize(self, _remove_if_owned, root, os.getpid())
            self._root, self._owner = root, os.getpid()
        with suppress(IndexError):
            return self._free.pop()
        return Path(tempfile.mkdtemp(dir=self._root))

    def give_back(self, directory: Path) -> None:
        """Empty a directory for the next file."""
        for file in directory.iterdir():
            file.unlink()
        self._free.append(directory)


def _remove_if_owned(root: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(root, ignore_errors=True)


_directories = _StagingDirectories()


class StagedFile:
    """Local file that becomes an object. It is removed with this value."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store = store
        self._object_path = path
        self.directory = _directories.take()
        self.path = self.directory / path.rpartition("/")[2]
        self._opened: list[tuple[int, ObjectUpload]] = []
        self.discard = weakref.finalize(self, _discard, self.directory, self._opened, os.getpid())
        """Remove the local file, and abort its upload if it is not finished."""

    def advance(self) -> None:
        """Send the parts that were written so far. The only file in the directory is the one that is being written;
        it may have a temporary name until it is closed."""
        self._upload().advance()

    def finish(self) -> FileChecksum:
        """Send the rest of the file, remove it, and return its checksum."""
        checksum = self._upload().finish()
        self.discard()
        return checksum

    def _upload(self) -> ObjectUpload:
        if not self._opened:
            (name,) = os.listdir(self.directory)
            descriptor = os.open(self.directory / name, os.O_RDONLY | os.O_CLOEXEC)
            self._opened.append((descriptor, ObjectUpload(self._store, self._object_path, descriptor)))
        return self._opened[0][1]


def _discard(directory: Path, opened: list[tuple[int, ObjectUpload]], owner: int) -> None:
    """Discard a staged file, but not the file of the parent in a forked process."""
    if os.getpid() != owner:
        return
    for descriptor, upload in opened:
        upload.abort()
        os.close(descriptor)
    with suppress(OSError):
        _directories.give_back(directory)
