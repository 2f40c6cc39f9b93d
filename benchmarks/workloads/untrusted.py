"""Workload `untrusted`: price of `trusted=False`, which decodes all files in another process, for scans, rows by number
and many small files."""

import shutil
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pd

from benchmarks import inputs
from benchmarks.harness import Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.report import Facts
from lance_core import Table

_LINEITEMS: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 1_200_000, Scale.FULL: 6_000_000}
_SMALL_FILES: Mapping[Scale, int] = {Scale.SMOKE: 20, Scale.DEFAULT: 1_000, Scale.FULL: 1_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 7}
_ROWS_PER_SMALL_FILE = 100
_ROWS_TAKEN = 1_000
_TWO = ("l_orderkey", "l_extendedprice")


class Untrusted:
    name = "untrusted"
    summary = "scan, rows by number and small files of a table that is opened with trusted=False"
    notes = (
        "both open the table at each call and read the same files from a warm page cache",
        "the process that decodes has started before; its first start takes about a second",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"lineitem_rows": _LINEITEMS[scale], "rows_taken": _ROWS_TAKEN, "small_files": _SMALL_FILES[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        place, rows = stage.workspace / "lineitem", _LINEITEMS[stage.scale]
        stage.log("writing lineitem")
        parquet = inputs.lineitem_files(stage.input_cache, rows)
        Table.create(str(place), pd.dataset(str(parquet)).scanner().to_reader(), durable=False)
        yield _case("full scan, 16 columns", place, lambda table: table.to_table())
        yield _case("2 of 16 columns", place, lambda table: table.to_table(list(_TWO)))
        numbers = np.random.default_rng(7).choice(rows, min(_ROWS_TAKEN, rows), replace=False).tolist()
        yield _case(f"take {len(numbers)} random rows", place, lambda table: table.take(numbers))
        shutil.rmtree(place)

        place, files = stage.workspace / "small", _SMALL_FILES[stage.scale]
        stage.log(f"writing {files} small files")
        small = pa.table({"a": range(files * _ROWS_PER_SMALL_FILE), "s": ["text"] * (files * _ROWS_PER_SMALL_FILE)})
        Table.create(str(place), small, max_rows_per_file=_ROWS_PER_SMALL_FILE, durable=False)
        yield _case(f"{files} small files, 2 columns", place, lambda table: table.to_table())
        shutil.rmtree(place)


WORKLOAD = Untrusted()


@dataclass(slots=True)
class _Runner:
    """Runner that opens a table, reads, and retains the result for the comparison."""

    uri: str
    trusted: bool
    read: Callable[[Table], pa.Table]
    result: pa.Table = field(default_factory=lambda: pa.table({}))

    def before(self) -> None:
        self.result = pa.table({})

    def call(self) -> None:
        self.result = self.read(Table.open(self.uri, trusted=self.trusted))

    def facts(self) -> Facts:
        total = pc.sum(self.result.column(0)).as_py()
        return {"rows": self.result.num_rows, "columns": self.result.num_columns, "sum_of_the_first": int(total)}


def _case(name: str, place: Path, read: Callable[[Table], pa.Table]) -> Case:
    def runner(trusted: bool) -> Callable[[], Runner]:
        return lambda: _Runner(str(place), trusted, read)

    return Case(
        name,
        (Entrant("untrusted", Side.OURS, runner(False)), Entrant("trusted", Side.PEER, runner(True))),
    )
