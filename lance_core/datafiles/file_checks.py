"""File checks: verifies a data or index file before the codec opens it.

A local file is a regular file, opened without blocking and without following links out of the table. Every file has the
recorded size. Its footer, its schema and the metadata of its columns stay inside the file, and the counts by which a
decoder allocates memory agree with the sizes of the buffers (`format/column_metadata.py`). A file whose counts are
neither proven nor contradicted is not plausible, and the codec decodes it in another process. The offsets and the
repetition indices of lists are checked when their column is first read.

A file of an object store is checked by one request, and by more only for parts beyond the last 64 KiB. Files of version
2.1 and later that this library wrote, as their checksums show, are not checked there, so that they take no additional
request; `004-isolated-decoding.md` has the figures.
Deletion files, blob files and files of format 0.1 are read by `LocalStore.read`, which opens regular files only, and
decoded in Python with their own checks. Start with `check_file`.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from lance_core.errors import Corrupt, NotFound, StorageError
from lance_core.format.column_metadata import FileBounds, OffsetsPage, check_columns
from lance_core.format.file_descriptor import FileDescriptor
from lance_core.format.file_footer import FOOTER, MAGIC, SPAN
from lance_core.format.fragment import StorageVersion
from lance_core.format.page_view import FilePages
from lance_core.format.plain_values import PlainPage
from lance_core.format.repetition_index import RepetitionPage
from lance_core.limits import FIELDS, FILE_METADATA_BYTES
from lance_core.storage.local import LocalStore
from lance_core.storage.lru_cache import LruCache
from lance_core.storage.store import Store

_TAIL_BYTES = 8192
OBJECT_TAIL_BYTES = 65_536
"""As much as the codec itself reads first. Small files are then checked completely by one request."""
METADATA_BYTES_MAX = 128 << 20
_METADATA_FACTOR = 4
"""Memory that the facts about a file take, in proportion to its metadata."""
_METADATA_BASE_BYTES = 1024
LEGACY_FOOTER = "footer.version"
"""Field of the error for a file of format 0.1 among newer ones."""
_VERSIONS = (StorageVersion(2, 0), StorageVersion(2, 1), StorageVersion(2, 2), StorageVersion(2, 3))
ReadRange = Callable[[int, int], bytes]
"""Function that reads a number of bytes of a file from a position."""
_Identity = tuple[int, int, int, int]
FILE_CACHE: "LruCache[tuple[str, str], tuple[_Identity, CheckedFile]]" = LruCache(METADATA_BYTES_MAX, "file metadata")
"""Files that have passed the checks, with what identifies their content: their metadata is read once per process."""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """File that has passed the checks."""

    identity: tuple[int, ...] = ()
    """Identity of the content of the file, which may be replaced under the same path."""
    schema_bytes: bytes | None = None
    """Serialized schema; files with equal bytes have the same schema. `None` if the file was not read."""
    is_plausible: bool = True
    """`False` if the metadata does not prove how much memory the decoder needs."""
    pages: FilePages | None = None
    """Pages of the file; `None` if it is not plausible, has another format, or was not read."""
    plain_columns: Mapping[int, tuple[PlainPage, ...]] = field(default_factory=dict)
    """Pages of the columns of numbers that are stored unchanged, by the number of the column."""
    _pages: tuple[tuple[str, OffsetsPage | RepetitionPage], ...] = ()
    """Offsets of version 2.0, and repetition indices of later versions, that remain to be checked, with the top-level
    column; an empty name if the column is unknown."""
    _checked_columns: set[str] = field(default_factory=set)

    def is_file(self, status: os.stat_result) -> bool:
        """Return whether this is the status of the file that was checked."""
        return self.identity == _identity_of(status)

    def needs_check(self, columns: Collection[str]) -> bool:
        """Return whether `check_offsets` would read anything for these columns."""
        names = {name.partition(".")[0] for name in columns} | {*columns, ""}
        return any(name in names and name not in self._checked_columns for name, _ in self._pages)

    def check_offsets(self, store: Store, path: str, columns: Collection[str]) -> None:
        """Raise `Corrupt` if the offsets of lists or texts in these columns, or the repetition indices of lists, are
        damaged: the codec would end the process."""
        if self._pages:
            self.check_offsets_by(partial(store.read, path), f"{store.description}/{path}", columns)

    def check_offsets_by(self, read: ReadRange, path: str, columns: Collection[str]) -> None:
        """Check the same by a function that reads a range of the file."""
        names = {name.partition(".")[0] for name in columns} | {*columns, ""}
        for name, page in self._pages:
            if name in names and name not in self._checked_columns:
                page.check(read(page.position, page.byte_count), path=path)
        self._checked_columns.update(names)


UNCHECKED = CheckedFile()
"""Result for a file of an object store that is not checked."""


def check_file(store: Store, path: str, size: int | None = None, *, is_vouched: bool = False) -> CheckedFile:
    """Check a data file before it is decoded. `size` is recorded in the table. A file that is vouched for is checked on
    a local disk only. Raise `Corrupt` if its metadata contradicts itself, and `StorageError` if it is not a regular
    file."""
    if isinstance(store, LocalStore):
        return _check_local_file(store, path, size)
    return UNCHECKED if is_vouched else _check_object(store, path, size)


def _check_object(store: Store, path: str, size: int | None) -> CheckedFile:
    """Check a file of an object store. Names are never used again, so a name identifies its content."""
    key = store.description, path
    known = FILE_CACHE.get(key)
    if known is not None and size in (None, known[0][2]):
        return known[1]
    where = f"{store.description}/{path}"
    actual_size = _size_of_object(store, path, where) if size is None else size
    tail, _ = read_object_tail(store, path, actual_size)
    return check_object_tail(store, path, actual_size, tail, partial(store.read, path))


def known_object(store: Store, path: str, size: int) -> CheckedFile | None:
    """Return the facts about a file of an object store, if this process has checked it."""
    known = FILE_CACHE.get((store.description, path))
    return known[1] if known is not None and known[0][2] == size else None


def read_object_tail(
    store: Store, path: str, size: int, read: ReadRange | None = None, length: int = OBJECT_TAIL_BYTES
) -> tuple[bytes, int]:
    """Return the end of an object of this size, and its position. Raise `Corrupt` if it has another size."""
    start = max(0, size - length)
    # One byte more than the object should have, so that a longer one is detected.
    tail = (partial(store.read, path) if read is None else read)(start, size - start + 1)
    if len(tail) != size - start:
        where = f"{store.description}/{path}"
        actual_size = _size_of_object(store, path, where)
        raise Corrupt(f"has {actual_size} bytes, but the table records {size}", path=where, field="size")
    return tail, start


def check_object_tail(store: Store, path: str, size: int, tail: bytes, read: ReadRange) -> CheckedFile:
    """Check a file of an object store, whose last bytes have been read."""
    identity = (0, 0, size, 0)
    checked = _check_content(_Tail(tail, read, size, f"{store.description}/{path}"), identity)
    _remember((store.description, path), identity, checked)
    return checked


def _size_of_object(store: Store, path: str, where: str) -> int:
    info = store.head(path)
    if info is None:
        raise NotFound(f"data file {where} does not exist")
    return info.size


def _check_local_file(store: LocalStore, path: str, size: int | None) -> CheckedFile:
    with open_checked_file(store, path, size) as (_, checked):
        return checked


@contextmanager
def open_checked_file(store: LocalStore, path: str, size: int | None) -> Iterator[tuple[int, CheckedFile]]:
    """Open a local file that passes the checks, for a block of code that reads from its descriptor."""
    where = f"{store.description}/{path}"
    try:
        with store.open_regular_file(path) as (descriptor, actual_size):
            if size is not None and actual_size != size:
                raise Corrupt(f"has {actual_size} bytes, but the table records {size}", path=where, field="size")
            identity = _identity_of(os.fstat(descriptor))
            key = store.description, path
            known = FILE_CACHE.get(key)
            if known is not None and known[0] == identity:
                yield descriptor, known[1]
                return
            tail = os.pread(descriptor, _TAIL_BYTES, max(0, actual_size - _TAIL_BYTES))
            file = _Tail(tail, lambda at, length: os.pread(descriptor, length, at), actual_size, where)
            checked = _check_content(file, identity)
            _remember(key, identity, checked)
            yield descriptor, checked
    except FileNotFoundError as error:
        raise NotFound(f"data file {where} does not exist") from error
    except OSError as error:
        raise StorageError(f"could not read {where}: {error.strerror or error}") from error


def _remember(key: tuple[str, str], identity: _Identity, checked: CheckedFile) -> None:
    metadata = 0 if checked.pages is None else sum(map(len, checked.pages.columns))
    FILE_CACHE.put(key, (identity, checked), _METADATA_BASE_BYTES + _METADATA_FACTOR * metadata)


def _identity_of(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _check_content(tail: "_Tail", identity: _Identity) -> CheckedFile:
    size, path = tail.size, tail.path
    end = size - FOOTER.size
    if end < 0:
        raise Corrupt(f"has {size} bytes, too few for a data file", path=path, field="footer")
    metadata, column_table, buffer_table, buffer_count, column_count, major, minor, magic = FOOTER.unpack(
        tail.read(end, FOOTER.size, "footer")
    )
    version = _check_footer(magic, StorageVersion.of_file(major, minor), path)
    FIELDS.check(column_count, path=path)
    FILE_METADATA_BYTES.check(size - min(metadata, size), path=path)
    if metadata > column_table or not buffer_count:
        raise Corrupt("has a footer that contradicts itself", path=path, field="footer")
    tail.extend(metadata)
    buffers = tail.read_spans(buffer_table, buffer_count, end, "buffers")
    columns = tail.read_spans(column_table, column_count, end, "columns")
    if sum(length for _position, length in columns) > size:
        raise Corrupt("has metadata of columns that overlaps", path=path, field="columns")
    described = FileDescriptor.decode(tail.read(*buffers[0], "schema"), path=path)
    metadata_of_columns = tuple(tail.read(position, length, "columns") for position, length in columns)
    facts = check_columns(metadata_of_columns, FileBounds(path, end, described.rows, version == _VERSIONS[0]))
    pages: list[tuple[int, OffsetsPage | RepetitionPage]] = [*facts.offsets_pages, *facts.repetition_pages]
    names = _column_names(described, version) if pages else ()
    are_found = len(names) == column_count
    is_plausible = facts.is_plausible and version in _VERSIONS and (are_found or not facts.offsets_pages)
    has_view = is_plausible and version in _VERSIONS[1:]
    return CheckedFile(
        identity,
        described.schema_bytes,
        is_plausible,
        FilePages(version, described.schema_bytes, described.rows, metadata_of_columns) if has_view else None,
        facts.plain_columns,
        tuple((names[number] if are_found else "", page) for number, page in pages if not tail.is_sound(page)),
    )


def _check_footer(magic: bytes, version: StorageVersion, path: str) -> StorageVersion:
    if magic != MAGIC:
        raise Corrupt(f"ends in {magic!r} instead of {MAGIC!r}", path=path, field="footer.magic")
    if version.is_legacy:
        raise Corrupt("is a file of format 0.1, but the table records a newer format", path=path, field=LEGACY_FOOTER)
    return version


def _column_names(described: FileDescriptor, version: StorageVersion) -> tuple[str, ...]:
    """Return the name of the top-level column of each column of the file."""
    return described.top_level_names() if version == _VERSIONS[0] else described.leaf_names()


class _Tail:
    """Reader of the end of a file, whose last bytes are in memory. It reads anything before them on request."""

    def __init__(self, tail: bytes, read: Callable[[int, int], bytes], size: int, path: str) -> None:
        self.size = size
        self.path = path
        self._bytes = tail
        self._start = size - len(tail)
        self._read = read

    def extend(self, start: int) -> None:
        """Read everything from this position on, because all of it will be requested."""
        if start < self._start:
            self._bytes = self._read(start, self._start - start) + self._bytes
            self._start = start

    def is_sound(self, page: OffsetsPage | RepetitionPage) -> bool:
        """Return whether the numbers of the page are in memory and pass the check. The others are checked when the
        column is read, so that damage in one column leaves the others readable."""
        if page.position < self._start:
            return False
        at = page.position - self._start
        try:
            page.check(self._bytes[at : at + page.byte_count], path=self.path)
        except Corrupt:
            return False
        return True

    def read(self, position: int, length: int, field: str) -> bytes:
        """Read bytes that are known to be inside the file."""
        if position >= self._start:
            data = self._bytes[position - self._start : position - self._start + length]
        else:
            FILE_METADATA_BYTES.check(length, path=self.path)
            data = self._read(position, length)
        if len(data) != length:
            raise Corrupt("ends early", path=self.path, field=field)
        return data

    def read_spans(self, position: int, count: int, end: int, field: str) -> list[tuple[int, int]]:
        """Read a table of positions and sizes, and check that all of them are inside the file."""
        if position + count * SPAN.size > end:
            raise Corrupt(f"has a table of {count} {field} outside the file", path=self.path, field=field)
        spans = list(SPAN.iter_unpack(self.read(position, count * SPAN.size, field)))
        for start, size in spans:
            if start + size > end:
                raise Corrupt(f"has {field} outside the file", path=self.path, field=field)
        return spans
