"""Files through fsspec: lists, describes and opens files in any file system that fsspec knows, such as `sftp://`,
`https://` or `hf://`.

Tables are never stored there, because such file systems have no put that creates a file only if none exists; sources of
an ingest do. Options have fsspec's spelling and may contain references to secrets. Start with `FsspecLocation`.
"""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from lance_core.errors import InvalidInput, LanceError, MissingDependency, NotFound, StorageError
from lance_core.storage.log_redaction import redact_in_logs
from lance_core.storage.optional_packages import import_package
from lance_core.storage.options import redact
from lance_core.storage.secret_references import resolve_nested_options, secrets_of_nested

BLOCK_BYTES = 4 * 1024 * 1024
_HASH_KEYS = (
    "ETag",
    "etag",
    "e_tag",
    "Content-MD5",
    "md5Hash",
    "md5",
    "blob_id",
    "sha",
    "checksum",
    "CRC",
)
_TIME_KEYS = (
    "LastModified",
    "last_modified",
    "Last-Modified",
    "mtime",
    "updated",
    "modified",
    "modificationTime",
    "modify",
    "created",
)
_TAG_KEYS = (*_HASH_KEYS, *_TIME_KEYS)
"""Properties that identify the content of a file, by the name that a file system gives them: first its hash or
version, then the time of its last change."""
_SECONDS_MAX = 1e11
"""Larger times are in milliseconds."""
_PACKAGES = {
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "gcs": "gcsfs",
    "gs": "gcsfs",
    "hf": "huggingface_hub",
    "http": "aiohttp",
    "https": "aiohttp",
    "s3": "s3fs",
    "s3a": "s3fs",
    "sftp": "paramiko",
    "smb": "smbprotocol",
    "ssh": "paramiko",
    "webdav": "webdav4",
}
_CACHES = frozenset(("blockcache", "cached", "filecache", "simplecache"))
_DETAILS_AT_ONCE, _DETAILS_PER_ROUND = 16, 1024
_MESSAGE_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class FileDetails:
    """Size and identity of the content of a file."""

    path: str
    """Path relative to the location that was listed; empty for the location itself."""
    size: int | None
    tag: str
    """Property that identifies the content, as `name=value`; empty if the file system has none."""


def is_http(uri: str) -> bool:
    return uri.lower().startswith(("http://", "https://"))


class FsspecLocation:
    """File or directory at a URI, which may be chained, as in `zip://part.csv::https://host/all.zip`."""

    def __init__(self, uri: str, options: Mapping[str, object]) -> None:
        self.uri = uri
        core = import_package("fsspec.core", extra=None, needed_for=f"reading {uri}")
        self._protocol = check_protocols(uri)
        resolved = resolve_nested_options(options, uri)
        self._secrets = secrets_of_nested(options, resolved)
        redact_in_logs(self._secrets)
        with self.translating("open"):
            try:
                self._file_system, path = core.url_to_fs(uri, **resolved)
                if _has_lost_connection(self._file_system):
                    # fsspec caches file systems, and would return this one until the process ends.
                    self._file_system.clear_instance_cache()
                    self._file_system, path = core.url_to_fs(uri, **resolved)
            except ImportError as error:
                raise _missing_package(uri, self._protocol, error) from error
            except TypeError as error:
                raise InvalidInput(
                    f"the options for {uri} are not those of fsspec's {self._protocol}:// ({self._text_of(error)}); "
                    "correct the options"
                ) from None

        has_host = not path and not uri.partition("::")[0].endswith("://")
        self._path: str = "/" if has_host else path

    def head(self, key: str = "") -> FileDetails | None:
        """Return the details of a file; `None` for a directory. `key` is the name of the property for the tag."""
        with self.translating("read the status of"):
            self._file_system.invalidate_cache()
            info = self._file_system.info(self._path)
        return None if info.get("type") == "directory" else _details("", info, key)

    def walk(self, depth_max: int | None, pattern: re.Pattern[str]) -> Iterator[FileDetails]:
        """Yield the files below the directory whose relative path matches; nothing if the directory does not exist."""
        with self.translating("list"):
            self._file_system.invalidate_cache()
        matching = (listed for listed in self._walk(depth_max) if pattern.fullmatch(listed[0]))
        with ThreadPoolExecutor(_DETAILS_AT_ONCE) as executor:
            while listed := [*islice(matching, _DETAILS_PER_ROUND)]:
                yield from executor.map(self._complete, listed)

    def names(self) -> list[str]:
        """Return the names directly in the directory; none if it does not exist."""
        with self.translating("list"):
            self._file_system.invalidate_cache()
        return sorted(relative for info in self._list(self._path) if (relative := self._relative(str(info["name"]))))

    def send(self, source: Path, name: str) -> None:
        """Write a local file to the directory, under this name."""
        with self.translating("write to"):
            self._file_system.makedirs(self._path, exist_ok=True)
            self._file_system.put_file(str(source), f"{self._path.rstrip('/')}/{name}")

    def delete(self, name: str) -> None:
        with self.translating("delete from"):
            self._file_system.rm_file(f"{self._path.rstrip('/')}/{name}")

    def open_handle(self, block_bytes: int) -> BinaryIO:
        """Open the file as the file system does it. It is read in blocks of this size, or in one stream if it is 0."""
        with self.translating("open"):
            handle: BinaryIO = self._file_system.open(self._path, "rb", block_size=block_bytes)
            return handle

    def _walk(self, depth_max: int | None) -> Iterator[tuple[str, Mapping[str, object]]]:
        """Yield relative paths and properties. `AbstractFileSystem.walk` would leave out directories that it cannot
        list."""
        pending = [(self._path, 1)]
        while pending:
            directory, depth = pending.pop()
            for info in self._list(directory):
                name = str(info["name"])
                relative = self._relative(name)
                if not relative:
                    continue
                if info["type"] != "directory":
                    yield relative, info
                elif (depth_max is None or depth < depth_max) and name.rstrip("/") != directory.rstrip("/"):
                    pending.append((name, depth + 1))

    def _list(self, directory: str) -> list[dict[str, object]]:
        try:
            with self.translating("list"):
                listed: list[dict[str, object]] = self._file_system.ls(directory, detail=True)
                return listed
        except NotFound:
            return []

    def _relative(self, name: str) -> str:
        """Return the path below the location; empty if it is not below."""
        root = self._path.rstrip("/")
        name = name.rstrip("/")
        if root and not name.startswith(f"{root}/"):
            return ""
        relative = name[len(root) :].lstrip("/")
        is_sort_link = is_http(self.uri) and "?" in relative  # a link that sorts the page of a directory
        return "" if is_sort_link else relative

    def _complete(self, listed: tuple[str, Mapping[str, object]]) -> FileDetails:
        """Return the details of a listed file, with one more request if the listing lacks them."""
        relative, info = listed
        details = _details(relative, info, "")
        if details.size is not None and details.tag:
            return details
        with self.translating("read the status of"):
            return _details(relative, self._file_system.info(str(info["name"])), "")

    @contextmanager
    def translating(self, action: str) -> Iterator[None]:
        """Raise errors of the file system as errors of this package, without secrets."""
        try:
            yield
        except LanceError:
            raise
        except FileNotFoundError as error:
            reason = error.__cause__ or (error if error.errno is not None else None)
            cause = f" ({self._text_of(reason)})" if reason is not None else ""
            hint = "; memory:// exists in one process only" if self._protocol == "memory" else ""
            raise NotFound(f"{self.uri} does not exist, or this process cannot reach it{cause}{hint}") from None
        except Exception as error:  # noqa: BLE001  # each file system raises errors of its own libraries
            raise StorageError(f"could not {action} {self.uri}: {self._text_of(error)}") from None

    def _text_of(self, error: BaseException) -> str:
        text = redact(str(error), self._secrets).strip().partition("\n")[0][:_MESSAGE_CHARACTERS_MAX]
        return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _has_lost_connection(file_system: Any) -> bool:
    """Return whether the SSH connection of a file system has ended, for example after the server closed it."""
    find_transport = getattr(getattr(file_system, "client", None), "get_transport", None)
    if find_transport is None:
        return False
    transport = find_transport()
    return transport is None or not transport.is_active()


class FsspecStream(RawIOBase):
    """A file as a seekable stream, which callers wrap in a buffer.

    A web server that ignores ranges sends the file from its beginning only. A stream that reads forward skips what it
    does not need; `needs_ranges` refuses such a server for formats that are read from the end.
    """

    def __init__(self, location: FsspecLocation, size: int, *, needs_ranges: bool) -> None:
        self._location, self._size, self._needs_ranges = location, size, needs_ranges
        self._position = 0
        self._handle = location.open_handle(BLOCK_BYTES)
        self._can_seek = _is_seekable(self._handle)
        if not self._can_seek:
            self._check_ranges_are_not_needed()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        start = {SEEK_SET: 0, SEEK_CUR: self._position, SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        with self._location.translating("read"):
            try:
                data = self._read(len(buffer))
            except ValueError:
                if not self._can_seek or not is_http(self._location.uri):
                    raise
                # This is how fsspec reports a server that ignores ranges.
                self._check_ranges_are_not_needed()
                self._can_seek = False
                self._reopen()
                data = self._read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            with self._location.translating("close"):
                self._handle.close()
        super().close()

    def _read(self, length: int) -> bytes:
        at = self._handle.tell()  # some file systems share one handle among several readers
        if at != self._position and self._can_seek:
            self._handle.seek(self._position)
        elif at != self._position:
            self._skip(at)
        return self._handle.read(length)

    def _skip(self, at: int) -> None:
        if at > self._position:
            self._reopen()
            at = 0
        while at < self._position and (data := self._handle.read(min(BLOCK_BYTES, self._position - at))):
            at += len(data)

    def _reopen(self) -> None:
        self._handle.close()
        self._handle = self._location.open_handle(0)

    def _check_ranges_are_not_needed(self) -> None:
        if self._needs_ranges:
            raise StorageError(
                f"{self._location.uri}: the server sends the file only from its beginning, and Parquet and Arrow files "
                "are read from their end; put the file where ranges of it can be read, or download it first"
            )


def check_protocols(uri: str) -> str:
    """Return the protocol of a URI, the first of a chain. Raise if fsspec does not know one of them."""
    known, protocols = known_protocols(), protocols_of(uri)
    for protocol in protocols:
        if protocol in _CACHES:
            raise InvalidInput(
                f"{uri} reads through the cache {protocol}, which may return an outdated file; leave it out"
            )
        if protocol not in known:
            raise InvalidInput(f"fsspec has no file system for {protocol}:// in {uri}; check the spelling")
    return protocols[0]


def known_protocols() -> frozenset[str]:
    """Return the protocols that fsspec knows, whether their packages are installed or not, and those that this process
    has registered."""
    fsspec = import_package("fsspec", extra=None, needed_for="reading files of other protocols")
    return frozenset(fsspec.available_protocols()).union(fsspec.registry)


def protocols_of(uri: str) -> list[str]:
    """Return the protocols of a URI, in the order of a chain.

    >>> protocols_of("zip://part.csv::https://host/all.zip"), protocols_of("/data/x")
    (['zip', 'https'], ['file'])
    """
    return [link.partition("://")[0].lower() if "://" in link else _bare_protocol(link) for link in uri.split("::")]


def _bare_protocol(link: str) -> str:
    return link.lower() if link.isidentifier() else "file"


def _missing_package(uri: str, protocol: str, error: ImportError) -> MissingDependency:
    package = _PACKAGES.get(protocol)
    advice = f"install it with: pip install {package}" if package else "install the package that it names"
    return MissingDependency(f"{uri}: fsspec needs another package for {protocol}:// ({error}); {advice}")


def _details(path: str, info: Mapping[str, object], key: str) -> FileDetails:
    size = info.get("size")
    keys = (key,) if key else _TAG_KEYS
    tag = next((f"{name}={_as_text(name, info[name])}" for name in keys if info.get(name) not in (None, "")), "")
    return FileDetails(path, size if isinstance(size, int) else None, tag)


def _as_text(key: str, value: object) -> str:
    """Return a property as text. Some file systems give a time as a number in a listing, and as a date otherwise."""
    if key in _TIME_KEYS and isinstance(value, int | float):
        seconds = value / 1000 if value > _SECONDS_MAX else value
        value = datetime.fromtimestamp(seconds, UTC)
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)


def _is_seekable(handle: BinaryIO) -> bool:
    try:
        handle.seek(1)
        handle.seek(0)
    except (OSError, ValueError):
        return False
    return True
