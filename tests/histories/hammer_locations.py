"""Locations of hammered tables: local disk, and an object store behind a network that loses, delays and truncates
messages."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from lance_core import Table
from tests.lance_core.storage.buckets import s3_options
from tests.lance_core.storage.faulty_proxy import FAULTS_OF_READS, FAULTS_OF_WRITES, FaultChooser, proxy_to
from tests.lance_core.storage.object_servers import s3

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
_ANSWER_TIMEOUT = "2s"
_CONDITIONAL_DIRECTORIES = ("_versions", "_lance_assets", "_delta_log")
"""Directories with conditional creates. A store answers 409 to such a request, and to no other."""
_TIMEOUT_FAULTS = ("hanging before", "hanging after")


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Location of a table with the storage options of the writers, and those of the final check, which reaches the
    table without faults."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict)
    faultless_options: Mapping[str, str] = field(default_factory=dict)

    def open_table(self) -> Table:
        return Table.open(self.uri, storage_options=self.faultless_options or None)


def create_local_table(directory: Path) -> TableLocation:
    location = TableLocation(str(directory / "hammered"))
    Table.create(location.uri, SCHEMA, durable=False)
    return location


@contextmanager
def create_s3_table(fault_fraction: float, seed: int = 0) -> Iterator[TableLocation]:
    """Create a table in an object store behind a network that injects faults into requests."""
    with s3() as server, proxy_to(server.endpoint, random_faults(fault_fraction, seed)) as chaos:
        bucket = server.bucket()
        options = {**s3_options(chaos.endpoint), "timeout": _ANSWER_TIMEOUT, "client_max_retries": "20"}
        location = TableLocation(f"{bucket.uri}/hammered", options, dict(bucket.options))
        Table.create(location.uri, SCHEMA, storage_options=dict(location.faultless_options))
        yield location


def random_faults(fault_fraction: float, seed: int) -> FaultChooser:
    """Return a decision that injects a random fault into this fraction of all requests."""
    generator = random.Random(seed)

    def decide(method: str, path: str) -> str | None:
        if generator.random() >= fault_fraction:
            return None
        if method in ("GET", "HEAD"):
            return generator.choice((*FAULTS_OF_READS, _TIMEOUT_FAULTS[0]))
        is_conditional = any(f"/{directory}/" in path for directory in _CONDITIONAL_DIRECTORIES)
        faults = (*FAULTS_OF_WRITES, *_TIMEOUT_FAULTS)
        return generator.choice([each for each in faults if is_conditional or not each.startswith("409")])

    return decide
