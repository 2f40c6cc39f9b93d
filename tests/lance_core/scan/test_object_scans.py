"""Scans of object stores: how many requests they take, and how many of these at the same time.

A proxy in front of the emulator records the requests of this package and of the codec.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.datafiles.file_checks import FILE_CACHE
from tests.lance_core.storage.buckets import s3_options
from tests.lance_core.storage.faulty_proxy import FaultyProxy, proxy_to
from tests.lance_core.storage.object_servers import Server, s3

FRAGMENTS = 24
ROWS = pa.table(
    {"id": range(FRAGMENTS * 10), "a": [value / 2 for value in range(FRAGMENTS * 10)], "b": ["x"] * (FRAGMENTS * 10)}
)
TOGETHER = 16
SECONDS_MAX = 20


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3() as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: Server) -> Iterator[FaultyProxy]:
    with proxy_to(server.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def uri(server: Server) -> str:
    bucket = server.bucket()
    table = Table.create(f"{bucket.uri}/t", ROWS, max_rows_per_file=10, storage_options=bucket.options)
    table.delete("id in (3, 100)")
    return table.uri


def _requests(proxy: FaultyProxy, uri: str, read: Callable[[Table], object], expected: object) -> Counter[str]:
    """Return the requests for data files of a read by a new process, by method."""
    table = Table.open(uri, storage_options=s3_options(proxy.endpoint))
    FILE_CACHE.clear()
    proxy.requests.clear()
    assert read(table) == expected
    return Counter(method for method, path, _ in proxy.requests if "/data/" in path)


LIVE = [number for number in range(FRAGMENTS * 10) if number not in (3, 100)]


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda table: table.to_table()["id"].to_pylist(), LIVE),
        (lambda table: table.to_table(columns=["a", "id"])["id"].to_pylist(), LIVE),
        (lambda table: table.to_table(filter="a > 100")["id"].to_pylist(), [each for each in LIVE if each > 200]),
        (lambda table: table.count_rows("id < 120"), 118),
        (lambda table: table.take(range(0, len(LIVE), 10)).num_rows, FRAGMENTS),
    ],
    ids=["all", "two columns", "filter", "count", "take"],
)
def test_one_request_for_a_small_file(
    proxy: FaultyProxy, uri: str, read: Callable[[Table], object], expected: object
) -> None:
    """The manifest records sizes, so nothing asks for them, and each file is read once for all columns of a query."""
    assert _requests(proxy, uri, read, expected) == {"GET": FRAGMENTS}


@pytest.mark.parametrize(
    "read", [lambda table: table.to_table(), lambda table: table.take(range(len(LIVE)))], ids=["scan", "take"]
)
def test_many_requests_are_in_flight(proxy: FaultyProxy, uri: str, read: Callable[[Table], pa.Table]) -> None:
    """The first requests wait for one another, which a scan with one thread for each processor would never send."""
    arrived, numbers = threading.Barrier(TOGETHER), itertools.count()

    def wait_for_others(method: str, path: str) -> str | None:
        if "/data/" in path and next(numbers) < TOGETHER:
            arrived.wait(SECONDS_MAX)
        return None

    proxy.choose_fault = wait_for_others
    try:
        _requests(proxy, uri, lambda table: read(table).num_rows, len(LIVE))
    finally:
        proxy.choose_fault = lambda method, path: None
    assert not arrived.broken
