"""S3 emulator process: starts the emulator with latency in a process of its own, controls it, and stops it."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.lance_core.storage.buckets import Bucket, s3_options
from tests.lance_core.storage.request_counts import KINDS, RequestCounts
from tests.lance_core.storage.s3_emulator import BUCKET, CONTROL

_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class ObservedRequests:
    counts: RequestCounts
    in_flight_max: int
    """Largest number of requests at one time."""


@dataclass(frozen=True, slots=True)
class S3Process:
    endpoint: str

    @property
    def bucket(self) -> Bucket:
        return Bucket(f"s3://{BUCKET}", s3_options(self.endpoint))

    def create_bucket(self, name: str) -> None:
        self._control("create_bucket", {"name": name})

    def set_latency(self, latency: timedelta, *, throttling: int = 0) -> None:
        """Wait before each answer from now on. A seed of `throttling` adds bursts of 503 and lost connections."""
        self._control("settings", {"latency": latency.total_seconds(), "throttling": throttling})

    def load(self, directory: Path, prefix: str, age: timedelta = timedelta(0)) -> None:
        """Store the files of a directory as objects of this age, without requests."""
        arguments = {"directory": str(directory), "prefix": f"{BUCKET}/{prefix}", "age": age.total_seconds()}
        self._control("load", arguments)

    def remove(self, prefix: str) -> None:
        self._control("remove", {"prefix": f"{BUCKET}/{prefix}"})

    def take_requests(self) -> ObservedRequests:
        """Return the requests since the last call."""
        taken = self._control("take_statistics", {})
        numbers = {kind.lower(): taken["kinds"].get(kind, 0) for kind in KINDS}
        counts = RequestCounts(**numbers, bytes_read=taken["bytes_read"], bytes_written=taken["bytes_written"])
        return ObservedRequests(counts, taken["in_flight_max"])

    def _control(self, command: str, arguments: Mapping[str, object]) -> Any:
        request = urllib.request.Request(f"{self.endpoint}{CONTROL}{command}", json.dumps(arguments).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@contextmanager
def s3_process() -> Iterator[S3Process]:
    command = [sys.executable, "-m", "tests.lance_core.storage.s3_emulator"]
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        endpoint = process.stdout.readline().strip()
        assert endpoint, "the emulator has not started"
        yield S3Process(endpoint)
    finally:
        process.kill()  # children of a long test process have been seen to ignore SIGTERM
        process.wait()
        process.stdout.close()
