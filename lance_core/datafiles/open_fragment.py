"""Open fragment: a fragment whose files are open, from which live rows or single rows are read, with the columns that
were requested when it was opened. A `FragmentLayout` locates those columns in the files; fragments of the same
shape share it.

`fragment_reader.py` resolves the requested columns and opens fragments; start there.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.datafiles.assemble import StoredColumn, assemble_column
from lance_core.datafiles.blob_values import BlobValues
from lance_core.datafiles.codec import BATCH_ROWS, DataCodec, FileReader, Rows
from lance_core.datafiles.column_layout import Path
from lance_core.datafiles.error_context import ReadContext
from lance_core.datafiles.fragment_overlays import FragmentOverlays
from lance_core.datafiles.legacy_codec import LegacyFileReader
from lance_core.datafiles.row_offsets import consecutive_offsets
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import DataFile, StorageVersion
from lance_core.format.schema import Field
from lance_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An open file, and the paths of the table's fields in it."""

    file: DataFile
    reader: FileReader
    paths: dict[int, Path]


@dataclass(frozen=True, slots=True)
class LiveRows:
    """A batch of live rows, and their offsets in the fragment."""

    batch: pa.RecordBatch
    _start: int
    _alive: npt.NDArray[np.bool_] | None
    """Mask over the physical rows from `_start`; `None` if all of them are live."""

    @property
    def count(self) -> int:
        return int(self.batch.num_rows)

    @property
    def start(self) -> int:
        """First physical row that was read; `stop` is the end."""
        return self._start

    @property
    def stop(self) -> int:
        return self._start + (self.batch.num_rows if self._alive is None else len(self._alive))

    def live_before(self, physical: int) -> int:
        """Return how many of these rows come before a physical offset."""
        position = min(max(physical - self._start, 0), self.stop - self._start)
        return position if self._alive is None else int(np.count_nonzero(self._alive[:position]))

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Physical offsets, ascending."""
        if self._alive is None:
            return consecutive_offsets(self._start, self._start + self.batch.num_rows)
        return np.flatnonzero(self._alive) + self._start

    def offsets_of(self, mask: pa.BooleanArray) -> npt.NDArray[np.int64]:
        """Return the physical offsets of the rows for which the mask is true. Most masks are true for a few rows."""
        numbers: npt.NDArray[np.int64] = pc.indices_nonzero(mask).to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers + self._start if self._alive is None else self.offsets[numbers]

    def slice(self, rows: slice, batch: pa.RecordBatch) -> "LiveRows":
        """Return a range of these rows, with the columns of `batch`."""
        if self._alive is None or not batch.num_rows:
            return LiveRows(batch, self._start + rows.start, None)
        offsets = np.flatnonzero(self._alive)[rows]
        first, last = int(offsets[0]), int(offsets[-1])
        return LiveRows(batch, self._start + first, self._alive[first : last + 1])


@dataclass(frozen=True, slots=True)
class OpenFragment:
    """An open fragment, made by `FragmentReader.open`. Several threads may read from it."""

    physical_rows: int
    all_live: bool
    sources: "Sequence[OpenFile]"
    layout: "FragmentLayout"
    fields: Sequence[Field]
    arrow: pa.Schema
    context: ReadContext
    blobs: BlobValues | None = None
    """Loader for blobs, if blobs are requested instead of their locations."""
    overlays: FragmentOverlays | None = None
    """New values for some rows; `None` if the columns have none."""

    def read_live(
        self, deletions: DeletionVector | None, start: int = 0, count: int | None = None
    ) -> Iterator[LiveRows]:
        """Read the live rows among the physical rows `start` to `start + count`, in order, in batches."""
        for rows in self._read_live(deletions, start, count):
            if self.blobs is None:
                yield rows
            else:
                for part, batch in self.blobs.load_chunks(rows.batch):
                    yield rows.slice(part, batch)

    def _read_live(self, deletions: DeletionVector | None, start: int, count: int | None) -> Iterator[LiveRows]:
        remaining = self.physical_rows - start
        position = start
        for batches in self._read_streams(_ReadRange(start, remaining if count is None else min(count, remaining))):
            rows = batches[0].num_rows
            alive = deletions.live_mask(position, rows) if deletions else None
            if alive is not None and alive.all():
                alive = None
            live = [_filter_live(batch, alive) for batch in batches]
            batch = self._assemble(live, all_live=self.all_live or deletions is not None)
            result = LiveRows(batch, position, alive)
            if self.overlays is not None:
                result = LiveRows(self.overlays.apply(batch, result.offsets), position, alive)
            yield result
            position += rows

    def take(self, rows: Rows) -> pa.RecordBatch:
        """Read the rows at these physical offsets, deleted or not."""
        if self.blobs is None:
            return self._take(rows)
        return _concat([batch for _, batch in self.take_chunks(rows)], self.blobs.arrow)

    def begin_take(self, rows: Rows) -> Callable[[], pa.RecordBatch]:
        """Begin to read the same rows, and return the function that waits for them."""
        if self.blobs is not None:
            return lambda: self.take(rows)
        streams = self._read_streams(_RowNumbers(rows))
        return lambda: self._taken(rows, streams)

    def take_chunks(self, rows: Rows) -> Iterator[tuple[slice, pa.RecordBatch]]:
        """Read the same rows in chunks whose blobs fit in memory."""
        taken = self._take(rows)
        return self.blobs.load_chunks(taken) if self.blobs else iter([(slice(0, len(rows)), taken)])

    def take_vectors(self, rows: Rows) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of the vectors at these physical offsets, if the only column is one of vectors and a file
        stores them unchanged; otherwise `None`."""
        if len(self.fields) != 1 or self.overlays is not None or len(self.layout.placements[0]) != 1:
            return None
        ((number, _, name),) = self.layout.placements[0]
        source, field_id = self.sources[number], self.fields[0].id
        if field_id not in source.file.field_ids or source.reader.schema.field(name).type != self.arrow.field(0).type:
            return None
        column = source.file.column_indices[source.file.field_ids.index(field_id)]
        with self.context.named_in_errors():
            return source.reader.take_plain(column, rows)

    def _take(self, rows: Rows) -> pa.RecordBatch:
        return self._taken(rows, self._read_streams(_RowNumbers(rows)))

    def _taken(self, rows: Rows, streams: Iterator[Sequence[pa.RecordBatch]]) -> pa.RecordBatch:
        taken = [self._assemble(batches, all_live=self.all_live) for batches in streams]
        batch = _concat(taken, self.arrow)
        return batch if self.overlays is None else self.overlays.apply(batch, rows)

    def _read_streams(self, rows: "_ReadRange | _RowNumbers") -> Iterator[Sequence[pa.RecordBatch]]:
        """Yield the same rows of every stream, one batch of each at a time."""
        if not self.layout.streams:
            return _empty_batches(len(rows))
        streams = []
        for stream, (number, names) in enumerate(self.layout.streams):
            reader = self.sources[number].reader
            with self.context.named_in_errors():
                source = reader.with_descriptors() if stream in self.layout.descriptors else reader
            streams.append(rows.read(source, names))
        return self._named_in_errors(zip(*streams, strict=True))

    def _named_in_errors(self, batches: Iterator[Sequence[pa.RecordBatch]]) -> Iterator[Sequence[pa.RecordBatch]]:
        while True:
            with self.context.named_in_errors():
                each = next(batches, None)
            if each is None:
                return
            yield each

    def _assemble(self, batches: Sequence[pa.RecordBatch], *, all_live: bool) -> pa.RecordBatch:
        """Combine batches of all streams to the columns of the table."""
        if not self.fields:
            return batches[0]
        if self.layout.is_identity and batches[0].schema.equals(self.arrow):
            if batches[0].schema.equals(self.arrow, check_metadata=True):
                return batches[0]
            return pa.RecordBatch.from_arrays(batches[0].columns, schema=self.arrow)
        columns = []
        for field, target, placements in zip(self.fields, self.arrow, self.layout.placements, strict=True):
            if any(stream in self.layout.descriptors for _, stream, _ in placements):
                ((_, stream, name),) = placements
                columns.append(batches[stream].column(name))
                continue
            if not placements:
                columns.append(self.layout.nulls(target.type, batches[0].num_rows))
                continue
            number, stream, name = placements[0]
            if not field.children and field.id in self.sources[number].paths:
                column = batches[stream].column(name)
                if column.type == target.type:
                    columns.append(column)
                    continue
            parts = []
            for number, stream, name in placements:
                source = self.sources[number]
                parts.append(StoredColumn(batches[stream].column(name), source.paths, source.file.path, all_live))
            columns.append(assemble_column(field, target.type, parts, batches[0].num_rows))
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


@dataclass(frozen=True, slots=True)
class _ReadRange:
    start: int
    count: int

    def __len__(self) -> int:
        return self.count

    def read(self, reader: FileReader, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return reader.read(names, self.start, self.count)


@dataclass(frozen=True, slots=True)
class _RowNumbers:
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, reader: FileReader, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return reader.take(names, self.rows)


_UNCHECKED_OFFSETS = StorageVersion(2, 0)
"""Version whose offsets the codec uses unchecked, also in files that this library has written."""
FragmentShape = tuple[tuple[tuple[int, ...], tuple[int, ...], StorageVersion], ...]
"""Everything that a manifest records about the files of a fragment, except names and sizes."""


@dataclass(frozen=True, slots=True)
class FragmentLayout:
    """Positions of the requested fields in fragments of one shape, whose files have these schemas."""

    file_numbers: tuple[int, ...]
    """Files that store any of the fields, by their index in the fragment. The other indices count only these."""
    paths: tuple[dict[int, Path], ...]
    schemas: tuple[pa.Schema, ...]
    streams: Sequence[tuple[int, tuple[str, ...]]]
    """Columns that are read together: the index of a file, and the names."""
    placements: Sequence[Sequence[tuple[int, int, str]]]
    """For each field, the files that store it or children of it, each with the stream and the column there."""
    descriptors: Set[int]
    """Streams that return the locations of blobs."""
    is_identity: bool
    """`True` if a single file stores the fields exactly as requested, so that its columns are used unchanged."""
    _nulls: dict[pa.DataType, pa.Array] = dataclasses.field(default_factory=dict)

    def nulls(self, arrow: pa.DataType, rows: int) -> pa.Array:
        """Return nulls for a column that no file stores. The array is cached, since a manifest can claim a huge number
        of rows at no cost."""
        cached = self._nulls.get(arrow)
        if cached is None or len(cached) < rows:
            cached = self._nulls[arrow] = pa.nulls(rows, arrow)
        return cached.slice(0, rows)

    def pick(self, files: Sequence[DataFile]) -> Sequence[DataFile]:
        """Return those files of a fragment of this shape that store any of the fields."""
        return [files[number] for number in self.file_numbers]

    def open_files(self, store: Store, codec: DataCodec, files: Sequence[DataFile]) -> "Sequence[OpenFile] | None":
        """Open the corresponding files of another fragment; `None` if they have other schemas."""
        sources = []
        for number, (number_in_fragment, paths, schema) in enumerate(
            zip(self.file_numbers, self.paths, self.schemas, strict=True)
        ):
            value_streams = (each for stream, each in enumerate(self.streams) if stream not in self.descriptors)
            expected = next((names for file_number, names in value_streams if file_number == number), ())
            reader = open_reader(store, codec, files[number_in_fragment], expected)
            if reader.schema is not schema and not reader.schema.equals(schema, check_metadata=True):
                return None
            sources.append(OpenFile(files[number_in_fragment], reader, paths))
        return sources


def split_rows(
    batches: Sequence[pa.RecordBatch], parts: Sequence[tuple[int, DeletionVector | None]]
) -> Iterator[tuple[int, LiveRows]]:
    """Divide the rows of joined fragments, deleted ones included, by fragment. Yield the live rows with the number of
    their part. `parts` has the number of rows and the deletions of each fragment."""
    number, position = 0, 0
    for batch in batches:
        at = 0
        while at < batch.num_rows:
            while position == parts[number][0]:
                number, position = number + 1, 0
            rows, deletions = parts[number]
            count = min(rows - position, batch.num_rows - at)
            alive = deletions.live_mask(position, count) if deletions else None
            if alive is not None and alive.all():
                alive = None
            yield number, LiveRows(_filter_live(batch.slice(at, count), alive), position, alive)
            at, position = at + count, position + count


def _empty_batches(count: int) -> Iterator[Sequence[pa.RecordBatch]]:
    """Yield batches without columns, one at a time: `count` is only a claim of the manifest, which costs it nothing."""
    for start in range(0, max(count, 1), BATCH_ROWS):
        yield [rows_without_columns(min(BATCH_ROWS, count - start))]


def _concat(batches: Sequence[pa.RecordBatch], arrow: pa.Schema) -> pa.RecordBatch:
    """Concatenate batches, which may have no columns."""
    if len(batches) == 1:
        return batches[0]
    if not arrow.names:
        return rows_without_columns(sum(batch.num_rows for batch in batches))
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=arrow)


def open_reader(store: Store, codec: DataCodec, file: DataFile, expected_names: Sequence[str] = ()) -> FileReader:
    """Open a file with the codec for its format."""
    if file.version.is_legacy:
        return LegacyFileReader.open(store, file.qualified_path)
    # Only this library records checksums. The codec uses all offsets of version 2.0 unchecked.
    is_vouched = file.checksum is not None and file.version > _UNCHECKED_OFFSETS
    return codec.open(file.qualified_path, expected_names, size=file.size, is_vouched=is_vouched)


def _filter_live(batch: pa.RecordBatch, alive: npt.NDArray[np.bool_] | None) -> pa.RecordBatch:
    if alive is None:
        return batch
    if not batch.num_columns:
        return rows_without_columns(int(alive.sum()))
    return batch.filter(pa.array(alive))


def rows_without_columns(count: int) -> pa.RecordBatch:
    """Return a batch without columns that still has a number of rows."""
    none_null = pa.array(np.zeros(count, dtype=np.bool_))
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_arrays([], fields=[], mask=none_null))
