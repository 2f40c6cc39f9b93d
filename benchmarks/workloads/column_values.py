"""Workload `column_values`: adds a column in one process and merges one by key, compared with pylance, and replaces the
values of a column, compared with adding it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import inputs
from benchmarks.harness import Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.report import Facts
from lance_core import Table

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 2_000_000, Scale.FULL: 10_000_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 5}


class ColumnValues:
    name = "column_values"
    summary = (
        "a column added by an expression or merged by key, against pylance; its values replaced, against adding it"
    )
    notes = (
        "one process, no Spark; four columns, one of which the expression reads",
        "'ours, no fsync' is the like of pylance, which makes nothing durable",
        "all values change when the column is replaced; with stable row ids, the version records the changed rows",
        "the rows that are merged by key are in memory, as many as the table has, in a random order",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"rows": _ROWS[scale], "rows_per_fragment": _rows_per_fragment(scale)}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        stage.log("generating the rows, or reusing cached ones")
        rows = _ROWS[stage.scale]
        events = pq.read_table(inputs.event_files(stage.input_cache, rows))

        def enter(
            runner: "type[_Runner]", name: str, *, durable: bool = True, stable_row_ids: bool = False
        ) -> Callable[[], Runner]:
            def create() -> Runner:
                uri, rows_max = str(stage.workspace / name), _rows_per_fragment(stage.scale)
                Table.create(uri, events, max_rows_per_file=rows_max, stable_row_ids=stable_row_ids, durable=durable)
                return runner(uri, durable)

            return create

        yield Case(
            f"add a column to {rows} rows",
            (
                Entrant("ours", Side.OURS, enter(_Add, "added")),
                Entrant("ours, no fsync", Side.OURS, enter(_Add, "added-no-fsync", durable=False)),
                Entrant("pylance", Side.PEER, enter(_PylanceAdd, "pylance"), needs=("pylance",)),
            ),
        )
        yield Case(
            f"replace a column of {rows} rows",
            (
                Entrant("ours", Side.OURS, enter(_Replace, "replaced")),
                Entrant("ours, adding it", Side.PEER, enter(_Add, "added-again")),
            ),
        )
        yield Case(
            f"replace a column of {rows} rows with stable row ids",
            (
                Entrant("ours", Side.OURS, enter(_Replace, "replaced-stable", stable_row_ids=True)),
                Entrant("ours, adding it", Side.PEER, enter(_Add, "added-stable", stable_row_ids=True)),
            ),
        )
        yield Case(
            f"merge a column into {rows} rows by key",
            (
                Entrant("ours", Side.OURS, enter(_Merge, "merged")),
                Entrant("ours, no fsync", Side.OURS, enter(_Merge, "merged-no-fsync", durable=False)),
                Entrant("pylance", Side.PEER, enter(_PylanceMerge, "pylance-merged"), needs=("pylance",)),
            ),
        )


WORKLOAD = ColumnValues()


def _rows_per_fragment(scale: Scale) -> int:
    return max(1, min(1_000_000, _ROWS[scale] // 4))


@dataclass(frozen=True, slots=True)
class _Runner(ABC):
    uri: str
    durable: bool

    def open(self) -> Table:
        return Table.open(self.uri, durable=self.durable)

    def before(self) -> None:
        table = self.open()
        if "y" in table.schema.names:
            table.drop_columns(["y"])

    @abstractmethod
    def call(self) -> None:
        """Write the column."""

    def facts(self) -> Facts:
        values = self.open().to_table(columns=["y"])["y"]
        return {"rows": len(values), "sum": str(pc.sum(values).as_py())}


class _Add(_Runner):
    def call(self) -> None:
        self.open().add_columns({"y": "x * 2.0"})


class _PylanceAdd(_Runner):
    def call(self) -> None:
        import lance

        lance.dataset(self.uri).add_columns({"y": "x * 2.0"})


class _Merge(_Runner):
    def call(self) -> None:
        self.open().merge_columns(_shuffled_values(self.open().count_rows()), on="id")


class _PylanceMerge(_Runner):
    def call(self) -> None:
        import lance

        table = lance.dataset(self.uri)
        table.merge(_shuffled_values(table.count_rows()), "id")


@cache
def _shuffled_values(rows: int) -> pa.Table:
    """Return a value for each id of the table, in a random order."""
    ids = np.random.default_rng(rows).permutation(rows)
    return pa.table({"id": ids, "y": ids * 2.0})


class _Replace(_Add):
    def before(self) -> None:
        table = self.open()
        if "y" in table.schema.names:
            table = table.drop_columns(["y"]).table
        table.add_columns({"y": "x + 1.0"})

    def call(self) -> None:
        self.open().add_columns({"y": "x * 2.0"}, replace=True)
