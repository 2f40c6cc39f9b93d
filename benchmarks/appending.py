"""Append adapters: four systems that append to a table, namely ours with fsync, ours without it, and two peers.

This module holds the code that a user of each library would write, and the errors after which that user retries. The
workload decides which processes append, how often and with how much concurrency. A library is imported when its
adapter is loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from benchmarks.harness import Side
from lance_core import LanceError, Table

Options = Mapping[str, str]
Appender = Callable[[pa.Table], object]
"""Function that appends to a table object which was opened earlier, possibly many commits ago."""

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def make_row(number: int) -> pa.Table:
    return pa.table({"id": [number], "name": ["one"]}, schema=SCHEMA)


class Library(Protocol):
    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Errors after which a user retries the append."""

    def create(self, uri: str, options: Options) -> None:
        """Create an empty table."""

    def open_appender(self, uri: str, options: Options) -> Appender: ...

    def append(self, uri: str, rows: pa.Table, options: Options, intent: str | None) -> None:
        """Open the newest version by its path and append. Only libraries that support intents use `intent`."""

    def read_ids(self, uri: str, options: Options) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Ours:
    durable: bool
    errors: tuple[type[Exception], ...] = (LanceError,)

    def create(self, uri: str, options: Options) -> None:
        Table.create(uri, SCHEMA, storage_options=options or None, durable=self.durable)

    def open_appender(self, uri: str, options: Options) -> Appender:
        return Table.open(uri, storage_options=options or None, durable=self.durable).append

    def append(self, uri: str, rows: pa.Table, options: Options, intent: str | None) -> None:
        Table.open(uri, storage_options=options or None, durable=self.durable).append(rows, intent=intent)

    def read_ids(self, uri: str, options: Options) -> Sequence[int]:
        ids: list[int] = Table.open(uri, storage_options=options or None).to_table(columns=["id"])["id"].to_pylist()
        return ids


@dataclass(frozen=True, slots=True)
class Pylance:
    errors: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError)

    def create(self, uri: str, options: Options) -> None:
        import lance

        lance.write_dataset(SCHEMA.empty_table(), uri, storage_options=dict(options) or None)

    def open_appender(self, uri: str, options: Options) -> Appender:
        import lance

        dataset = lance.dataset(uri, storage_options=dict(options) or None)
        return lambda rows: lance.write_dataset(rows, dataset, mode="append")

    def append(self, uri: str, rows: pa.Table, options: Options, intent: str | None) -> None:
        import lance

        lance.write_dataset(rows, uri, mode="append", storage_options=dict(options) or None)

    def read_ids(self, uri: str, options: Options) -> Sequence[int]:
        import lance

        dataset = lance.dataset(uri, storage_options=dict(options) or None)
        ids: list[int] = dataset.to_table(columns=["id"])["id"].to_pylist()
        return ids


@dataclass(frozen=True, slots=True)
class Delta:
    errors: tuple[type[Exception], ...]

    @classmethod
    def load(cls) -> "Delta":
        from deltalake.exceptions import DeltaError

        return cls((DeltaError, OSError))

    def create(self, uri: str, options: Options) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(uri, SCHEMA, storage_options=dict(options) or None)

    def open_appender(self, uri: str, options: Options) -> Appender:
        from deltalake import DeltaTable, write_deltalake

        table = DeltaTable(uri, storage_options=dict(options) or None)
        return lambda rows: write_deltalake(table, rows, mode="append")

    def append(self, uri: str, rows: pa.Table, options: Options, intent: str | None) -> None:
        from deltalake import write_deltalake

        write_deltalake(uri, rows, mode="append", storage_options=dict(options) or None)

    def read_ids(self, uri: str, options: Options) -> Sequence[int]:
        from deltalake import DeltaTable

        rows = pa.table(DeltaTable(uri, storage_options=dict(options) or None).to_pyarrow_table(columns=["id"]))
        ids: list[int] = rows["id"].to_pylist()
        return ids


@dataclass(frozen=True, slots=True)
class System:
    """System under the name that the reports show."""

    name: str
    side: Side
    load: Callable[[], Library]
    needs: tuple[str, ...] = ()


OURS = System("ours", Side.OURS, lambda: Ours(durable=True))
OURS_NO_FSYNC = System("ours, no fsync", Side.OURS, lambda: Ours(durable=False))
PYLANCE = System("pylance", Side.PEER, Pylance, needs=("pylance",))
DELTA = System("deltalake", Side.PEER, Delta.load, needs=("deltalake",))
SYSTEMS: Mapping[str, System] = {system.name: system for system in (OURS, OURS_NO_FSYNC, PYLANCE, DELTA)}
