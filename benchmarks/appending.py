"""Four ways to append to a table, for workloads whose writers are many: ours made durable, ours not, and two peers.

What lives here: what the user of each library would write, and which errors mean "try again". Who appends, how often
and at the same time as whom is up to the workload. A library is imported when it is opened.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from benchmarks.harness import Side
from lance_core import LanceError, Table

Options = Mapping[str, str]
Appender = Callable[[pa.Table], object]
"""Appends to a table as it was opened, perhaps a while ago."""

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def row(number: int) -> pa.Table:
    return pa.table({"id": [number], "name": ["one"]}, schema=SCHEMA)


class Library(Protocol):
    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """After these a user tries again."""

    def create(self, uri: str, options: Options) -> None:
        """An empty table."""

    def opened(self, uri: str, options: Options) -> Appender: ...

    def append(self, uri: str, rows: pa.Table, options: Options, intent: str | None) -> None:
        """To the newest version, by path. Of an intent only those make use who know of such."""

    def ids(self, uri: str, options: Options) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Ours:
    durable: bool
    errors: tuple[type[Exception], ...] = (LanceError,)

    def create(self, uri: str, options: Options) -> None:
        Table.create(uri, SCHEMA, storage_options=options or None, durable=self.durable)

    def opened(self, uri: str, options: Options) -> Appender:
        return Table.open(uri, storage_options=options or None, durable=self.durable).append

    def append(self, uri: str, rows: pa.Table, options: Options, intent: str | None) -> None:
        Table.open(uri, storage_options=options or None, durable=self.durable).append(rows, intent=intent)

    def ids(self, uri: str, options: Options) -> Sequence[int]:
        found: list[int] = Table.open(uri, storage_options=options or None).to_table(columns=["id"])["id"].to_pylist()
        return found


@dataclass(frozen=True, slots=True)
class Pylance:
    errors: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError)

    def create(self, uri: str, options: Options) -> None:
        import lance

        lance.write_dataset(SCHEMA.empty_table(), uri, storage_options=dict(options) or None)

    def opened(self, uri: str, options: Options) -> Appender:
        import lance

        dataset = lance.dataset(uri, storage_options=dict(options) or None)
        return lambda rows: lance.write_dataset(rows, dataset, mode="append")

    def append(self, uri: str, rows: pa.Table, options: Options, intent: str | None) -> None:
        import lance

        lance.write_dataset(rows, uri, mode="append", storage_options=dict(options) or None)

    def ids(self, uri: str, options: Options) -> Sequence[int]:
        import lance

        dataset = lance.dataset(uri, storage_options=dict(options) or None)
        found: list[int] = dataset.to_table(columns=["id"])["id"].to_pylist()
        return found


@dataclass(frozen=True, slots=True)
class Delta:
    errors: tuple[type[Exception], ...]

    @classmethod
    def loaded(cls) -> "Delta":
        from deltalake.exceptions import DeltaError

        return cls((DeltaError, OSError))

    def create(self, uri: str, options: Options) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(uri, SCHEMA, storage_options=dict(options) or None)

    def opened(self, uri: str, options: Options) -> Appender:
        from deltalake import DeltaTable, write_deltalake

        table = DeltaTable(uri, storage_options=dict(options) or None)
        return lambda rows: write_deltalake(table, rows, mode="append")

    def append(self, uri: str, rows: pa.Table, options: Options, intent: str | None) -> None:
        from deltalake import write_deltalake

        write_deltalake(uri, rows, mode="append", storage_options=dict(options) or None)

    def ids(self, uri: str, options: Options) -> Sequence[int]:
        from deltalake import DeltaTable

        rows = pa.table(DeltaTable(uri, storage_options=dict(options) or None).to_pyarrow_table(columns=["id"]))
        found: list[int] = rows["id"].to_pylist()
        return found


@dataclass(frozen=True, slots=True)
class System:
    """Under which name a library takes part."""

    name: str
    side: Side
    load: Callable[[], Library]
    needs: tuple[str, ...] = ()


OURS = System("ours", Side.OURS, lambda: Ours(durable=True))
OURS_NO_FSYNC = System("ours, no fsync", Side.OURS, lambda: Ours(durable=False))
PYLANCE = System("pylance", Side.PEER, Pylance, needs=("pylance",))
DELTA = System("deltalake", Side.PEER, Delta.loaded, needs=("deltalake",))
SYSTEMS: Mapping[str, System] = {each.name: each for each in (OURS, OURS_NO_FSYNC, PYLANCE, DELTA)}
