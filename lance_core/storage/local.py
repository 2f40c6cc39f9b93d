"""A directory on this machine, made durable: a file that was acknowledged survives a power loss, whole.

A write goes to a temporary name in the same directory, is fsynced, and gets its final name by `link` (create)
or `rename` (put); then the directory is fsynced, and its parents where they are new. `link` is what makes
create exclusive, and no reader ever sees half a file. File systems without hard links are refused, since
every substitute at hand can replace somebody's file.

What is promised covers what this package wrote durably, and the way to it: before a process acknowledges its first
write it syncs the directory, all directories in it, and its entry in its parent, whoever made them. The contents of
files that others wrote without syncing (pylance does not; `durable=False` does not) are theirs: syncing a table of
terabytes at its first small append would be worse.

A name that leads out of the root through a symbolic link is not read, written or removed. The root itself may be a
link.
"""

import errno
import os
import stat
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from lance_core.errors import NotFound, StorageError
from lance_core.storage.commit_lock import commit_lock
from lance_core.storage.store import ObjectDetails, ObjectInfo, Put, ReportsLastChange, SupportsCommitLock

_TEMPORARY = ".tmp"
_WITHOUT_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
_NOT_LINKED = (errno.EACCES, errno.EDQUOT, errno.ENAMETOOLONG, errno.ENOSPC, errno.EROFS)
"""The answers of a file system that has looked and did nothing."""
_Identity: TypeAlias = tuple[int, int]
_anchored: dict[Path, _Identity] = {}
"""Directories whose entry in their parent this process has synced. A directory made anew is another one."""
_SAME_MOMENT_NS = 10_000_000
"""File systems take their time from a clock that ticks every few milliseconds."""


@dataclass(frozen=True, slots=True)
class LocalStore(ReportsLastChange, SupportsCommitLock):
    root: Path
    durable: bool = True

    @property
    def description(self) -> str:
        return str(self.root)

    @property
    def base(self) -> str:
        """Where the codec finds it, and with which options: none."""
        return str(self.root)

    @property
    def given(self) -> tuple[tuple[str, str], ...]:
        return ()

    def without_secrets(self, text: str) -> str:
        """There are none."""
        return text

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            descriptor, size = self._opened(path)
            try:
                # What is not there takes no memory.
                rest = max(size - start, 0)
                return _read(descriptor, start, rest if length is None else min(length, rest))
            finally:
                os.close(descriptor)
        except FileNotFoundError as error:
            raise NotFound(f"{self.root / path} does not exist") from error
        except OSError as error:
            raise _failed("read", self.root / path, error) from error

    def head(self, path: str) -> ObjectInfo | None:
        try:
            return _info(path, self._stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _failed("look at", self.root / path, error) from error

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        found: list[_ListedFile] = []
        try:
            with os.scandir(self._place(directory)) as entries:
                for entry in entries:
                    if entry.name > start_after and not entry.name.startswith(_TEMPORARY) and entry.is_file():
                        found.append(_ListedFile(f"{directory}/{entry.name}", entry))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise _failed("list", self.root / directory, error) from error
        return sorted(found, key=lambda info: info.path)

    def directories(self, directory: str) -> Sequence[str]:
        """The names of those right in a directory, in their order; links are none."""
        try:
            with os.scandir(self._place(directory) if directory else self.root) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise _failed("list", self.root / directory, error) from error

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        found: list[_ListedFile] = []
        left = [directory]
        if not self._has_no_link_below(directory):
            return ()
        while left:
            here = left.pop()
            try:
                with os.scandir(self.root / here) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            left.append(f"{here}/{entry.name}")
                        elif entry.is_file(follow_symlinks=False):
                            found.append(_ListedFile(f"{here}/{entry.name}", entry))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise _failed("list", self.root / here, error) from error
        return sorted(found, key=lambda info: info.path)

    def put(self, path: str, data: bytes) -> None:
        target = self._target(path)
        try:
            os.replace(self._temporary(target, data), target)
            self._sync_directory(os.path.dirname(target))
        except OSError as error:
            raise _failed("write", target, error) from error

    def create(self, path: str, data: bytes) -> Put:
        target = self._target(path)
        try:
            temporary = self._temporary(target, data)
        except OSError as error:
            raise _failed("write", target, error) from error
        try:
            os.link(temporary, target)
        except FileExistsError:
            # A network file system may replay a link whose first answer was lost.
            if not _is_same_file(temporary, target):
                return Put.EXISTS
        except OSError as error:
            if error.errno in _WITHOUT_LINKS:
                raise StorageError(
                    f"{os.path.dirname(target)} is on a file system without hard links: without them two writers could "
                    "both believe that they were first. Put the table on a local disk or an object store"
                ) from error
            if error.errno in _NOT_LINKED:
                raise _failed("write", target, error) from error
            return Put.UNKNOWN
        finally:
            with suppress(OSError):  # a leftover that every listing ignores; the answer matters more
                os.unlink(temporary)
        try:
            self._sync_directory(os.path.dirname(target))
        except OSError:
            return Put.UNKNOWN
        return Put.CREATED

    def delete(self, path: str) -> None:
        try:
            os.unlink(self._target(path))
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failed("delete", self.root / path, error) from error

    def ensure_durable(self, paths: Sequence[str]) -> None:
        """Make files that another library wrote below the root survive a power loss,
        under the names they have."""
        if not self.durable:
            return
        try:
            places = [self._place(path) for path in paths]
            for place in places:
                _sync(place)
            for directory in {os.path.dirname(place) for place in places}:
                self._sync_directory(directory)
        except OSError as error:
            raise _failed("make durable", self.root, error) from error

    def put_volatile(self, path: str, data: bytes) -> None:
        """The old one goes first: to rename over a file makes some file systems wait for the disk. Who comes in between
        finds nothing, and does without."""
        target = self._target(path)
        try:
            temporary = self._temporary(target, data, durable=False)
            with suppress(FileNotFoundError):
                os.unlink(target)
            os.replace(temporary, target)
        except OSError as error:
            raise _failed("write", target, error) from error

    def last_change(self, path: str) -> ObjectDetails | None:
        """A rename notes its moment on the file and on its directory; whatever comes after moves the directory's on,
        and whatever copies a table sets both as it likes, hardly ever alike."""
        target = os.path.join(self.root, path)
        try:
            directory, found = os.stat(os.path.dirname(target)), os.stat(target)
        except OSError:
            return None
        return _info(path, found) if abs(directory.st_mtime_ns - found.st_ctime_ns) <= _SAME_MOMENT_NS else None

    def commit_lock(self, directory: str) -> AbstractContextManager[bool]:
        return commit_lock(self.inside(directory))

    def prune(self, directory: str) -> None:
        """Remove what is empty of a directory and of those in it; links are left alone."""
        if not self._has_no_link_below(directory):
            return
        for here, _directories, _files in os.walk(self.root / directory, topdown=False):
            with suppress(OSError):  # somebody's file is in it
                os.rmdir(here)

    def make_directory(self, directory: str) -> None:
        try:
            self._make(self.inside(directory))
        except OSError as error:
            raise _failed("make", self.root / directory, error) from error

    def inside(self, path: str) -> Path:
        """Where `path` is, after every link was followed; it may not exist."""
        return Path(self._place(path))

    def _place(self, path: str) -> str:
        """As text, since a small append asks for some twenty places."""
        if self._has_no_link_below(path):
            return os.path.join(self.root, path)
        root, place = os.path.realpath(self.root), os.path.realpath(self.root / path)
        if place != root and not place.startswith(os.path.join(root, "")):
            raise StorageError(
                f"{self.root / path} is a link out of {self.root}, to {place}; what lies outside is not opened. If it "
                "belongs there, put the file itself in the place of the link"
            )
        return place

    def _target(self, path: str) -> str:
        """Where `path` is written or removed: a link in its place is replaced, one on the way is not followed out."""
        directory, _, name = path.rpartition("/")
        if name in {"", ".", ".."} or "\0" in name:
            return self._place(path)
        return os.path.join(self._place(directory) if directory else self.root, name)

    def _stat(self, path: str) -> os.stat_result:
        """Most names are no links, and are asked once."""
        found = os.lstat(self._target(path))
        return os.stat(self._place(path)) if stat.S_ISLNK(found.st_mode) else found

    def _opened(self, path: str) -> tuple[int, int]:
        """A descriptor, and the file's size. Of a file alone: to open a pipe would wait for whoever writes to it."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self._target(path), flags)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            descriptor = os.open(self._place(path), flags)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise StorageError(f"could not read {self.root / path}: it is no file")
        return descriptor, found.st_size

    def _has_no_link_below(self, path: str) -> bool:
        """Whether a plain path leads there by itself, which is a fraction of what following links costs."""
        names = path.split("/")
        if "\0" in path or not {"", ".", ".."}.isdisjoint(names):
            return False
        place = str(self.root)
        for name in names:
            place = f"{place}/{name}"
            if os.path.islink(place):
                return False
        return True

    def _temporary(self, target: str, data: bytes, *, durable: bool = True) -> str:
        directory = os.path.dirname(target)
        temporary = f"{directory}/{_TEMPORARY}-{uuid.uuid4().hex}"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileNotFoundError:
            self._make(Path(directory))
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            if durable and self.durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return temporary

    def _make(self, directory: Path) -> None:
        """With the entry of each new directory synced into its parent, the top one first."""
        missing = []
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for new in reversed(missing):
            new.mkdir(exist_ok=True)
            if self.durable:
                _sync(new.parent)
                _anchored[new] = _identity(new)

    def _sync_directory(self, directory: str) -> None:
        if self.durable:
            _sync(directory)
            self._anchor(Path(directory))

    def _anchor(self, directory: Path) -> None:
        """What others made has entries that nobody may have synced: once per process, that is done for them."""
        if not directory.is_relative_to(self.root):
            return
        if _anchored.get(self.root) != _identity(self.root):
            with os.scandir(self.root) as entries:
                within = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
            for place in (*within, self.root):
                _sync(place)
            _sync_if_allowed(self.root.parent)
            for place in (*within, self.root):
                _anchored[place] = _identity(place)
        while directory != self.root:
            if _anchored.get(directory) != _identity(directory):
                _sync(directory.parent)
                _anchored[directory] = _identity(directory)
            directory = directory.parent


@dataclass(frozen=True, slots=True)
class _ListedFile:
    """Asks the file system only when it is asked: opening a table lists thousands of names and needs one."""

    path: str
    _entry: os.DirEntry[str]

    @property
    def size(self) -> int:
        return self._stat().st_size

    @property
    def modified(self) -> datetime:
        return datetime.fromtimestamp(self._stat().st_mtime, UTC)

    def _stat(self) -> os.stat_result:
        try:
            return self._entry.stat()
        except FileNotFoundError:
            raise NotFound(f"{self._entry.path} is gone since it was listed") from None
        except OSError as error:
            raise _failed("look at", Path(self._entry.path), error) from error


def _read(descriptor: int, start: int, length: int) -> bytes:
    """One call gives two gigabytes at most."""
    data = os.pread(descriptor, length, start)
    if len(data) == length or not data:
        return data
    pieces = [data]
    while data:
        start, length = start + len(data), length - len(data)
        data = os.pread(descriptor, length, start)
        pieces.append(data)
    return b"".join(pieces)


def _sync(path: Path | str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_if_allowed(directory: Path) -> None:
    """Who may pass through a directory, but not open it, has made nothing in it."""
    with suppress(PermissionError):
        _sync(directory)


def _identity(directory: Path) -> _Identity:
    found = os.stat(directory)
    return found.st_dev, found.st_ino


def _is_same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except FileNotFoundError:
        return False


def _info(path: str, found: os.stat_result) -> ObjectDetails:
    return ObjectDetails(path, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))


def _failed(what: str, path: Path | str, error: OSError) -> StorageError:
    return StorageError(f"could not {what} {path}: {error.strerror or error}")
