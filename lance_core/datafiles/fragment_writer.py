"""Fragment writer: writes batches to data files, and returns the fragments that describe them. It creates no version:
until a commit references the files, they are orphan files.

File names are random uuids, so that two attempts at the same work never touch each other's files. Start with
`write_fragments`.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from lance_core import validation
from lance_core.datafiles.blob_writing import to_stored
from lance_core.datafiles.codec import DataCodec, FileWriter
from lance_core.datafiles.column_layout import check_storable, columns_of
from lance_core.datafiles.conform import Conversion, check_no_null_structs, columns_to_write, conform
from lance_core.errors import InvalidInput
from lance_core.format import naming
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.schema import TableSchema

ROWS_PER_FILE_MAX = 1_048_576
BYTES_PER_FILE_MAX = 90 * 1024**3
_MEASURED_COLUMNS_MAX = 64
_SMALL_BATCH_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits at which a file is closed. Bytes are counted in Arrow memory, before encoding."""

    rows_max: int = ROWS_PER_FILE_MAX
    bytes_max: int = BYTES_PER_FILE_MAX

    def __post_init__(self) -> None:
        validation.check_file_limits(self.rows_max, self.bytes_max)


def write_fragments(
    codec: DataCodec,
    batches: Iterable[pa.RecordBatch],
    *,
    schema: TableSchema,
    version: StorageVersion,
    limits: FileLimits,
    conversion: Conversion,
    new_uuid: Callable[[], uuid.UUID],
    what: str,
    validate: Callable[[pa.RecordBatch], None] | None = None,
) -> tuple[Fragment, ...]:
    """Write rows, and return one fragment per file in the order of the rows; none for no rows.

    `what` names the table in errors. `validate` receives the rows as they are stored, and may raise an error to reject
    them.
    """
    rolling = RollingWriter(codec, version, limits, new_uuid)
    for batch, columns in _conform_batches(batches, schema, version, conversion, what):
        if validate is not None:
            validate(batch)
        rolling.write(batch, columns)
    return rolling.finish()


@dataclass(frozen=True, slots=True)
class BufferedRows:
    """Rows in memory that are validated and converted to the stored types, so that they only have to be written."""

    batches: tuple[pa.RecordBatch, ...]
    columns: TableSchema
    version: StorageVersion
    limits: FileLimits
    rows: int

    @property
    def bytes(self) -> int:
        """The size of the rows in Arrow memory; at least one byte a row."""
        return sum(max(batch.nbytes, batch.num_rows) for batch in self.batches)

    def write(
        self, codec: DataCodec, new_uuid: Callable[[], uuid.UUID], unsynced: list[str] | None = None
    ) -> tuple[Fragment, ...]:
        """Write the rows to files of their own. Files that need a sync are made durable, or added to `unsynced`."""
        rolling = RollingWriter(codec, self.version, self.limits, new_uuid, unsynced)
        rolling.write_all(self)
        return rolling.finish()

    def can_share_file(self, other: "BufferedRows") -> bool:
        """Return whether one file can store both, up to the limits."""
        return (
            self.columns.fields == other.columns.fields
            and self.version == other.version
            and self.limits == other.limits
        )


def buffer_rows(
    batches: Iterable[pa.RecordBatch],
    *,
    schema: TableSchema,
    version: StorageVersion,
    limits: FileLimits,
    conversion: Conversion,
    what: str,
) -> BufferedRows | None:
    """Convert the rows that `write_fragments` would write, but keep them in memory; `None` for no rows."""
    conformed = [each for each in _conform_batches(batches, schema, version, conversion, what) if each[0].num_rows]
    if not conformed:
        return None
    buffered = tuple(batch for batch, _columns in conformed)
    rows = sum(batch.num_rows for batch in buffered)
    return BufferedRows(buffered, conformed[0][1], version, limits, rows)


def _conform_batches(
    batches: Iterable[pa.RecordBatch], schema: TableSchema, version: StorageVersion, conversion: Conversion, what: str
) -> Iterator[tuple[pa.RecordBatch, TableSchema]]:
    """Yield converted batches, each with the columns that it fills; these are the same for all batches."""
    columns: TableSchema | None = None
    columns_arrow = pa.schema([])
    batch_schema: pa.Schema | None = None
    for batch in to_stored(batches, schema):
        if columns is None or batch.schema != batch_schema:
            filled = columns_to_write(batch.schema, schema, conversion=conversion, what=what)
            if columns is None:
                check_storable(filled, version)
                columns, columns_arrow = filled, filled.arrow
            elif filled.fields != columns.fields:
                raise InvalidInput(f"{what}: all batches to write must have the same columns")
            batch_schema = batch.schema
        batch = conform(batch, columns_arrow, conversion=conversion, what=what)
        check_no_null_structs(batch, version, what=what)
        yield batch, columns


def write_columns(
    codec: DataCodec,
    batches: Iterable[pa.RecordBatch],
    *,
    schema: TableSchema,
    version: StorageVersion,
    rows: int,
    conversion: Conversion,
    new_uuid: Callable[[], uuid.UUID],
    what: str,
) -> DataFile:
    """Write one more file for a fragment of `rows` physical rows; the batches must contain every row. `schema` is what
    the file stores, with the field ids that the table will assign."""
    check_storable(schema, version)
    arrow = schema.arrow
    name = naming.data_file_name(new_uuid().bytes)
    file = codec.create(f"{naming.DATA}/{name}", arrow, version)
    written = 0
    for batch in to_stored(batches, schema):
        batch = conform(batch, arrow, conversion=conversion, what=what)
        check_no_null_structs(batch, version, what=what)
        file.write(batch)
        written += batch.num_rows
    assert written == rows, f"{written} rows for a fragment of {rows}"
    return _describe_file(name, schema, version, file.finish())


def _describe_file(name: str, schema: TableSchema, version: StorageVersion, checksum: FileChecksum) -> DataFile:
    stored = columns_of(schema, version)
    return DataFile.of(
        path=name,
        field_ids=stored.field_ids,
        column_indices=stored.column_indices,
        version=version,
        size=checksum.size,
        xxh3=checksum.xxh3,
    )


class RollingWriter:
    """Writes one file after the other, each up to the limits."""

    def __init__(
        self,
        codec: DataCodec,
        version: StorageVersion,
        limits: FileLimits,
        new_uuid: Callable[[], uuid.UUID],
        unsynced: list[str] | None = None,
    ) -> None:
        """Files that need a sync are made durable, or added to `unsynced`."""
        self._codec = codec
        self._unsynced = unsynced
        self._version = version
        self._limits = limits
        self._new_uuid = new_uuid
        self._fragments: list[Fragment] = []
        self._file: FileWriter | None = None
        self._name = ""
        self._rows = 0
        self._bytes = 0
        self._columns: TableSchema | None = None

    def write_all(self, buffered: BufferedRows) -> None:
        for batch in buffered.batches:
            self.write(batch, buffered.columns)

    def write(self, batch: pa.RecordBatch, columns: TableSchema) -> None:
        while batch.num_rows:
            if self._file is None:
                self._open(columns)
            batch_bytes = self._size_of(batch)
            fitting_rows = self._rows_that_fit(batch, batch_bytes)
            is_split = fitting_rows < batch.num_rows
            head, batch = batch.slice(0, fitting_rows) if is_split else batch, batch.slice(fitting_rows)
            assert self._file is not None
            self._file.write(head)
            self._rows += head.num_rows
            self._bytes += head.nbytes if is_split else batch_bytes
            if self._rows >= self._limits.rows_max or self._bytes >= self._limits.bytes_max:
                self._close()

    def finish(self) -> tuple[Fragment, ...]:
        if self._file is not None:
            self._close()
        return tuple(self._fragments)

    def _size_of(self, batch: pa.RecordBatch) -> int:
        """Return the size of a batch in Arrow memory. The exact measurement takes 4 microseconds a column. With the
        default limit, a small batch of many columns therefore has the size of its buffers, which it may share."""
        if batch.num_columns > _MEASURED_COLUMNS_MAX and self._limits.bytes_max >= BYTES_PER_FILE_MAX:
            total = int(batch.get_total_buffer_size())
            if total <= _SMALL_BATCH_BYTES:
                return total
        return int(batch.nbytes)

    def _rows_that_fit(self, batch: pa.RecordBatch, batch_bytes: int) -> int:
        """Return how many rows of a batch fit in the open file, at least one. All rows of a batch count as
        equally wide."""
        rows = min(int(batch.num_rows), self._limits.rows_max - self._rows)
        row_bytes = max(1, batch_bytes // int(batch.num_rows))
        return max(1, min(rows, -(-(self._limits.bytes_max - self._bytes) // row_bytes)))

    def _open(self, columns: TableSchema) -> None:
        self._name = naming.data_file_name(self._new_uuid().bytes)
        self._columns = columns
        self._file = self._codec.create(f"{naming.DATA}/{self._name}", columns.arrow, self._version)
        self._rows = self._bytes = 0

    def _close(self) -> None:
        assert self._file is not None
        assert self._columns is not None
        checksum = self._file.finish(self._unsynced)
        self._file = None
        file = _describe_file(self._name, self._columns, self._version, checksum)
        self._fragments.append(Fragment.of(files=[file], physical_rows=self._rows))
