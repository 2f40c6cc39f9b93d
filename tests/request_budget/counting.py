"""Counting: runs operations against an S3 emulator behind a proxy on loopback, and counts the requests of each.

Each call meets a copy of its table at an address of its own, so that no cache of the process knows it. Requests of the
preparation are not counted.
"""

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import S3Backend, s3_backends

from lance_core import Table
from tests.lance_core.storage.faulty_proxy import FaultyProxy, proxy_to
from tests.lance_core.storage.object_servers import Bucket, Server, s3, s3_options
from tests.request_budget import tables
from tests.request_budget.operations import Operation, Prepare, TableAddress
from tests.request_budget.request_counts import RequestCounts
from tests.request_budget.tables import TableKind

_AGE = timedelta(days=1)
"""Age of the objects of a table, since a cleanup leaves young ones alone."""


@dataclass(frozen=True, slots=True)
class Measured:
    ours: RequestCounts
    pylance: RequestCounts | None


@dataclass(slots=True)
class RequestCounter:
    proxy: FaultyProxy
    bucket: Bucket
    directory: Path
    _built: dict[TableKind, dict[str, Path]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def measure(self, operation: Operation, *, with_pylance: bool) -> Measured:
        pylance = operation.pylance if with_pylance else None
        return Measured(
            self._count("ours", operation.table, operation.ours),
            None if pylance is None else self._count("pylance", operation.table, pylance),
        )

    def _count(self, system: str, kind: TableKind, prepare: Prepare) -> RequestCounts:
        address = self._copy(kind, system)
        prepared = prepare(address)
        with prepared if isinstance(prepared, AbstractContextManager) else nullcontext(prepared) as call:
            self.proxy.transfers.clear()
            call()
            counts = RequestCounts.of(tuple(self.proxy.transfers))
        _delete_files(self._bucket_name, address.uri.removeprefix(f"{self.bucket.uri}/"))
        return counts

    @property
    def _bucket_name(self) -> str:
        return self.bucket.uri.removeprefix("s3://")

    def _copy(self, kind: TableKind, system: str) -> TableAddress:
        """Copy a table into the store under a new name, without requests."""
        name = f"{kind.name.lower()}-{next(self._numbers)}"
        if kind is not TableKind.NONE:
            if kind not in self._built:
                self._built[kind] = dict(tables.build(kind, self.directory / kind.name.lower()))
            _put_files(self._built[kind][system], self._bucket_name, name)
        return TableAddress(f"{self.bucket.uri}/{name}", self.bucket.options)


def _put_files(directory: Path, bucket: str, prefix: str) -> None:
    backend: S3Backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            key = backend.put_object(bucket, f"{prefix}/{path.relative_to(directory)}", path.read_bytes())
            key.last_modified -= _AGE


def _delete_files(bucket: str, prefix: str) -> None:
    keys = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].get_bucket(bucket).keys
    for key in [key for key in keys if key.startswith(f"{prefix}/")]:
        del keys[key]


@contextmanager
def counter_on(server: Server) -> Iterator[RequestCounter]:
    with proxy_to(server.endpoint) as proxy, tempfile.TemporaryDirectory() as directory:
        bucket = server.bucket(proxy.endpoint)
        # The first write of a process checks the bucket, and the first use loads libraries.
        Table.create(f"{bucket.uri}/first", tables.rows(1), storage_options=s3_options(proxy.endpoint))
        yield RequestCounter(proxy, bucket, Path(directory))


@contextmanager
def request_counter() -> Iterator[RequestCounter]:
    with s3() as server, counter_on(server) as counter:
        yield counter
