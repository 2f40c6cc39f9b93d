"""Ingest environment: a source directory, a target table and in-process workers for tests of the ingest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from lance_core import Committed
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.ingest.coordinator import Changed, CsvFormat, Extra, IngestRequest, ReadOptions, ingest
from lance_core.tasks.partitioning import Runner
from tests.lance_core.tasks.in_process_workers import InProcessWorkers


@dataclass
class IngestEnvironment:
    """Source directory of an ingest, its target table and its table of bad records."""

    directory: Path
    runner: Runner = field(default_factory=InProcessWorkers)

    @property
    def source_uri(self) -> str:
        return str(self.directory / "landing")

    @property
    def uri(self) -> str:
        return str(self.directory / "table")

    @property
    def bad_records_uri(self) -> str:
        return str(self.directory / "side")

    def write_file(self, name: str, data: bytes | str) -> str:
        path = self.directory / "landing" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return str(path)

    def ingest(
        self,
        files: str | Sequence[str | Path] | None = None,
        *,
        format: str | None = None,
        csv: CsvFormat | None = None,
        mapping: Mapping[str, str] | None = None,
        extra: Extra = "refuse",
        schema: pa.Schema | None = None,
        on_bad_record: str = "fail",
        changed: Changed = "fail",
        branch: str | None = None,
        options: Mapping[str, str] | None = None,
        source_options: Mapping[str, object] | None = None,
        how: WriteOptions | None = None,
        uri: str | None = None,
    ) -> Committed:
        read_options = ReadOptions.of(format=format, csv=csv, mapping=mapping, extra=extra)
        limits = FileLimits()
        request = IngestRequest(
            self.source_uri if files is None else files,
            read_options,
            schema,
            on_bad_record,
            changed,
            limits,
            source_options,
        )
        return ingest(
            TableRef(uri or self.uri, branch, options), request, options=how or WriteOptions(), runner=self.runner
        )
