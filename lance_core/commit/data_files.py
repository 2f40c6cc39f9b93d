"""Data files of a commit: writes rows into one file, registers files with the intent, and verifies them.

    rows ──► a file, or one that several appends share ──► registered with the intent ──► verified before a manifest
                                                                                          references them

`datafiles/fragment_writer.py` turns batches into files, and `group_commit.py` decides which appends share one. Start
with `check_files`.
"""

from collections.abc import Iterable, Sequence

from lance_core.commit.fencing import map_concurrently
from lance_core.coordination import idempotency
from lance_core.coordination.idempotency import IntentRecord
from lance_core.datafiles.fragment_writer import BufferedRows, RollingWriter
from lance_core.errors import NotFound, StorageError
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.index_metadata import IndexMetadata, SegmentFile
from lance_core.runtime import Runtime
from lance_core.versions.location import Location

SHARED_BYTES_MAX = 16 * 1024**2
"""Maximum size of a shared file, as Arrow holds its rows. It bounds how long the first append waits for the others."""


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
    location: Location, first: BufferedRows, others: Iterable[BufferedRows], runtime: Runtime
) -> tuple[Fragment, ...]:
    """Write the first rows, then the others. `others` may be collected while the first are written."""
    writer = RollingWriter(location.codec, first.version, first.limits, runtime.new_uuid)
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
) -> None:
    """Record the data files and index segments of a write with its intent, and verify that they exist."""
    if record:
        paths = sorted((*(file.path for file in files), *(segment.qualified_path for segment in segments)))
        idempotency.heartbeat(location.store, record, files=paths, now_ns=runtime.now_ns())
    check_files(location, files)
    check_segments(location, segments)


def check_files(location: Location, files: Sequence[DataFile]) -> None:
    """Verify that the data files exist with their sizes: a manifest must not reference a missing or truncated file."""

    def check(file: DataFile) -> None:
        _check_file(location, file.qualified_path, f"the data file {file.path}", file.size)

    map_concurrently(check, files)


def check_segments(location: Location, segments: Sequence[IndexMetadata]) -> None:
    """Verify that the files of index segments exist with their sizes. A query that relies on a wrong size fails."""

    files = [(segment, file) for segment in segments for file in segment.files]

    def check(item: tuple[IndexMetadata, SegmentFile]) -> None:
        segment, file = item
        path = f"{segment.qualified_path}/{file.path}"
        _check_file(location, path, f"the file {file.path} of index {segment.name!r}", file.size)

    map_concurrently(check, files)


def _check_file(location: Location, path: str, description: str, size: int | None) -> None:
    details = location.store.head(path)
    if details is None:
        raise NotFound(f"{location.uri}: {description} of this commit does not exist; write it again, then commit")
    if size is not None and details.size != size:
        raise StorageError(
            f"{location.uri}: {description} of this commit has {details.size} bytes, not the {size} that its writer "
            "reported; write it again, then commit"
        )
