"""Counting: runs operations on an S3 emulator in a process of its own, which counts the requests of each.

Each call meets a copy of its table at an address of its own, so that no cache of the process knows it. Requests of the
preparation are not counted.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path

from lance_core import Table
from tests.lance_core.storage.counting_process import CountedStore
from tests.lance_core.storage.request_counts import RequestCounts
from tests.lance_core.storage.s3_process import s3_process
from tests.request_budget import tables
from tests.request_budget.operations import Operation, Prepare, TableAddress
from tests.request_budget.tables import TableKind

_AGE = timedelta(days=1)
"""Age of the objects of a table, since a cleanup leaves young ones alone."""


@dataclass(slots=True)
class TableCopies:
    """Copies of tables in a store. Each table is built once, in a local directory."""

    server: CountedStore
    directory: Path
    _built: dict[TableKind, Mapping[str, Path]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def create(self, kind: TableKind, system: str) -> TableAddress:
        """Copy a table into the store under a new name, without requests."""
        name = f"{kind.name.lower()}-{next(self._numbers)}"
        if kind is not TableKind.NONE:
            if kind not in self._built:
                self._built[kind] = tables.build(kind, self.directory / kind.name.lower())
            self.server.load(self._built[kind][system], name, _AGE)
        return TableAddress(f"{self.server.bucket.uri}/{name}", self.server.bucket.options)

    def remove(self, address: TableAddress) -> None:
        self.server.remove(address.uri.removeprefix(f"{self.server.bucket.uri}/"))


@dataclass(frozen=True, slots=True)
class Measured:
    ours: RequestCounts
    pylance: RequestCounts | None


@dataclass(frozen=True, slots=True)
class RequestCounter:
    copies: TableCopies

    def measure(self, operation: Operation, *, with_pylance: bool) -> Measured:
        pylance = operation.pylance if with_pylance else None
        return Measured(
            self._count("ours", operation.table, operation.ours),
            None if pylance is None else self._count("pylance", operation.table, pylance),
        )

    def _count(self, system: str, kind: TableKind, prepare: Prepare) -> RequestCounts:
        address = self.copies.create(kind, system)
        prepared = prepare(address)
        with prepared if isinstance(prepared, AbstractContextManager) else nullcontext(prepared) as call:
            self.copies.server.take_requests()
            call()
            counts = self.copies.server.take_requests().counts
        self.copies.remove(address)
        return counts


@contextmanager
def request_counter() -> Iterator[RequestCounter]:
    with s3_process() as server, tempfile.TemporaryDirectory() as directory:
        # The first write of a process checks the bucket, and the first use loads libraries.
        Table.create(f"{server.bucket.uri}/first", tables.rows(1), storage_options=server.bucket.options)
        yield RequestCounter(TableCopies(server, Path(directory)))
