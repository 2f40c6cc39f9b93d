"""Segment files: reads and writes the directory of an index segment.

The files of a segment are written once, under a new uuid, and never changed.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from lance_core.datafiles.codec import FileReader, FileWriter
from lance_core.format import naming
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import StorageVersion
from lance_core.format.index_metadata import IndexMetadata, SegmentFile
from lance_core.package_version import PACKAGE_VERSION
from lance_core.storage.concurrency import map_requests
from lance_core.versions.location import Location

WRITER_KEY = "lance_assets.version"
"""Key in the metadata of every index file: the version of this library that wrote it."""
_OLDEST_VERSION, _NEWEST_VERSION = StorageVersion(2, 0), StorageVersion(2, 3)


def file_version_for(storage_version: StorageVersion) -> StorageVersion:
    """Return the version of new index files in a table of this storage version.

    It is that of the data files, so that every release that can read the table can use its indices. Tables of the
    legacy format get the version that pylance gives them.

    >>> str(file_version_for(StorageVersion(2, 1))), str(file_version_for(StorageVersion(0, 1)))
    ('2.1', '2.0')
    """
    return min(max(storage_version, _OLDEST_VERSION, key=_rank), _NEWEST_VERSION, key=_rank)


def _rank(version: StorageVersion) -> tuple[int, int]:
    return version.major, version.minor


class SegmentSink(Protocol):
    """Destination of the files that an index type writes."""

    def create(self, name: str, schema: pa.Schema) -> FileWriter: ...


class SegmentSource(Protocol):
    """Source of the files that an index type reads. A missing file raises `NotFound`, a truncated one
    `StorageError`."""

    def open(self, name: str, columns: Sequence[str] = ()) -> FileReader:
        """Open a file. `columns` are the ones that will probably be read, so that the codec opens it once."""


@dataclass(slots=True)
class NewSegment:
    """Segment that is being written. It records the checksums of the finished files."""

    location: Location
    segment_uuid: uuid.UUID
    file_version: StorageVersion
    _checksums: dict[str, FileChecksum] = field(default_factory=dict)

    def create(self, name: str, schema: pa.Schema) -> FileWriter:
        path = f"{naming.INDICES}/{self.segment_uuid}/{name}"
        return _RecordingWriter(self.location.codec.create(path, schema, self.file_version), name, self._checksums)

    @property
    def files(self) -> tuple[SegmentFile, ...]:
        return tuple(SegmentFile(name, each.size, each.xxh3) for name, each in sorted(self._checksums.items()))


@dataclass(frozen=True, slots=True)
class _RecordingWriter:
    """File writer that records the checksum of its file when it is finished."""

    _writer: FileWriter
    _name: str
    _checksums: dict[str, FileChecksum]

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)

    def add_buffer(self, data: bytes) -> int:
        return self._writer.add_buffer(data)

    def add_metadata(self, key: str, value: str) -> None:
        self._writer.add_metadata(key, value)

    def finish(self, unsynced: list[str] | None = None) -> FileChecksum:
        self._writer.add_metadata(WRITER_KEY, PACKAGE_VERSION)
        checksum = self._checksums[self._name] = self._writer.finish(unsynced)
        return checksum


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """Files of an existing segment, also if a clone refers to it in another table."""

    location: Location
    metadata: IndexMetadata

    def open(self, name: str, columns: Sequence[str] = ()) -> FileReader:
        path = f"{self.metadata.qualified_path}/{name}"
        file = next((each for each in self.metadata.files if each.path == name), None)
        self.location.codec.verify(path, None if file is None else file.checksum)
        return self.location.codec.open(path, columns, size=None if file is None else file.size)


def open_files(source: SegmentSource, names: Sequence[str]) -> list[FileReader]:
    """Open files of a segment, at the same time if the store answers several requests."""
    if not isinstance(source, OpenSegment):
        return [source.open(name) for name in names]
    return list(map_requests(source.location.own_store, source.open, names))


def read_all_rows(file: FileReader, columns: Sequence[str] | None = None) -> pa.Table:
    """Return all rows of a file that is known to be small."""
    schema = file.schema
    names = schema.names if columns is None else list(columns)
    batches = list(file.read(names, 0, file.row_count)) if file.row_count else []
    return pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in names]))


def read_row_range(file: FileReader, columns: Sequence[str], start: int, count: int) -> pa.Table:
    """Return `count` rows from row `start` on."""
    schema = pa.schema([file.schema.field(name) for name in columns])
    return pa.Table.from_batches(file.read(columns, start, count), schema)
