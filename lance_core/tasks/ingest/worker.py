"""What a worker does of an ingest, and how files are dealt out to workers.

    driver     dealt(files, ...)                   parts of files, in shares of about equally many bytes
    workers    IngestTask(plan, shares)(numbers)   reads the files of a share, writes fragments, tells what it did
    driver     Outcome.of(results)                 fragments, rows, what was diverted

Files of a share go into the same fragments, one after the other, so that a thousand small files do not become as many
fragments. A share is a text, packed: the names of a hundred thousand files are a few megabytes that way. Only the
schema of files of a new table is found out by a task of its own, `SchemaTask`.
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
from lance_core.tasks.ingest.sources import SourceFile, SourceReader
from lance_core.tasks.partitioning import RESULT
from lance_core.tasks.version_stamp import VersionStamp
from lance_core.versions.location import Location, locate

PARTITIONS_PER_SLOT = 2
_SHARE_BYTES_MIN, _SHARE_BYTES_MAX = 8 * 1024 * 1024, 256 * 1024 * 1024
_OPENING_BYTES = 64 * 1024
"""What it costs to open a file, as bytes that could be read meanwhile."""
_PACKED = 4
"""Bytes of text for each that is compressed."""
_BAD_ROWS, _BAD_BYTES = 65_536, 16 * 1024 * 1024
_FRAGMENT, _DIVERTED, _TOLD = b"f", b"b", b"t"

FilePartition = tuple[FileSplit, ...]


def partition_files(files: Sequence[SourceFile], reading: ReadOptions, slots: int) -> list[FilePartition]:
    """In the order of the files. Large ones are cut, where their format has places to cut at."""
    weights = [_weight(file) for file in files]
    target = sum(weights) // max(1, slots * PARTITIONS_PER_SLOT)
    target = min(max(target, _SHARE_BYTES_MIN), _SHARE_BYTES_MAX)
    shares: list[list[FileSplit]] = []
    room = 0
    for file, weight in zip(files, weights, strict=True):
        cuts = (
            max(1, -(-weight // target))
            if weight > target * 3 // 2 and is_splittable(file, reading.csv, reading.format)
            else 1
        )
        for number in range(cuts):
            if not shares or room < weight // cuts // 2:
                shares.append([])
                room = target
            shares[-1].append(FileSplit(file, number, cuts))
            room -= weight // cuts
    return [tuple(share) for share in shares]


def _weight(file: SourceFile) -> int:
    return file.size * (_PACKED if detect_compression(file.uri) else 1) + _OPENING_BYTES


def encode_partition(share: FilePartition) -> bytes:
    told = [[part.file.uri, part.file.size, part.file.tag, part.number, part.count] for part in share]
    return zlib.compress(json.dumps(told, separators=(",", ":")).encode(), 1)


def decode_partition(share: bytes) -> FilePartition:
    return tuple(
        FileSplit(SourceFile(uri, size, tag), number, count)
        for uri, size, tag, number, count in json.loads(zlib.decompress(share))
    )


@dataclass(frozen=True, slots=True)
class IngestTarget:
    """Where rows are written, and as what."""

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
    read_options: ReadOptions
    target: IngestTarget
    bad_records_target: IngestTarget | None
    """Where bad records go; None: the first one ends it."""
    ingest_id: str
    stamp: VersionStamp
    source_options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class IngestTask:
    """Numbers of shares in, what became of them out: rows of `parts.RESULT`."""

    plan: IngestPlan
    partitions: tuple[bytes, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    self.plan.stamp.check()
                    results = [*_ingested(self.plan, decode_partition(self.partitions[number]))]
                except InvalidInput as error:
                    told = {"part": number, "refusal": remote_errors.encode_error(error)}
                    yield pa.RecordBatch.from_pylist([told], RESULT)
                else:
                    rows = [{"part": number, "result": result} for result in results]
                    yield pa.RecordBatch.from_pylist(rows, RESULT)


def _ingested(plan: IngestPlan, share: FilePartition) -> Iterator[bytes]:
    diverted = _BadRecordWriter(plan)
    fragments = plan.target.write(_read_rows(plan, share, diverted))
    diverted.flush()
    for fragment in fragments:
        yield _FRAGMENT + fragment.encode()
    for fragment in diverted.fragments:
        yield _DIVERTED + fragment.encode()
    yield _TOLD + json.dumps({"bad": diverted.count}).encode()


def _read_rows(plan: IngestPlan, share: FilePartition, diverted: "_BadRecordWriter") -> Iterator[pa.RecordBatch]:
    for part in share:
        source = SourceReader(part.file, plan.source_options)
        source.check_unchanged()
        for found in read_rows(source, part, plan.target.schema, plan.read_options):
            if isinstance(found, BadRecord):
                diverted.add(part.file.uri, found)
            else:
                yield found
        source.check_unchanged()


class _BadRecordWriter:
    """Bad records on their way into files of the side table; or the first of them, raised."""

    def __init__(self, plan: IngestPlan) -> None:
        self._side, self._ingest = plan.bad_records_target, plan.ingest_id
        self._waiting: list[tuple[str, BadRecord]] = []
        self._bytes = 0
        self.count = 0
        self.fragments: list[Fragment] = []

    def add(self, uri: str, bad: BadRecord) -> None:
        if self._side is None:
            raise bad_records.bad_record_error(bad, uri)
        self._waiting.append((uri, bad))
        self._bytes += len(bad.record or "")
        self.count += 1
        if len(self._waiting) >= _BAD_ROWS or self._bytes >= _BAD_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._waiting and self._side is not None:
            self.fragments += self._side.write([bad_records.to_batch(self._waiting, self._ingest)])
        self._waiting, self._bytes = [], 0


@dataclass(frozen=True, slots=True)
class IngestResult:
    """Of all shares."""

    fragments: tuple[Fragment, ...]
    diverted: tuple[bytes, ...]
    bad_count: int

    @classmethod
    def of(cls, results: Iterable[bytes]) -> "IngestResult":
        fragments, diverted, bad = [], [], 0
        for result in results:
            kind, told = result[:1], result[1:]
            if kind == _FRAGMENT:
                fragments.append(Fragment.decode(told))
            elif kind == _DIVERTED:
                diverted.append(told)
            else:
                bad += json.loads(told)["bad"]
        return cls(tuple(fragments), tuple(diverted), bad)


@dataclass(frozen=True, slots=True)
class SchemaTask:
    """Numbers of shares in, the schemas of their files out, each with the first file that has it."""

    read_options: ReadOptions
    partitions: tuple[bytes, ...]
    diverts_bad_records: bool
    stamp: VersionStamp
    source_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    self.stamp.check()
                    found = self._found(decode_partition(self.partitions[number]))
                except InvalidInput as error:
                    told = {"part": number, "refusal": remote_errors.encode_error(error)}
                    yield pa.RecordBatch.from_pylist([told], RESULT)
                    continue
                rows = [
                    {"part": number, "result": json.dumps([uri, schema.hex()]).encode()}
                    for schema, uri in found.items()
                ]
                yield pa.RecordBatch.from_pylist(rows, RESULT)

    def _found(self, share: FilePartition) -> dict[bytes, str]:
        found: dict[bytes, str] = {}
        for part in share:
            uri = part.file.uri
            source = SourceReader(part.file, self.source_options)
            try:
                kind = detect_format(uri, self.read_options.format)
                schema = (
                    infer_csv_schema(source, self.read_options.csv)
                    if kind is Format.CSV
                    else infer_schema(source, kind)
                )
            except Unreadable as error:
                if not self.diverts_bad_records:
                    bad = BadRecord(f"the file cannot be read: {error}")
                    raise bad_records.bad_record_error(bad, uri) from error
                continue
            if schema is not None:
                known = map_schema(schema.remove_metadata(), dict(self.read_options.mapping), uri=uri)
                found.setdefault(known.serialize().to_pybytes(), uri)
        return found
