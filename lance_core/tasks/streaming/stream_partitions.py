"""Stream partitions: splits the rows between two offsets of a stream for workers, and reads them there.

A slice is a range of rows of one fragment in one version. A partition is a sequence of slices, from as many versions as
a task of sufficient size needs. Columns that a version does not have yet are null in its rows. Start with
`StreamPartition`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_core.datafiles.conform import Conversion, conform
from lance_core.errors import InvalidInput
from lance_core.format import field_paths
from lance_core.format.fragment import Fragment
from lance_core.format.schema import TableSchema
from lance_core.scan.executor import scan
from lance_core.scan.plan import plan_scan
from lance_core.tasks.partitioning import VersionHeader
from lance_core.tasks.scan.read import ScanSpec
from lance_core.tasks.streaming.change_feed import AddedRows
from lance_core.versions.snapshot import Snapshot

_ADDRESS, _CREATED_AT = "_rowaddr", "_row_created_at_version"
_OFFSET_MASK = np.uint64(0xFFFFFFFF)
_PARTITIONS_PER_SLOT = 2
_PARTITION_ROWS_MIN = 65_536
PARTITION_BYTES_MAX = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class StreamSlice:
    """A range of rows of one fragment in one version. Picklable."""

    header: VersionHeader
    scan_spec: ScanSpec
    fragment: bytes
    skip: int
    take: int
    """Number of live rows after `skip` live rows."""
    size: int
    """Estimated size in bytes."""
    row_offsets: bytes | None = None
    """Serialized bitmap of the physical offsets to send; `None` sends all rows of the range."""
    created_in: int | None = None
    """Version in which the rows to send were created; `None` sends all rows of the range."""
    absent_columns: frozenset[str] = frozenset()
    """Columns that this version does not have yet."""

    def read(self, transport: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the slice. `transport` has the columns and their types."""
        self.header.stamp.check()
        snapshot = self.header.snapshot_with((self.fragment,))
        present = pa.schema([column for column in transport if column.name not in self.absent_columns])
        for batch in scan(snapshot.location, self.scan_spec.plan_partition(snapshot, ((self.skip, self.take, None),))):
            if self.row_offsets is not None:
                offsets = np.asarray(batch.column(_ADDRESS)) & _OFFSET_MASK
                batch = batch.filter(pa.array(np.isin(offsets, np.asarray(BitMap.deserialize(self.row_offsets)))))
            if self.created_in is not None:
                batch = batch.filter(pa.array(np.asarray(batch.column(_CREATED_AT)) == self.created_in))
            if batch.num_rows:
                rows = conform(batch, present, conversion=Conversion.OUTWARD, what=self.header.uri)
                yield _with_null_columns(rows, transport, batch.num_rows) if self.absent_columns else rows


@dataclass(frozen=True, slots=True)
class StreamPartition:
    """The slices that one task reads. Picklable."""

    slices: tuple[StreamSlice, ...]

    def read(self, transport: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all slices. `transport` has the columns and their types."""
        for slice_ in self.slices:
            yield from slice_.read(transport)


@dataclass(frozen=True, slots=True)
class StreamedColumns:
    """The columns and the filter of a stream, by the schema that the table had when the query started."""

    columns: tuple[str, ...]
    schema: TableSchema
    filter: str | None = None

    def slice_rows(self, version: Snapshot, added: AddedRows, first: int, stop: int) -> Iterator[StreamSlice]:
        """Yield slices of rows `first` to `stop` of those that the version added."""
        if stop <= first:
            return
        absent_columns = frozenset(name for name in self.columns if self._is_absent(name, version))
        names = [name for name in self.columns if name not in absent_columns]
        needed = [(_ADDRESS, bool(added.row_offsets)), (_CREATED_AT, added.created_in is not None)]
        names += [name for name, is_needed in needed if is_needed and name not in names]
        plan = plan_scan(version.manifest, columns=names or [_ADDRESS], filter=self.filter)
        header, scan_spec, sizes = (
            VersionHeader.of(version),
            ScanSpec(plan.columns, plan.predicate),
            plan.morsel_sizes(),
        )
        for number, skip, take in fragment_ranges(added, first, stop):
            encoded = added.fragments[number]
            fragment = Fragment.decode(encoded)
            row_bytes = max(1, sizes.row_bytes(fragment))
            step = max(1, PARTITION_BYTES_MAX // row_bytes)
            row_offsets = added.row_offsets.get(fragment.id)
            for start in range(0, take, step):
                rows = min(step, take - start)
                yield StreamSlice(
                    header,
                    scan_spec,
                    encoded,
                    skip + start,
                    rows,
                    rows * row_bytes,
                    row_offsets,
                    added.created_in,
                    absent_columns,
                )

    def field_ids(self, version: Snapshot) -> set[int]:
        """Return the ids of the fields that the stream sends or filters by and that the version has."""
        names = [name for name in self.columns if not self._is_absent(name, version)]
        plan = plan_scan(version.manifest, columns=names, filter=self.filter)
        return {field.id for column in plan.early_and_late.fields for field in column.walk()}

    def _is_absent(self, name: str, version: Snapshot) -> bool:
        """Return whether the column was added after this version. A column that was dropped or renamed is an error, not
        null."""
        schema = version.manifest.schema
        if name not in self._stored or _has_column(schema, name):
            return False
        if self._stored[name] > schema.field_id_max:
            return True
        raise InvalidInput(
            f"{version.location.uri}: version {version.version} has no column {name!r} any more, which this stream "
            "sends. Start a query with a new checkpointLocation, and name the remaining columns in the option columns"
        )

    @property
    def _stored(self) -> dict[str, int]:
        return {
            name: field_paths.find_field(self.schema, name)[-1].id
            for name in self.columns
            if _has_column(self.schema, name)
        }


def fragment_ranges(added: AddedRows, first: int, stop: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges of rows `first` to `stop`, in order: index of the fragment, rows to skip, rows to take."""
    position, stop = 0, added.total if stop is None else stop
    for number, rows in enumerate(added.rows):
        range_start, range_end = max(position, first), min(position + rows, stop)
        if range_start < range_end:
            yield number, range_start - position, range_end - range_start
        position += rows


def group_slices(slices: Sequence[StreamSlice], slots: int) -> list[StreamPartition]:
    """Group neighbouring slices into partitions, so that every slot has work and every task has enough rows to justify
    its start."""
    total = sum(row_range.take for row_range in slices)
    target = max(_PARTITION_ROWS_MIN, -(-total // (slots * _PARTITIONS_PER_SLOT)))
    partitions: list[list[StreamSlice]] = []
    rows, size = 0, 0
    for part in (part for whole in slices for part in _split_slice(whole, target)):
        if not partitions or rows + part.take > target + target // 4 or size + part.size > PARTITION_BYTES_MAX:
            partitions.append([])
            rows, size = 0, 0
        partitions[-1].append(part)
        rows, size = rows + part.take, size + part.size
    return [StreamPartition(tuple(partition)) for partition in partitions]


def _split_slice(slice_: StreamSlice, target: int) -> Iterator[StreamSlice]:
    """Yield parts of the slice with about equal row counts, of at most `target` rows."""
    step = -(-slice_.take // -(-slice_.take // target))
    row_bytes = slice_.size // slice_.take
    for start in range(0, slice_.take, step):
        rows = min(step, slice_.take - start)
        yield replace(slice_, skip=slice_.skip + start, take=rows, size=rows * row_bytes)


def _has_column(schema: TableSchema, name: str) -> bool:
    try:
        field_paths.find_field(schema, name)
    except InvalidInput:
        return False
    return True


def _with_null_columns(batch: pa.RecordBatch, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    present = set(batch.schema.names)
    columns = [batch.column(field.name) if field.name in present else pa.nulls(rows, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
