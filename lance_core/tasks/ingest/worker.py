"""Ingest worker: assigns files to workers, and loads them there.

    driver     partition_files(files, ...)             parts of files, in partitions of about equal size
    workers    IngestTask(plan, partitions)(numbers)   reads the files, writes fragments, reports the results
    driver     IngestResult.of(results)                fragments, rows, diverted records

The files of a partition go into the same fragments, one after the other, so that a thousand small files do not become a
thousand fragments. A partition travels as compressed text: the names of a hundred thousand files take a few megabytes.
Another task, `SchemaTask`, infers the schema of a new table.
"""

import json
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from lance_core.datafiles.conform import Conversion
from lance_core.datafiles.fragment_writer import FileLimits, write_fragments
from lance_core.errors import InvalidInput
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.schema import TableSchema
from lance_core.tasks import remote_errors
from lance_core.tasks.ingest import bad_records
from lance_core.tasks.ingest.column_mapping import map_schema
from lance_core.tasks.ingest.csv_files import infer_csv_schema, is_splittable
from lance_core.tasks.ingest.file_readers import BadRecord, FileSplit, Unreadable, infer_schema
from lance_core.tasks.ingest.formats import Format, ReadOptions, detect_compression, detect_format
from lance_core.tasks.ingest.row_conversion import read_rows
from lance_core.tasks.ingest.source_options import SourceOptions
from lance_core.tasks.ingest.sources import SourceFile, SourceReader
from lance_core.tasks.partitioning import RESULT
from lance_core.tasks.version_stamp import VersionStamp
from lance_core.versions.location import Location, locate

PARTITIONS_PER_SLOT = 2
_PARTITION_BYTES_MIN, _PARTITION_BYTES_MAX = 8 * 1024 * 1024, 256 * 1024 * 1024
_OPENING_BYTES = 64 * 1024
"""Cost of opening a file, as the number of bytes that could be read meanwhile."""
_COMPRESSION_RATIO = 4
"""Assumed ratio of text to its compressed size."""
_BAD_ROWS, _BAD_BYTES = 65_536, 16 * 1024 * 1024
_FRAGMENT, _DIVERTED, _SUMMARY = b"f", b"b", b"t"

FilePartition = tuple[FileSplit, ...]
"""Parts of files that one task reads."""


def partition_files(files: Sequence[SourceFile], read_options: ReadOptions, slots: int) -> list[FilePartition]:
    """Group the files into partitions, in their order. Large files are split, if their format can be."""
    weights = [_estimate_bytes(file) for file in files]
    target = sum(weights) // max(1, slots * PARTITIONS_PER_SLOT)
    target = min(max(target, _PARTITION_BYTES_MIN), _PARTITION_BYTES_MAX)
    partitions: list[list[FileSplit]] = []
    bytes_left = 0
    for file, weight in zip(files, weights, strict=True):
        split_count = (
            max(1, -(-weight // target))
            if weight > target * 3 // 2 and is_splittable(file, read_options.csv, read_options.format)
            else 1
        )
        for number in range(split_count):
            if not partitions or bytes_left < weight // split_count // 2:
                partitions.append([])
                bytes_left = target
            partitions[-1].append(FileSplit(file, number, split_count))
            bytes_left -= weight // split_count
    return [tuple(partition) for partition in partitions]


def _estimate_bytes(file: SourceFile) -> int:
    return file.size * (_COMPRESSION_RATIO if detect_compression(file.uri) else 1) + _OPENING_BYTES


def encode_partition(partition: FilePartition) -> bytes:
    """Return the partition as compressed JSON."""
    splits = [[split.file.uri, split.file.size, split.file.tag, split.number, split.count] for split in partition]
    return zlib.compress(json.dumps(splits, separators=(",", ":")).encode(), 1)


def decode_partition(encoded: bytes) -> FilePartition:
    return tuple(
        FileSplit(SourceFile(uri, size, tag), number, count)
        for uri, size, tag, number, count in json.loads(zlib.decompress(encoded))
    )


@dataclass(frozen=True, slots=True)
class IngestTarget:
    """Table to which rows are written, and the schema in which they are stored."""

    uri: str
    schema: TableSchema
    storage_version: StorageVersion
    limits: FileLimits
    durable: bool
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, location: Location, schema: TableSchema, version: StorageVersion, limits: FileLimits) -> "IngestTarget":
        access = location.access
        return cls(location.uri, schema, version, limits, access.durable, dict(access.storage_options))

    def write(self, batches: Iterable[pa.RecordBatch]) -> tuple[Fragment, ...]:
        location = locate(self.uri, storage_options=self.options, durable=self.durable)
        return write_fragments(
            location.codec,
            batches,
            schema=self.schema,
            version=self.storage_version,
            limits=self.limits,
            conversion=Conversion.CAST,
            new_uuid=uuid.uuid4,
            what=location.uri,
        )


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """Everything that a worker needs to load files. Picklable."""

    read_options: ReadOptions
    target: IngestTarget
    bad_records_target: IngestTarget | None
    """Table for bad records; `None` raises the first one."""
    ingest_id: str
    stamp: VersionStamp
    source_options: SourceOptions = field(default_factory=dict, repr=False)
    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Contents of the files that exist in the driver's process only."""


@dataclass(frozen=True, slots=True)
class IngestTask:
    """Runs in a worker: partition numbers in, rows of `partitioning.RESULT` out."""

    plan: IngestPlan
    partitions: tuple[bytes, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    self.plan.stamp.check()
                    results = [*_ingest_partition(self.plan, decode_partition(self.partitions[number]))]
                except InvalidInput as error:
                    error_row = {"part": number, "refusal": remote_errors.encode_error(error)}
                    yield pa.RecordBatch.from_pylist([error_row], RESULT)
                else:
                    rows = [{"part": number, "result": result} for result in results]
                    yield pa.RecordBatch.from_pylist(rows, RESULT)


def _ingest_partition(plan: IngestPlan, partition: FilePartition) -> Iterator[bytes]:
    bad_records_writer = _BadRecordWriter(plan)
    fragments = plan.target.write(_read_rows(plan, partition, bad_records_writer))
    bad_records_writer.flush()
    for fragment in fragments:
        yield _FRAGMENT + fragment.encode()
    for fragment in bad_records_writer.fragments:
        yield _DIVERTED + fragment.encode()
    yield _SUMMARY + json.dumps({"bad": bad_records_writer.count}).encode()


def _read_rows(
    plan: IngestPlan, partition: FilePartition, bad_records_writer: "_BadRecordWriter"
) -> Iterator[pa.RecordBatch]:
    for split in partition:
        source = SourceReader(split.file, plan.source_options, plan.contents)
        source.check_unchanged()
        for item in read_rows(source, split, plan.target.schema, plan.read_options):
            if isinstance(item, BadRecord):
                bad_records_writer.add(split.file.uri, item)
            else:
                yield item
        source.check_unchanged()


class _BadRecordWriter:
    """Writes bad records into files of their table, or raises the first one if there is no such table."""

    def __init__(self, plan: IngestPlan) -> None:
        self._target, self._ingest_id = plan.bad_records_target, plan.ingest_id
        self._buffered: list[tuple[str, BadRecord]] = []
        self._buffered_bytes = 0
        self.count = 0
        self.fragments: list[Fragment] = []

    def add(self, uri: str, bad: BadRecord) -> None:
        if self._target is None:
            raise bad_records.bad_record_error(bad, uri)
        self._buffered.append((uri, bad))
        self._buffered_bytes += len(bad.record or "")
        self.count += 1
        if len(self._buffered) >= _BAD_ROWS or self._buffered_bytes >= _BAD_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._buffered and self._target is not None:
            self.fragments += self._target.write([bad_records.to_batch(self._buffered, self._ingest_id)])
        self._buffered, self._buffered_bytes = [], 0


@dataclass(frozen=True, slots=True)
class IngestResult:
    """Results of all partitions."""

    fragments: tuple[Fragment, ...]
    diverted: tuple[bytes, ...]
    bad_count: int

    @classmethod
    def of(cls, results: Iterable[bytes]) -> "IngestResult":
        fragments, diverted, bad_count = [], [], 0
        for result in results:
            tag, payload = result[:1], result[1:]
            if tag == _FRAGMENT:
                fragments.append(Fragment.decode(payload))
            elif tag == _DIVERTED:
                diverted.append(payload)
            else:
                bad_count += json.loads(payload)["bad"]
        return cls(tuple(fragments), tuple(diverted), bad_count)


@dataclass(frozen=True, slots=True)
class SchemaTask:
    """Runs in a worker: partition numbers in, the schemas of their files out, each with the first file that has it."""

    read_options: ReadOptions
    partitions: tuple[bytes, ...]
    diverts_bad_records: bool
    stamp: VersionStamp
    source_options: SourceOptions = field(default_factory=dict, repr=False)
    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    self.stamp.check()
                    schemas = self._infer_schemas(decode_partition(self.partitions[number]))
                except InvalidInput as error:
                    error_row = {"part": number, "refusal": remote_errors.encode_error(error)}
                    yield pa.RecordBatch.from_pylist([error_row], RESULT)
                    continue
                rows = [
                    {"part": number, "result": json.dumps([uri, schema.hex()]).encode()}
                    for schema, uri in schemas.items()
                ]
                yield pa.RecordBatch.from_pylist(rows, RESULT)

    def _infer_schemas(self, partition: FilePartition) -> dict[bytes, str]:
        """Return the distinct schemas of the files, serialized, each with the first file that has it."""
        schemas: dict[bytes, str] = {}
        for split in partition:
            uri = split.file.uri
            source = SourceReader(split.file, self.source_options, self.contents)
            try:
                format_ = detect_format(uri, self.read_options.format)
                schema = (
                    infer_csv_schema(source, self.read_options.csv)
                    if format_ is Format.CSV
                    else infer_schema(source, format_)
                )
            except Unreadable as error:
                if not self.diverts_bad_records:
                    bad = BadRecord(f"the file cannot be read: {error}")
                    raise bad_records.bad_record_error(bad, uri) from error
                continue
            if schema is not None:
                mapped = map_schema(schema.remove_metadata(), dict(self.read_options.mapping), uri=uri)
                schemas.setdefault(mapped.serialize().to_pybytes(), uri)
        return schemas
