"""Data files of a commit: writes rows into one file, registers files with the intent, and verifies them.

    rows ──► a file, or one that several appends share ──► registered with the intent ──► verified before a manifest
                                                                                          references them

`datafiles/fragment_writer.py` turns batches into files, and `group_commit.py` decides which appends share one. Start
with `check_files`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from uuid import UUID

from lance_core.coordination import idempotency
from lance_core.coordination.idempotency import IntentRecord
from lance_core.datafiles.fragment_writer import BufferedRows, RollingWriter
from lance_core.errors import NotFound, StorageError
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.index_metadata import IndexMetadata, SegmentFile
from lance_core.format.naming import split_qualified_path
from lance_core.runtime import Runtime
from lance_core.storage.concurrency import map_requests, requests_max
from lance_core.storage.store import ObjectInfo, SupportsConcurrency, SupportsOrderedListing
from lance_core.versions.location import Location

SHARED_BYTES_MAX = 16 * 1024**2
"""Maximum size of a shared file, as Arrow holds its rows. It bounds how long the first append waits for the others."""
QUESTIONS_MAX = 16
"""Up to this number of files, each has its own request for its size instead of a listing."""
LISTED_MIN = 1_000
"""Files in one page of a listing."""
LISTED_PART_MAX = 900
"""Maximum number of files that one of several concurrent listings searches for."""
LISTED_PER_FILE_MAX = 8
"""Maximum number of listed files for each file of the commit. A listing of this many takes half of the time that each
of 64 concurrent requests for sizes adds."""


class FileCapacity:
    """Remaining capacity of a file for more rows. Its first rows decide which others may share it."""

    def __init__(self, first: BufferedRows, *others: BufferedRows) -> None:
        """`others` have been reserved already."""
        self._first = first
        self._rows = first.rows + sum(rows.rows for rows in others)
        self._bytes = first.bytes + sum(rows.bytes for rows in others)

    def try_reserve(self, rows: BufferedRows) -> bool:
        """Reserve capacity for these rows. Return `False` if they do not fit or may not share the file."""
        limits = self._first.limits
        fits = (
            self._rows + rows.rows <= limits.rows_max
            and self._bytes + rows.bytes <= min(limits.bytes_max, SHARED_BYTES_MAX)
            and self._first.can_share_file(rows)
        )
        if fits:
            self._rows += rows.rows
            self._bytes += rows.bytes
        return fits


def write_shared_file(
    location: Location,
    first: BufferedRows,
    others: Iterable[BufferedRows],
    new_uuid: Callable[[], UUID],
    unsynced: list[str] | None = None,
) -> tuple[Fragment, ...]:
    """Write the first rows, then the others. `others` may be collected while the first are written. Files that need a
    sync are made durable, or added to `unsynced`."""
    writer = RollingWriter(location.codec, first.version, first.limits, new_uuid, unsynced)
    writer.write_all(first)  # opening a file takes long enough for other appends to arrive
    for rows in others:
        writer.write_all(rows)
    return writer.finish()


def register_files(
    location: Location,
    record: IntentRecord | None,
    files: Sequence[DataFile],
    runtime: Runtime,
    segments: Sequence[IndexMetadata] = (),
    *,
    written_by_us: bool = True,
) -> None:
    """Record the data files and index segments of a write with its intent, and verify that they exist. `written_by_us`
    says that the write began before its files were written."""
    register_with_intent(location, record, files, runtime, segments)
    check_files(location, files, written_by_us=written_by_us)
    check_segments(location, segments, written_by_us=written_by_us)


def register_with_intent(
    location: Location,
    record: IntentRecord | None,
    files: Sequence[DataFile],
    runtime: Runtime,
    segments: Sequence[IndexMetadata] = (),
) -> None:
    """Record the data files and index segments of a write with its intent, if it has one."""
    if record:
        paths = sorted((*(file.path for file in files), *(segment.qualified_path for segment in segments)))
        idempotency.heartbeat(location.store, record, files=paths, now_ns=runtime.now_ns())


def check_files(location: Location, files: Sequence[DataFile], *, written_by_us: bool = True) -> None:
    """Verify that the data files exist with their sizes: a manifest must not reference a missing or truncated file."""
    _check_sizes(
        location,
        [
            (file.qualified_path, f"the data file {file.path}", file.size)
            for file in files
            if not (written_by_us and _is_verified(location, file))
        ],
    )


def check_segments(location: Location, segments: Sequence[IndexMetadata], *, written_by_us: bool = True) -> None:
    """Verify that the files of index segments exist with their sizes. A query that relies on a wrong size fails."""
    _check_sizes(
        location,
        [
            (f"{segment.qualified_path}/{file.path}", f"the file {file.path} of index {segment.name!r}", file.size)
            for segment in segments
            for file in segment.files
            if not (written_by_us and _is_verified(location, file))
        ],
    )


def _is_verified(location: Location, file: DataFile | SegmentFile) -> bool:
    """Return whether the writer of a file has verified it, so that an object store need not be asked once more.

    A writer of this library computes the checksum of the whole file, and records it after the store has acknowledged
    all of the file's bytes (`datafiles/lance_codec.py`)."""
    store = location.own_store
    if not isinstance(store, SupportsConcurrency) or requests_max(store) == 1:
        return False
    return file.checksum is not None and file.checksum.xxh3 is not None


def _check_sizes(location: Location, expected: Sequence[tuple[str, str, int | None]]) -> None:
    """Check paths with their descriptions and sizes."""
    sizes = find_sizes(location, [path for path, _description, _size in expected])
    for (_path, description, size), stored in zip(expected, sizes, strict=True):
        if stored is None:
            raise NotFound(f"{location.uri}: {description} of this commit does not exist; write it again, then commit")
        if size is not None and stored != size:
            raise StorageError(
                f"{location.uri}: {description} of this commit has {stored} bytes, not the {size} that its writer "
                "reported; write it again, then commit"
            )


def find_sizes(location: Location, paths: Sequence[str]) -> Iterator[int | None]:
    """Yield the size of each file, in order; `None` if it does not exist. The paths may have the id of a base.

    A remote store answers many requests concurrently, and lists a thousand files in the time of one request. The files
    of a large commit are therefore looked up in a listing of their directory. The table may have far more files than
    the commit: the listing ends after a few times their number, and each remaining file has its own request."""
    listed = _list_sizes(location, paths) if len(paths) > QUESTIONS_MAX else {}
    unlisted = [path for path in paths if path not in listed]
    head = location.store.head
    asked = map_requests(location.store, head, unlisted) if len(unlisted) > 1 else map(head, unlisted)
    for path in paths:
        if path in listed:
            yield listed[path]
        else:
            details = next(asked)
            yield None if details is None else details.size


def _list_sizes(location: Location, paths: Sequence[str]) -> dict[str, int]:
    """Return the sizes of the files that a bounded listing of their directories finds. The sorted names of a directory
    are divided into parts, and concurrent listings each cover one part, from its first name to its last."""
    store = location.own_store
    if requests_max(store) == 1 or not isinstance(store, SupportsOrderedListing):
        return {}
    by_directory: dict[str, list[str]] = {}
    for path in sorted(paths):
        base_id, inner = split_qualified_path(path)
        if base_id is None:
            directory, _, name = inner.rpartition("/")
            by_directory.setdefault(directory, []).append(name)
    parts = [
        (directory, names[start : start + LISTED_PART_MAX])
        for directory, names in by_directory.items()
        if len(names) > QUESTIONS_MAX
        for start in range(0, len(names), LISTED_PART_MAX)
    ]
    listed = map_requests(store, lambda part: _list_part(store, *part), parts)
    return {info.path: info.size for infos in listed for info in infos}


def _list_part(store: SupportsOrderedListing, directory: str, names: Sequence[str]) -> Sequence[ObjectInfo]:
    """List a directory from the first of these sorted names to the last, or until the maximum number of files."""
    found: list[ObjectInfo] = []
    after, remaining = names[0][:-1], max(LISTED_MIN, LISTED_PER_FILE_MAX * len(names))
    while remaining > 0:
        count = min(remaining, LISTED_MIN)
        page = store.list_first(directory, count, after)
        found += page
        after, remaining = page[-1].path.rpartition("/")[2] if page else "", remaining - count
        if len(page) < count or after >= names[-1]:
            break
    return found
