"""What reading costs: whole tables, a few columns, few rows, rows picked by number, and many small fragments.

Ours and pylance's read the same table, written here by ours. Everything is read into memory as one Arrow table. What
the files cost to open is part of it: each call opens the table anew.
"""

import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
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
_ROWS_TO_TAKE_FROM: Mapping[Scale, int] = {Scale.SMOKE: 5_000, Scale.DEFAULT: 2_000_000, Scale.FULL: 10_000_000}
_SMALL_FRAGMENTS: Mapping[Scale, int] = {Scale.SMOKE: 20, Scale.DEFAULT: 1_000, Scale.FULL: 1_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 7}
_ROWS_PER_SMALL_FRAGMENT = 1_000
_TAKEN = 1_000
_ROWS_PER_BATCH = 500_000
_NAMES = 5_000
_CALLS = 3

_TWO = ("l_orderkey", "l_extendedprice")
_FOUR = ("l_orderkey", "l_extendedprice", "l_shipdate", "l_comment")
_ONE_PERCENT = "l_partkey < 2000"
_FEW = "l_partkey < 20"


class Read:
    name = "read"
    summary = "scans of all and of some columns, filters, rows by number, many small fragments"
    notes = (
        "both read the same files into one Arrow table, from a warm page cache, and open the table at each call",
        "the codec is the same on both sides and uses all processors; ratios tell what is around it",
        "the filter's column holds whole numbers evenly scattered, so the rows that match are too",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {
            "lineitem_rows": _LINEITEMS[scale],
            "rows_to_take_from": _ROWS_TO_TAKE_FROM[scale],
            "rows_taken": _TAKEN,
            "small_fragments": _SMALL_FRAGMENTS[scale],
        }

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        place = stage.workspace / "lineitem"
        stage.log("writing lineitem")
        parquet = inputs.lineitem(stage.kept, _LINEITEMS[stage.scale])
        Table.create(str(place), pd.dataset(str(parquet)).scanner().to_reader(), durable=False)
        yield _scans("full scan, 16 columns", place)
        yield _scans("2 of 16 columns", place, columns=_TWO)
        yield _scans("1 % filter, 4 columns", place, columns=_FOUR, filter=_ONE_PERCENT)
        yield _scans("1 % filter, 16 columns", place, filter=_ONE_PERCENT)
        yield _scans("0.01 % filter, 16 columns", place, filter=_FEW)
        yield _counts("count, 1 % filter", place, _ONE_PERCENT)
        shutil.rmtree(place)

        place, rows = stage.workspace / "wide", _ROWS_TO_TAKE_FROM[stage.scale]
        stage.log(f"writing {rows} rows to take from")
        Table.create(str(place), _numbered(rows), durable=False)
        yield _takes(f"take {_TAKEN} random rows of {rows}", place, rows)
        shutil.rmtree(place)

        place, fragments = stage.workspace / "small", _SMALL_FRAGMENTS[stage.scale]
        stage.log(f"writing {fragments} small fragments")
        _build_small(place, fragments)
        yield _scans(f"{fragments} small fragments, 5 columns", place)
        yield _scans(f"{fragments} small fragments, 1 column", place, columns=("a",))
        shutil.rmtree(place)


WORKLOAD = Read()


@dataclass(slots=True)
class _Reading:
    """Reads and keeps what it read, for the comparison."""

    work: Callable[[], pa.Table]
    found: pa.Table = field(default_factory=lambda: pa.table({}))

    def before(self) -> None:
        self.found = pa.table({})

    def call(self) -> None:
        self.found = self.work()

    def facts(self) -> Facts:
        numbers = self.found.column(0)
        total = pc.sum(numbers).as_py() if numbers.length() else 0
        return {"rows": self.found.num_rows, "columns": self.found.num_columns, "sum_of_the_first": int(total)}


def _scans(name: str, place: Path, *, columns: Sequence[str] | None = None, filter: str | None = None) -> Case:
    uri = str(place)

    def ours() -> Runner:
        return _Reading(lambda: Table.open(uri).to_table(columns, filter))

    def pylance() -> Runner:
        import lance

        wanted = None if columns is None else list(columns)
        return _Reading(lambda: lance.dataset(uri).to_table(columns=wanted, filter=filter))

    return _case(name, ours, pylance)


def _counts(name: str, place: Path, filter: str) -> Case:
    uri = str(place)

    def ours() -> Runner:
        return _Reading(lambda: pa.table({"rows": [Table.open(uri).count_rows(filter)]}))

    def pylance() -> Runner:
        import lance

        return _Reading(lambda: pa.table({"rows": [lance.dataset(uri).count_rows(filter)]}))

    return _case(name, ours, pylance)


def _takes(name: str, place: Path, rows: int) -> Case:
    uri = str(place)
    chosen = np.random.default_rng(7).choice(rows, _TAKEN, replace=False).tolist()

    def ours() -> Runner:
        return _Reading(lambda: Table.open(uri).take(chosen))

    def pylance() -> Runner:
        import lance

        return _Reading(lambda: lance.dataset(uri).take(chosen))

    return _case(name, ours, pylance)


def _case(name: str, ours: Callable[[], Runner], pylance: Callable[[], Runner]) -> Case:
    return Case(
        name,
        (Entrant("ours", Side.OURS, ours), Entrant("pylance", Side.PEER, pylance, needs=("pylance",))),
        calls=_CALLS,
    )


def _numbered(rows: int) -> Iterator[pa.RecordBatch]:
    names = pa.array([f"name {number}" for number in range(_NAMES)])
    for start in range(0, rows, _ROWS_PER_BATCH):
        count = min(_ROWS_PER_BATCH, rows - start)
        random = np.random.default_rng(start)
        yield pa.RecordBatch.from_pydict(
            {
                "id": np.arange(start, start + count, dtype=np.int64),
                "k": random.integers(0, 10**9, count),
                "x": random.random(count),
                "y": random.random(count),
                "name": names.take(pa.array(random.integers(0, _NAMES, count))),
            }
        )


def _build_small(place: Path, fragments: int) -> None:
    rows = fragments * _ROWS_PER_SMALL_FRAGMENT
    number = np.arange(rows, dtype=np.int64)
    data = pa.table(
        {
            "a": number,
            "b": number * 0.5,
            "c": [f"text {each}" for each in range(rows)],
            "d": number * 3,
            "e": number / 7,
        }
    )
    Table.create(str(place), data, max_rows_per_file=_ROWS_PER_SMALL_FRAGMENT, durable=False)
