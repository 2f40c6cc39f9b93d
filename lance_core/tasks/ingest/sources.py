"""The files of an ingest: found on the driver by a path, a directory or a glob, opened in workers.

What lives here: which files are meant (`list_files`), how one is told from an earlier one of its name (`SourceFile`), and
bytes of them (`SourceReader`). They are read where they are; no file is ever written or removed. The other modules of
this package parse their contents.

    landing/2024/*.csv      one level          landing/**/*.parquet     any depth
    landing/[ab]?.csv       one character      landing/                 everything below

Names that begin with `_` or `.` are skipped unless the pattern says so itself: other programs keep what is not data,
or not finished, under them. Links to files are followed, links to directories below the one that was named are not.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader, FileIO, RawIOBase
from pathlib import Path

from lance_core import validation
from lance_core.errors import InvalidInput, NotFound, StorageError
from lance_core.storage.factory import local_path, open_store, without_secrets
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.object_uri import is_in_object_store
from lance_core.storage.store import ObjectDetails, ObjectInfo

_MAGIC = re.compile(r"[*?\[]")
_READ_AHEAD = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SourceFile:
    uri: str
    """Absolute, without secrets: the identity of a file by its place."""
    size: int
    tag: str
    """Which content it is, by its store's word, or when it was changed."""


def list_files(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], options: Mapping[str, str]
) -> list[SourceFile]:
    """All files that are meant, each once, by name."""
    asked = normalize_files(files)
    found: dict[str, SourceFile] = {}
    for text in asked:
        for file in _in_store(text, options) if is_in_object_store(text) else _on_disk(text):
            found.setdefault(file.uri, file)
    return [found[uri] for uri in sorted(found)]


def normalize_files(files: object) -> tuple[str, ...]:
    if isinstance(files, str | os.PathLike):
        files = [files]
    if isinstance(files, bytes) or not isinstance(files, Collection):
        raise InvalidInput(f"files= is a path, a directory or a glob, or a list of them, not a {type(files).__name__}")
    return validation.check_locations(
        [os.fspath(each) if isinstance(each, os.PathLike) else each for each in files], "files"
    )


def _on_disk(text: str) -> Iterator[SourceFile]:
    whole = local_path(text)
    if whole.is_file():
        yield _of_disk(whole.stat(), str(whole))
    elif whole.is_dir():
        yield from _below(str(whole), _pattern("**"), depth_max=None)
    elif _MAGIC.search(str(whole)):
        base, pattern = _split(str(whole))
        if not os.path.isdir(base):
            return
        depth = None if "**" in pattern.split("/") else pattern.count("/")
        yield from _below(base or "/", _pattern(pattern), depth_max=depth)
    else:
        raise NotFound(f"there is no file or directory {whole}; look at files=")


def _below(base: str, pattern: re.Pattern[str], *, depth_max: int | None) -> Iterator[SourceFile]:
    left = [("", 0)]
    while left:
        here, depth = left.pop()
        try:
            with os.scandir(os.path.join(base, here) if here else base) as entries:
                for entry in entries:
                    path = f"{here}/{entry.name}" if here else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if depth_max is None or depth < depth_max:
                            left.append((path, depth + 1))
                    elif pattern.fullmatch(path) and entry.is_file():
                        yield _of_disk(entry.stat(), entry.path)
        except OSError as error:
            raise StorageError(f"could not list {os.path.join(base, here)}: {error.strerror or error}") from error


def _of_disk(found: os.stat_result, path: str) -> SourceFile:
    return SourceFile(path, found.st_size, f"{found.st_mtime_ns}")


def _in_store(text: str, options: Mapping[str, str]) -> Iterator[SourceFile]:
    base, pattern = _split(text) if _MAGIC.search(text.partition("://")[2]) else (text, "")
    if is_in_object_store(base):
        store = _store(base, options)
    else:
        raise InvalidInput(f"{without_secrets(text)} has a pattern in the name of its bucket; name one bucket")
    root = _root(store)
    if not pattern and store.location.prefix:
        one = root.head(store.location.prefix)
        if one is not None:
            yield _of_object(root, one)
            return
    shape, prefix, found = _pattern(pattern or "**"), store.location.prefix, False
    for info in store.walk(""):
        found = True
        if shape.fullmatch(info.path):
            yield _of_object(root, info, f"{prefix}/{info.path}" if prefix else info.path)
    if not found and not pattern:
        raise NotFound(f"there is nothing at {without_secrets(text)}; look at files=")


def _of_object(root: ObjectStore, info: ObjectInfo, key: str | None = None) -> SourceFile:
    tag = info.tag if isinstance(info, ObjectDetails) else ""
    return SourceFile(f"{root.description}/{key or info.path}", info.size, tag or info.modified.isoformat())


def _store(uri: str, options: Mapping[str, str]) -> ObjectStore:
    store = open_store(uri, storage_options=options)
    assert isinstance(store, ObjectStore), "who asks has looked at the scheme"
    return store


def _root(store: ObjectStore) -> ObjectStore:
    place = store.location
    return _store(f"{place.scheme}://{place.authority}", dict(store.codec_options))


def _split(text: str) -> tuple[str, str]:
    """The directory before the first name with a pattern in it, and the rest."""
    parts = text.split("/")
    at = next(number for number, part in enumerate(parts) if _MAGIC.search(part))
    return "/".join(parts[:at]), "/".join(parts[at:])


def _pattern(glob: str) -> re.Pattern[str]:
    """
    >>> bool(_pattern("**/*.csv").fullmatch("a/b/c.csv")), bool(_pattern("*.csv").fullmatch("_c.csv"))
    (True, False)
    """
    parts = glob.split("/")
    if parts[-1] == "**":
        parts.append("*")
    shape = ""
    for number, part in enumerate(parts):
        if part == "**":
            shape += r"(?:[^/_.][^/]*/)*"
        else:
            shape += _of_name(part) + ("/" if number + 1 < len(parts) else "")
    return re.compile(shape, re.DOTALL)


def _of_name(part: str) -> str:
    shape, at = "", 0
    while at < len(part):
        sign = part[at]
        end = part.find("]", at + 2) if sign == "[" else -1
        if end > 0:
            inner = part[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            shape += f"[{'^/' + inner[1:] if inner[0] in '!^' else inner}]"
            at = end + 1
            continue
        shape += {"*": "[^/]*", "?": "[^/]"}.get(sign, re.escape(sign))
        at += 1
    return ("" if part[:1] in "_." else "(?![_.])") + shape


class SourceReader:
    """One of the files, where it is. Anybody's changes while it is read are noticed, as far as its store tells."""

    def __init__(self, file: SourceFile, options: Mapping[str, str]) -> None:
        self.file = file
        self._store: ObjectStore | None = None
        self._key = ""
        if is_in_object_store(file.uri):
            scheme, _, rest = file.uri.partition("://")
            authority, _, self._key = rest.partition("/")
            self._store = _store(f"{scheme}://{authority}", options)

    def open(self) -> BufferedReader:
        try:
            if self._store is None:
                return BufferedReader(FileIO(self.file.uri), _READ_AHEAD)
        except OSError as error:
            raise self._failed(error) from error
        return BufferedReader(_Ranges(self._store, self._key, self.file.size), _READ_AHEAD)

    @property
    def path_on_disk(self) -> str | None:
        """Its path, where it is on this machine's disk."""
        return self.file.uri if self._store is None else None

    def check_unchanged(self) -> None:
        """That it still is the file that was listed."""
        try:
            if self._store is None:
                now = _of_disk(Path(self.file.uri).stat(), self.file.uri)
            else:
                info = self._store.head(self._key)
                if info is None:
                    raise NotFound(f"{self.file.uri} is gone since it was listed; repeat the ingest")
                now = _of_object(self._store, info, self._key)
        except OSError as error:
            raise self._failed(error) from error
        if (now.size, now.tag) != (self.file.size, self.file.tag):
            raise InvalidInput(f"{self.file.uri} was changed while it was ingested; repeat the ingest once it is whole")

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(f"could not read {self.file.uri}: {error.strerror or error}")


class _Ranges(RawIOBase):
    """An object as a file: each read is a request, so a buffer belongs around it."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store, self._key, self._size = store, key, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        data = self._store.read(self._key, self._at, wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
