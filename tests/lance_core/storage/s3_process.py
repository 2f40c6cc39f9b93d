"""S3 emulator process: starts the emulator with latency in a process of its own, controls it, and stops it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tests.lance_core.storage.buckets import Bucket, s3_options
from tests.lance_core.storage.counting_process import CountingProcess, server_process
from tests.lance_core.storage.s3_emulator import BUCKET


@dataclass(frozen=True, slots=True)
class S3Process(CountingProcess):
    @property
    def bucket(self) -> Bucket:
        return Bucket(f"s3://{BUCKET}", s3_options(self.endpoint))

    def create_bucket(self, name: str) -> None:
        self.control("create_bucket", {"name": name})

    def load(self, directory: Path, prefix: str, age: timedelta = timedelta(0)) -> None:
        arguments = {"directory": str(directory), "prefix": f"{BUCKET}/{prefix}", "age": age.total_seconds()}
        self.control("load", arguments)

    def remove(self, prefix: str) -> None:
        self.control("remove", {"prefix": f"{BUCKET}/{prefix}"})


@contextmanager
def s3_process() -> Iterator[S3Process]:
    with server_process("tests.lance_core.storage.s3_emulator") as endpoint:
        yield S3Process(endpoint)
