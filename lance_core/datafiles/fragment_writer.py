"""Batches into data files and the fragments that describe them. Nothing here makes a version: until a commit
names them, the files are nobody's.

Names are fresh uuids, so that two attempts at the same work never touch each other's files.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from lance_core import validation
from lance_core.datafiles.blob_writing import as_stored
from lance_core.datafiles.codec import DataCodec, FileWriter
from lance_core.datafiles.column_layout import check_storable, columns_of
from lance_core.datafiles.conform import Conversion, check_no_null_structs, columns_to_write, conform
from lance_core.errors import InvalidInput
from lance_core.format import naming
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.schema import TableSchema

ROWS_PER_FILE_MAX = 1_048_576
BYTES_PER_FILE_MAX = 90 * 1024**3


@dataclass(frozen=True, slots=True)
class FileLimits:
    """A file is closed when either is reached. Bytes are counted as Arrow holds them, before encoding."""

    rows_max: int = ROWS_PER_FILE_MAX
    bytes_max: int = BYTES_PER_FILE_MAX

    def __post_init__(self) -> None:
        validation.file_limits(self.rows_max, self.bytes_max)


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
    look: Callable[[pa.RecordBatch], None] | None = None,
) -> tuple[Fragment, ...]:
    """One fragment a file, in the order of the rows; none for no rows. `what` names the table in errors. `look` is
    shown the rows as they are stored, and may refuse them."""
    rolling = RollingWriter(codec, version, limits, new_uuid)
    for batch, columns in _conformed(batches, schema, version, conversion, what):
        if look is not None:
            look(batch)
        rolling.write(batch, columns)
    return rolling.finish()


@dataclass(frozen=True, slots=True)
class BufferedRows:
    """Rows that only have to be written: in memory, looked at, and as the files of the table store them."""

    batches: tuple[pa.RecordBatch, ...]
    columns: TableSchema
    version: StorageVersion
    limits: FileLimits
    rows: int
    bytes: int

    def written(self, codec: DataCodec, new_uuid: Callable[[], uuid.UUID]) -> tuple[Fragment, ...]:
        rolling = RollingWriter(codec, self.version, self.limits, new_uuid)
        rolling.write_all(self)
        return rolling.finish()

    def may_share_with(self, other: "BufferedRows") -> bool:
        """Whether one file can hold both, as far as it has room."""
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
    """What `write_fragments` would write, up to the first file; None for no rows."""
    found = [each for each in _conformed(batches, schema, version, conversion, what) if each[0].num_rows]
    if not found:
        return None
    held = tuple(batch for batch, _columns in found)
    rows = sum(batch.num_rows for batch in held)
    return BufferedRows(
        held, found[0][1], version, limits, rows, sum(max(batch.nbytes, batch.num_rows) for batch in held)
    )


def _conformed(
    batches: Iterable[pa.RecordBatch], schema: TableSchema, version: StorageVersion, conversion: Conversion, what: str
) -> Iterator[tuple[pa.RecordBatch, TableSchema]]:
    """Each with the columns that it fills, which are the same for all."""
    columns: TableSchema | None = None
    columns_arrow = pa.schema([])
    columns_given: pa.Schema | None = None
    for batch in as_stored(batches, schema):
        if columns is None or batch.schema != columns_given:
            found = columns_to_write(batch.schema, schema, conversion=conversion, what=what)
            if columns is None:
                check_storable(found, version)
                columns, columns_arrow = found, found.arrow
            elif found.fields != columns.fields:
                raise InvalidInput(f"{what}: the batches to write do not all have the same columns")
            columns_given = batch.schema
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
    """One more file for a fragment of `rows` physical rows, each of which has to be in the batches. `schema` is what
    the file stores, under the ids that the table will give it."""
    check_storable(schema, version)
    arrow = schema.arrow
    name = naming.data_file_name(new_uuid().bytes)
    file = codec.create(f"{naming.DATA}/{name}", arrow, version)
    written = 0
    for batch in as_stored(batches, schema):
        batch = conform(batch, arrow, conversion=conversion, what=what)
        check_no_null_structs(batch, version, what=what)
        file.write(batch)
        written += batch.num_rows
    assert written == rows, f"{written} rows for a fragment of {rows}"
    return _data_file(name, schema, version, file.finish())


def _data_file(name: str, schema: TableSchema, version: StorageVersion, size: int) -> DataFile:
    stored = columns_of(schema, version)
    return DataFile.of(
        path=name, field_ids=stored.field_ids, column_indices=stored.column_indices, version=version, size=size
    )


class RollingWriter:
    """One file after the other, each as large as the limits want it."""

    def __init__(
        self, codec: DataCodec, version: StorageVersion, limits: FileLimits, new_uuid: Callable[[], uuid.UUID]
    ) -> None:
        self._codec = codec
        self._version = version
        self._limits = limits
        self._new_uuid = new_uuid
        self._fragments: list[Fragment] = []
        self._file: FileWriter | None = None
        self._name = ""
        self._rows = 0
        self._bytes = 0
        self._columns: TableSchema | None = None

    def write_all(self, held: BufferedRows) -> None:
        for batch in held.batches:
            self.write(batch, held.columns)

    def write(self, batch: pa.RecordBatch, columns: TableSchema) -> None:
        while batch.num_rows:
            if self._file is None:
                self._open(columns)
            room = self._rows_that_fit(batch)
            head, batch = batch.slice(0, room), batch.slice(room)
            assert self._file is not None
            self._file.write(head)
            self._rows += head.num_rows
            self._bytes += head.nbytes
            if self._rows >= self._limits.rows_max or self._bytes >= self._limits.bytes_max:
                self._close()

    def finish(self) -> tuple[Fragment, ...]:
        if self._file is not None:
            self._close()
        return tuple(self._fragments)

    def _rows_that_fit(self, batch: pa.RecordBatch) -> int:
        """At least one; a batch counts as evenly wide."""
        rows = min(int(batch.num_rows), self._limits.rows_max - self._rows)
        row_bytes = max(1, int(batch.nbytes) // int(batch.num_rows))
        return max(1, min(rows, -(-(self._limits.bytes_max - self._bytes) // row_bytes)))

    def _open(self, columns: TableSchema) -> None:
        self._name = naming.data_file_name(self._new_uuid().bytes)
        self._columns = columns
        self._file = self._codec.create(f"{naming.DATA}/{self._name}", columns.arrow, self._version)
        self._rows = self._bytes = 0

    def _close(self) -> None:
        assert self._file is not None
        assert self._columns is not None
        size = self._file.finish()
        self._file = None
        file = _data_file(self._name, self._columns, self._version, size)
        self._fragments.append(Fragment.of(files=[file], physical_rows=self._rows))
