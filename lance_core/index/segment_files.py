"""The directory of a segment: its files are written once, under a new uuid, and never changed."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from lance_core.datafiles.codec import FileReader, FileWriter
from lance_core.format import naming
from lance_core.format.fragment import StorageVersion
from lance_core.format.index_metadata import IndexMetadata, SegmentFile
from lance_core.versions.location import Location

_VERSION = StorageVersion(2, 2)
"""Of the files, whatever the table's data files have: it is what pylance writes beside any of them."""


class SegmentSink(Protocol):
    """Where a kind writes."""

    def create(self, name: str, schema: pa.Schema) -> FileWriter: ...


class SegmentSource(Protocol):
    """Where it reads. A file that is not there is a `NotFound`, one that was cut short a `StorageError`."""

    def open(self, name: str) -> FileReader: ...


@dataclass(slots=True)
class NewSegment:
    """Files as they are finished, with their sizes."""

    location: Location
    segment_uuid: uuid.UUID
    _sizes: dict[str, int] = field(default_factory=dict)

    def create(self, name: str, schema: pa.Schema) -> FileWriter:
        path = f"{naming.INDICES}/{self.segment_uuid}/{name}"
        return _Noting(self.location.codec.create(path, schema, _VERSION), name, self._sizes)

    @property
    def files(self) -> tuple[SegmentFile, ...]:
        return tuple(SegmentFile(name, size) for name, size in sorted(self._sizes.items()))


@dataclass(frozen=True, slots=True)
class _Noting:
    _writer: FileWriter
    _name: str
    _sizes: dict[str, int]

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)

    def attach(self, data: bytes) -> int:
        return self._writer.add_buffer(data)

    def note(self, key: str, value: str) -> None:
        self._writer.add_metadata(key, value)

    def finish(self) -> int:
        size = self._writer.finish()
        self._sizes[self._name] = size
        return size


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """The files of a segment that is there, also where a clone has it from another table."""

    location: Location
    metadata: IndexMetadata

    def open(self, name: str) -> FileReader:
        return self.location.codec.open(f"{self.metadata.qualified_path}/{name}")


def read_all_rows(file: FileReader, columns: Sequence[str] | None = None) -> pa.Table:
    """Of a file that is known to be small."""
    schema = file.schema
    names = schema.names if columns is None else list(columns)
    batches = list(file.read(names, 0, file.row_count)) if file.row_count else []
    return pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in names]))


def read_row_range(file: FileReader, columns: Sequence[str], start: int, count: int) -> pa.Table:
    schema = pa.schema([file.schema.field(name) for name in columns])
    return pa.Table.from_batches(file.read(columns, start, count), schema)


def picked_rows(file: FileReader, columns: Sequence[str], rows: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """In ascending order."""
    yield from file.take(columns, np.unique(np.fromiter(rows, dtype=np.int64)))
