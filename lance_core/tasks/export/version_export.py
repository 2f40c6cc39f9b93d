"""Version export: workers write the rows of a version as files, and the driver lists those that count.

driver    export_version(base, request, runner)   refuses a directory that has files
workers   _ExportTask                             one file for each partition, under a name of the attempt
driver    checks that it finds the files, deletes those of lost attempts, writes `_SUCCESS.json`
"""

import json
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa

from lance_core.errors import InvalidInput, StorageError
from lance_core.expressions.arrow_filters import Condition
from lance_core.index import lookup
from lance_core.scan.executor import scan
from lance_core.scan.plan import plan_scan
from lance_core.storage.factory import without_secrets
from lance_core.tasks.export.file_targets import FileTarget, open_target
from lance_core.tasks.export.file_writers import SUFFIXES, write_file
from lance_core.tasks.ingest.formats import Format, parse_format
from lance_core.tasks.ingest.source_options import SourceOptions, check_source_options, inherited_options
from lance_core.tasks.partitioning import PartitionTask, Runner, VersionHeader, collect_results
from lance_core.tasks.scan.read import RowRanges, ScanSpec, partition_scan
from lance_core.versions.snapshot import Snapshot

LIST_NAME = "_SUCCESS.json"
_PREFIX = "part-"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Parameters of an export."""

    to: str
    format: str = "parquet"
    columns: Sequence[str] | None = None
    filter: Condition | None = None
    target_options: SourceOptions | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file of an export."""

    name: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Export:
    """A complete export."""

    uri: str
    version: int
    format: str
    files: tuple[ExportedFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def export_version(base: Snapshot, request: ExportRequest, *, runner: Runner) -> Export:
    """Write the rows of a version to a directory without files, and list the files in `_SUCCESS.json`."""
    format_ = parse_format(request.format)
    if format_ is None:
        raise InvalidInput("format= must name a format: parquet, csv, json or arrow")
    options = _target_options(base, request)
    target = open_target(request.to, options)
    if existing := target.names():
        raise InvalidInput(
            f"{without_secrets(request.to)} contains {existing[0]!r}; an export needs a directory without files, so "
            "that its files are not mixed with others"
        )
    plan = plan_scan(base.manifest, columns=request.columns, filter=request.filter, select=lookup.selector_of(base))
    schema = pa.schema([column.arrow for column in plan.output], plan.schema.metadata)
    partitions = partition_scan(plan, runner.slots, returns_rows=False)
    work = _ExportTask(
        request.to,
        options,
        format_,
        uuid.uuid4().hex[:12],
        schema,
        ScanSpec(plan.columns, plan.predicate),
        tuple(partition.ranges for partition in partitions),
    )
    results: list[bytes] = []
    if partitions:
        task = PartitionTask(VersionHeader.of(base), tuple(partition.fragments for partition in partitions), work)
        collected = collect_results(runner.run(task, len(partitions)), len(partitions), uri=base.location.uri)
        results = [result for number in sorted(collected) for result in collected[number]]
    files = tuple(ExportedFile(**json.loads(result)) for result in results)
    export = Export(without_secrets(request.to), base.manifest.version, format_.value, files)
    found = target.names()
    _check_complete(export, found)
    _delete_others(target, files, found, work.prefix)
    with tempfile.TemporaryDirectory() as directory:
        listed = Path(directory) / LIST_NAME
        listed.write_text(json.dumps({"table": base.location.uri, **asdict(export)}, indent=1))
        target.send(listed, LIST_NAME)
    return export


def _target_options(base: Snapshot, request: ExportRequest) -> SourceOptions:
    if request.target_options is not None:
        check_source_options(request.target_options, "target_options")
        return request.target_options
    location = base.location
    return inherited_options(location.access.storage_options, table=location.uri, files=[request.to])


def _check_complete(export: Export, found: Sequence[str]) -> None:
    """Raise `StorageError` if a file that a worker wrote is not in the directory that the driver lists."""
    names = frozenset(found)
    if missing := [file.name for file in export.files if file.name not in names]:
        raise StorageError(
            f"{len(missing)} of {len(export.files)} files that workers wrote to {export.uri} are not there for the "
            f"driver, such as {missing[0]}, so the export is not complete; give a directory that the driver and all "
            "workers share, and remove the files there"
        )


def _delete_others(target: FileTarget, files: Sequence[ExportedFile], found: Sequence[str], prefix: str) -> None:
    """Delete the files of attempts that were lost."""
    counted = {file.name for file in files}
    for name in found:
        if name.startswith(prefix) and name not in counted:
            target.delete(name)


@dataclass(frozen=True, slots=True)
class _ExportTask:
    """Writes the rows of one partition to one file; none if the partition has no rows."""

    to: str
    options: SourceOptions = field(repr=False)
    format: Format
    export_id: str
    schema: pa.Schema
    scan_spec: ScanSpec
    ranges: tuple[RowRanges, ...]

    @property
    def prefix(self) -> str:
        """Prefix of the names of all files of the export."""
        return f"{_PREFIX}{self.export_id}-"

    def __call__(self, partition: Snapshot, number: int) -> Iterator[bytes]:
        name = f"{self.prefix}{number:05}-{uuid.uuid4().hex[:8]}.{SUFFIXES[self.format]}"
        plan = self.scan_spec.plan_partition(partition, self.ranges[number])
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / name
            rows = write_file(path, self.format, self.schema, scan(partition.location, plan))
            if rows:
                open_target(self.to, self.options).send(path, name)
                yield json.dumps(asdict(ExportedFile(name, rows, path.stat().st_size))).encode()
