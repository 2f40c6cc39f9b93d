"""Tables to be hammered: on this machine's disk, and in an object store behind a network that loses, delays and
cuts what passes.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from lance_core import Table
from tests.lance_core.storage.chaos import FAULTS_OF_READS, FAULTS_OF_WRITES, Decide, between
from tests.lance_core.storage.servers import s3, s3_options

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
_ANSWER_TIMEOUT = "2s"
_WITH_CONDITIONS = ("_versions", "_lance_assets", "_delta_log")
"""Where names are created only if nothing is there. A store says 409 to such a request, and to no other."""
_HANGING = ("hanging before", "hanging after")


@dataclass(frozen=True, slots=True)
class Place:
    """A table, and how the writers reach it; the judge reaches it without faults."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict)
    quiet_options: Mapping[str, str] = field(default_factory=dict)

    def table(self) -> Table:
        return Table.open(self.uri, storage_options=self.quiet_options or None)


def local_place(directory: Path) -> Place:
    place = Place(str(directory / "hammered"))
    Table.create(place.uri, SCHEMA, durable=False)
    return place


@contextmanager
def s3_place(part: float, seed: int = 0) -> Iterator[Place]:
    """Behind a network and a store that do to requests what networks and stores do."""
    with s3() as server, between(server.endpoint, faults(part, seed)) as chaos:
        bucket = server.bucket()
        options = {**s3_options(chaos.endpoint), "timeout": _ANSWER_TIMEOUT, "client_max_retries": "20"}
        place = Place(f"{bucket.uri}/hammered", options, dict(bucket.options))
        Table.create(place.uri, SCHEMA, storage_options=dict(place.quiet_options))
        yield place


def faults(part: float, seed: int) -> Decide:
    """Something becomes of this part of all requests."""
    luck = random.Random(seed)

    def decide(method: str, path: str) -> str | None:
        if luck.random() >= part:
            return None
        if method in ("GET", "HEAD"):
            return luck.choice((*FAULTS_OF_READS, _HANGING[0]))
        conditional = any(f"/{directory}/" in path for directory in _WITH_CONDITIONS)
        how = (*FAULTS_OF_WRITES, *_HANGING)
        return luck.choice([each for each in how if conditional or not each.startswith("409")])

    return decide
