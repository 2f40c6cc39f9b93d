"""A fragment whose files are open: its live rows, or some of its rows, with the columns that were wanted when it was
opened. Where those are in the files a `FragmentLayout` says, which fragments of one shape share.

Who decides what is wanted, and finds it in files, is `fragment_reader.py`; start there.
"""

import dataclasses
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.assemble import StoredColumn, assemble_column
from lance_core.datafiles.blob_values import BlobValues
from lance_core.datafiles.codec import BATCH_ROWS, DataCodec, FileReader, Rows
from lance_core.datafiles.column_layout import Path
from lance_core.datafiles.legacy_codec import LegacyFileReader
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import DataFile, StorageVersion
from lance_core.format.schema import Field
from lance_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An open file and where in it the table's fields are."""

    file: DataFile
    reader: FileReader
    paths: dict[int, Path]


@dataclass(frozen=True, slots=True)
class LiveRows:
    """A batch of live rows, and where in the fragment they are."""

    batch: pa.RecordBatch
    _start: int
    _alive: npt.NDArray[np.bool_] | None
    """Over the physical rows from `_start`; None where all of them are live."""

    @property
    def count(self) -> int:
        return int(self.batch.num_rows)

    @property
    def start(self) -> int:
        """The physical rows that were read are those from here to `stop`."""
        return self._start

    @property
    def stop(self) -> int:
        return self._start + (self.batch.num_rows if self._alive is None else len(self._alive))

    def live_before(self, physical: int) -> int:
        """How many of these rows come before a physical one."""
        passed = min(max(physical - self._start, 0), self.stop - self._start)
        return passed if self._alive is None else int(np.count_nonzero(self._alive[:passed]))

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Physical, ascending."""
        if self._alive is None:
            return np.arange(self._start, self._start + self.batch.num_rows, dtype=np.int64)
        return np.flatnonzero(self._alive) + self._start

    def part(self, rows: slice, batch: pa.RecordBatch) -> "LiveRows":
        """Some of these rows, with other columns."""
        if self._alive is None or not batch.num_rows:
            return LiveRows(batch, self._start + rows.start, None)
        offsets = np.flatnonzero(self._alive)[rows]
        first, last = int(offsets[0]), int(offsets[-1])
        return LiveRows(batch, self._start + first, self._alive[first : last + 1])


@dataclass(frozen=True, slots=True)
class OpenFragment:
    """Made by `FragmentReader.open`; several threads may read from one."""

    physical_rows: int
    all_live: bool
    sources: "Sequence[OpenFile]"
    layout: "FragmentLayout"
    fields: Sequence[Field]
    arrow: pa.Schema
    blobs: BlobValues | None = None
    """Where blobs are wanted, and not where they are."""

    def live(self, deletions: DeletionVector | None, start: int = 0, count: int | None = None) -> Iterator[LiveRows]:
        """Live rows among the physical rows `start` to `start + count`, in order, in batches."""
        for rows in self._live(deletions, start, count):
            if self.blobs is None:
                yield rows
            else:
                for part, batch in self.blobs.pieces(rows.batch):
                    yield rows.part(part, batch)

    def _live(self, deletions: DeletionVector | None, start: int, count: int | None) -> Iterator[LiveRows]:
        left = self.physical_rows - start
        position = start
        for batches in self._batches(_Range(start, left if count is None else min(count, left))):
            rows = batches[0].num_rows
            alive = deletions.live_mask(position, rows) if deletions else None
            if alive is not None and alive.all():
                alive = None
            live = [_only(batch, alive) for batch in batches]
            yield LiveRows(self._joined(live, all_live=self.all_live or deletions is not None), position, alive)
            position += rows

    def take(self, rows: Rows) -> pa.RecordBatch:
        """These physical rows, deleted or not."""
        if self.blobs is None:
            return self._taken(rows)
        return _one_batch([batch for _, batch in self.pieces(rows)], self.blobs.arrow)

    def pieces(self, rows: Rows) -> Iterator[tuple[slice, pa.RecordBatch]]:
        """The same, so many at a time that their blobs fit in memory."""
        taken = self._taken(rows)
        return self.blobs.pieces(taken) if self.blobs else iter([(slice(0, len(rows)), taken)])

    def _taken(self, rows: Rows) -> pa.RecordBatch:
        found = [self._joined(batches, all_live=self.all_live) for batches in self._batches(_Picked(rows))]
        return _one_batch(found, self.arrow)

    def _batches(self, rows: "_Range | _Picked") -> Iterator[Sequence[pa.RecordBatch]]:
        """The same rows of every stream at a time."""
        if not self.layout.streams:
            return _rows_of_nothing(len(rows))
        streams = []
        for stream, (number, names) in enumerate(self.layout.streams):
            reader = self.sources[number].reader
            streams.append(rows.read(reader.with_descriptors() if stream in self.layout.descriptors else reader, names))
        return zip(*streams, strict=True)

    def _joined(self, batches: Sequence[pa.RecordBatch], *, all_live: bool) -> pa.RecordBatch:
        """What the streams hold, as the table's columns."""
        if not self.fields:
            return batches[0]
        if self.layout.is_straight and batches[0].schema.equals(self.arrow):
            if batches[0].schema.equals(self.arrow, check_metadata=True):
                return batches[0]
            return pa.RecordBatch.from_arrays(batches[0].columns, schema=self.arrow)
        columns = []
        for field, target, places in zip(self.fields, self.arrow, self.layout.places, strict=True):
            if any(stream in self.layout.descriptors for _, stream, _ in places):
                ((_, stream, name),) = places
                columns.append(batches[stream].column(name))
                continue
            if not places:
                columns.append(self.layout.nulls(target.type, batches[0].num_rows))
                continue
            parts = []
            for number, stream, name in places:
                source = self.sources[number]
                parts.append(StoredColumn(batches[stream].column(name), source.paths, source.file.path, all_live))
            columns.append(assemble_column(field, target.type, parts, batches[0].num_rows))
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


@dataclass(frozen=True, slots=True)
class _Range:
    start: int
    count: int

    def __len__(self) -> int:
        return self.count

    def read(self, reader: FileReader, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return reader.read(names, self.start, self.count)


@dataclass(frozen=True, slots=True)
class _Picked:
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, reader: FileReader, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return reader.take(names, self.rows)


Shape = tuple[tuple[tuple[int, ...], tuple[int, ...], StorageVersion], ...]
"""What a manifest says of a fragment's files, but for their names and sizes."""


@dataclass(frozen=True, slots=True)
class FragmentLayout:
    """Where the wanted fields are in fragments of one shape, whose files have these schemas."""

    used: tuple[int, ...]
    """The files that hold any of them, by their number in the fragment; the rest of the numbers count these."""
    paths: tuple[dict[int, Path], ...]
    schemas: tuple[pa.Schema, ...]
    streams: Sequence[tuple[int, tuple[str, ...]]]
    """What is read at once: the file and its columns."""
    places: Sequence[Sequence[tuple[int, int, str]]]
    """For each field the files that hold it, or children of it, with the stream and the column there."""
    descriptors: Set[int]
    """The streams that are of blobs told by where they are."""
    is_straight: bool
    """Whether one file has the fields as they are wanted, so that its columns need only be taken in their order."""
    _nulls: dict[pa.DataType, pa.Array] = dataclasses.field(default_factory=dict)

    def nulls(self, arrow: pa.DataType, rows: int) -> pa.Array:
        """Of a column that no file holds: made once, since a manifest can say for nothing that there are many."""
        known = self._nulls.get(arrow)
        if known is None or len(known) < rows:
            known = self._nulls[arrow] = pa.nulls(rows, arrow)
        return known.slice(0, rows)

    def opened(self, store: Store, codec: DataCodec, files: Sequence[DataFile]) -> "Sequence[OpenFile] | None":
        """The same files of another fragment; None where they have other schemas."""
        sources = []
        for number, (used, paths, schema) in enumerate(zip(self.used, self.paths, self.schemas, strict=True)):
            plain = (each for stream, each in enumerate(self.streams) if stream not in self.descriptors)
            likely = next((names for of, names in plain if of == number), ())
            reader = reader_of(store, codec, files[used], likely)
            if reader.schema is not schema and not reader.schema.equals(schema, check_metadata=True):
                return None
            sources.append(OpenFile(files[used], reader, paths))
        return sources


def _rows_of_nothing(count: int) -> Iterator[Sequence[pa.RecordBatch]]:
    """One batch at a time, since `count` is only what a manifest says, and costs it nothing to say."""
    for start in range(0, max(count, 1), BATCH_ROWS):
        yield [rows_without_columns(min(BATCH_ROWS, count - start))]


def _one_batch(batches: Sequence[pa.RecordBatch], arrow: pa.Schema) -> pa.RecordBatch:
    """Of batches that may have no columns."""
    if len(batches) == 1:
        return batches[0]
    if not arrow.names:
        return rows_without_columns(sum(batch.num_rows for batch in batches))
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=arrow)


def reader_of(store: Store, codec: DataCodec, file: DataFile, likely: Sequence[str] = ()) -> FileReader:
    return LegacyFileReader.open(store, file.qualified_path) if file.version.is_legacy else codec.open(file.qualified_path, likely)


def _only(batch: pa.RecordBatch, alive: npt.NDArray[np.bool_] | None) -> pa.RecordBatch:
    if alive is None:
        return batch
    if not batch.num_columns:
        return rows_without_columns(int(alive.sum()))
    return batch.filter(pa.array(alive))


def rows_without_columns(count: int) -> pa.RecordBatch:
    """A batch that still knows how many rows it stands for."""
    none_null = pa.array(np.zeros(count, dtype=np.bool_))
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_arrays([], fields=[], mask=none_null))
