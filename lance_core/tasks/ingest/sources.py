"""Source files: lists the files of an ingest by path, directory or glob, and opens them in workers.

This module resolves paths and globs to files (`list_files`), distinguishes a file from an earlier one of the same name
(`SourceFile`), and reads bytes (`SourceReader`). Files are read where they are, and never written or removed. Other
modules of this package parse their contents.

    landing/2024/*.csv      one level          landing/**/*.parquet     any depth
    landing/[ab]?.csv       one character      landing/                 everything below

Names that begin with `_` or `.` are skipped unless the pattern itself has the character: other programs use them for
files that are not data, or not finished. Links to files are followed; links to directories are not, except the listed
directory itself.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader, BytesIO, FileIO, RawIOBase
from pathlib import Path
from types import MappingProxyType
from typing import cast

from lance_core import validation
from lance_core.errors import InvalidInput, NotFound, StorageError
from lance_core.storage.factory import is_in_object_store, local_path, open_store, without_secrets
from lance_core.storage.fsspec_files import FileDetails, FsspecLocation, FsspecStream, is_http
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.store import ObjectDetails, ObjectInfo
from lance_core.tasks.ingest.source_options import SourceClient, SourceKind, SourceOptions, is_in_this_process

_MAGIC = re.compile(r"[*?\[]")
_MAGIC_WITHOUT_QUERY = re.compile(r"[*\[]")
PROCESS_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of all files of this process that an ingest sends to the workers."""
_READ_AHEAD = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to ingest."""

    uri: str
    """Absolute location without secrets, which identifies the file."""
    size: int
    tag: str
    """Identifies the content: the ETag of its store, or the time of the last change."""


def list_files(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], options: SourceOptions
) -> list[SourceFile]:
    """Return all matching files, each once, sorted by name."""
    by_uri: dict[str, SourceFile] = {}
    for pattern in normalize_files(files):
        for file in _list_pattern(SourceClient.of(pattern, options)):
            by_uri.setdefault(file.uri, file)
    return [by_uri[uri] for uri in sorted(by_uri)]


def _list_pattern(client: SourceClient) -> Iterator[SourceFile]:
    match client.kind:
        case SourceKind.LOCAL:
            return _list_local(client.uri)
        case SourceKind.STORE:
            return _list_objects(client.uri, client.store_options)
        case SourceKind.FSSPEC:
            return _list_with_fsspec(client)


def normalize_files(files: object) -> tuple[str, ...]:
    """Return the argument `files` as a tuple of strings."""
    if isinstance(files, str | os.PathLike):
        files = [files]
    if isinstance(files, bytes) or not isinstance(files, Collection):
        raise InvalidInput(
            f"files= must be a path, a directory or a glob, or a list of them, not a {type(files).__name__}"
        )
    return validation.check_locations(
        [os.fspath(file) if isinstance(file, os.PathLike) else file for file in files], "files"
    )


def _list_local(location: str) -> Iterator[SourceFile]:
    path = local_path(location)
    if path.is_file():
        yield _local_file(path.stat(), str(path))
    elif path.is_dir():
        yield from _walk_local(str(path), _glob_to_regex("**"), depth_max=None)
    elif _MAGIC.search(str(path)):
        base, pattern = _split_glob(str(path))
        if not os.path.isdir(base):
            return
        depth = None if "**" in pattern.split("/") else pattern.count("/")
        yield from _walk_local(base or "/", _glob_to_regex(pattern), depth_max=depth)
    else:
        raise NotFound(f"there is no file or directory {path}; check files=")


def _walk_local(base: str, pattern: re.Pattern[str], *, depth_max: int | None) -> Iterator[SourceFile]:
    pending = [("", 0)]
    while pending:
        directory, depth = pending.pop()
        try:
            with os.scandir(os.path.join(base, directory) if directory else base) as entries:
                for entry in entries:
                    path = f"{directory}/{entry.name}" if directory else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if depth_max is None or depth < depth_max:
                            pending.append((path, depth + 1))
                    elif pattern.fullmatch(path) and entry.is_file():
                        yield _local_file(entry.stat(), entry.path)
        except OSError as error:
            raise StorageError(f"could not list {os.path.join(base, directory)}: {error.strerror or error}") from error


def _local_file(stat: os.stat_result, path: str) -> SourceFile:
    return SourceFile(path, stat.st_size, f"{stat.st_mtime_ns}")


def _list_objects(uri: str, options: Mapping[str, str]) -> Iterator[SourceFile]:
    base, pattern = _split_glob(uri) if _MAGIC.search(uri.partition("://")[2]) else (uri, "")
    if is_in_object_store(base):
        store = _open_object_store(base, options)
    else:
        raise InvalidInput(f"{without_secrets(uri)} has a pattern in the name of its bucket; name one bucket")
    root = _open_bucket_root(store)
    if not pattern and store.location.prefix:
        single = root.head(store.location.prefix)
        if single is not None:
            yield _object_file(root, single)
            return
    regex, prefix, has_files = _glob_to_regex(pattern or "**"), store.location.prefix, False
    for info in store.walk(""):
        has_files = True
        if regex.fullmatch(info.path):
            yield _object_file(root, info, f"{prefix}/{info.path}" if prefix else info.path)
    if not has_files and not pattern:
        raise NotFound(f"there is no file at {without_secrets(uri)}; check files=")


def _list_with_fsspec(client: SourceClient) -> Iterator[SourceFile]:
    base, pattern, chain = _split_fsspec_glob(client.uri)
    location = FsspecLocation(base + chain, client.options)
    # The status of a page of a web server does not reveal whether it lists files.
    if not pattern and not (is_http(base) and base.endswith("/")):
        single = location.head()
        if single is not None:
            yield _fsspec_file(base + chain, single)
            return
    regex = _glob_to_regex(pattern or "**")
    depth_max = None if "**" in (pattern or "**").split("/") else pattern.count("/") + 1
    has_files = False
    for details in location.walk(depth_max, regex):
        has_files = True
        yield _fsspec_file(f"{base}{'' if base.endswith('/') else '/'}{details.path}{chain}", details)
    if not has_files and not pattern:
        raise NotFound(f"there is no file at {client.uri}; check files=")


def _split_fsspec_glob(uri: str) -> tuple[str, str, str]:
    """Split a URI into the directory before the first name with a pattern, the pattern, and the rest of a chain.

    >>> _split_fsspec_glob("sftp://host/in/*.csv"), _split_fsspec_glob("zip://*.csv::https://host/all.zip")
    (('sftp://host/in', '*.csv', ''), ('zip://', '*.csv', '::https://host/all.zip'))
    """
    first, chained, rest = uri.partition("::")
    scheme, _, path = first.partition("://")
    magic = _MAGIC_WITHOUT_QUERY if is_http(uri) else _MAGIC
    if not magic.search(path):
        return (first if is_http(uri) else f"{scheme}://{path.rstrip('/')}"), "", chained + rest
    base, pattern = _split_glob(path, magic)
    return f"{scheme}://{base}", pattern, chained + rest


def _fsspec_file(uri: str, details: FileDetails) -> SourceFile:
    if details.size is None and not details.tag:
        raise InvalidInput(
            f"{uri} has neither a size nor a time or tag of its content, so that a changed file could not be noticed; "
            "download it first"
        )
    return SourceFile(uri, details.size or 0, details.tag)


def _object_file(root: ObjectStore, info: ObjectInfo, key: str | None = None) -> SourceFile:
    tag = info.tag if isinstance(info, ObjectDetails) else ""
    return SourceFile(f"{root.description}/{key or info.path}", info.size, tag or info.modified.isoformat())


def _open_object_store(uri: str, options: Mapping[str, str]) -> ObjectStore:
    store = open_store(uri, storage_options=options)
    assert isinstance(store, ObjectStore), "callers have checked the scheme"
    return store


def _open_bucket_root(store: ObjectStore) -> ObjectStore:
    location = store.location
    return _open_object_store(f"{location.scheme}://{location.authority}", dict(store.codec_options))


def _split_glob(text: str, magic: re.Pattern[str] = _MAGIC) -> tuple[str, str]:
    """Split a glob into the directory before the first name with a pattern, and the rest."""
    names = text.split("/")
    index = next(number for number, name in enumerate(names) if magic.search(name))
    return "/".join(names[:index]), "/".join(names[index:])


def _glob_to_regex(glob: str) -> re.Pattern[str]:
    """Return the regular expression of a glob.

    >>> bool(_glob_to_regex("**/*.csv").fullmatch("a/b/c.csv")), bool(_glob_to_regex("*.csv").fullmatch("_c.csv"))
    (True, False)
    """
    names = glob.split("/")
    if names[-1] == "**":
        names.append("*")
    regex = ""
    for number, name in enumerate(names):
        if name == "**":
            regex += r"(?:[^/_.][^/]*/)*"
        else:
            regex += _name_to_regex(name) + ("/" if number + 1 < len(names) else "")
    return re.compile(regex, re.DOTALL)


def _name_to_regex(part: str) -> str:
    regex, position = "", 0
    while position < len(part):
        character = part[position]
        end = part.find("]", position + 2) if character == "[" else -1
        if end > 0:
            inner = part[position + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            regex += f"[{'^/' + inner[1:] if inner[0] in '!^' else inner}]"
            position = end + 1
            continue
        regex += {"*": "[^/]*", "?": "[^/]"}.get(character, re.escape(character))
        position += 1
    return ("" if part[:1] in "_." else "(?![_.])") + regex


def read_process_files(files: Sequence[SourceFile], options: SourceOptions) -> dict[str, bytes]:
    """Return the contents, by URI, of the files that exist in this process only, such as those below `memory://`. They
    travel to the workers with the task."""
    own_files = [file for file in files if is_in_this_process(file.uri)]
    if sum(file.size for file in own_files) > PROCESS_BYTES_MAX:
        raise InvalidInput(
            f"{own_files[0].uri} and the other files that exist in this process only have more than "
            f"{PROCESS_BYTES_MAX >> 20} MiB, the most that is sent to workers; write them to a directory or an object "
            "store that the workers reach"
        )
    contents = {}
    for file in own_files:
        reader = SourceReader(file, options)
        with reader.open() as stream:
            contents[file.uri] = stream.read()
        reader.check_unchanged()
    return contents


class SourceReader:
    """Reads one file. It detects concurrent changes of the file, if the store reports them.

    `contents` are those of `read_process_files`.
    """

    def __init__(
        self, file: SourceFile, options: SourceOptions, contents: Mapping[str, bytes] = MappingProxyType({})
    ) -> None:
        self.file = file
        self._content = contents.get(file.uri)
        self._store: ObjectStore | None = None
        self._location: FsspecLocation | None = None
        self._key = ""
        if self._content is not None:
            return
        client = SourceClient.of(file.uri, options)
        if client.kind is SourceKind.STORE:
            scheme, _, rest = file.uri.partition("://")
            authority, _, self._key = rest.partition("/")
            self._store = _open_object_store(f"{scheme}://{authority}", client.store_options)
        elif client.kind is SourceKind.FSSPEC:
            self._location = FsspecLocation(file.uri, client.options)

    def open(self, *, needs_ranges: bool = False) -> BufferedReader:
        """Open the file. `needs_ranges` means that the format is not read from the beginning to the end."""
        if self._content is not None:
            return BufferedReader(cast("RawIOBase", BytesIO(self._content)))
        if self._location is not None:
            stream = FsspecStream(self._location, self.file.size, needs_ranges=needs_ranges)
            return BufferedReader(stream, _READ_AHEAD)
        if self._store is not None:
            return BufferedReader(_ObjectStream(self._store, self._key, self.file.size), _READ_AHEAD)
        try:
            return BufferedReader(FileIO(self.file.uri), _READ_AHEAD)
        except OSError as error:
            raise self._read_error(error) from error

    @property
    def path_on_disk(self) -> str | None:
        """Path of a file on the local disk; `None` for other files."""
        is_elsewhere = self._content is not None or self._store is not None or self._location is not None
        return None if is_elsewhere else self.file.uri

    def check_unchanged(self) -> None:
        """Raise if the file is not the one that was listed."""
        if self._content is not None:
            return
        if self._location is not None:
            is_same = self._is_listed_one(self._location)
        elif self._store is not None:
            info = self._store.head(self._key)
            if info is None:
                raise NotFound(f"{self.file.uri} was removed since it was listed; repeat the ingest")
            is_same = _object_file(self._store, info, self._key) == self.file
        else:
            try:
                is_same = _local_file(Path(self.file.uri).stat(), self.file.uri) == self.file
            except OSError as error:
                raise self._read_error(error) from error
        if not is_same:
            raise InvalidInput(
                f"{self.file.uri} was changed while it was ingested; repeat the ingest when it is complete"
            )

    def _is_listed_one(self, location: FsspecLocation) -> bool:
        """Return whether the size of the file and the property that identifies its content are those of the listing."""
        details = location.head(self.file.tag.partition("=")[0])
        return (
            details is not None
            and (details.size or 0) == self.file.size
            and (details.tag == self.file.tag or not details.tag)
        )

    def _read_error(self, error: OSError) -> StorageError:
        return StorageError(f"could not read {self.file.uri}: {error.strerror or error}")


class _ObjectStream(RawIOBase):
    """An object as a seekable file. Each read is one request, so callers wrap it in a buffer."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store, self._key, self._size = store, key, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        length = min(len(buffer), self._size - self._position)
        if length <= 0:
            return 0
        data = self._store.read(self._key, self._position, length)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
