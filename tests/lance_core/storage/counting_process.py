"""Counting process: starts a counting server in a process of its own, controls it, and stops it."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from tests.lance_core.storage.buckets import Bucket
from tests.lance_core.storage.counting_server import CONTROL
from tests.lance_core.storage.request_counts import KINDS, RequestCounts

_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class ObservedRequests:
    counts: RequestCounts
    in_flight_max: int
    """Largest number of requests at one time."""


class CountedStore(Protocol):
    """Bucket of an emulator that counts its requests and answers them after some time."""

    @property
    def bucket(self) -> Bucket: ...

    def set_latency(self, latency: timedelta, *, throttling: int = 0) -> None:
        """Wait before each answer from now on. A seed of `throttling` adds bursts of 503 and lost connections."""

    def load(self, directory: Path, prefix: str, age: timedelta = timedelta(0)) -> None:
        """Store the files of a directory, without counting requests. S3 gives the objects this age."""

    def remove(self, prefix: str) -> None:
        """Remove the objects below a prefix, without counting requests."""

    def take_requests(self) -> ObservedRequests:
        """Return the requests since the last call."""


@dataclass(frozen=True, slots=True)
class CountingProcess:
    endpoint: str

    def set_latency(self, latency: timedelta, *, throttling: int = 0) -> None:
        self.control("settings", {"latency": latency.total_seconds(), "throttling": throttling})

    def take_requests(self) -> ObservedRequests:
        taken = self.control("take_statistics", {})
        numbers = {kind.lower(): taken["kinds"].get(kind, 0) for kind in KINDS}
        counts = RequestCounts(**numbers, bytes_read=taken["bytes_read"], bytes_written=taken["bytes_written"])
        return ObservedRequests(counts, taken["in_flight_max"])

    def control(self, command: str, arguments: Mapping[str, object]) -> Any:
        request = urllib.request.Request(f"{self.endpoint}{CONTROL}{command}", json.dumps(arguments).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@contextmanager
def server_process(module: str, arguments: Sequence[str] = ()) -> Iterator[str]:
    """Start a server that prints its address, and yield the address."""
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        endpoint = process.stdout.readline().strip()
        assert endpoint, "the server has not started"
        yield endpoint
    finally:
        process.kill()  # children of a long test process have been seen to ignore SIGTERM
        process.wait()
        process.stdout.close()
