"""What lies between two offsets of a stream, cut into parts for workers, and what a worker does with one.

A piece is some rows of one fragment in one version; a part is pieces that follow one another, of as many versions as it
takes to be worth a task. Columns that a version does not have yet are null in its rows. Start with `StreamPartition`.
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
from lance_core.tasks.read import ScanSpec
from lance_core.tasks.streaming.change_feed import AddedRows
from lance_core.versions.snapshot import Snapshot

_ADDRESS, _CREATED_AT = "_rowaddr", "_row_created_at_version"
_OFFSETS = np.uint64(0xFFFFFFFF)
_PARTS_PER_SLOT = 2
_PART_ROWS_MIN = 65_536
_PART_BYTES_MAX = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class StreamSlice:
    header: VersionHeader
    scan_spec: ScanSpec
    fragment: bytes
    skip: int
    take: int
    """Of its live rows."""
    size: int
    """In bytes, about."""
    row_offsets: bytes | None = None
    """The physical offsets that are meant, where not all are."""
    created_in: int | None = None
    """The version in which the rows that are meant were created, where not all are."""
    absent_columns: frozenset[str] = frozenset()

    def read(self, transport: pa.Schema) -> Iterator[pa.RecordBatch]:
        self.header.stamp.check()
        part = self.header.snapshot_with((self.fragment,))
        there = pa.schema([column for column in transport if column.name not in self.absent_columns])
        for batch in scan(part.location, self.scan_spec.plan_partition(part, ((self.skip, self.take, None),))):
            if self.row_offsets is not None:
                offsets = np.asarray(batch.column(_ADDRESS)) & _OFFSETS
                batch = batch.filter(pa.array(np.isin(offsets, np.asarray(BitMap.deserialize(self.row_offsets)))))
            if self.created_in is not None:
                batch = batch.filter(pa.array(np.asarray(batch.column(_CREATED_AT)) == self.created_in))
            if batch.num_rows:
                told = conform(batch, there, conversion=Conversion.OUTWARD, what=self.header.uri)
                yield _filled(told, transport, batch.num_rows) if self.absent_columns else told


@dataclass(frozen=True, slots=True)
class StreamPartition:
    """What one task reads. Picklable."""

    slices: tuple[StreamSlice, ...]

    def read(self, transport: pa.Schema) -> Iterator[pa.RecordBatch]:
        """`transport` says in which types, of which columns."""
        for piece in self.slices:
            yield from piece.read(transport)


@dataclass(frozen=True, slots=True)
class StreamedColumns:
    """What a stream sends of each row, by the schema that the table had when the query began."""

    columns: tuple[str, ...]
    schema: TableSchema
    filter: str | None = None

    def slice_rows(self, version: Snapshot, found: AddedRows, first: int, stop: int) -> Iterator[StreamSlice]:
        """Rows `first` to `stop` of those that the version brought."""
        if stop <= first:
            return
        absent = frozenset(name for name in self.columns if self._is_absent(name, version))
        names = [name for name in self.columns if name not in absent]
        needed = [(_ADDRESS, bool(found.row_offsets)), (_CREATED_AT, found.created_in is not None)]
        names += [name for name, is_needed in needed if is_needed and name not in names]
        plan = plan_scan(version.manifest, columns=names or [_ADDRESS], filter=self.filter)
        whole, wanted, sizes = VersionHeader.of(version), ScanSpec(plan.columns, plan.predicate), plan.morsel_sizes()
        for number, skip, take in fragment_ranges(found, first, stop):
            encoded = found.fragments[number]
            fragment = Fragment.decode(encoded)
            width = max(1, sizes.row_bytes(fragment))
            step = max(1, _PART_BYTES_MAX // width)
            only = found.row_offsets.get(fragment.id)
            for begin in range(0, take, step):
                rows = min(step, take - begin)
                yield StreamSlice(
                    whole, wanted, encoded, skip + begin, rows, rows * width, only, found.created_in, absent
                )

    def field_ids(self, version: Snapshot) -> set[int]:
        """The ids of all fields that are sent or decide what is, as far as the version has them."""
        names = [name for name in self.columns if not self._is_absent(name, version)]
        plan = plan_scan(version.manifest, columns=names, filter=self.filter)
        return {each.id for read in plan.early_and_late.fields for each in read.walk()}

    def _is_absent(self, name: str, version: Snapshot) -> bool:
        """Whether it came later. A column that went, or has another name now, is not read as null."""
        schema = version.manifest.schema
        if name not in self._stored or _has(schema, name):
            return False
        if self._stored[name] > schema.field_id_max:
            return True
        raise InvalidInput(
            f"{version.location.uri}: version {version.version} has no column {name!r} any more, which this stream "
            "sends. Name the columns that are left with the option columns, in a query with a new checkpointLocation"
        )

    @property
    def _stored(self) -> dict[str, int]:
        return {
            name: field_paths.find_field(self.schema, name)[-1].id for name in self.columns if _has(self.schema, name)
        }


def fragment_ranges(found: AddedRows, first: int, stop: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Of rows `first` to `stop`, in order: the number of a fragment, how many of its rows come before, how many are
    meant."""
    at, stop = 0, found.total if stop is None else stop
    for number, rows in enumerate(found.rows):
        begin, end = max(at, first), min(at + rows, stop)
        if begin < end:
            yield number, begin - at, end - begin
        at += rows


def group_slices(pieces: Sequence[StreamSlice], slots: int) -> list[StreamPartition]:
    """Neighbours in one part, so that every slot has something to do and a task is worth its start."""
    total = sum(piece.take for piece in pieces)
    target = max(_PART_ROWS_MIN, -(-total // (slots * _PARTS_PER_SLOT)))
    parts: list[list[StreamSlice]] = []
    rows, size = 0, 0
    for piece in (cut for whole in pieces for cut in _cut(whole, target)):
        if not parts or rows + piece.take > target + target // 4 or size + piece.size > _PART_BYTES_MAX:
            parts.append([])
            rows, size = 0, 0
        parts[-1].append(piece)
        rows, size = rows + piece.take, size + piece.size
    return [StreamPartition(tuple(part)) for part in parts]


def _cut(piece: StreamSlice, target: int) -> Iterator[StreamSlice]:
    step = -(-piece.take // -(-piece.take // target))
    width = piece.size // piece.take
    for begin in range(0, piece.take, step):
        rows = min(step, piece.take - begin)
        yield replace(piece, skip=piece.skip + begin, take=rows, size=rows * width)


def _has(schema: TableSchema, name: str) -> bool:
    try:
        field_paths.find_field(schema, name)
    except InvalidInput:
        return False
    return True


def _filled(batch: pa.RecordBatch, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    there = set(batch.schema.names)
    columns = [batch.column(each.name) if each.name in there else pa.nulls(rows, each.type) for each in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
