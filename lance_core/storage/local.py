"""Local store: a directory on this machine. A file survives a power loss completely once its write has returned.

A write goes to a temporary name in the same directory, is fsynced, and gets its final name by `link` (create) or
`rename` (put). Then the directory is fsynced, and so are its parents if they are new. `put_unsynced` leaves the syncs
to the `create_after` of the file that refers to it (`006-syncs-of-a-commit.md`). `link` makes create exclusive, and no
reader ever sees a partial file. File systems without hard links are rejected, because every available
substitute for `link` can replace another writer's file.

The guarantee covers the files that this package wrote durably, and the directories on the way to them: before a process
acknowledges its first write, it syncs the root, all directories in it, and the entry of the root in its parent,
whichever program created them. It does not cover the contents of files that were written without fsync, by pylance or
with `durable=False`: syncing a table of terabytes at its first small append would take too long.

A failed sync is never repeated: after a failure, the system may drop the data that it could not write, and report
success for the next sync. The process refuses every later write in that directory (`002-failed-syncs.md`).

A path that leads out of the root through a symbolic link is not read, written or deleted. The root itself may be a
link.
"""

import errno
import os
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from lance_core.errors import NotFound, StorageError
from lance_core.storage.commit_lock import commit_lock
from lance_core.storage.file_sync import (
    check_no_sync_failed,
    open_into,
    sync_file,
    sync_files,
    sync_if_allowed,
)
from lance_core.storage.store import (
    ObjectDetails,
    ObjectInfo,
    Put,
    ReportsLastChange,
    SupportsCommitLock,
    SupportsDeferredSync,
)

_TEMPORARY = ".tmp"
_RELATIVE_NAMES = frozenset({"", ".", ".."})
_READING_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
_LINKS_UNSUPPORTED = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
_DEFINITELY_NOT_LINKED = (errno.EACCES, errno.EDQUOT, errno.ENAMETOOLONG, errno.ENOSPC, errno.EROFS)
"""Errors after which `link` definitely had no effect."""
_Identity: TypeAlias = tuple[int, int]
_synced_entries: dict[Path, _Identity] = {}
"""Directories whose entry in their parent this process has synced, each with its identity, which changes if the
directory is recreated."""
_TIMESTAMP_TOLERANCE_NS = 10_000_000
"""The clock that file systems take timestamps from ticks every few milliseconds."""


def forget_synced_entries() -> None:
    """Forget which directory entries this process has synced, so that it syncs them again, as a new process does."""
    _synced_entries.clear()


@dataclass(frozen=True, slots=True)
class LocalStore(ReportsLastChange, SupportsCommitLock, SupportsDeferredSync):
    """Directory `root` as a store. With `durable=False` no call fsyncs."""

    root: Path
    durable: bool = True

    @property
    def description(self) -> str:
        return str(self.root)

    @property
    def codec_uri(self) -> str:
        """URI by which the codec opens files below the root."""
        return str(self.root)

    @property
    def codec_options(self) -> tuple[tuple[str, str], ...]:
        """Storage options for the codec; local files need none."""
        return ()

    def without_secrets(self, text: str) -> str:
        """Return the text unchanged: a local store has no secrets."""
        return text

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        owner: list[int] = []
        try:
            size = self._open_regular_file(owner, path)
            # `pread` allocates the requested length, so a length beyond the end of the file is cut first.
            rest = max(size - start, 0)
            return _read_range(owner[0], start, rest if length is None else min(length, rest))
        except FileNotFoundError as error:
            raise NotFound(f"{self.root / path} does not exist") from error
        except OSError as error:
            raise _storage_error("read", self.root / path, error) from error
        finally:
            for descriptor in owner:
                os.close(descriptor)

    def read_parts(self, path: str, part_bytes: int) -> Iterator[memoryview]:
        """Yield the bytes of a file in parts. A part is valid until the next one is requested."""
        try:
            with self.open_regular_file(path) as (descriptor, size):
                buffer = memoryview(bytearray(min(part_bytes, max(size, 1))))
                while count := os.readv(descriptor, [buffer]):
                    yield buffer[:count]
        except FileNotFoundError as error:
            raise NotFound(f"{self.root / path} does not exist") from error
        except OSError as error:
            raise _storage_error("read", self.root / path, error) from error

    @contextmanager
    def open_regular_file(self, path: str) -> Iterator[tuple[int, int]]:
        """Open a regular file for a block of code, with its descriptor and size."""
        owner: list[int] = []
        try:
            size = self._open_regular_file(owner, path)
            yield owner[0], size
        finally:
            for descriptor in owner:
                os.close(descriptor)

    def _open_regular_file(self, owner: list[int], path: str) -> int:
        """Open a regular file, append its descriptor to a list, whose owner closes it, and return its size.

        Anything else is rejected; `O_NONBLOCK` keeps the open of a pipe from waiting for a writer.
        """
        try:
            open_into(owner, self._resolve_target(path), _READING_FLAGS)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            open_into(owner, self._resolve(path), _READING_FLAGS)
        status = os.fstat(owner[0])
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"could not read {self.root / path}: it is not a regular file")
        return status.st_size

    def head(self, path: str) -> ObjectInfo | None:
        try:
            return _details(path, self._stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _storage_error("read the status of", self.root / path, error) from error

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        files: list[_ListedFile] = []
        try:
            with os.scandir(self._resolve(directory)) as entries:
                for entry in entries:
                    if entry.name > start_after and not entry.name.startswith(_TEMPORARY) and entry.is_file():
                        files.append(_ListedFile(f"{directory}/{entry.name}", entry))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise _storage_error("list", self.root / directory, error) from error
        return sorted(files, key=lambda info: info.path)

    def list_directories(self, directory: str) -> Sequence[str]:
        """Return the sorted names of the directories directly in a directory, without links."""
        try:
            with os.scandir(self._resolve(directory) if directory else self.root) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise _storage_error("list", self.root / directory, error) from error

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        files: list[_ListedFile] = []
        pending = [directory]
        if self._path_without_links(directory) is None:
            return ()
        while pending:
            current = pending.pop()
            try:
                with os.scandir(self.root / current) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(f"{current}/{entry.name}")
                        elif entry.is_file(follow_symlinks=False):
                            files.append(_ListedFile(f"{current}/{entry.name}", entry))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise _storage_error("list", self.root / current, error) from error
        return sorted(files, key=lambda info: info.path)

    def temporary_files(self, directories: Sequence[str]) -> Sequence[ObjectInfo]:
        """Return the temporary files of writes directly in the root, and below these directories."""
        try:
            with os.scandir(self.root) as entries:
                own = [entry for entry in entries if entry.name.startswith(_TEMPORARY) and entry.is_file()]
        except OSError as error:
            raise _storage_error("list", self.root, error) from error
        below = (info for directory in directories for info in self.walk(directory))
        leftovers = (info for info in below if info.path.rpartition("/")[2].startswith(_TEMPORARY))
        return [*(_ListedFile(entry.name, entry) for entry in own), *leftovers]

    def put(self, path: str, data: bytes) -> None:
        target = self._resolve_target(path)
        try:
            check_no_sync_failed(os.path.dirname(target))
            os.replace(self._write_temporary(target, data), target)
            self._sync_directory(os.path.dirname(target))
        except OSError as error:
            raise _storage_error("write", target, error) from error

    def put_unsynced(self, path: str, data: bytes) -> None:
        target = self._resolve_target(path)
        try:
            check_no_sync_failed(os.path.dirname(target))
            os.replace(self._write_temporary(target, data, durable=False), target)
        except OSError as error:
            raise _storage_error("write", target, error) from error

    def create(self, path: str, data: bytes) -> Put:
        return self.create_after(path, data, ())

    def create_after(self, path: str, data: bytes, unsynced: Sequence[str]) -> Put:
        target = self._resolve_target(path)
        try:
            check_no_sync_failed(os.path.dirname(target))
            temporary = self._write_temporary(target, data, durable=not unsynced)
            if unsynced and self.durable:
                self._sync_before(temporary, [self._resolve(each) for each in unsynced])
        except OSError as error:
            raise _storage_error("write", target, error) from error
        try:
            os.link(temporary, target)
        except FileExistsError:
            # A network file system may replay a link request whose first answer was lost.
            if not _is_same_file(temporary, target):
                return Put.EXISTS
        except OSError as error:
            if error.errno in _LINKS_UNSUPPORTED:
                raise StorageError(
                    f"{os.path.dirname(target)} is on a file system without hard links, so two writers could both "
                    "commit the same version. Put the table on a local disk or an object store"
                ) from error
            if error.errno in _DEFINITELY_NOT_LINKED:
                raise _storage_error("write", target, error) from error
            return Put.UNKNOWN
        finally:
            with suppress(OSError):  # listings ignore a leftover temporary file, and the outcome must not be hidden
                os.unlink(temporary)
        try:
            self._sync_directory(os.path.dirname(target))
        except OSError:
            return Put.UNKNOWN
        return Put.CREATED

    def delete(self, path: str) -> None:
        try:
            os.unlink(self._resolve_target(path))
        except FileNotFoundError:
            return
        except OSError as error:
            raise _storage_error("delete", self.root / path, error) from error

    def ensure_durable(self, paths: Sequence[str]) -> None:
        """Make files that another library wrote below the root survive a power loss, under their current names."""
        if not self.durable:
            return
        try:
            files = [self._resolve(path) for path in paths]
            sync_files(files)
            for directory in dict.fromkeys(map(os.path.dirname, files)):
                self._sync_directory(directory)
        except OSError as error:
            raise _storage_error("make durable", self.root, error) from error

    def put_volatile(self, path: str, data: bytes) -> None:
        """Write the file without fsync.

        The old file is deleted first, because renaming over a file makes some file systems wait for the disk. A
        reader in between finds no file, which it must expect anyway.
        """
        target = self._resolve_target(path)
        try:
            temporary = self._write_temporary(target, data, durable=False)
            with suppress(FileNotFoundError):
                os.unlink(target)
            os.replace(temporary, target)
        except OSError as error:
            raise _storage_error("write", target, error) from error

    def head_if_directory_unchanged(self, path: str) -> ObjectDetails | None:
        """Return the file's details if its directory has not changed since the file got its name.

        A rename sets the change time of the file and the modification time of its directory to the same time. Every
        later change of the directory advances the latter. A tool that copies a table rarely sets both to one time.
        """
        target = os.path.join(self.root, path)
        try:
            directory, file = os.stat(os.path.dirname(target)), os.stat(target)
        except OSError:
            return None
        unchanged = abs(directory.st_mtime_ns - file.st_ctime_ns) <= _TIMESTAMP_TOLERANCE_NS
        return _details(path, file) if unchanged else None

    def commit_lock(self, directory: str) -> AbstractContextManager[bool]:
        return commit_lock(self._resolve(directory))

    def remove_empty_directories(self, directory: str) -> None:
        """Remove a directory and the directories in it if they are empty. Links are not followed."""
        if self._path_without_links(directory) is None:
            return
        for current, _directories, _files in os.walk(self.root / directory, topdown=False):
            with suppress(OSError):  # the directory is not empty
                os.rmdir(current)

    def create_directory(self, directory: str) -> None:
        try:
            resolved = self._resolve(directory)
            if not os.path.isdir(resolved):
                self._make_directories(Path(resolved))
        except OSError as error:
            raise _storage_error("create", self.root / directory, error) from error

    def codec_path(self, path: str) -> str:
        """Return the path by which the codec opens a file."""
        return self._resolve(path)

    def resolve_path(self, path: str) -> Path:
        """Return the absolute path with all links followed. The file need not exist."""
        return Path(self._resolve(path))

    def _resolve(self, path: str) -> str:
        """Return the absolute path with all links followed, and raise if it is outside the root."""
        if (plain := self._path_without_links(path)) is not None:
            return plain
        root, resolved = os.path.realpath(self.root), os.path.realpath(self.root / path)
        if resolved != root and not resolved.startswith(os.path.join(root, "")):
            raise StorageError(
                f"{self.root / path} is a link out of {self.root}, to {resolved}; files outside are not opened. If it "
                "belongs to the table, replace the link by the file itself"
            )
        return resolved

    def _resolve_target(self, path: str) -> str:
        """Return the absolute path to write or delete. A link at the path itself is not followed but replaced; a link
        in its directories must not lead out of the root.
        """
        directory, _, name = path.rpartition("/")
        if name in {"", ".", ".."} or "\0" in name:
            return self._resolve(path)
        if not directory:
            return f"{self.root}/{name}"
        return f"{self._path_without_links(directory) or self._resolve(directory)}/{name}"

    def _stat(self, path: str) -> os.stat_result:
        """Return the status of a file. Most paths are not links and cost a single call."""
        status = os.lstat(self._resolve_target(path))
        return os.stat(self._resolve(path)) if stat.S_ISLNK(status.st_mode) else status

    def _path_without_links(self, path: str) -> str | None:
        """Return the absolute path of a plain path of which no part is a link; otherwise `None`. This costs a fraction
        of resolving the path, which a small append does about twenty times."""
        names = path.split("/")
        if "\0" in path or not _RELATIVE_NAMES.isdisjoint(names):
            return None
        absolute = str(self.root)
        for name in names:
            absolute = f"{absolute}/{name}"
            try:
                if stat.S_ISLNK(os.lstat(absolute).st_mode):
                    return None
            except (OSError, ValueError):  # it does not exist yet
                continue
        return absolute

    def _write_temporary(self, target: str, data: bytes, *, durable: bool = True) -> str:
        """Write the data to a temporary file in the directory of `target`, and return its path."""
        directory = os.path.dirname(target)
        temporary = f"{directory}/{_TEMPORARY}-{uuid.uuid4().hex}"
        try:
            self._write_new_file(temporary, data, durable=durable)
        except FileNotFoundError:
            self._make_directories(Path(directory))
            self._write_new_file(temporary, data, durable=durable)
        return temporary

    def _write_new_file(self, path: str, data: bytes, *, durable: bool) -> None:
        owner: list[int] = []
        try:
            open_into(owner, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[os.write(owner[0], remaining) :]
            if durable and self.durable:
                os.fsync(owner[0])
        finally:
            for descriptor in owner:
                os.close(descriptor)

    def _make_directories(self, directory: Path) -> None:
        """Create a directory and its missing parents from the top down, and sync the entry of each in its parent."""
        missing = []
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for new in reversed(missing):
            new.mkdir(exist_ok=True)
            if self.durable:
                sync_file(new.parent)
                _synced_entries[new] = _identity(new)

    def _sync_before(self, temporary: str, files: Sequence[str]) -> None:
        """Sync a temporary file and other files together, then the directories of the other files. Delete the temporary
        file if a sync fails."""
        try:
            sync_files([*files, temporary])
            for directory in dict.fromkeys(map(os.path.dirname, files)):
                self._sync_directory(directory)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary)
            if isinstance(error, FileNotFoundError):
                raise NotFound(
                    f"{error.filename} does not exist any more, although this commit has just written it: a cleanup or "
                    "another program removed it. Repeat the write"
                ) from error
            raise

    def _sync_directory(self, directory: str) -> None:
        if self.durable:
            sync_file(directory)
            self._sync_parent_entries(Path(directory))

    def _sync_parent_entries(self, directory: Path) -> None:
        """Sync the directory entries from the root down to `directory`, once per process.

        Other programs may have created these directories without syncing them.
        """
        if not directory.is_relative_to(self.root):
            return
        if _synced_entries.get(self.root) != _identity(self.root):
            with os.scandir(self.root) as entries:
                children = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
            for synced in (*children, self.root):
                sync_file(synced)
            sync_if_allowed(self.root.parent)
            for synced in (*children, self.root):
                _synced_entries[synced] = _identity(synced)
        while directory != self.root:
            if _synced_entries.get(directory) != _identity(directory):
                sync_file(directory.parent)
                _synced_entries[directory] = _identity(directory)
            directory = directory.parent


@dataclass(slots=True)
class _ListedFile:
    """Listed file that reads its status on first access: opening a table lists thousands of names and needs one. It is
    not frozen, since the creation of a frozen one takes three times as long."""

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
            raise NotFound(f"{self._entry.path} was deleted after it was listed") from None
        except OSError as error:
            raise _storage_error("read the status of", Path(self._entry.path), error) from error


def _read_range(descriptor: int, start: int, length: int) -> bytes:
    """Read a range of a file, in several calls because one returns at most two gigabytes."""
    data = os.pread(descriptor, length, start)
    if len(data) == length or not data:
        return data
    chunks = [data]
    while data:
        start, length = start + len(data), length - len(data)
        data = os.pread(descriptor, length, start)
        chunks.append(data)
    return b"".join(chunks)


def _identity(directory: Path) -> _Identity:
    status = os.stat(directory)
    return status.st_dev, status.st_ino


def _is_same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except FileNotFoundError:
        return False


def _details(path: str, status: os.stat_result) -> ObjectDetails:
    return ObjectDetails(path, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


def _storage_error(action: str, path: Path | str, error: OSError) -> StorageError:
    return StorageError(f"could not {action} {path}: {error.strerror or error}")
