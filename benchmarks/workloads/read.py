"""Workload `read`: time of scans of whole tables, of a few columns, few rows and row windows, of struct fields, of
rows by number, and of many small fragments.

Ours and pylance read the same table, which ours writes, into one Arrow table in memory. Each call opens the table
again, so the time includes opening the files.
"""

import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pd

from benchmarks import inputs
from benchmarks.harness import Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.report import Facts
from lance_core import Table
from lance_core.datafiles.fragment_writer import ROWS_PER_FILE_MAX

_LINEITEMS: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 1_200_000, Scale.FULL: 6_000_000}
_ROWS_TO_TAKE_FROM: Mapping[Scale, int] = {Scale.SMOKE: 5_000, Scale.DEFAULT: 2_000_000, Scale.FULL: 10_000_000}
_SMALL_FRAGMENTS: Mapping[Scale, int] = {Scale.SMOKE: 20, Scale.DEFAULT: 1_000, Scale.FULL: 1_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 7}
_ROWS_PER_SMALL_FRAGMENT = 1_000
_ROWS_TAKEN = 1_000
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
        "the codec is the same on both sides and uses all processors; ratios compare the work around it",
        "scattered: the filter's column holds whole numbers evenly spread; clustered: matching rows are neighbours",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {
            "lineitem_rows": _LINEITEMS[scale],
            "rows_to_take_from": _ROWS_TO_TAKE_FROM[scale],
            "rows_taken": _ROWS_TAKEN,
            "small_fragments": _SMALL_FRAGMENTS[scale],
        }

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        place, rows = stage.workspace / "lineitem", _LINEITEMS[stage.scale]
        stage.log("writing lineitem")
        parquet = inputs.lineitem_files(stage.input_cache, rows)
        Table.create(str(place), pd.dataset(str(parquet)).scanner().to_reader(), durable=False)
        yield _scan_case("full scan, 16 columns", place)
        yield _scan_case("2 of 16 columns", place, columns=_TWO)
        yield _scan_case("1 % filter, scattered, 4 columns", place, columns=_FOUR, filter=_ONE_PERCENT)
        yield _scan_case("1 % filter, scattered, 16 columns", place, filter=_ONE_PERCENT)
        yield _scan_case("1 % filter, clustered, 4 columns", place, columns=_FOUR, filter=_clustered_one_percent(rows))
        yield _scan_case("1 % filter, clustered, 16 columns", place, filter=_clustered_one_percent(rows))
        yield _scan_case("0.01 % filter, 16 columns", place, filter=_FEW)
        yield _count_case("count, 1 % filter", place, _ONE_PERCENT)
        yield _scan_case("1,000 rows from the middle", place, limit=1_000, offset=rows // 2)
        yield _scan_case("the first 1,000 that match 1 %", place, filter=_ONE_PERCENT, limit=1_000)
        shutil.rmtree(place)

        place, rows = stage.workspace / "nested", _LINEITEMS[stage.scale]
        stage.log("writing nested columns")
        Table.create(str(place), _nested_batches(rows), durable=False)
        yield _scan_case("2 fields of a struct of 5", place, columns=("p.x", "p.q.m"))
        shutil.rmtree(place)

        place, rows = stage.workspace / "wide", _ROWS_TO_TAKE_FROM[stage.scale]
        stage.log(f"writing {rows} rows to take from")
        Table.create(str(place), _numbered_batches(rows), durable=False)
        yield _take_case(f"take {_ROWS_TAKEN} random rows of {rows}", place, rows, by="offset")
        yield _take_case(f"take {_ROWS_TAKEN} random row addresses of {rows}", place, rows, by="row_address")
        shutil.rmtree(place)

        place = stage.workspace / "with ids"
        stage.log(f"writing {rows} rows with stable row ids to take from")
        Table.create(str(place), _numbered_batches(rows), stable_row_ids=True, durable=False)
        yield _take_case(f"take {_ROWS_TAKEN} random row ids of {rows}", place, rows, by="row_id")
        shutil.rmtree(place)

        place, fragments = stage.workspace / "small", _SMALL_FRAGMENTS[stage.scale]
        stage.log(f"writing {fragments} small fragments")
        _build_small(place, fragments)
        yield _scan_case(f"{fragments} small fragments, 5 columns", place)
        yield _scan_case(f"{fragments} small fragments, 1 column", place, columns=("a",))
        yield _scan_case(f"{fragments} small fragments, 1 % filter, 5 columns", place, filter="a % 100 = 0")
        shutil.rmtree(place)


WORKLOAD = Read()


@dataclass(slots=True)
class _ReadRunner:
    """Runner that reads and retains the result for the comparison."""

    work: Callable[[], pa.Table]
    result: pa.Table = field(default_factory=lambda: pa.table({}))

    def before(self) -> None:
        self.result = pa.table({})

    def call(self) -> None:
        self.result = self.work()

    def facts(self) -> Facts:
        numbers = self.result.column(0)
        total = pc.sum(numbers).as_py() if numbers.length() else 0
        return {"rows": self.result.num_rows, "columns": self.result.num_columns, "sum_of_the_first": int(total)}


def _scan_case(
    name: str,
    place: Path,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    limit: int | None = None,
    offset: int | None = None,
) -> Case:
    uri = str(place)

    def ours() -> Runner:
        return _ReadRunner(lambda: Table.open(uri).to_table(columns, filter, limit=limit, offset=offset))

    def pylance() -> Runner:
        import lance

        names = None if columns is None else list(columns)
        return _ReadRunner(
            lambda: lance.dataset(uri).to_table(columns=names, filter=filter, limit=limit, offset=offset)
        )

    return _build_case(name, ours, pylance)


def _count_case(name: str, place: Path, filter: str) -> Case:
    uri = str(place)

    def ours() -> Runner:
        return _ReadRunner(lambda: pa.table({"rows": [Table.open(uri).count_rows(filter)]}))

    def pylance() -> Runner:
        import lance

        return _ReadRunner(lambda: pa.table({"rows": [lance.dataset(uri).count_rows(filter)]}))

    return _build_case(name, ours, pylance)


def _take_case(name: str, place: Path, rows: int, *, by: Literal["offset", "row_id", "row_address"]) -> Case:
    uri = str(place)
    chosen = np.random.default_rng(7).choice(rows, _ROWS_TAKEN, replace=False)
    if by == "row_address":
        chosen = chosen // ROWS_PER_FILE_MAX << 32 | chosen % ROWS_PER_FILE_MAX
    numbers = chosen.tolist()

    def ours() -> Runner:
        return _ReadRunner(lambda: Table.open(uri).take(numbers, by=by))

    def pylance() -> Runner:
        import lance

        if by == "offset":
            return _ReadRunner(lambda: lance.dataset(uri).take(numbers))
        return _ReadRunner(lambda: lance.dataset(uri)._take_rows(numbers))

    return _build_case(name, ours, pylance)


def _build_case(name: str, ours: Callable[[], Runner], pylance: Callable[[], Runner]) -> Case:
    return Case(
        name,
        (Entrant("ours", Side.OURS, ours), Entrant("pylance", Side.PEER, pylance, needs=("pylance",))),
        calls=_CALLS,
    )


def _numbered_batches(rows: int) -> Iterator[pa.RecordBatch]:
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


def _clustered_one_percent(rows: int) -> str:
    """Return a condition for 1 % of the rows by order key; the keys ascend, with four rows each."""
    start = rows // 8
    return f"l_orderkey >= {start} AND l_orderkey < {start + rows // 400}"


def _nested_batches(rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, _ROWS_PER_BATCH):
        number = np.arange(start, min(start + _ROWS_PER_BATCH, rows), dtype=np.int64)
        words = pa.array([f"word {each}" for each in range(_NAMES)]).take(pa.array(number % _NAMES))
        inner = pa.StructArray.from_arrays([pa.array(number * 3), words], names=["m", "w"])
        arrays = [pa.array(number), pa.array(number / 7), words, pa.array(number % 1000), inner]
        struct = pa.StructArray.from_arrays(arrays, names=["x", "y", "label", "k", "q"])
        yield pa.RecordBatch.from_arrays([pa.array(number), struct], names=["id", "p"])


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
